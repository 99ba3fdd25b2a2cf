"""The messages of a chat, kept within the model's context."""

from collections.abc import Callable

Message = dict[str, str]


class Conversation:
    """Messages that always fit the context: the oldest are dropped to keep `room` for an answer.

    `encode` turns messages into the prompt's token ids; `context` and `room` are in tokens.

    >>> talk = Conversation(lambda messages: [0] * 10 * len(messages), context=45, room=10)
    >>> len(talk.ask("a")[0]), talk.answered("b"), len(talk.ask("c")[0]), talk.answered("d")
    (10, None, 30, None)
    >>> talk.ask("e")[1], [m["content"] for m in talk.messages]
    (2, ['c', 'd', 'e'])
    """

    def __init__(
        self,
        encode: Callable[[list[Message]], list[int]],
        context: int,
        room: int,
        system: str | None = None,
    ) -> None:
        self.encode, self.context, self.room = encode, context, room
        self.head = [{"role": "system", "content": system}] if system else []
        self.messages: list[Message] = []

    def ask(self, text: str) -> tuple[list[int], int]:
        """Add a question; return the prompt's ids and how many old messages were dropped.

        Raises RequestError, and keeps what was said, when the question alone is too long.
        """
        from nanovllm.generation.errors import RequestError

        messages = [*self.messages, {"role": "user", "content": text}]
        dropped = 0
        while len(ids := self.encode(self.head + messages)) + self.room > self.context:
            if len(messages) == 1:
                if len(ids) < self.context:
                    break
                raise RequestError(
                    f"This message needs {len(ids)} tokens and the context holds {self.context}, "
                    "answer included; shorten it."
                )
            step = 2 if len(messages) > 2 else 1
            messages, dropped = messages[step:], dropped + step
        self.messages = messages
        return ids, dropped

    def answered(self, text: str) -> None:
        """Add the answer, as far as it came."""
        self.messages.append({"role": "assistant", "content": text})

    def reset(self) -> None:
        """Forget all but the system message."""
        self.messages = []

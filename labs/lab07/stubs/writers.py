"""The JSON of answers, whole and in chunks, for completions and for chats."""

from dataclasses import dataclass, field
from typing import Any

from nanovllm.serving.deltas import Delta
from nanovllm.serving.logprobs import chat_logprobs, completion_logprobs
from nanovllm.tokenization.tokenizer import Tokenizer


@dataclass
class Writer:
    """What all answers share. `tops`: log-probabilities asked for, None for none.

    prompts: token ids of each prompt. echo: what each choice begins with, by prompt number.
    """

    id: str
    model: str
    created: int
    tokenizer: Tokenizer
    prompts: list[list[int]]
    n: int
    tops: int | None = None
    include_usage: bool = False
    echo: list[str] = field(default_factory=list)
    completion_tokens: int = 0
    _offsets: dict[int, int] = field(default_factory=dict)  # characters of each choice's tokens

    kind = "text_completion"
    chunk_kind = "text_completion"

    def count(self, delta: Delta) -> None:
        """Count the tokens of a delta, shown or not: what the usage will report."""
        self.completion_tokens += len(delta.token_ids)

    def numbers(self) -> dict[str, Any]:
        """The usage: prompt_tokens, completion_tokens, total_tokens.

        Each prompt counts once, however many samples it has; of the samples all tokens count.
        """
        prompt_tokens = sum(len(prompt) for prompt in self.prompts)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
        }

    def head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "choices": choices,
        }  # fmt: skip

    def wrap(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        body = self.head(self.chunk_kind, choices)
        if self.include_usage:
            body["usage"] = None
        return body

    def usage(self) -> dict[str, Any] | None:
        """The chunk before the last event, where the client asked for it."""
        return self.wrap([]) | {"usage": self.numbers()} if self.include_usage else None

    def whole(self, choices: list[Delta]) -> dict[str, Any]:
        """The answer in one piece."""
        ordered = sorted(choices, key=lambda choice: choice.index)
        return self.head(self.kind, list(map(self.choice, ordered))) | {"usage": self.numbers()}

    def choice(self, delta: Delta) -> dict[str, Any]:
        raise NotImplementedError


class CompletionWriter(Writer):
    """text_completion: whole and chunk look the same."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The echoed prompt."""
        if not self.echo:
            return None
        return self.wrap([self.choice(Delta(index, self.echo[index // self.n]))])

    def chunk(self, delta: Delta) -> dict[str, Any]:
        return self.wrap([self.choice(delta)])

    def whole(self, choices: list[Delta]) -> dict[str, Any]:
        for choice in choices if self.echo else ():
            choice.text = self.echo[choice.index // self.n] + choice.text
        return super().whole(choices)

    def choice(self, delta: Delta) -> dict[str, Any]:
        logprobs = None
        if self.tops is not None and delta.token_ids:
            offset = self._offsets.get(delta.index, 0)
            logprobs = completion_logprobs(self.tokenizer, delta.token_ids, delta.logprobs, offset)
            self._offsets[delta.index] = offset + sum(map(len, logprobs["tokens"]))
        return {
            "index": delta.index, "text": delta.text, "logprobs": logprobs,
            "finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason,
        }  # fmt: skip


class ChatWriter(Writer):
    """chat.completion, and chat.completion.chunk, whose first chunk names the role."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self.wrap([choice])

    def chunk(self, delta: Delta) -> dict[str, Any]:
        content = {"content": delta.text} if delta.text else {}
        return self.wrap([self._choice(delta, "delta", content)])

    def choice(self, delta: Delta) -> dict[str, Any]:
        message = {"role": "assistant", "content": delta.text, "refusal": None}
        return self._choice(delta, "message", message)

    def _choice(self, delta: Delta, name: str, value: dict[str, Any]) -> dict[str, Any]:
        logprobs = None
        if self.tops is not None and delta.token_ids:
            logprobs = chat_logprobs(self.tokenizer, delta.token_ids, delta.logprobs, self.tops)
        return {
            "index": delta.index, name: value, "logprobs": logprobs,
            "finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason,
        }  # fmt: skip

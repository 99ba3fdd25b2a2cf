"""Prompts as clients send them, as lists of token ids (given)."""

from collections.abc import Mapping, Sequence
from typing import Any

from nanovllm.serving.errors import BadRequestError
from nanovllm.serving.protocol import Message
from nanovllm.tokenization.chat import ChatTemplate
from nanovllm.tokenization.tokenizer import Tokenizer

_RESERVED = {"self", "tokenizer", "messages", "add_generation_prompt"}
_FORMS = "a text, a list of token ids, or a list of texts or of such lists"


class PromptReader:
    """Turns texts and conversations into token ids, and refuses early what cannot fit.

    Encoding takes time in proportion to a text's length, so a text that is too long by its bytes
    alone is not encoded: no token stands for more than `longest` bytes.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, max_model_len: int
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.max_model_len = max_model_len
        self.longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))

    def completion(self, prompt: Any) -> list[list[int]]:
        """One or many prompts of a completion; the special tokens a text spells are special."""
        if isinstance(prompt, str) or _is_ids(prompt):
            return [self._one(prompt)]
        if isinstance(prompt, list) and prompt:
            return [self._one(one) for one in prompt]
        raise BadRequestError(f"prompt must be {_FORMS}, and not empty.", param="prompt")

    def _one(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            self._check_length(prompt, "prompt")
            return self.tokenizer.encode(prompt, allowed_special="all", add_special_tokens=True)
        if _is_ids(prompt):
            return prompt
        raise BadRequestError(f"prompt must be {_FORMS}, and not empty.", param="prompt")

    def chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """A conversation; special tokens spelled in messages stay plain text."""
        if self.template is None:
            raise BadRequestError(
                "This model has no chat template; use /v1/completions.", param="messages"
            )
        variables = dict(variables or {})
        if taken := _RESERVED & set(variables):
            raise BadRequestError(
                f"chat_template_kwargs must not set {sorted(taken)[0]}.",
                param="chat_template_kwargs",
            )
        plain = [_plain(message) for message in messages]
        self._check_length("".join(message["content"] for message in plain), "messages")
        try:
            return self.template.encode(self.tokenizer, plain, add_generation_prompt, **variables)
        except UnicodeError:
            raise BadRequestError(
                "messages hold half a surrogate pair.", param="messages"
            ) from None

    def _check_length(self, text: str, param: str) -> None:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise BadRequestError(f"{param} holds half a surrogate pair.", param=param) from None
        if size > self.max_model_len * self.longest:
            raise BadRequestError(
                f"This model's maximum context length is {self.max_model_len} tokens. However, "
                f"your {param} has {size} bytes, which are more tokens than that. Please shorten "
                "it.",
                param=param,
            )


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(type(token_id) is int for token_id in value)
    )


def _plain(message: Message) -> dict[str, Any]:
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    return message.model_dump() | {"content": content or ""}

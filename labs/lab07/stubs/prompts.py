"""Prompts as clients send them, as lists of token ids (given)."""

from functools import cached_property
from typing import Any

from nanovllm.serving.errors import BadRequestError
from nanovllm.serving.messages import Message
from nanovllm.serving.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    Conversation,
    SamplingFields,
    TokenizeRequest,
)
from nanovllm.tokenization.byte_level import to_chars
from nanovllm.tokenization.chat import ChatTemplate
from nanovllm.tokenization.tokenizer import Tokenizer

_RESERVED = {"self", "tokenizer", "messages", "add_generation_prompt", "continue_final_message"}
_FORMS = "a text, a list of token ids, or a list of texts or of such lists"


class PromptReader:
    """Turns texts and conversations into token ids, and refuses early what cannot fit.

    Encoding takes time in proportion to a text's length, so a text that is too long by its bytes
    alone is not encoded: no token stands for more than `longest` bytes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        max_model_len: int,
        open_template: ChatTemplate | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.open_template = open_template
        self.max_model_len = max_model_len
        self.longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))

    def completion(self, body: CompletionRequest) -> list[list[int]]:
        """One or many prompts of a completion; the special tokens a text spells are special."""
        prompt = body.prompt
        if isinstance(prompt, str) or _is_ids(prompt):
            return [self._one(prompt, body)]
        if isinstance(prompt, list) and prompt:
            return [self._one(one, body) for one in prompt]
        raise BadRequestError(f"prompt must be {_FORMS}, and not empty.", param="prompt")

    def _one(self, prompt: Any, body: CompletionRequest) -> list[int]:
        if isinstance(prompt, str):
            return self._truncated(self.text(self._cut(prompt, body), body), body)
        if _is_ids(prompt):
            return self._truncated(prompt, body)
        raise BadRequestError(f"prompt must be {_FORMS}, and not empty.", param="prompt")

    def text(self, text: str, body: CompletionRequest | TokenizeRequest) -> list[int]:
        """The ids of a text; those that begin every text only where they are wanted."""
        self._check_length(text, "prompt")
        begins = body.add_special_tokens is not False
        return self.tokenizer.encode(text, allowed_special="all", add_special_tokens=begins)

    def chat(self, body: ChatCompletionRequest | TokenizeRequest) -> list[int]:
        """A conversation; special tokens spelled in messages stay plain text."""
        template = self.open_template if body.continue_final_message else self.template
        if template is None:
            says = "no chat template; use /v1/completions."
            if self.template is not None:
                says = "no chat template whose last message could go on."
            raise BadRequestError(f"This model has {says}", param="messages")
        plain = [_plain(message) for message in body.messages or ()]
        if not isinstance(body, SamplingFields) or self._most(body) is None:
            self._check_length("".join(message["content"] for message in plain), "messages")
        begins = body.add_generation_prompt is not False
        try:
            ids = template.encode(self.tokenizer, plain, begins, **_variables(body))
        except UnicodeError:
            raise BadRequestError(
                "messages hold half a surrogate pair.", param="messages"
            ) from None
        if body.add_special_tokens:
            spec = self.tokenizer.spec
            ids = [*spec.prefix_ids, *ids, *spec.suffix_ids]
        return self._truncated(ids, body) if isinstance(body, SamplingFields) else ids

    @cached_property
    def token_strings(self) -> dict[int, str]:
        """Every token as the vocabulary's file writes it: in byte-level BPE `Ġ` is a space."""
        spec = self.tokenizer.spec
        write = bytes.decode if spec.model.byte_fallback else to_chars
        written = {i: write(token) for token, i in spec.model.vocab.items()}
        return written | {token.id: token.content for token in spec.added_tokens}

    def _most(self, body: SamplingFields) -> int | None:
        """How many tokens a prompt keeps; None where nothing is to be cut."""
        most = body.truncate_prompt_tokens
        if most != -1:
            return most
        asked = getattr(body, "max_completion_tokens", None) or body.max_tokens
        return max(self.max_model_len - (asked or 1), 1)

    def _truncated(self, ids: list[int], body: SamplingFields) -> list[int]:
        """The last tokens of a prompt, or the first, where it is to be cut."""
        most = self._most(body)
        if most is None or len(ids) <= most:
            return ids
        return ids[:most] if body.truncation_side == "right" else ids[len(ids) - most :]

    def _cut(self, text: str, body: CompletionRequest) -> str:
        """A text of which only some tokens are kept is not read further than these can reach."""
        if self._most(body) is None:
            return text
        data, reach = _encoded(text, "prompt"), self.max_model_len * self.longest
        kept = data[:reach] if body.truncation_side == "right" else data[-reach:]
        return kept.decode("utf-8", "ignore")  # a character that is cut in two goes

    def _check_length(self, text: str, param: str) -> None:
        size = len(_encoded(text, param))
        if size > self.max_model_len * self.longest:
            raise BadRequestError(
                f"This model's maximum context length is {self.max_model_len} tokens. However, "
                f"your {param} has {size} bytes, which are more tokens than that. Please shorten "
                "it.",
                param=param,
            )


def _encoded(text: str, param: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRequestError(f"{param} holds half a surrogate pair.", param=param) from None


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(type(token_id) is int for token_id in value)
    )


def _plain(message: Message) -> dict[str, Any]:
    return message.model_dump() | {"content": message.content or ""}


def _variables(body: Conversation) -> dict[str, Any]:
    """What the template sees besides the messages."""
    variables = dict(body.chat_template_kwargs or {})
    if taken := _RESERVED & set(variables):
        raise BadRequestError(
            f"chat_template_kwargs must not set {sorted(taken)[0]}.", param="chat_template_kwargs"
        )
    if body.documents is not None:
        variables.setdefault("documents", body.documents)
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
        variables.setdefault("enable_thinking", body.reasoning_effort != "none")
    return variables

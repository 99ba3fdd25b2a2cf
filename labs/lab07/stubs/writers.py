"""The JSON of answers, whole and in chunks, for completions and for chats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from nanovllm.serving.deltas import Delta
from nanovllm.serving.logprobs import (
    Scores,
    chat_logprobs,
    completion_logprobs,
    id_as_text,
    prompt_logprobs,
)
from nanovllm.tokenization.tokenizer import Tokenizer


@dataclass
class Writer:
    """What all answers share. `tops`: log-probabilities asked for, None for none.

    prompts: token ids of each prompt. echo: what each choice begins with, by prompt number. scores:
    log-probabilities of each prompt's tokens, as soon as they are known. cached: tokens of each
    prompt that the prefix cache had; None without one.
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
    continuous_usage: bool = False  # usage so far with every chunk
    with_ids: bool = False  # token ids of prompt and answer
    tell_ids: bool = False  # token ids of the answer alone
    ids_as_text: bool = False  # log-probabilities name a token by its id
    with_scores: bool = False  # the prompt's log-probabilities
    only_prompt: bool = False  # nothing of the answer is shown
    scores: dict[int, list[Scores | None]] = field(default_factory=dict)
    cached: Mapping[int, int] | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # fields of a whole answer besides
    _offsets: dict[int, int] = field(default_factory=dict)  # characters of each choice's tokens
    _sent: dict[int, int] = field(default_factory=dict)  # tokens of each choice, in chunks so far

    kind = "text_completion"
    chunk_kind = "text_completion"

    def count(self, delta: Delta) -> None:
        """Count the tokens of a delta, shown or not: what the usage will report."""
        self.completion_tokens += len(delta.token_ids)

    def go_on(self, num_tokens: int) -> None:
        """So many tokens of the one choice were told elsewhere: they are part of the usage."""
        self.completion_tokens += num_tokens
        self._sent[0] = num_tokens

    def numbers(self) -> dict[str, Any]:
        """The usage: prompt_tokens, completion_tokens, total_tokens.

        Each prompt counts once, however many samples it has; of the samples all tokens count.
        """
        prompt_tokens = sum(len(prompt) for prompt in self.prompts)
        found: dict[str, Any] = _usage(prompt_tokens, self.completion_tokens)
        if self.cached is not None:
            found["prompt_tokens_details"] = {"cached_tokens": sum(self.cached.values())}
        return found

    @property
    def token_name(self) -> Callable[[int], str] | None:
        """How log-probabilities name a token; None for its text."""
        return id_as_text if self.ids_as_text else None

    def prompt_of(self, index: int) -> list[int]:
        """The prompt of a choice."""
        return self.prompts[index // self.n]

    def prompt_scores(self, index: int) -> list[dict[str, Any] | None]:
        """The log-probabilities of the prompt of a choice, as the client gets them."""
        return prompt_logprobs(self.tokenizer, self.scores.get(index // self.n, []))

    def head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "choices": choices,
        }  # fmt: skip

    def wrap(self, choices: list[dict[str, Any]], delta: Delta | None = None) -> dict[str, Any]:
        body = self.head(self.chunk_kind, choices)
        if self.include_usage:
            body["usage"] = None
        if self.continuous_usage and delta is not None:
            sent = self._sent.get(delta.index, 0) + len(delta.token_ids)
            self._sent[delta.index] = sent
            body["usage"] = _usage(len(self.prompt_of(delta.index)), sent)
        return body

    def usage(self) -> dict[str, Any] | None:
        """The chunk before the last event, where the client asked for it."""
        return self.wrap([]) | {"usage": self.numbers()} if self.include_usage else None

    def whole(self, choices: list[Delta]) -> dict[str, Any]:
        """The answer in one piece."""
        ordered = sorted(choices, key=lambda choice: choice.index)
        body = self.head(self.kind, list(map(self.choice, ordered)))
        return body | {"usage": self.numbers()} | self.extra

    def choice(self, delta: Delta) -> dict[str, Any]:
        raise NotImplementedError


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class CompletionWriter(Writer):
    """text_completion: whole and chunk look the same."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The echoed prompt, or its ids."""
        if not self.echo and not self.with_ids:
            return None
        delta = Delta(index)
        return self.wrap([self.choice(delta)], delta)

    def chunk(self, delta: Delta) -> dict[str, Any]:
        return self.wrap([self._choice(delta, delta)], delta)

    def choice(self, delta: Delta) -> dict[str, Any]:
        found = self._choice(delta, self._with_prompt(delta))
        if self.with_ids:
            found["prompt_token_ids"] = self.prompt_of(delta.index)
        if self.with_scores:
            found["prompt_logprobs"] = self.prompt_scores(delta.index)
        return found

    def _with_prompt(self, delta: Delta) -> Delta:
        """What is shown of a delta that begins a choice: its prompt first, where it is echoed."""
        number, prompt = delta.index // self.n, self.prompt_of(delta.index)
        if not self.echo:
            return delta
        shown = Delta(delta.index, self.echo[number] + delta.text, delta.token_ids, delta.logprobs)
        if number in self.scores:
            shown.token_ids = [*prompt, *delta.token_ids]
            shown.logprobs = cast(list[Any], [*self.scores[number], *delta.logprobs])
        return shown

    def _choice(self, delta: Delta, shown: Delta) -> dict[str, Any]:
        found = {
            "index": delta.index, "text": shown.text, "logprobs": self._logprobs(shown),
            "finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason,
        }  # fmt: skip
        return found | {"token_ids": delta.token_ids} if self.with_ids or self.tell_ids else found

    def _logprobs(self, shown: Delta) -> dict[str, list] | None:
        if self.tops is None or not shown.token_ids:
            return None
        offset = self._offsets.get(shown.index, 0)
        given = self.tokenizer, shown.token_ids, shown.logprobs, offset, self.token_name
        logprobs = completion_logprobs(*given)
        self._offsets[shown.index] = offset + sum(map(len, logprobs["tokens"]))
        return logprobs


class ChatWriter(Writer):
    """chat.completion, and chat.completion.chunk, whose first chunk names the role."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": "".join(self.echo)}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        ids = {"prompt_token_ids": self.prompt_of(index)} if self.with_ids else {}
        return self.wrap([choice], Delta(index)) | ids

    def chunk(self, delta: Delta) -> dict[str, Any]:
        content = {"content": delta.text} if delta.text else {}
        return self.wrap([self._choice(delta, "delta", content)], delta)

    def whole(self, choices: list[Delta]) -> dict[str, Any]:
        found = super().whole(choices)
        if self.with_ids:
            found["prompt_token_ids"] = self.prompt_of(0)
        if self.with_scores:
            found["prompt_logprobs"] = self.prompt_scores(0)
        return found

    def choice(self, delta: Delta) -> dict[str, Any]:
        content = "".join(self.echo) + delta.text
        message = {"role": "assistant", "content": content, "refusal": None}
        return self._choice(delta, "message", message)

    def _choice(self, delta: Delta, name: str, value: dict[str, Any]) -> dict[str, Any]:
        logprobs = None
        if self.tops is not None and delta.token_ids:
            given = self.tokenizer, delta.token_ids, delta.logprobs, self.tops, self.token_name
            logprobs = chat_logprobs(*given)
        found = {
            "index": delta.index, name: value, "logprobs": logprobs,
            "finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason,
        }  # fmt: skip
        return found | {"token_ids": delta.token_ids} if self.with_ids or self.tell_ids else found

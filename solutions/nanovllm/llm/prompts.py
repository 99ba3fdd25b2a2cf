"""Prompts in every form `LLM` takes them: text, token ids, dicts of either, one or many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from nanovllm.generation.errors import RequestError
from nanovllm.generation.params import SamplingParams
from nanovllm.tokenization.tokenizer import Tokenizer

_FORMS = 'a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}'


@dataclass(frozen=True)
class Prompt:
    """A prompt as the engine wants it; `text` is None where only ids were given.

    cache_salt: only prompts with the same one share the prefix cache.
    """

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None

    def params(self, given: SamplingParams) -> SamplingParams:
        """The parameters of its request."""
        return replace(given, cache_salt=self.cache_salt) if self.cache_salt else given


AnyPrompt = str | Sequence[int] | Mapping[str, Any] | Prompt


def read_prompts(prompts: AnyPrompt | Sequence[AnyPrompt], tokenizer: Tokenizer) -> list[Prompt]:
    """Return one or many prompts as a list; a flat list of numbers is one prompt of token ids.

    Raises RequestError for what is not a prompt.
    """
    if isinstance(prompts, str | Mapping | Prompt) or _is_ids(prompts):
        return [read_prompt(cast(AnyPrompt, prompts), tokenizer)]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise RequestError(f"prompts must be {_FORMS}, or a list of such; got {_name(prompts)}.")
    return [read_prompt(cast(AnyPrompt, prompt), tokenizer) for prompt in prompts]


def read_prompt(prompt: AnyPrompt, tokenizer: Tokenizer) -> Prompt:
    """Return one prompt; the special tokens that its text spells are special, as in vLLM."""
    if isinstance(prompt, Prompt):
        return prompt
    text: Any = prompt
    ids: Any = None
    salt: Any = None
    if isinstance(prompt, Mapping):
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        salt = prompt.get("cache_salt")
        if text is None and ids is None:
            raise RequestError(f"a prompt must be {_FORMS}; got a dict of {sorted(prompt)}.")
    elif not isinstance(prompt, str):
        text, ids = None, prompt
    if ids is None and isinstance(text, str):
        ids = tokenizer.encode(text, allowed_special="all", add_special_tokens=True)
        return Prompt(text, ids, salt)
    if ids is None or not _is_ids(ids, empty=True):
        raise RequestError(
            f"a prompt must be {_FORMS}; got {_name(prompt if ids is None else ids)}."
        )
    return Prompt(text, [int(token_id) for token_id in ids], salt)


def read_params(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """Return one SamplingParams a prompt. Raises RequestError where the numbers differ."""
    each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * count
    if len(each) != count:
        raise RequestError(
            f"there are {len(each)} SamplingParams for {count} prompts; give one for all, or one "
            "for each."
        )
    for one in each:
        if not isinstance(one, SamplingParams):
            raise RequestError(f"sampling_params must be SamplingParams, got {_name(one)}.")
    return each


def _is_ids(value: Any, empty: bool = False) -> bool:
    """Whether this is a sequence of token ids; no ids at all count only where `empty` says so."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        return False
    value = value.tolist() if hasattr(value, "tolist") else value  # an array or tensor
    if not isinstance(value, Sequence):
        return False
    return all(isinstance(i, int) and not isinstance(i, bool) for i in value) and (
        empty or len(value) > 0
    )


def _name(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"

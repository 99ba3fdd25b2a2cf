"""`speculative_config`: vLLM's names, frozen, checked before anything is loaded (given)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from nanovllm.speculative.errors import SpeculationError

METHODS = ("ngram", "draft_model", "ngram_then_draft")
REJECTION_METHODS = ("match", "standard")
DRAFT_SAMPLES = ("greedy", "gumbel")


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """How guesses are made and judged.

    method: ngram (prompt lookup), draft_model, or ngram_then_draft (the draft model where lookup
    matches fewer than two tokens). model: folder or hub name of the draft model.
    num_speculative_tokens: the most guesses of a request in one step. prompt_lookup_min, _max: how
    many of the newest tokens have to be found again. draft_sample_method: the draft's likeliest
    tokens, or drawn from its distribution (gumbel). rejection_sample_method: "match" keeps a guess
    if the target draws the same token there, so no text changes; "standard" is rejection sampling:
    the distribution stays, but a sampled text then depends on the number of guesses. adaptive: the
    policy of task 7 says who guesses and how many, instead of all of them always.

    >>> SpeculativeConfig(method="ngram", num_speculative_tokens=0)
    Traceback (most recent call last):
    nanovllm.speculative.errors.SpeculationError: num_speculative_tokens must be a whole number, \
at least 1; got 0.
    """

    method: str
    model: str | None = None
    num_speculative_tokens: int = 4
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 3
    draft_sample_method: str = "greedy"
    rejection_sample_method: str = "match"
    adaptive: bool = False

    def __post_init__(self) -> None:
        for name, known in (
            ("method", METHODS),
            ("draft_sample_method", DRAFT_SAMPLES),
            ("rejection_sample_method", REJECTION_METHODS),
        ):
            if getattr(self, name) not in known:
                raise SpeculationError(
                    f"{name} {getattr(self, name)!r} is not known; use {', '.join(known)}."
                )
        for name in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpeculationError(f"{name} must be a whole number, at least 1; got {value!r}.")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise SpeculationError(
                f"prompt_lookup_min is {self.prompt_lookup_min}, but must be at most "
                f"prompt_lookup_max={self.prompt_lookup_max}."
            )
        if not isinstance(self.adaptive, bool):
            raise SpeculationError(f"adaptive must be true or false, got {self.adaptive!r}.")
        if self.drafts and not (isinstance(self.model, str) and self.model):
            raise SpeculationError(
                f'method {self.method!r} needs a draft model: add "model": a folder or hub name.'
            )
        if not self.drafts and self.model is not None:
            raise SpeculationError(
                f"method {self.method!r} has no draft model, but model is {self.model!r}; "
                "leave it out, or use draft_model."
            )

    @property
    def drafts(self) -> bool:
        """Whether a draft model guesses."""
        return self.method != "ngram"


def read_speculative_config(given: Mapping[str, Any]) -> SpeculativeConfig:
    """The settings of these names. Raises SpeculationError, for unknown names too.

    >>> read_speculative_config({"method": "ngram", "num_speculative_token": 3})
    Traceback (most recent call last):
    nanovllm.speculative.errors.SpeculationError: speculative_config has no key \
'num_speculative_token'; did you mean num_speculative_tokens?
    """
    if not isinstance(given, Mapping):
        raise SpeculationError(
            f"speculative_config must be a dict, such as {{'method': 'ngram'}}, got {given!r}."
        )
    known = [field.name for field in fields(SpeculativeConfig)]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"use {', '.join(known)}."
            raise SpeculationError(f"speculative_config has no key {name!r}; {hint}")
    if "method" not in given:
        raise SpeculationError(f"speculative_config needs a method: {', '.join(METHODS)}.")
    return SpeculativeConfig(**given)

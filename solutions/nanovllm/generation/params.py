"""What a caller may ask of the sampler: vLLM's names, defaults and limits.

Source: vllm/sampling_params.py of vLLM 0.32.
"""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanovllm.generation.grammar import Grammar
    from nanovllm.generation.structured import StructuredOutputsParams

MOST_TOP_K = 2**31  # what a tensor of them holds everywhere
MIN_TEMPERATURE = 1e-2  # below it, scaled logits overflow; vLLM raises such values to it


class ParamsError(ValueError):
    """A sampling parameter with a value that cannot be honoured."""


class UnknownParamError(ParamsError, TypeError):
    """A sampling parameter that does not exist."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it stops; rejects unknown names and bad values.

    n: how many samples of the same prompt.  temperature: 0 means greedy.
    top_k: 0 or -1 means all.  seed: None means fresh randomness for each request.
    max_tokens: None means up to the end of the context.  logprobs: how many of the likeliest
    tokens to report besides the chosen one; -1 means the whole vocabulary.
    prompt_logprobs: as many for each token of the prompt.  allowed_token_ids: no other id is drawn.
    bad_words: texts that are never completed; with a tokenizer they become bad_words_token_ids.
    cache_salt: only requests with the same one share the prefix cache (vLLM: part of the prompt).
    structured_outputs: what the text must be; an engine compiles it to a grammar.

    >>> SamplingParams(temperature=0.7, stop="END").stop
    ('END',)
    >>> SamplingParams(tempreature=1)
    Traceback (most recent call last):
    nanovllm.generation.params.UnknownParamError: SamplingParams has no parameter \
'tempreature'; did you mean 'temperature'?
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    bad_words_token_ids: Sequence[Sequence[int]] | None = None
    cache_salt: str | None = None
    structured_outputs: "StructuredOutputsParams | None" = None
    grammar: "Grammar | None" = None

    def __new__(cls, *args: Any, **given: Any) -> "SamplingParams":
        names = {field.name for field in fields(cls)}
        for name in given:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else "."
                raise UnknownParamError(f"SamplingParams has no parameter {name!r}{hint}")
        if args:
            raise UnknownParamError(
                "SamplingParams takes its parameters by name, as in SamplingParams(max_tokens=32)."
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._normalize()
        self._check_types()
        self._check_sampling()
        self._check_stopping()
        self._check_masks()
        if self.greedy:
            self._set(top_p=1.0, top_k=0, min_p=0.0)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0.0

    @property
    def has_mask(self) -> bool:
        """Whether some tokens are forbidden, whatever the model says."""
        return (
            self.allowed_token_ids is not None
            or bool(self.bad_words_token_ids)
            or self.grammar is not None
        )

    @property
    def has_penalties(self) -> bool:
        """Whether any of the three penalties does anything."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _normalize(self) -> None:
        for name in ("stop_token_ids", "allowed_token_ids", "bad_words", "bad_words_token_ids"):
            self._set(**{name: _tuple(name, getattr(self, name))})
        stop = (self.stop,) if isinstance(self.stop, str) else _tuple("stop", self.stop) or ()
        self._set(stop=stop, stop_token_ids=self.stop_token_ids or ())
        if self.seed == -1:
            self._set(seed=None)
        if self.logprobs is True:
            self._set(logprobs=1)
        if self.top_k == -1:
            self._set(top_k=0)
        if self.logit_bias is not None:
            self._set(logit_bias=_checked_bias(self.logit_bias))

    def _check_types(self) -> None:
        optionals = ("max_tokens", "seed", "logprobs", "prompt_logprobs")
        for name in ("n", "top_k", "min_tokens", *optionals):
            value = getattr(self, name)
            optional = name in optionals
            if isinstance(value, bool) or not (
                isinstance(value, int) or (optional and value is None)
            ):
                raise ParamsError(f"{name} must be a whole number, got {value!r}.")
        for name in (
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "temperature",
            "top_p",
            "min_p",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ParamsError(f"{name} must be a number, got {value!r}.")
            if not math.isfinite(value):
                raise ParamsError(f"{name} must be a finite number, got {value}.")
        if not all(isinstance(text, str) and text for text in self.stop or ()):
            raise ParamsError(f"stop must hold strings that are not empty, got {self.stop!r}.")
        if not _are_ids(self.stop_token_ids or ()):
            raise ParamsError(f"stop_token_ids must hold token ids, got {self.stop_token_ids!r}.")
        self._set(stop_token_ids=tuple(dict.fromkeys(self.stop_token_ids or ())))

    def _check_sampling(self) -> None:
        if self.n < 1:
            raise ParamsError(f"n must be at least 1, got {self.n}.")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise ParamsError(f"{name} must be in [-2, 2], got {getattr(self, name)}.")
        if self.repetition_penalty <= 0.0:
            raise ParamsError(
                f"repetition_penalty must be greater than zero, got {self.repetition_penalty}."
            )
        if not 0.0 <= self.temperature <= 2.0:
            raise ParamsError(f"temperature must be in [0, 2], got {self.temperature}.")
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            self._set(temperature=MIN_TEMPERATURE)
        if not 0.0 < self.top_p <= 1.0:
            raise ParamsError(f"top_p must be in (0, 1], got {self.top_p}.")
        if not 0 <= self.top_k < MOST_TOP_K:
            raise ParamsError(
                f"top_k must be 0 (all tokens), or from 1 to {MOST_TOP_K - 1}, got {self.top_k}."
            )
        if not 0.0 <= self.min_p <= 1.0:
            raise ParamsError(f"min_p must be in [0, 1], got {self.min_p}.")
        if self.greedy and self.n > 1:
            raise ParamsError(
                f"n must be 1 when temperature is 0, got {self.n}: greedy samples are all equal."
            )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and count < -1:
                raise ParamsError(f"{name} must be at least 0, or -1 for all, got {count}.")

    def _check_stopping(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ParamsError(f"max_tokens must be at least 1, got {self.max_tokens}.")
        if self.min_tokens < 0:
            raise ParamsError(f"min_tokens must be at least 0, got {self.min_tokens}.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParamsError(
                f"min_tokens must be at most max_tokens={self.max_tokens}, got {self.min_tokens}."
            )

    def _check_masks(self) -> None:
        """Lists become tuples: of ids, of words that are not empty, of lists of ids."""
        ids, words, runs = self.allowed_token_ids, self.bad_words, self.bad_words_token_ids
        if ids is not None:
            if not ids or not _are_ids(ids):
                raise ParamsError(
                    f"allowed_token_ids must hold one token id or more, got {ids!r:.60}."
                )
            self._set(allowed_token_ids=tuple(dict.fromkeys(ids)))
        if words is not None:
            if not all(isinstance(w, str) and w.strip() for w in words):
                raise ParamsError(
                    f"bad_words must hold texts that say something, got {words!r:.60}."
                )
            self._set(bad_words=tuple(dict.fromkeys(words)))
        if runs is not None:
            if not all(run and _are_ids(run) for run in runs):
                raise ParamsError(
                    f"bad_words_token_ids must hold lists of token ids, got {runs!r:.60}."
                )
            self._set(bad_words_token_ids=tuple(tuple(run) for run in runs))
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise ParamsError(f"cache_salt must be a text, got {self.cache_salt!r:.60}.")
        if self.structured_outputs is not None and not hasattr(self.structured_outputs, "kind"):
            raise ParamsError(
                "structured_outputs must be a StructuredOutputsParams, got "
                f"{self.structured_outputs!r:.60}."
            )
        if self.grammar is not None and not hasattr(self.grammar, "allowed"):
            raise ParamsError(
                "grammar is what an engine compiles; ask for "
                "structured_outputs=StructuredOutputsParams(grammar=...)."
            )


def _tuple(name: str, values: Any) -> tuple[Any, ...] | None:
    """What a caller gave as a list. Raises ParamsError."""
    if values is None:
        return None
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ParamsError(f"{name} must be a list, got {values!r:.60}.")
    return tuple(values)


def _are_ids(values: Any) -> bool:
    return isinstance(values, Iterable) and all(
        isinstance(i, int) and not isinstance(i, bool) for i in values
    )


def _checked_bias(logit_bias: Mapping[int, float]) -> dict[int, float]:
    """Copy a bias map with int keys, each value clamped to [-100, 100] as OpenAI's API does."""
    try:
        pairs = [(int(token), float(bias)) for token, bias in dict(logit_bias).items()]
    except (TypeError, ValueError):
        raise ParamsError(
            f"logit_bias must map token ids to numbers, got {logit_bias!r}."
        ) from None
    if any(math.isnan(bias) for _, bias in pairs):
        raise ParamsError(f"logit_bias must hold numbers, got {logit_bias!r}.")
    return {token: min(100.0, max(-100.0, bias)) for token, bias in pairs}

"""What a beam search is asked for and what it finds (given)."""

from dataclasses import dataclass
from typing import Literal

from nanovllm.generation.events import FinishReason
from nanovllm.generation.params import ParamsError


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """How to search: vLLM's names, with transformers' early_stopping besides.

    early_stopping: True stops when beam_width hypotheses have ended; False also goes on while
    the best open beam, at its present length, would beat the worst of them; "never" supposes
    the length that favours it most.

    >>> BeamSearchParams(beam_width=0)
    Traceback (most recent call last):
    nanovllm.generation.params.ParamsError: beam_width must be at least 1, got 0.
    """

    beam_width: int
    max_tokens: int = 16
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            if getattr(self, name) < 1:
                raise ParamsError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.early_stopping not in (True, False, "never"):
            raise ParamsError(
                f'early_stopping must be True, False or "never", got {self.early_stopping!r}.'
            )


@dataclass(frozen=True)
class Beam:
    """An open continuation, the prompt not included, and the sum of its log-probabilities."""

    token_ids: tuple[int, ...]
    logprob: float


@dataclass(frozen=True)
class Hypothesis:
    """A continuation that has ended. `token_ids` do not hold the prompt; `score` ranks it."""

    token_ids: tuple[int, ...]
    logprob: float  # the sum over its tokens
    score: float  # logprob / len(token_ids) ** length_penalty
    finish_reason: FinishReason

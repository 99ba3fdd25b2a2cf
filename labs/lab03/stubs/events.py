"""What a generation reports while it runs; streaming, timelines and tests read the same events."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Logprob:
    """The log-probability of one token under the model's own distribution, and its rank from 1."""

    logprob: float
    rank: int


@dataclass(frozen=True)
class Sampled:
    """One row's draw: the token, and the log-probabilities where the request asked for them."""

    token_id: int
    logprobs: dict[int, Logprob] | None = None


@dataclass(frozen=True)
class Completion:
    """One finished sample. `token_ids` hold the token that stopped it; `text` does not."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stop_reason: int | str | None = None  # the stop token id or string; None for end of sequence
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True)
class Prefilled:
    """The prompt has been read; the next event of this request is its first token.

    logprobs: of each token of the prompt but the first, which has None, where that was asked for.
    """

    request_id: int
    num_tokens: int  # of the whole prompt
    time: float
    logprobs: tuple[dict[int, Logprob] | None, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TokenGenerated:
    """One token. The texts of a sample's events joined are the text of its completion."""

    request_id: int
    index: int
    token_id: int
    text: str  # what may be shown now; text that may still become a stop string is held back
    time: float
    logprobs: dict[int, Logprob] | None = None


@dataclass(frozen=True)
class Finished:
    """One sample is complete."""

    request_id: int
    index: int
    completion: Completion
    time: float


Event = Prefilled | TokenGenerated | Finished

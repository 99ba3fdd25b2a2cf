"""What a request gives back, with vLLM's names."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Logprob:
    """The log-probability of one token at one position, and the token's rank there from 1."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# Of each token of a prompt; None for the first, before which there is nothing.
PromptLogprobs = list[dict[int, Logprob] | None]


@dataclass(frozen=True)
class RequestMetrics:
    """What a request cost: times in seconds, lengths in tokens.

    `tokens_per_second` counts the tokens of all answers to the prompt over `latency`. In a
    static batch all requests wait for the slowest, so the latency is the batch's.

    >>> RequestMetrics(ttft=0.5, latency=2.0, prompt_tokens=10, generation_tokens=8)
    ... # doctest: +ELLIPSIS
    RequestMetrics(ttft=0.5, latency=2.0, prompt_tokens=10, generation_tokens=8, cached_tokens=0)
    >>> RequestMetrics(0.5, 2.0, 10, 8).tokens_per_second
    4.0
    """

    ttft: float | None
    latency: float
    prompt_tokens: int
    generation_tokens: int
    cached_tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.generation_tokens / self.latency if self.latency > 0 else 0.0


@dataclass(frozen=True)
class CompletionOutput:
    """One answer; `finish_reason` is `stop` or `length`, `stop_reason` the stop string or id."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True)
class RequestOutput:
    """A prompt with its answers: `n` of them in order, or a beam search's, the best first."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics | None = None
    finished: bool = True
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose K and V were there already, so that they were not computed."""
        return self.metrics.cached_tokens if self.metrics else 0


@dataclass(frozen=True)
class StreamOutput:
    """One step of a stream: the text that became certain, and the whole request at the end.

    `text` may be empty while a character or a stop string is incomplete; all the pieces joined
    equal the final text. `kv_tokens` are the positions of the context in use after this step.
    """

    text: str
    token_ids: list[int] = field(default_factory=list)
    kv_tokens: int = 0
    output: RequestOutput | None = None

    @property
    def finished(self) -> bool:
        return self.output is not None

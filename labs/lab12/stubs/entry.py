"""What is known of a request outside the engine: enough to go on with it in another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nanovllm.batching.events import (
    Aborted,
    Admitted,
    EngineEvent,
    Failed,
    Preempted,
    Queued,
)
from nanovllm.generation.events import Finished, Prefilled, TokenGenerated
from nanovllm.generation.params import SamplingParams


@dataclass
class Told:
    """What a sample has told its caller, and how much of it the present engine will tell again."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    again: int = 0
    queued: bool = False
    running: bool = False
    ended: bool = False


@dataclass
class Entry:
    """One request: what was asked, and what each of its samples has told.

    seed: from which its samples draw, in whichever engine. deadline: on the supervisor's clock;
    None if it has none. strikes: deaths of an engine for which it may be to blame;
    told_before: how many tokens it had told at the last of them.
    """

    request_id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    priority: Any = None
    deadline: float | None = None
    strikes: int = 0
    told_before: int = 0
    prefilled: bool = False
    aborted: bool = False
    samples: list[Told] = field(init=False)

    def __post_init__(self) -> None:
        self.samples = [Told() for _ in range(self.params.n)]

    @property
    def running(self) -> bool:
        """Whether a sample of it is in the batch: admitted, not preempted since, not ended."""
        return any(sample.running and not sample.ended for sample in self.samples)

    @property
    def told(self) -> int:
        """Tokens that it has told, of all samples."""
        return sum(len(sample.token_ids) for sample in self.samples)

    @property
    def ended(self) -> bool:
        """Whether every sample has ended."""
        return all(sample.ended for sample in self.samples)

    @property
    def can_go_on(self) -> bool:
        """Whether another engine may take its tokens over; else it begins anew, and what was told
        already is not told again."""
        return self.params.n == 1 and self.params.logprobs is None

    def resume(self) -> Sequence[int]:
        """The tokens that a new engine is given: those told so far, if it can go on, else none.

        Nothing of it is in a batch now. What a new engine will tell again from the start, its
        caller does not hear again.
        """
        raise NotImplementedError("lab12 task 4: Entry.resume")

    def hear(self, event: EngineEvent) -> bool:
        """Note an event of this request; False if its caller has heard it from an engine before.

        Over all engines together a caller hears one Prefilled, which is of the whole request, one
        Queued for each sample, each token once, and one end for each sample, after which nothing of
        that sample is heard; a Prefilled after the last end is left open. Admitted and Preempted
        are always heard, as long as the sample has not ended. A token that is heard adds to
        `token_ids` and `text` of its sample.
        """
        raise NotImplementedError("lab12 task 4: Entry.hear")


def in_batch(engine: Any) -> set[int]:
    """Ids of the requests that are in an engine's batch, also after a step of it died (given)."""
    return {request.sequence.request_id for request in engine.scheduler.running}

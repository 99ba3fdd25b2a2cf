"""Four ways to serve the same requests: what is computed when, and on which instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanovllm.batching.simulator import StepCost
from nanovllm.cluster.replay import Job, Limits, Progress, Span, Work, replay


def static(waiting: Sequence[Progress], running: Sequence[Progress], limits: Limits) -> Work:
    """A batch, and the next one when all of it have ended: up to max_num_seqs prompts in one step,
    whole, then a token for each that runs, until nobody does."""
    raise NotImplementedError("lab11 task 3: static")


def prefill_first(waiting: Sequence[Progress], running: Sequence[Progress], limits: Limits) -> Work:
    """As soon as somebody waits and fewer than max_num_seqs run, their prompts, whole and in one
    step, as many as there is room to run; else a token for each of the first max_num_seqs that
    run."""
    raise NotImplementedError("lab11 task 3: prefill_first")


def chunked(waiting: Sequence[Progress], running: Sequence[Progress], limits: Limits) -> Work:
    """A token for each of the first max_num_seqs that run; what that leaves of
    max_num_batched_tokens goes to prompts, in order, as many as there is room to run. A prompt may
    get a part."""
    raise NotImplementedError("lab11 task 3: chunked")


@dataclass(frozen=True)
class Wire:
    """What it takes to send the K and V of a prompt: seconds in any case, and for each token."""

    base: float = 0.001
    per_token: float = 0.00001

    def seconds(self, tokens: int) -> float:
        """The seconds of one transfer."""
        return self.base + self.per_token * tokens


def disaggregated(
    jobs: Sequence[Job], cost: StepCost, wire: Wire, limits: Limits
) -> tuple[list[Progress], list[Span]]:
    """One instance computes prompts, by `prefill_first`, another one decodes, also by
    `prefill_first`; between them lies a wire.

    A prompt's first token comes where it is computed. Its K and V are sent after that, one
    transfer after another, in the order in which prompts were done (of equals, by number); when
    they have arrived, the job is ready to be decoded. Nothing is sent of a job of one token.

    Returns the progress of each job, in order of `jobs` and with all of its times, and all spans,
    by start: of the lanes "prefill", "wire" (kind "transfer") and "decode".
    """
    raise NotImplementedError("lab11 task 3: disaggregated")

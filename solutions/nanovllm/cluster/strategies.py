"""Four ways to serve the same requests: what is computed when, and on which instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanovllm.batching.simulator import StepCost
from nanovllm.cluster.replay import Job, Limits, Progress, Span, Work, replay


def static(waiting: Sequence[Progress], running: Sequence[Progress], limits: Limits) -> Work:
    """A batch, and the next one when all of it have ended: up to max_num_seqs prompts in one step,
    whole, then a token for each that runs, until nobody does."""
    ### BEGIN SOLUTION
    if running:
        return Work(decodes=tuple(running))
    return Work(tuple((each, each.left) for each in waiting[: limits.max_num_seqs]))
    ### END SOLUTION


def prefill_first(waiting: Sequence[Progress], running: Sequence[Progress], limits: Limits) -> Work:
    """As soon as somebody waits and fewer than max_num_seqs run, their prompts, whole and in one
    step, as many as there is room to run; else a token for each of the first max_num_seqs that
    run."""
    ### BEGIN SOLUTION
    room = max(0, limits.max_num_seqs - len(running))
    if waiting and room:
        return Work(tuple((each, each.left) for each in waiting[:room]))
    return Work(decodes=tuple(running[: limits.max_num_seqs]))
    ### END SOLUTION


def chunked(waiting: Sequence[Progress], running: Sequence[Progress], limits: Limits) -> Work:
    """A token for each of the first max_num_seqs that run; what that leaves of
    max_num_batched_tokens goes to prompts, in order, as many as there is room to run. A prompt may
    get a part."""
    ### BEGIN SOLUTION
    decodes = tuple(running[: limits.max_num_seqs])
    budget, prompts = limits.max_num_batched_tokens - len(decodes), []
    for each in waiting[: limits.max_num_seqs - len(decodes)]:
        tokens = min(each.left, budget)
        if tokens > 0:
            prompts.append((each, tokens))
            budget -= tokens
    return Work(tuple(prompts), decodes)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    whole = [Progress(n, replace(job, output=1), job.arrival) for n, job in enumerate(jobs)]
    spans = replay(whole, prefill_first, cost, limits, lanes=("prefill",))
    free, coming = 0.0, []
    for first in sorted(whole, key=lambda progress: (progress.times[0], progress.number)):
        job = jobs[first.number]
        first.job = job
        if job.output > 1:
            start = max(free, first.times[0])
            free = start + wire.seconds(job.prompt)
            spans.append(Span("wire", "transfer", (first.number,), start, free))
            first.ready = free
            coming.append(first)
    spans += replay(coming, prefill_first, cost, limits, lanes=("decode",))
    return whole, sorted(spans, key=lambda span: span.start)
    ### END SOLUTION

"""Lab 11: instances in virtual time, and the four strategies on one trace."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from nanovllm.batching.simulator import StepCost
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.replay import Job, Limits, Progress, Work, replay
from nanovllm.cluster.strategies import Wire, chunked, disaggregated, prefill_first, static

COST = StepCost(base=1.0, per_token=0.25, per_place=0.0)
LIMITS = Limits(4, 32)


def jobs_of(seed: int, count: int = 20) -> list[Job]:
    draw = random.Random(seed)
    return [
        Job(draw.uniform(0, 60), draw.randint(1, 90), draw.randint(1, 12)) for _ in range(count)
    ]


def begin(jobs: Sequence[Job]) -> list[Progress]:
    return [Progress(number, job, job.arrival) for number, job in enumerate(jobs)]


@pytest.mark.parametrize("one_pool", [False, True])
@pytest.mark.parametrize("strategy", [static, prefill_first, chunked])
def test_every_job_ends_and_no_lane_does_two_things_at_once(strategy, one_pool: bool) -> None:
    for seed in range(10):
        jobs = jobs_of(seed)
        made = begin(jobs)
        spans = replay(made, strategy, COST, LIMITS, lanes="ab", one_pool=one_pool)
        for progress, job in zip(made, jobs, strict=True):
            assert len(progress.times) == job.output and progress.times == sorted(progress.times)
            assert progress.computed == job.prompt and progress.times[0] > job.arrival
        for lane in "ab":
            mine = [span for span in spans if span.lane == lane]
            assert all(a.end <= b.start for a, b in itertools.pairwise(mine))
            assert all(len(span.jobs) <= LIMITS.max_num_seqs for span in mine)


def test_one_pool_leaves_nobody_idle_while_somebody_waits() -> None:
    jobs = [Job(0.0, 80, 1), Job(0.0, 4, 1), Job(0.0, 80, 1), Job(0.0, 4, 1)]
    ends = []
    for one_pool in (False, True):
        made = begin(jobs)
        spans = replay(made, prefill_first, COST, Limits(1, 1), lanes="ab", one_pool=one_pool)
        ends.append(max(span.end for span in spans))
    assert ends == [42.0, 23.0]


def test_apart_is_the_same_requests_on_two_lanes_and_a_wire() -> None:
    for seed in range(10):
        jobs = jobs_of(seed)
        progress, spans = disaggregated(jobs, COST, Wire(0.5, 0.01), LIMITS)
        assert [len(p.times) for p in progress] == [job.output for job in jobs]
        sent = [span for span in spans if span.lane == "wire"]
        assert sorted(s.jobs[0] for s in sent) == [n for n, j in enumerate(jobs) if j.output > 1]
        for span in sent:
            times = progress[span.jobs[0]].times
            assert times[0] <= span.start < span.end < times[1]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda waiting, running, limits: Work(),
        lambda waiting, running, limits: Work(((waiting[0], waiting[0].left + 1),)),
        lambda waiting, running, limits: Work(((waiting[0], 0),)),
        lambda waiting, running, limits: Work(((waiting[0], 1), (waiting[0], 1))),
        lambda waiting, running, limits: Work(decodes=tuple(waiting)),
    ],
)
def test_work_that_cannot_be_is_refused(wrong: Callable[..., Work]) -> None:
    with pytest.raises(ClusterError, match="A step"):
        replay(begin([Job(0.0, 5, 2)]), wrong, COST, LIMITS)

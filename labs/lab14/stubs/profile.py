"""From what ran when to where the time goes: one trace, a tree, launches, idle time, a roofline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanovllm.performance.errors import PerformanceError
from nanovllm.performance.interval import Interval

Json = dict[str, Any]


def chrome_trace(intervals: Iterable[Interval]) -> Json:
    """The intervals as Chrome's trace format has them: `{"traceEvents": [...]}`.

    Each is a complete event: "ph" "X", its "name", "ts" and "dur" in microseconds, "pid" 0, "tid"
    the number of its track, counted in order of first appearance. "ts" counts from the earliest
    start of all. Flops and bytes that are not 0 stand in "args". Each track has one more event,
    "ph" "M", "name" "thread_name", its "tid", and "args" `{"name": track}`.
    Raises PerformanceError for an interval that ends before it starts, naming it.

    >>> trace = chrome_trace([Interval("mul", 2.0, 2.5), Interval("step", 1.0, 4.0, "engine")])
    >>> [(e["name"], e["ts"], e["dur"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    [('mul', 1000000.0, 500000.0, 0), ('step', 0.0, 3000000.0, 1)]
    """
    raise NotImplementedError("lab14 task 1: chrome_trace")


@dataclass
class Node:
    """All calls of one name at one place of the tree: how many, how long, and what they called."""

    name: str
    count: int = 0
    seconds: float = 0.0
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def own(self) -> float:
        """Seconds that no child accounts for."""
        return self.seconds - sum(child.seconds for child in self.children.values())


def time_tree(intervals: Iterable[Interval]) -> Node:
    """Who called whom, on one track: the root is called "all" and sums up what nobody called.

    An interval is a child of the shortest one that contains it (one that begins and ends at the
    same moments contains it if it came before). Calls of one name with the same parents are one
    node. The intervals may come in any order, and do not overlap otherwise; none of no length is
    where two touch. The root's count is 1, whatever it has.

    >>> tree = time_tree([Interval("step", 0, 5), Interval("mul", 1, 2), Interval("mul", 2, 4)])
    >>> step = tree.children["step"]
    >>> tree.seconds, step.own, step.children["mul"].count, step.children["mul"].seconds
    (5.0, 2.0, 2, 3.0)
    """
    raise NotImplementedError("lab14 task 1: time_tree")


def busy_seconds(intervals: Iterable[Interval]) -> float:
    """How long at least one of them ran: where several overlap, the time counts once.

    >>> busy_seconds([Interval("a", 0, 3), Interval("b", 1, 2), Interval("c", 5, 6)])
    4.0
    """
    raise NotImplementedError("lab14 task 1: busy_seconds")


@dataclass(frozen=True)
class Steps:
    """What steps cost: the launches of each, and the share of their time that is the host's."""

    launches: tuple[int, ...]
    host_share: float


def steps_of(
    steps: Sequence[Interval], launched: Sequence[Interval], device: Sequence[Interval], warmup: int
) -> Steps:
    """Launches a step, and which share of the steps' time the device had nothing to do.

    Steps are taken in the order of time. The first `warmup` of them count for nothing: they
    compile, allocate and fill caches. A launch belongs to the step in whose time it starts (from
    its start, its end excluded). The device's time is cut at a step's start and end. Raises
    PerformanceError where no step is left, or where those that are left took no time.

    >>> steps = [Interval("step", 0, 9), Interval("step", 10, 14)]
    >>> ops, kernels = [Interval("mul", 10, 11), Interval("add", 13, 14)], [Interval("k", 11, 20)]
    >>> steps_of(steps, ops, kernels, warmup=1)
    Steps(launches=(2,), host_share=0.25)
    """
    raise NotImplementedError("lab14 task 1: steps_of")


@dataclass(frozen=True)
class RooflinePoint:
    """Where an operation stands: FLOPs a byte, FLOP/s reached and possible, and the limit.

    limit: "memory" or "compute". share: reached over possible; 0.0 for an operation of no FLOPs.
    """

    intensity: float
    reached: float
    possible: float
    limit: str

    @property
    def share(self) -> float:
        return self.reached / self.possible if self.possible else 0.0


def roofline_point(
    operation: Interval, peak: float, bandwidth: float, rows: int = 1, padded: int = 1
) -> RooflinePoint:
    """An operation under the roof min(peak, intensity * bandwidth), in FLOP/s and bytes/s.

    Of `padded` rows that it computed only `rows` are useful; its flops count in that proportion,
    its bytes in full. At the ridge, where both limits are equal, the limit is "compute".
    Raises PerformanceError for an operation without bytes, or that took no time.

    >>> roofline_point(Interval("mm", 0.0, 2.0, flops=100, bytes=50), peak=80.0, bandwidth=30.0)
    RooflinePoint(intensity=2.0, reached=50.0, possible=60.0, limit='memory')
    """
    raise NotImplementedError("lab14 task 1: roofline_point")

"""Detection: progress in place of life, and the two questions of a health check."""

from __future__ import annotations

from nanovllm.resilience.vitals import Alarm, Health, Limits, Phase, Remedy, Vitals


class Progress:
    """Tells an engine that hangs from one that has nothing to do.

    It sees two counters from outside, as often as somebody looks: rounds that the engine's own loop
    has finished, and open requests. That somebody looks is no sign of life.

    >>> progress = Progress(patience=10.0)
    >>> [progress.hung(now, steps, work) for now, steps, work in
    ...  [(0.0, 5, 0), (100.0, 5, 1), (109.0, 5, 1), (110.0, 5, 1), (111.0, 6, 1)]]
    [False, False, False, True, False]
    """

    def __init__(self, patience: float = 10.0) -> None:
        self.patience = patience
        raise NotImplementedError("lab12 task 2: Progress.__init__")

    def hung(self, now: float, steps: int, work: int) -> bool:
        """Whether work has waited for `patience` seconds or more while `steps` stood still.

        The time counts from the last look that found `steps` changed (in either direction: a new
        engine counts from 0), or from the first look that found work after one that found none,
        whichever was later; the very first look is such a one. Without work nothing hangs, for
        however long; work that comes after a long rest has the whole patience before it.
        """
        raise NotImplementedError("lab12 task 2: Progress.hung")


def health(phase: Phase, hung: bool) -> Health:
    """Two answers for two readers: who restarts processes, and who sends requests.

    live: False only where a restart would help: the engine hangs, whatever the phase says, but for
    STARTING (weights take their time) and GIVEN_UP (restarts were tried). ready: SERVING, and not
    hung.

    >>> health(Phase.DRAINING, hung=False)
    Health(live=True, ready=False)
    """
    raise NotImplementedError("lab12 task 2: health")


class Monitors:
    """Five monitors, each with a remedy of its own."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.progress = Progress(self.limits.patience)

    def look(self, vitals: Vitals) -> list[Alarm]:
        """The alarms of one look, in any order; an engine that is well has none.

        - `free` below its limit: SLOW_DOWN
        - `age` above its limit: CANCEL, with the id of the oldest request
        - no progress (`Progress`): REBUILD
        - `fragmentation` above its limit: COMPACT
        - NaN: RELOAD

        Exactly at a limit all is well. Several may be true at once. Who is to be rebuilt or
        reloaded gets this one alarm alone (RELOAD, if both): the new engine begins empty.
        """
        raise NotImplementedError("lab12 task 2: Monitors.look")

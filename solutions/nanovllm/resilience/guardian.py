"""A server's levels of recovery: what was seen, who answers it, and what health checks hear (given).

| failure | seen by | answered |
|---|---|---|
| out of memory | samples that give way while less than 10 % of the store is free | 1: steps of 30 % less, nobody new comes into the batch; who gives way goes to `--swap-space`; 2: the least urgent request is ended with its text |
| fragmentation | a pool that is to shrink (`POST /compact`) with 40 % of its span unheld | 1: blocks are moved together, and nobody new comes into the batch |
| timeout | the server's `--timeout`, a client's deadline | half of the time is over: one priority lower, where the policy reads them; all of it, 2: partial text, and a line in the log |
| NaN, crash, hang | a step that raises, or whose logits are not finite | 3, 4: the supervisor's new engine; after NaN also new ranks, which read the weights again |
| weights that changed on disk | checksums, before a new engine reads them | 3: the kept version (`--kept-weights`); 5 without one |
| hang that no step ends | no progress for twice the patience | 3: the ranks are ended; 4: not live |
| a crash, hang or NaN that comes again and again | the ladder, or the supervisor gives up | 5: not ready, a report for a person |

The first three stay below 3: no new engine has more memory or more time. Where the supervisor has
given up, only a new start helps.
"""  # noqa: E501, a table

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from nanovllm.batching.events import Aborted, EngineEvent
from nanovllm.resilience.errors import WeightsChangedError
from nanovllm.resilience.failures import ENTRY, Failure, Level, Rung
from nanovllm.resilience.ladder import Ladder, report
from nanovllm.resilience.progress import Monitors, health
from nanovllm.resilience.relief import (
    Brake,
    BrakedBudget,
    OpenRequest,
    alarms_of_memory,
    fragmentation,
)
from nanovllm.resilience.vitals import Health, Limits, Phase, Remedy, Vitals
from nanovllm.resilience.witness import Seen, Witness
from nanovllm.serving.errors import OverloadedError

EVERY = 0.5  # seconds between two looks
STARTS = 3  # tries to make one engine
log = logging.getLogger("nanovllm.resilience")


class Arrival(NamedTuple):
    """Of a stream: when it came, and when half of its time is over."""

    time: float
    half: float


class Guardian:
    """Makes the engines of a supervisor, and looks after the server that has it.

    make_engine() gives a new engine. patience: seconds after which a step has hung. evidence: the
    file that is written for a person; when it is moved away, the person has looked.
    """

    def __init__(
        self,
        make_engine: Callable[[], Any],
        patience: float,
        evidence: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_engine, self._patience, self._clock = make_engine, patience, clock
        self.evidence = evidence
        self.seen, self.brake, self.ladder = Seen(), Brake(), Ladder()
        self.history: list[Rung] = []
        self._monitors = Monitors(Limits(age=float("inf"), patience=2 * patience))
        self._lacked = 0  # requests that failed for want of memory, at the last look
        self._since = self._ended = float("-inf")  # of a hang; of the last request ended for memory
        self._making = self._stuck = self._reported = self._written = False
        self._arrived: WeakKeyDictionary[Any, Arrival] = WeakKeyDictionary()
        self._hurried: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # its last engine

    def guard(self, engine: Any) -> Any:
        """An engine under watch, behind the brake."""
        scheduler, store = engine.scheduler, engine.store
        scheduler.budget = BrakedBudget(scheduler.budget, self.brake, self._clock)
        can_admit = store.can_admit

        def closed() -> bool:
            return len(scheduler.running) > 0 and self.brake.closed(self._clock())

        store.can_admit = lambda request: not closed() and can_admit(request)
        plans = getattr(scheduler, "inner", scheduler)  # lab 08's lets another one plan
        plans.policy = _BrakedPolicy(plans.policy, closed)
        self._engine = engine
        return Witness(engine, self.seen, self._patience, self._clock)

    def make(self) -> Any:
        """A new engine, after a failure; one that does not start is tried again."""
        failure = self.seen.last[0] if self.seen.last else Failure.CRASH
        self._note(failure, self.ladder.failed(self._clock(), failure))
        self._making = True
        try:
            if failure is Failure.NAN:
                self._end_ranks()  # the next ones read the weights again
            for _ in range(STARTS - 1):
                try:
                    return self.guard(self._make_engine())
                except WeightsChangedError:
                    raise
                except Exception as error:
                    self.seen.fail(Failure.CRASH, error)
                    self._note(Failure.CRASH, self.ladder.failed(self._clock(), Failure.CRASH))
            return self.guard(self._make_engine())
        finally:
            self._making = False

    def attach(self, server: Any) -> None:
        """Look after a server, as long as it runs; it has the supervisor of these engines."""
        self._server = server
        server.guardian = self
        server.background.append(self._run)
        server.engine.observers.append(self._observe)
        server.handlers.watchers.append(self._arrives)
        registry = server.metrics.registry
        for name, says, labels, read in (
            ("failures", "Failures seen, by kind.", "failure", lambda: self.failures),
            ("recoveries", "Answers to failures, by level.", "level", lambda: self.recoveries),
        ):
            registry.registry.register(_Counts(name, says, labels, registry.labels, read))
        level = registry.gauge("recovery_level", "Level of recovery, 1 to 5; 0: all is well.")
        level.set_function(lambda: float(self.level or 0))

    @property
    def failures(self) -> dict[str, int]:
        """How often each was seen."""
        answered = {
            failure: self._answered(failure, ENTRY[failure])
            for failure in (Failure.OUT_OF_MEMORY, Failure.FRAGMENTATION, Failure.TIMEOUT)
        }
        return {f.value: n for f, n in (self.seen.failures | answered).items()}

    @property
    def recoveries(self) -> dict[str, int]:
        """How often each level answered."""
        found = Counter(rung.level for rung in tuple(self.history))
        return {level.name.lower(): found[level] for level in Level}

    @property
    def level(self) -> Level | None:
        """The level that is at work now."""
        braked = Level.ADJUST if self.brake.closed(self._clock()) else None
        human = Level.HUMAN if self._reported else None
        found = (braked, self.ladder.level(self._clock()), human)
        return max((one for one in found if one is not None), default=None)

    @property
    def phase(self) -> Phase:
        """What the server is doing."""
        if self._reported:
            return Phase.GIVEN_UP
        if self._server.admission.draining:
            return Phase.DRAINING
        if self._making:
            return Phase.RECOVERING
        return Phase.RELIEVING if self.brake.closed(self._clock()) else Phase.SERVING

    @property
    def health(self) -> Health:
        """Whether the process is to run on, and whether it is to get requests."""
        return health(self.phase, self._stuck)

    def check_ready(self) -> None:
        """Raise OverloadedError where no request is to come here now."""
        failure = self._server.engine.engine.failure
        if failure is not None:  # perhaps nobody has looked since
            self._call_somebody(str(failure))
        if not self.health.ready:
            known = self._reported and self.evidence.exists()
            where = f"; {self.evidence} says more" if known else ""
            if failure is not None:
                where += "; start the server anew"
            state = "hanging" if self._stuck else self.phase.value
            raise OverloadedError(f"The server is not ready: {state}{where}.")

    def facts(self) -> dict[str, Any]:
        """For the dashboard."""
        level = self.level
        return {
            "level": 0 if level is None else int(level), "phase": self.phase.value,
            "failures": self.failures, "recoveries": self.recoveries,
        }  # fmt: skip

    async def _run(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(EVERY)

    def _look(self) -> None:
        """What the monitors see, and what is done about it."""
        now, supervisor = self._clock(), self._server.engine.engine
        if self._written and not self.evidence.exists() and supervisor.failure is None:
            self._reported = self._written = False
            for failure in Failure:
                self.ladder.reset(failure)
        if supervisor.failure is not None:
            self._call_somebody(str(supervisor.failure))
        elif self.ladder.level(now) is Level.HUMAN:
            self._call_somebody("Failures come again and again.")
        free = self._free()
        work = 0 if self._making else self._server.engine.num_open
        alarms = self._monitors.look(Vitals(now, free=free, steps=self.seen.steps, work=work))
        remedies = {alarm.remedy for alarm in alarms}
        self._stuck = self._stuck and Remedy.REBUILD in remedies
        if Remedy.SLOW_DOWN in remedies:
            self._relieve(now)
        if Remedy.REBUILD in remedies:
            self._unblock(now)
        self._hurry(now)

    async def shrinks(self) -> None:
        """The pool is about to be made smaller: what lies apart is moved together, level 1."""
        manager = getattr(self._engine.store, "manager", None)
        if manager is None:  # nothing to move; `compact` says so
            return
        apart = fragmentation(await self._server.engine.call(lambda _: set(manager.owners())))
        if apart > self._monitors.limits.fragmentation:
            self.brake.alarm(self._clock())
            self._note(Failure.FRAGMENTATION, Level.ADJUST)

    def _hurry(self, now: float) -> None:
        """Who has used half of its time comes one priority sooner, once in each engine."""
        policy = self._engine.scheduler.policy
        if not (policy.reads_priority and policy.ages):  # else its order may not change
            return
        known = self._samples()
        for number, stream in dict(self._server.engine.streams).items():
            arrived = self._arrived.get(stream)
            if arrived and arrived.half <= now and self._hurried.get(stream) is not self._engine:
                self._hurried[stream] = self._engine
                for sample in known.get(number, ()):
                    sample.priority -= 1

    def _samples(self) -> dict[int, list[Any]]:
        """The engine's open samples by the id of their request."""
        found: dict[int, list[Any]] = {}
        for sample in self._engine.requests.all()[0]:
            found.setdefault(sample.sequence.request_id, []).append(sample)
        return found

    def _free(self) -> float:
        """Share of the store that is free; 1 while nobody suffers from how little that is."""
        lacked, self._lacked = self._lacked, self.seen.failures[Failure.OUT_OF_MEMORY]
        least, self.seen.least_free = self.seen.least_free, 1.0
        return 0.0 if self._lacked > lacked else least

    def _relieve(self, now: float) -> None:
        """Level 1; where that was not enough for long, level 2, one request at a time."""
        if not (self.brake.closed(now) or self.brake.exhausted(now)):
            self._note(Failure.OUT_OF_MEMORY, Level.ADJUST)
        streams, known = dict(self._server.engine.streams), self._samples()
        open_now = [
            OpenRequest(
                number,
                self._arrived[stream].time if stream in self._arrived else now,
                max((sample.priority for sample in known.get(number, ())), default=0),
            )
            for number, stream in streams.items()
        ]
        for alarm in alarms_of_memory(self.brake, now, open_now):
            if alarm.request_id is not None and now - self._ended >= self.brake.hold:
                self._ended = now
                self._note(Failure.OUT_OF_MEMORY, Level.REQUEST)
                self._server.engine.cancel(streams[alarm.request_id], "memory")

    def _unblock(self, now: float) -> None:
        """A step does not end: end its ranks, so that it raises; then only a new process helps."""
        if now - self._since < 2 * self._patience:
            return
        self._since = now
        self.seen.fail(Failure.HANG, RuntimeError("no step has ended"))
        level = self.ladder.failed(now, Failure.HANG)
        self._note(Failure.HANG, level)
        self._stuck = level >= Level.SYSTEM
        self._end_ranks()

    def _end_ranks(self) -> None:
        executor = getattr(self._engine, "executor", None)
        if executor is not None:
            executor.close(at_once=True)

    def _observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Requests that took too long: their clients have got the partial text."""
        for event in events:
            if isinstance(event, Aborted):
                stream = self._server.engine.streams.get(event.request_id)
                if stream is not None and stream.reason == "timeout":
                    self._note(Failure.TIMEOUT, Level.REQUEST, stream.name, len(event.token_ids))

    def _arrives(self, request: Any, stream: Any, writer: Any, params: Any) -> None:
        now, loop = self._clock(), asyncio.get_running_loop().time()
        ends = request.scope.get("ends_at", float("inf")) - loop
        limit = min(ends, self._server.config.timeout or float("inf"))
        self._arrived[stream] = Arrival(now, now + limit / 2)

    def _answered(self, failure: Failure, level: Level) -> int:
        return sum((r.failure, r.level) == (failure, level) for r in tuple(self.history))

    def _note(self, failure: Failure, level: Level, request: str = "", tokens: int = 0) -> None:
        self.history.append(Rung(self._clock(), failure, level))
        fields: dict[str, Any] = {"failure": failure.value, "level": level.name.lower()}
        if request:
            fields |= {"request_id": request, "completion_tokens": tokens}
        log.warning("recovery", extra={"fields": fields})

    def _call_somebody(self, why: str) -> None:
        """Level 5, once: what a person needs first is in a file, and nobody is sent here."""
        if self._reported:
            return
        self._reported = True
        if self.history:
            self._note(self.history[-1].failure, Level.HUMAN)
        last = self.seen.last[1] if self.seen.last else None
        found = {"why": why, "last_error": last, "now": self._clock(), "failures": self.failures}
        text = json.dumps(report(self.history) | found, indent=1)
        log.error("a person has to look", extra={"fields": {"evidence": str(self.evidence)}})
        try:
            self.evidence.write_text(text + "\n", encoding="utf-8")
            self._written = True
        except OSError as error:
            log.error("no evidence was written", extra={"fields": {"error": str(error)}})


class _BrakedPolicy:
    """A policy, but nobody is displaced while nobody is let in: it would help nobody."""

    def __init__(self, policy: Any, closed: Callable[[], bool]) -> None:
        self._policy, self._closed = policy, closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def displaced(self, first: Any, running: Any, now: float) -> Any:
        """As the policy says, where the first of the queue may come in at all."""
        return None if self._closed() else self._policy.displaced(first, running, now)


class _Counts:
    """Counters that are read when somebody asks for the metrics."""

    def __init__(
        self,
        name: str,
        says: str,
        label: str,
        labels: tuple[str, str],
        read: Callable[[], dict[str, int]],
    ) -> None:
        self._about = f"nanovllm:{name}", says, label, labels, read

    def collect(self) -> Any:
        """The counters now."""
        from prometheus_client.core import CounterMetricFamily

        name, says, label, labels, read = self._about
        family = CounterMetricFamily(name, says, labels=("model_name", "engine", label))
        for value, count in read().items():
            family.add_metric((*labels, value), count)
        yield family

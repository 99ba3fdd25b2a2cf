"""`SupervisedEngine`: an engine that dies is made anew, and every open request goes on in it.

What it has to do stands in supervisor_interface.py.
"""

### BEGIN SOLUTION
from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, TypeGuard

from nanovllm.batching.errors import DuplicateRequestError, NonFiniteLogitsError
from nanovllm.batching.events import Aborted, EngineEvent, Failed, Preempted
from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.resilience.entry import Entry, in_batch
from nanovllm.resilience.errors import GaveUpError, PoisonedRequestError
from nanovllm.resilience.restarts import RestartLimit

SUSPECT, POISONED = 2, 3  # strikes
FORGIVEN = 8  # tokens told since the last strike
SHORTEST = 1e-3  # seconds that a deadline still has in a new engine
log = logging.getLogger("nanovllm.resilience")


class SupervisedEngine:
    """See `supervisor_interface.Supervisor`."""

    def __init__(
        self,
        make_engine: Callable[[], Any],
        limit: RestartLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
        engine: Any = None,
    ) -> None:
        self._make, self._clock = make_engine, clock
        self._limit = limit or RestartLimit()
        self._engine = engine or make_engine()
        self._lock = threading.Lock()  # who adds or aborts, against the change of engines
        self._ids = count()
        self._entries: dict[int, Entry] = {}
        self._held: deque[int] = deque()  # suspects that wait for their turn
        self._alone: int | None = None  # the suspect that is in the engine
        self.restarts = 0
        self.failure: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def has_unfinished(self) -> bool:
        """Whether a further step has anything to do or to report."""
        return bool(self._entries) or self._engine.has_unfinished

    def add_request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        seed: int | None = None,
        request_id: int | None = None,
        priority: Any = 0,
        deadline: float | None = None,
    ) -> int:
        """As the engine's. Raises RequestError, and GaveUpError once it was given up."""
        if self.failure is not None:
            raise self.failure
        params = params or SamplingParams()
        chosen = (params.seed, seed, secrets.randbits(63))
        seed = next(one for one in chosen if one is not None)
        with self._lock:
            free = (number for number in self._ids if number not in self._entries)
            number = next(free) if request_id is None else request_id
            if number in self._entries:  # the engine may not have it now
                raise DuplicateRequestError(f"Request id {number} is in use; choose another.")
            more = {"deadline": deadline} if deadline is not None else {}
            more |= {"priority": priority} if priority else {}
            self._engine.add_request(prompt_token_ids, params, seed=seed, request_id=number, **more)
            ends = None if deadline is None else self._clock() + deadline
            self._entries[number] = Entry(
                number, tuple(prompt_token_ids), params, seed, priority, ends
            )
        return number

    def abort(self, request_id: int) -> bool:
        """Give a request up, wherever it is; False if there is none of that id (any more)."""
        with self._lock:
            entry = self._entries.get(request_id)
            if entry is None:
                return False
            entry.aborted = True
            if request_id not in self._held:
                self._engine.abort(request_id)
        return True

    def step(self) -> list[EngineEvent]:
        """One round of the engine, or its rebuilding. Raises GaveUpError."""
        if self.failure is not None:
            raise self.failure
        events = self._next_suspect()
        try:
            found = self._engine.step()
        except NotImplementedError:
            raise
        except Exception as error:
            return events + self._rebuild(error)
        if self._sick(found) and self._limit.allow(self._clock()):
            bad = [event for event in found if _is_nan(event)]
            events += self._told(event for event in found if event not in bad)
            return events + self._rebuild(bad[0].error, allowed=True)
        return events + self._told(found)

    def _sick(self, events: Sequence[EngineEvent]) -> bool:
        """Whether the model may be at fault: no row of a step was finite, and they are of several
        requests, or of one that is no suspect yet. Else that request is, and fails alone."""
        bad = {event.request_id for event in events if _is_nan(event)}
        if not bad or any(isinstance(event, TokenGenerated) for event in events):
            return False
        return len(bad) > 1 or all(self._entries[number].strikes < SUSPECT for number in bad)

    def _told(self, events: Iterable[EngineEvent]) -> list[EngineEvent]:
        """Note an engine's events; those of them that are for callers' ears."""
        told: list[EngineEvent] = []
        for event in events:
            entry = self._entries.get(getattr(event, "request_id", -1))
            if entry is None:  # of no request, as Stepped; or of one that has ended
                told += [] if hasattr(event, "request_id") else [event]
                continue
            if isinstance(event, Aborted):  # an engine that begins anew knows less than its caller
                event = self._aborted(entry, event.index, event.time)
            if entry.hear(event):
                told.append(event)
            if entry.ended:
                with self._lock:
                    del self._entries[entry.request_id]
                    self._engine.abort(entry.request_id)  # samples that begin anew, and had ended
        return told

    def _rebuild(self, error: Exception, allowed: bool = False) -> list[EngineEvent]:
        """A new engine, in which every open request goes on. Raises GaveUpError."""
        log.warning("engine died", extra={"fields": {"error": f"{type(error).__name__}: {error}"}})
        events = self._blame()
        if not allowed and not self._limit.allow(self._clock()):
            why = f"the engine died again ({type(error).__name__}: {error})"
            raise self._gave_up(f"{why}, {self._limit.most} times within {self._limit.window:g} s")
        try:
            engine = self._make()
        except Exception as failed:
            raise self._gave_up(f"no new engine can be made ({failed})") from error
        with self._lock:
            self._engine, self._alone = engine, None
            self._held.clear()
            self.restarts += 1
            for entry in list(self._entries.values()):
                if entry.strikes >= SUSPECT and (entry.aborted or self._alone is not None):
                    self._held.append(entry.request_id)
                    continue
                if entry.strikes >= SUSPECT:
                    self._alone = entry.request_id
                events += self._resume(entry)
        return events

    def _gave_up(self, why: str) -> GaveUpError:
        self.failure = GaveUpError(f"The engine is given up: {why}; see the log, and restart it.")
        return self.failure

    def _blame(self) -> list[EngineEvent]:
        """Strikes for those that were running; the events of their being put back, or given up.

        With one suspect in the batch, nobody else is blamed for the death. Whom the step that died
        had let in, no event has told.
        """
        now, events = self._now(), []
        with self._lock:
            silent = in_batch(self._engine)
            running = [e for e in self._entries.values() if e.running or e.request_id in silent]
            alone = [entry for entry in running if entry.request_id == self._alone]
            for entry in alone or running:
                forgiven = entry.told - entry.told_before >= FORGIVEN
                entry.strikes = 1 if forgiven else entry.strikes + 1
                entry.told_before = entry.told
            for entry in running:
                for index, sample in enumerate(entry.samples):
                    if sample.running and not sample.ended:
                        events.append(Preempted(entry.request_id, index, now))
                    sample.running = False
                if entry.strikes >= POISONED and not entry.aborted:
                    events += self._end(entry, self._poisoned(entry))
        return events

    def _poisoned(self, entry: Entry) -> Exception:
        return PoisonedRequestError(
            f"The engine died {entry.strikes} times while it computed this request; it is not "
            "tried again."
        )

    def _end(self, entry: Entry, error: Exception | None = None) -> list[EngineEvent]:
        """End what is in no engine: by an error, or as its caller wished."""
        del self._entries[entry.request_id]
        now, events = self._now(), []
        for index, sample in enumerate(entry.samples):
            if not sample.ended:
                events.append(
                    self._aborted(entry, index, now)
                    if error is None
                    else Failed(entry.request_id, index, error, now)
                )
        return events

    def _aborted(self, entry: Entry, index: int, time: float) -> Aborted:
        """The end of a sample that was given up, with what it has told."""
        sample = entry.samples[index]
        return Aborted(entry.request_id, index, tuple(sample.token_ids), sample.text, time)

    def _next_suspect(self) -> list[EngineEvent]:
        """One suspect at a time is in the engine; those that were aborted meanwhile end."""
        events: list[EngineEvent] = []
        with self._lock:
            for number in [n for n in self._held if self._entries[n].aborted]:
                self._held.remove(number)
                events += self._end(self._entries[number])
            if self._held and self._alone not in self._entries:
                self._alone = self._held.popleft()
                events += self._resume(self._entries[self._alone])
        return events

    def _resume(self, entry: Entry) -> list[EngineEvent]:
        """Put a request into the engine, where it stopped; its end, if it is refused."""
        more: dict[str, Any] = {"priority": entry.priority} if entry.priority else {}
        if entry.deadline is not None:
            more["deadline"] = max(SHORTEST, entry.deadline - self._clock())
        tokens = entry.resume()
        if tokens:
            more["output_token_ids"] = tokens
        try:
            self._engine.add_request(
                entry.prompt_token_ids,
                entry.params,
                seed=entry.seed,
                request_id=entry.request_id,
                **more,
            )
        except RequestError as error:
            return self._end(entry, None if entry.aborted else error)
        if entry.aborted:
            self._engine.abort(entry.request_id)
        return []

    def _now(self) -> float:
        """The engine's clock, which events tell."""
        return self._engine.clock()


def _is_nan(event: EngineEvent) -> TypeGuard[Failed]:
    return isinstance(event, Failed) and isinstance(event.error, NonFiniteLogitsError)


### END SOLUTION

"""One engine that lives on, shared by every call of `LLM`: each call sees its own events."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.llm.engine_levels import AnyEngine, Rung
from nanovllm.llm.forks import check_fork

Event = Any  # lab 03's, and those that the rung's `kinds` name

_IDLE_STEPS = 3  # in a row, after which an engine that has work is taken to be stuck


@dataclass(eq=False)
class Call:
    """The requests of one caller."""

    inbox: deque[Event] = field(default_factory=deque)
    open: dict[int, int] = field(default_factory=dict)  # samples that have not ended, by request
    cached: dict[int, int] = field(default_factory=dict)  # prompt tokens found there, by request
    error: Exception | None = None  # why it will hear no more


class Runner:
    """Steps the engine for whoever waits, and keeps the events of the others for them.

    So two streams that are read in turn share their steps, and so do the calls of several threads:
    one of them steps at a time. rung: makes the engine, when the first request comes, and again
    after a step that broke the engine's books.
    """

    def __init__(self, rung: Rung) -> None:
        self.rung = rung
        self.lock = threading.RLock()  # held by whoever touches the engine, or who waits for what
        self.on_event: Callable[[Event], None] | None = None  # sees every event
        self._engine: AnyEngine | None = None
        self._call_of: dict[int, Call] = {}  # by request id, those that have not ended
        self._idle = 0  # steps in a row that computed nothing

    @property
    def engine(self) -> Any:
        """The engine, made when it is first needed."""
        with self.lock:
            if self._engine is None:
                self._engine = self.rung.make_engine()
            return self._engine

    def submit(
        self,
        call: Call,
        request_id: int,
        prompt: Sequence[int],
        params: SamplingParams,
        seed: int | None,
        **urgency: Any,
    ) -> None:
        """Queue a request of a call. Raises RequestError for one that cannot be answered.

        urgency: its priority and deadline, if the caller said any.
        """
        check_fork()
        with self.lock:
            self.engine.add_request(prompt, params, seed=seed, request_id=request_id, **urgency)
            self._call_of[request_id] = call
            call.open[request_id] = params.n

    def events(self, call: Call) -> Iterator[Event]:
        """Yield what happens to the call's requests until all have ended.

        Requests that are left before that, by an error or by a caller who stops listening, are
        aborted. Raises the error of a request that failed.
        """
        try:
            while call.inbox or call.open:
                with self.lock:
                    if call.open and not call.inbox:  # another thread may have stepped
                        self._step()
                while call.inbox:
                    event = call.inbox.popleft()
                    if isinstance(event, self.rung.kinds.failed):
                        raise event.error
                    yield event
            if call.error is not None:
                raise call.error
        finally:
            self.drop(call)

    def drop(self, call: Call) -> None:
        """Abort those of the call's requests that have not ended."""
        with self.lock:
            for request_id in call.open:
                del self._call_of[request_id]
                if self._engine is not None:
                    self._engine.abort(request_id)
            call.open.clear()

    def _step(self) -> None:
        try:
            events = self.engine.step()
        except BaseException as error:
            self._mend(error)
            raise
        self._idle = 0 if events else self._idle + 1
        if events and isinstance(events[-1], self.rung.kinds.stepped):
            self._note_hits(events[-1])
        for event in events:
            self._deliver(event)
        if self._idle == _IDLE_STEPS or (self._call_of and not self.engine.has_unfinished):
            waiting = list(self._call_of)[:8]
            self._fail_all(RuntimeError(f"The engine does nothing, but requests {waiting} wait."))

    def _note_hits(self, step: Event) -> None:
        """A request's first chunk starts behind what the prefix cache had of it."""
        for chunk in step.chunks:
            call = self._call_of.get(chunk.request_id)
            if call is not None:
                call.cached.setdefault(chunk.request_id, chunk.start)

    def _deliver(self, event: Event) -> None:
        kinds = self.rung.kinds
        if self.on_event is not None:
            self.on_event(event)
        if isinstance(event, kinds.stepped):
            return
        call = self._call_of.get(event.request_id)
        if call is not None:
            call.inbox.append(event)
            if isinstance(event, (Finished, *kinds.failed, *kinds.aborted)):
                self._end_sample(call, event.request_id)

    def _end_sample(self, call: Call, request_id: int) -> None:
        call.open[request_id] -= 1
        if not call.open[request_id]:
            del call.open[request_id], self._call_of[request_id]

    def _mend(self, error: BaseException) -> None:
        """Keep the engine after an interrupt that did no harm; else start anew next time."""
        if isinstance(error, KeyboardInterrupt):
            try:
                self.engine.check()
            except Exception as broken:  # whatever it is, the engine is given up for it
                error = broken
            else:
                return
        self._fail_all(RuntimeError(f"The engine stopped: {type(error).__name__}: {error}"))

    def _fail_all(self, error: Exception) -> None:
        """Give the engine up, and tell all who wait."""
        self._engine, self._idle = None, 0
        for call in self._call_of.values():
            call.error = error
            call.open.clear()
        self._call_of.clear()

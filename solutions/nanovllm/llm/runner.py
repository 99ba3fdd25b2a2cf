"""One engine that lives on, shared by every call of `LLM`: each call sees its own events."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import InvariantError
from nanovllm.batching.events import Aborted, EngineEvent, Failed, Stepped
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams

_IDLE_STEPS = 3  # in a row, after which an engine that has work is taken to be stuck


@dataclass(eq=False)
class Call:
    """The requests of one caller."""

    inbox: deque[EngineEvent] = field(default_factory=deque)
    open: dict[int, int] = field(default_factory=dict)  # samples that have not ended, by request
    cached: dict[int, int] = field(default_factory=dict)  # prompt tokens found there, by request


class Runner:
    """Steps the engine for whoever waits, and keeps the events of the others for them.

    So two streams that are read in turn share their steps. make: returns a new engine; called
    when the first request comes, and after a step that broke the engine's books.
    """

    def __init__(self, make: Callable[[], Engine]) -> None:
        self.make = make
        self.on_event: Callable[[EngineEvent], None] | None = None  # sees every event
        self._engine: Engine | None = None
        self._call_of: dict[int, Call] = {}  # by request id, those that have not ended
        self._idle = 0  # steps in a row that computed nothing

    @property
    def engine(self) -> Engine:
        """The engine, made when it is first needed."""
        if self._engine is None:
            self._engine = self.make()
        return self._engine

    def submit(
        self,
        call: Call,
        request_id: int,
        prompt: Sequence[int],
        params: SamplingParams,
        seed: int | None,
    ) -> None:
        """Queue a request of a call. Raises RequestError for one that cannot be answered."""
        self.engine.add_request(prompt, params, seed=seed, request_id=request_id)
        self._call_of[request_id] = call
        call.open[request_id] = params.n

    def events(self, call: Call) -> Iterator[EngineEvent]:
        """Yield what happens to the call's requests until all have ended.

        Requests that are left before that, by an error or by a caller who stops listening, are
        aborted. Raises the error of a request that failed.
        """
        try:
            while call.inbox or call.open:
                if not call.inbox:
                    self._step()
                while call.inbox:
                    event = call.inbox.popleft()
                    if isinstance(event, Failed):
                        raise event.error
                    yield event
        finally:
            self.drop(call)

    def drop(self, call: Call) -> None:
        """Abort those of the call's requests that have not ended."""
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
        if events and isinstance(events[-1], Stepped):
            self._note_hits(events[-1])
        for event in events:
            self._deliver(event)
        if self._idle == _IDLE_STEPS or (self._call_of and not self.engine.has_unfinished):
            waiting = list(self._call_of)[:8]
            self._fail_all(RuntimeError(f"The engine does nothing, but requests {waiting} wait."))

    def _note_hits(self, step: Stepped) -> None:
        """A request's first chunk starts behind what the prefix cache had of it."""
        for chunk in step.chunks:
            call = self._call_of.get(chunk.request_id)
            if call is not None:
                call.cached.setdefault(chunk.request_id, chunk.start)

    def _deliver(self, event: EngineEvent) -> None:
        if self.on_event is not None:
            self.on_event(event)
        if isinstance(event, Stepped):
            return
        call = self._call_of.get(event.request_id)
        if call is not None:
            call.inbox.append(event)
            if isinstance(event, Finished | Failed | Aborted):
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
            except InvariantError:
                pass
            else:
                return
        self._fail_all(RuntimeError(f"The engine stopped: {type(error).__name__}: {error}"))

    def _fail_all(self, error: Exception) -> None:
        """Give the engine up, and tell all who wait."""
        self._engine, self._idle = None, 0
        for request_id, call in self._call_of.items():
            call.inbox.append(Failed(request_id, 0, error, 0.0))
            call.open.clear()
        self._call_of.clear()

"""Lets an event loop use an engine that blocks: a thread that steps, a stream for each request."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from nanovllm.batching.events import EngineEvent
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.errors import EngineDeadError
from nanovllm.serving.stepping import Observer, SteppingEngine, show
from nanovllm.serving.stream import Stream

### BEGIN SOLUTION
REST = 0.01  # seconds; then perhaps somebody can run without having been told


class AsyncEngine:
    """All but `_run`, `_turn` and `_rest` belongs to the event loop's thread.

    The two threads meet in two places: notes to the engine, read before each step, and one call
    of the loop after each step.
    """

    def __init__(self, engine: SteppingEngine, observers: Sequence[Observer] = ()) -> None:
        self.engine, self.observers = engine, list(observers)
        self.error: EngineDeadError | None = None  # set once the thread has ended
        self.streams: dict[int, Stream] = {}  # by engine request id, those that have not ended
        self._condition = threading.Condition()  # guards the next three
        self._notes: list[Callable[[], object]] = []
        self._told = False  # anything, since the last turn began
        self._stopping = False
        self._idle = False  # the last step did nothing
        self._answers: set[Future[Any]] = set()  # that a `call` still waits for
        self._ended = asyncio.Event()
        self._worker = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        return self.error is None and self._worker.is_alive()

    @property
    def num_open(self) -> int:
        return sum(stream.num_open for stream in set(self.streams.values()))

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker.start()

    async def stop(self) -> None:
        self._stopping = True
        self._note()
        if self._worker.ident is not None:  # it was started
            await self._ended.wait()

    def submit(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, name: str = ""
    ) -> Stream:
        if self.error is not None:
            raise self.error
        taken: list[int] = []
        try:
            for token_ids in prompts:
                taken.append(self.engine.add_request(token_ids, params))
        except Exception:
            self._abort(taken)
            raise
        stream = Stream(taken, params.n, name)
        self.streams.update(dict.fromkeys(taken, stream))
        self._note()
        return stream

    def cancel(self, stream: Stream, reason: str) -> None:
        if not stream.ended:
            stream.reason = stream.reason or reason
            self._abort(stream.request_ids)

    async def call(self, function: Callable[[Any], Any]) -> Any:
        if self.error is not None:
            raise self.error
        answer: Future[Any] = Future()

        def run() -> None:
            if answer.set_running_or_notify_cancel():  # its caller may have gone
                try:
                    answer.set_result(function(self.engine))
                except BaseException as raised:  # the caller's own, whatever it is
                    answer.set_exception(raised)

        self._answers.add(answer)
        self._note(run)
        try:
            return await asyncio.wrap_future(answer)
        finally:
            self._answers.discard(answer)

    def _abort(self, request_ids: Sequence[int]) -> None:
        self._note(lambda: [self.engine.abort(request_id) for request_id in request_ids])

    def _note(self, *notes: Callable[[], object]) -> None:
        """Leave notes for the engine's thread, and wake it."""
        with self._condition:
            self._notes += notes
            self._told = True
            self._condition.notify()

    def _run(self) -> None:
        """The engine's thread, from start to end. However it ends, the loop is told."""
        error: BaseException | None = None
        try:
            while self._turn():
                self._rest()
        except BaseException as caught:
            error = caught
        self._loop.call_soon_threadsafe(self._close, error)

    def _turn(self) -> bool:
        """Wait for something to do, follow the notes, step; False when told to stop."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._notes or self._stopping or self.engine.has_unfinished
            )
            notes, self._notes, self._told = self._notes, [], False
        if self._stopping:
            return False
        found: Sequence[EngineEvent] | None = None
        for note in notes:
            note()
        if self.engine.has_unfinished:  # a note alone is no reason to step
            found = self.engine.step()
            usage = 1.0 - self.engine.store.free_tokens / self.engine.store.total_tokens
            self._loop.call_soon_threadsafe(self._deliver, found, usage)
        self._idle = found is not None and not found
        return True

    def _rest(self) -> None:
        """Where nobody could run: only a note or time can change that, and no step hurries it."""
        if self._idle:
            with self._condition:
                self._condition.wait_for(lambda: self._told or self._stopping, REST)

    def _deliver(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Show a step to the observers, and give each stream what is its own, all at once."""
        show(self.observers, events, usage)
        batches: dict[Stream, list[EngineEvent]] = {}
        for one in events:
            stream = self.streams.get(getattr(one, "request_id", -1))
            if stream is not None:
                batches.setdefault(stream, []).append(one)
        for stream, batch in batches.items():
            stream.put(batch)
            if stream.ended:
                for request_id in stream.request_ids:
                    del self.streams[request_id]

    def _close(self, cause: BaseException | None) -> None:
        """The thread has ended, or has nothing else left to do: whoever waits for it is told."""
        why = "was stopped" if cause is None else f"has died: {type(cause).__name__}: {cause}"
        self.error = EngineDeadError(f"The engine {why}; start the server again.")
        self.error.__cause__ = cause
        for stream in set(self.streams.values()):
            stream.fail(self.error)
        self.streams.clear()
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(self.error)
        if self._worker.ident is not None:  # it was started
            self._worker.join()
        self._ended.set()


### END SOLUTION

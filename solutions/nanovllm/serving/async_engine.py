"""The engine in a thread of its own, and for each caller a stream of what concerns it.

Nothing of the model ever runs in the event loop's thread. The two threads meet in two places:
notes to the engine, read before each step, and one call of the loop after each step.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from nanovllm.batching.events import EngineEvent
from nanovllm.generation.errors import RequestError
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.errors import EngineDeadError
from nanovllm.serving.stream import Stream

T = TypeVar("T")
Observer = Callable[[Sequence[EngineEvent], float], None]  # a step's events; share of KV in use
log = logging.getLogger("nanovllm.serving")


class SteppingEngine(Protocol):
    """What is asked of the engine here; lab 04's Engine has it, and so do the checks' stand-ins."""

    store: Any

    @property
    def has_unfinished(self) -> bool: ...
    def add_request(
        self, prompt_token_ids: Sequence[int], params: SamplingParams | None = None
    ) -> int: ...
    def abort(self, request_id: int) -> bool: ...
    def step(self) -> list[EngineEvent]: ...


class AsyncEngine:
    """Lets an event loop use an engine that blocks.

    `start` it in the event loop that uses it; all methods but `_run` and what it calls belong to
    the loop's thread.
    """

    def __init__(self, engine: SteppingEngine, observers: Sequence[Observer] = ()) -> None:
        self.engine = engine
        self.observers = list(observers)
        self.error: EngineDeadError | None = None  # set once the thread has ended
        self.streams: dict[int, Stream] = {}  # by engine request id, those that have not ended
        self._condition = threading.Condition()
        self._notes: list[Callable[[], object]] = []  # for the engine's thread, guarded
        self._answers: set[asyncio.Future[Any]] = set()  # that a `call` may still wait for
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self.error is None and self._thread.is_alive()

    @property
    def num_open(self) -> int:
        """Samples that have not ended, waiting and running."""
        return sum(stream.num_open for stream in set(self.streams.values()))

    def start(self) -> None:
        """Begin to step."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after the step it is in; streams that are open end with an error."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        while self._thread.is_alive():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        name: str = "",
    ) -> Stream:
        """Hand the prompts of one API request to the engine; the stream of all their samples.

        All prompts are taken or none: if the engine refuses one, a note aborts those before it.
        Either way the engine's thread is woken.

        Raises:
            RequestError: the engine refuses a prompt.
            EngineDeadError: the engine's thread has ended.
        """
        ### BEGIN SOLUTION
        if self.error is not None:
            raise self.error
        ids: list[int] = []
        try:
            for prompt in prompts:
                ids.append(self.engine.add_request(prompt, params))
        except RequestError:
            self._note(lambda: [self.engine.abort(request_id) for request_id in ids])
            raise
        stream = Stream(ids, params.n, name)
        self.streams.update(dict.fromkeys(ids, stream))
        self._note()
        return stream
        ### END SOLUTION

    def cancel(self, stream: Stream, reason: str) -> None:
        """Give up what has not ended of a stream: a note aborts it before the next step.

        `reason` is kept in the stream: the first one given. The stream stays open, and its reader
        goes on, until the engine's Aborted arrive. A stream that has ended stays as it is.
        """
        ### BEGIN SOLUTION
        if stream.ended:
            return
        stream.reason = stream.reason or reason
        self._note(lambda: [self.engine.abort(request_id) for request_id in stream.request_ids])
        ### END SOLUTION

    async def call(self, function: Callable[[Any], T]) -> T:
        """Run `function(engine)` in the engine's thread between two steps, and return its result.

        Raises EngineDeadError where there is no thread to run it, or it ends before it has.
        """
        if self.error is not None:
            raise self.error
        answer: asyncio.Future[T] = self._loop.create_future()
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)

        def deliver(result: Any, error: Exception | None) -> None:
            if not answer.done():
                answer.set_exception(error) if error else answer.set_result(result)

        def run() -> None:
            result, error = None, None
            try:
                result = function(self.engine)
            except Exception as caught:
                error = caught
            self._loop.call_soon_threadsafe(deliver, result, error)

        self._note(run)
        return await answer

    def _note(self, *notes: Callable[[], object]) -> None:
        """Leave notes for the engine's thread, and wake it."""
        with self._condition:
            self._notes += notes
            self._condition.notify()

    def _run(self) -> None:
        """The engine's thread, from start to end. However it ends, the loop is told."""
        error: BaseException | None = None
        try:
            self._drive()
        except BaseException as caught:
            error = caught
        self._loop.call_soon_threadsafe(self._close, error)

    def _wait(self) -> list[Callable[[], object]]:
        """Sleep until there is something to do (or to stop for); the notes left meanwhile."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._notes or self._stopping or self.engine.has_unfinished
            )
            notes, self._notes = self._notes, []
            return notes

    def _drive(self) -> None:
        """Wait, follow the notes, step, tell the loop: until `_stopping`, whatever is open then.

        One call_soon_threadsafe a step carries all its events to `_deliver`, with the share of
        the store's places in use after it. An engine with nothing to do is not stepped.
        """
        ### BEGIN SOLUTION
        while True:
            notes = self._wait()
            if self._stopping:
                return
            for note in notes:
                note()
            if self.engine.has_unfinished:
                events = self.engine.step()
                store = self.engine.store
                usage = 1.0 - store.free_tokens / store.total_tokens
                self._loop.call_soon_threadsafe(self._deliver, events, usage)
        ### END SOLUTION

    def _deliver(self, events: Sequence[EngineEvent], usage: float) -> None:
        """In the loop: show the step to the observers, and each stream what is its own, at once.

        An event that names no request, or one that nobody listens to, goes to the observers alone.
        Streams whose last sample has ended leave `streams`.
        """
        self._observe(events, usage)
        ### BEGIN SOLUTION
        batches: dict[Stream, list[EngineEvent]] = {}
        for event in events:
            stream = self.streams.get(getattr(event, "request_id", -1))
            if stream in batches:
                batches[stream].append(event)
            elif stream is not None:
                batches[stream] = [event]
        for stream, batch in batches.items():
            stream.put(batch)
            if stream.ended:
                self._forget(stream)
        ### END SOLUTION

    def _observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """An observer that raises is dropped: no chart is worth a server."""
        for observer in list(self.observers):
            try:
                observer(events, usage)
            except Exception:
                log.exception("observer dropped", extra={"fields": {"observer": repr(observer)}})
                self.observers.remove(observer)

    def _forget(self, stream: Stream) -> None:
        for request_id in stream.request_ids:
            self.streams.pop(request_id, None)

    def _close(self, cause: BaseException | None) -> None:
        """In the loop, when the thread has ended: whoever waits for it is told."""
        if cause is not None:
            log.critical("engine died", exc_info=cause)
        self._end(cause)
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(self.error or EngineDeadError("The engine has ended."))

    def _end(self, cause: BaseException | None) -> None:
        """The thread has ended: `error` is set, and every open stream fails with it.

        `cause` is what killed it, or None after `stop`. The error is an EngineDeadError whose
        message names the cause's type and text, or says that the engine was stopped. No stream
        stays in `streams`.
        """
        ### BEGIN SOLUTION
        why = "was stopped" if cause is None else f"has died: {type(cause).__name__}: {cause}"
        self.error = EngineDeadError(f"The engine {why}; start the server again.")
        self.error.__cause__ = cause
        for stream in set(self.streams.values()):
            stream.fail(self.error)
        self.streams.clear()
        ### END SOLUTION

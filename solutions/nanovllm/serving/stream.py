"""What one API request hears from the engine."""

import asyncio
from collections.abc import Sequence

from nanovllm.batching.events import Aborted, EngineEvent, Failed
from nanovllm.generation.events import Finished


class Stream:
    """The events of one API request, for an `async for` that gives lists of them.

    Stream(request_ids, n=1, name=""). request_ids: the engine's id of each prompt, in order; each
    prompt has n samples. name: by which people know the request. A stream belongs to the event
    loop's thread.

    - `request_ids` (a tuple), `n`, `name`: as they were given.
    - `reason`: None, or why the request was given up. Whoever gives it up sets it.
    - `num_open`: samples that have not ended. Finished, Aborted and Failed each end one sample.
    - `ended`: whether nothing more will come: no sample is open, or the stream has failed.
    - `choice(event)`: the number of the choice that an event of a sample belongs to. Choices are
      numbered prompt by prompt.
    - `put(events)`: add events of this request. The caller may change its list afterwards.
    - `fail(error)`: end the stream with an error. Nobody calls `put` or `fail` after the end.
    - Each turn of the `async for` gives all events since the last turn, in their order, and waits
      while there are none. After the last event the iteration ends, or raises the error that the
      stream failed with. A slow reader gets more at once, and keeps nobody waiting.

    >>> from nanovllm.batching.events import Admitted
    >>> Stream([7, 9], n=2).choice(Admitted(9, 1, time=0.0))
    3
    """

    ### BEGIN SOLUTION
    def __init__(self, request_ids: Sequence[int], n: int = 1, name: str = "") -> None:
        self.request_ids = tuple(request_ids)
        self.n, self.name = n, name
        self.reason: str | None = None
        self.num_open = n * len(self.request_ids)
        self._pending: list[EngineEvent] = []
        self._error: Exception | None = None
        self._bell = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self.num_open == 0 or self._error is not None

    def choice(self, event: EngineEvent) -> int:
        return self.n * self.request_ids.index(event.request_id) + event.index  # pyright: ignore[reportAttributeAccessIssue]  # of a sample

    def put(self, events: Sequence[EngineEvent]) -> None:
        self._pending += events
        self.num_open -= sum(isinstance(event, Finished | Aborted | Failed) for event in events)
        self._bell.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._bell.set()

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> list[EngineEvent]:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self.num_open == 0:
                raise StopAsyncIteration
            self._bell.clear()
            await self._bell.wait()
        events, self._pending = self._pending, []
        return events

    ### END SOLUTION

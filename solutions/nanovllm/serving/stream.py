"""What one API request hears from the engine."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from nanovllm.batching.events import Aborted, EngineEvent, Failed
from nanovllm.generation.events import Finished


class Stream:
    """Lists of events, for an `async for`: everything that came since the last look.

    request_ids: the engine's id of each prompt, in order; each has n samples. The choices of the
    answer are numbered prompt by prompt. Belongs to the event loop's thread.
    """

    def __init__(self, request_ids: Sequence[int], n: int = 1, name: str = "") -> None:
        self.request_ids = tuple(request_ids)
        self.n = n
        self.name = name  # by which people know it
        self.reason: str | None = None  # why it was given up
        self.num_open = n * len(self.request_ids)  # samples that have not ended
        self._base = {request_id: n * i for i, request_id in enumerate(self.request_ids)}
        self._pending: list[EngineEvent] = []
        self._error: Exception | None = None
        self._news = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.num_open == 0 or self._error is not None

    def choice(self, event: EngineEvent) -> int:
        """The number of the choice that an event of a sample belongs to.

        >>> from nanovllm.batching.events import Admitted
        >>> Stream([7, 9], n=2).choice(Admitted(9, 1, time=0.0))
        3
        """
        ### BEGIN SOLUTION
        return self._base[event.request_id] + event.index
        ### END SOLUTION

    def put(self, events: Sequence[EngineEvent]) -> None:
        """Add what a step brought; Finished, Aborted and Failed each end one sample."""
        ### BEGIN SOLUTION
        self._pending += events
        self.num_open -= sum([isinstance(event, (Finished, Aborted, Failed)) for event in events])
        self._news.set()
        ### END SOLUTION

    def fail(self, error: Exception) -> None:
        """End it with an error, which the reader meets after what came before."""
        self._error = error
        self._news.set()

    def __aiter__(self) -> AsyncIterator[list[EngineEvent]]:
        return self

    async def __anext__(self) -> list[EngineEvent]:
        """All events since the last call, in order; waits while there are none.

        A reader that is slow gets more at once, and holds nobody up. After the last event the
        iteration ends, or raises the error that the stream ended with.
        """
        ### BEGIN SOLUTION
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self.num_open == 0:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        events, self._pending = self._pending, []
        return events
        ### END SOLUTION

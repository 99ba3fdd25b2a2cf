"""The requests of an engine that have not ended, and the notes that its callers leave (given).

Its methods may be called from any thread: an id and its requests come and go at one moment.
"""

import threading
from collections import deque
from collections.abc import Sequence
from itertools import count

from nanovllm.batching.errors import DuplicateRequestError
from nanovllm.batching.request import Request


class OpenRequests:
    """By request id, the samples that have not ended; which of them are new or given up."""

    def __init__(self) -> None:
        self._samples: dict[int, list[Request]] = {}
        self._arrived: deque[Request] = deque()
        self._given_up: deque[Request] = deque()
        self._lock = threading.Lock()
        self._ids, self._numbers = count(), count()

    def __len__(self) -> int:
        return len(self._samples)

    def next_id(self) -> int:
        """The next request id that is not in use."""
        return next(i for i in self._ids if i not in self._samples)

    def next_number(self) -> int:
        """The next Request.number."""
        return next(self._numbers)

    def add(self, request_id: int, requests: Sequence[Request]) -> None:
        """All samples of an id arrive at one moment, or none. Raises DuplicateRequestError."""
        with self._lock:
            if request_id in self._samples:
                raise DuplicateRequestError(f"Request id {request_id} is in use; choose another.")
            self._samples[request_id] = list(requests)
            self._arrived.extend(requests)

    def give_up(self, request_id: int) -> bool:
        """Note that all open samples of an id are to be aborted; False if there are none."""
        with self._lock:
            requests = self._samples.get(request_id, ())
            self._given_up.extend(requests)
        return bool(requests)

    def notes(self) -> tuple[list[Request], list[Request]]:
        """Who arrived and who was given up since the last call, in order.

        Whoever is given up has arrived by then. A sample may be given up twice, or have ended.
        """
        given_up = [self._given_up.popleft() for _ in range(len(self._given_up))]
        arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
        return arrived, given_up

    def remove(self, request: Request) -> None:
        """A sample has ended; with the last one, the id is free again."""
        with self._lock:
            samples = self._samples[request.sequence.request_id]
            samples.remove(request)
            if not samples:
                del self._samples[request.sequence.request_id]

    def all(self) -> tuple[list[Request], list[Request]]:
        """Every sample that has not ended; and which of them no step has seen yet."""
        with self._lock:
            known = [request for samples in self._samples.values() for request in samples]
            return known, list(self._arrived)

"""An engine whose failures are seen before anybody mends them (given)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanovllm.batching.errors import NonFiniteLogitsError
from nanovllm.batching.events import EngineEvent, Failed, Preempted
from nanovllm.resilience.failures import Failure


@dataclass
class Seen:
    """What the engine's thread has seen, of all engines of a server; other threads read it.

    steps: rounds that ended, however they did. least_free: share of the store that was free, before
    or after a step in which samples had to give way: the least since somebody has set it to 1.
    failures: by kind, how many; of a model error each request that it hit. last: the newest, and
    its text.
    """

    steps: int = 0
    least_free: float = 1.0
    last: tuple[Failure, str] | None = None

    def __post_init__(self) -> None:
        self.failures = dict.fromkeys(Failure, 0)

    def fail(self, failure: Failure, error: object) -> None:
        """A failure was seen."""
        self.failures[failure] += 1
        self.last = failure, f"{type(error).__name__}: {error}"


class Witness:
    """The engine; a step that raises after `patience` seconds or more has hung."""

    def __init__(
        self,
        engine: Any,
        seen: Seen,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._seen, self._patience, self._clock = engine, seen, patience, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> list[EngineEvent]:
        """The engine's step."""
        started, free = self._clock(), self._free()
        try:
            events = self._engine.step()
        except NotImplementedError:
            raise
        except Exception as error:
            hung = self._clock() - started >= self._patience
            self._seen.fail(Failure.HANG if hung else Failure.CRASH, error)
            raise
        finally:
            self._seen.steps += 1
        for event in events:
            if isinstance(event, Preempted):
                self._seen.least_free = min(self._seen.least_free, free, self._free())
            elif isinstance(event, Failed) and isinstance(event.error, NonFiniteLogitsError):
                self._seen.fail(Failure.NAN, event.error)
            elif isinstance(event, Failed) and _is_memory(event.error):
                self._seen.fail(Failure.OUT_OF_MEMORY, event.error)
        return events

    def _free(self) -> float:
        return self._engine.store.free_tokens / self._engine.store.total_tokens


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"

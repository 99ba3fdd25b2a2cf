"""What a server asks of an engine, and who may look on (given)."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nanovllm.batching.events import EngineEvent
from nanovllm.generation.params import SamplingParams

Observer = Callable[[Sequence[EngineEvent], float], None]  # a step's events; share of KV in use
log = logging.getLogger("nanovllm.serving")


class SteppingEngine(Protocol):
    """Lab 04's Engine has this, and so do the checks' stand-ins.

    One thread calls `step`. `add_request` and `abort` may be called from any thread, at any
    moment: the next step sees them. A step that has begun does not.
    """

    store: Any  # has total_tokens and free_tokens

    @property
    def has_unfinished(self) -> bool:
        """Whether a step has anything to do."""
        ...

    def add_request(
        self, prompt_token_ids: Sequence[int], params: SamplingParams | None = None
    ) -> int:
        """Take a prompt on; its request id. Raises RequestError for one that cannot be answered."""
        ...

    def abort(self, request_id: int) -> bool:
        """Give a request up: the next step reports each open sample of it as Aborted."""
        ...

    def step(self) -> list[EngineEvent]:
        """One step, which takes as long as it takes; what happened in it."""
        ...


def show(observers: list[Observer], events: Sequence[EngineEvent], usage: float) -> None:
    """Show a step to every observer. One that raises is dropped: no chart is worth a server."""
    for observer in list(observers):
        try:
            observer(events, usage)
        except Exception:  # whatever it is
            log.exception("observer dropped", extra={"fields": {"observer": repr(observer)}})
            observers.remove(observer)

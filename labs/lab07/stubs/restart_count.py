"""How often lab 12's supervisor has started the engine again, as a metric (given)."""

from collections.abc import Sequence
from typing import Any

from nanovllm.batching.events import EngineEvent
from nanovllm.serving.registry import Registry


class RestartCount:
    """`nanovllm:engine_restarts`; vLLM has none."""

    def __init__(self, registry: Registry, engine: Any) -> None:
        self.engine, self.known = engine, 0
        self.counter = registry.counter("engine_restarts", "Times the engine was started again.")

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """After a step: count what has come since the last."""
        self.counter.inc(self.engine.restarts - self.known)
        self.known = self.engine.restarts

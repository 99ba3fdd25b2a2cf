"""Bytes that swapping has moved, as metrics; only where the store swaps by cost (given)."""

from collections.abc import Sequence
from typing import Any

from nanovllm.batching.events import EngineEvent
from nanovllm.serving.registry import Registry


class SwapCounts:
    """Brings a server's registry up to what the store has counted, after each step.

    engine: its store may become another one, which counts from 0 (lab 12).
    """

    def __init__(self, registry: Registry, engine: Any) -> None:
        self.engine, self.swapping = engine, engine.store.swapping
        self.counters = {
            "bytes_out": registry.counter("kv_swap_out_bytes", "K/V copied to host memory."),
            "bytes_in": registry.counter("kv_swap_in_bytes", "K/V copied back."),
            "num_swapped": registry.counter("num_swapped", "Preempted samples that were swapped."),
            "num_recomputed": registry.counter(
                "num_recomputed", "Preempted samples that compute their K/V again."
            ),
        }
        self.counted: dict[str, float] = dict.fromkeys(self.counters, 0)
        self.used = registry.gauge("kv_swap_used_bytes", "K/V in host memory now.")

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """After a step: what is new since the last one."""
        if self.engine.store.swapping is not self.swapping:
            self.swapping = self.engine.store.swapping
            self.counted = dict.fromkeys(self.counters, 0)
        facts: dict[str, Any] = self.swapping.facts()
        for name, counter in self.counters.items():
            counter.inc(facts[name] - self.counted[name])
            self.counted[name] = facts[name]
        self.used.set(facts["used_bytes"])

"""Lab 10's ranks, where the engine has some: their rows, their metrics, and their end (given)."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from prometheus_client import Gauge

from nanovllm.batching.events import EngineEvent
from nanovllm.serving.errors import EngineDeadError
from nanovllm.serving.registry import LABELS, Registry


def rank_rows(engine: Any) -> list[dict[str, int]]:
    """A row for each rank: rank, weight_bytes, kv_bytes, messages, last_call; [] without ranks."""
    return [asdict(row) for row in engine.rank_rows()] if hasattr(engine, "rank_rows") else []


def check_alive(engine: Any) -> None:
    """Raise EngineDeadError where no step can succeed, also before one has tried."""
    failure = getattr(engine, "failure", None)
    if failure is not None:
        raise EngineDeadError(f"The engine has died: {failure} Start the server again.")


class RankGauges:
    """The rows as metrics, each with the label `rank`; vLLM has none of them."""

    def __init__(self, registry: Registry, engine: Any) -> None:
        self.registry, self.engine = registry, engine
        self.gauges = {
            "weight_bytes": self._gauge("rank_weight_bytes", "Bytes of weights that a rank holds."),
            "kv_bytes": self._gauge("rank_kv_cache_bytes", "Bytes of K and V that a rank holds."),
            "messages": self._gauge("rank_messages", "Messages sent to a rank since the start."),
            "last_call": self._gauge("rank_last_call", "The last call that a rank has answered."),
        }
        self.observe((), 0.0)

    def _gauge(self, name: str, says: str) -> Gauge:
        return Gauge(f"nanovllm:{name}", says, (*LABELS, "rank"), registry=self.registry.registry)

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Read the rows after a step."""
        for row in rank_rows(self.engine):
            for name, gauge in self.gauges.items():
                gauge.labels(*self.registry.labels, row["rank"]).set(row[name])

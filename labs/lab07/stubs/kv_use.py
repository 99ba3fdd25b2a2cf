"""Bytes of K and V that each request took, by the time it ended (given)."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from prometheus_client import Histogram

from nanovllm.batching.events import Aborted, EngineEvent, Failed, Queued, Stepped
from nanovllm.generation.events import Finished
from nanovllm.serving.registry import LABELS, Registry

POINTS = 300  # of the curve that are kept
BUCKETS = tuple(1e5 * 4**i for i in range(10))  # 0.1 MB to 26 GB

Sample = tuple[int, int]


class KvUse:
    """From events to a curve and a histogram. kv: `kv_facts` of the store, for its sizes.

    A request's bytes are those of its blocks (of its slot, where it has one), shared ones too.
    """

    def __init__(self, registry: Registry, kv: dict[str, Any]) -> None:
        self.block_size, self.bytes_per_token = kv["block_size"] or 1, kv["bytes_per_token"]
        self.stored: dict[Sample, int] = {}  # tokens of those that have not ended
        self.ended: deque[tuple[float, int]] = deque(maxlen=POINTS)  # when, bytes
        histogram = Histogram(
            "nanovllm:request_kv_bytes",
            "K and V of a sample when it ended, in whole blocks.",
            LABELS,
            registry=registry.registry,
            buckets=BUCKETS,
        )
        self.histogram = histogram.labels(*registry.labels)

    def bytes_of(self, num_tokens: int) -> int:
        """What so many stored tokens take, in whole blocks."""
        return -(-num_tokens // self.block_size) * self.block_size * self.bytes_per_token

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Take in the events of a step; its Stepped, which comes last, has the chunks."""
        gone: list[tuple[Sample, float]] = []
        for event in events:
            if isinstance(event, Queued):
                self.stored[event.request_id, event.index] = 0
            elif isinstance(event, Finished | Aborted | Failed):
                gone.append(((event.request_id, event.index), event.time))
            elif isinstance(event, Stepped):
                for run in event.chunks:
                    if (run.request_id, run.index) in self.stored:
                        self.stored[run.request_id, run.index] = run.start + run.length
        for sample, when in gone:
            tokens = self.stored.pop(sample, 0)
            if tokens:
                self.ended.append((when, self.bytes_of(tokens)))
                self.histogram.observe(self.bytes_of(tokens))

    def recent(self, now: float, window: float) -> list[list[float]]:
        """Those that ended lately, as [seconds ago, bytes]."""
        return [[now - when, size] for when, size in list(self.ended) if now - when <= window]

"""What the capstone is, and how it is judged; your own engine is in `capstone.py` (given)."""

from typing import Protocol

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore


class Capstone(Protocol):
    """`make_engine` of `capstone.py`: lab 04's engine, made cheaper by one idea of yours.

    The gate: the engine answers as the plain one, `Engine(model, config, store=store)`, does, for
    models of every dense Llama-like family, greedy or sampled, whatever joins, is given up or
    preempted; `engine.check()` holds after every step; a request that fails fails alone.

    The counts: on one workload at least one of them falls by a quarter, and none of the others
    grows by more than a twentieth: operations (`CountOps`, views not counted), tokens that go
    through the model's embedding, bytes of weights and K/V store.
    """

    def __call__(self, model: Transformer, config: EngineConfig, *, store: PagedStore) -> Engine:
        """A new engine with nothing to do. The model may be given to several engines."""
        ...

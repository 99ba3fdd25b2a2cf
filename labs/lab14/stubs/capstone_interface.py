"""What the capstone is, and how it is judged; your own engine is in `capstone.py` (given)."""

from typing import Protocol

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore


class Capstone(Protocol):
    """`make_engine` of `capstone.py`: lab 04's engine, made cheaper by one idea of yours.

    The gate: the engine answers as the plain one, `Engine(model, config, store=store)`, does, for
    models of every dense Llama-like family in float32, greedy or sampled, whatever joins, is given
    up or preempted. Each request has the same events, Admitted and Preempted apart, with the same
    tokens and, but for rounding, log-probabilities. `engine.config` is what was given, and holds.
    `engine.check()` holds after every step. A request that fails fails alone: also where the step
    that it shares with others raises.

    The counts: of the workload, eight prompts, some of which begin alike, and ten greedy tokens
    behind each, four requests at once. Operations or tokens fall by a quarter, and neither they
    nor bytes grow by more than a twentieth.

    - Operations: those of torch, views not counted (`CountOps`), in every thread and mode.
    - Tokens: multiplications of the model's own weights, over what one token needs that goes
      through all layers.
    - Bytes: of all tensors that live with the engine, which are weights, store, and what it keeps.

    A step computes with torch: floats do not go to the host more than once a step.
    """

    def __call__(self, model: Transformer, config: EngineConfig, *, store: PagedStore) -> Engine:
        """A new engine with nothing to do. The model may be given to several engines."""
        ...

"""Merged projections, norms in one operation, one RoPE for q and k."""

from nanovllm.batching.engine import Engine
from nanovllm.performance.fusion import FusedTransformer


def make_engine(model, config, *, store):
    engine = Engine(model, config, store=store)
    engine.model = FusedTransformer(model)
    return engine

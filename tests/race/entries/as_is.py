"""The plain engine as it is."""

from nanovllm.batching.engine import Engine


def make_engine(model, config, *, store):
    return Engine(model, config, store=store)

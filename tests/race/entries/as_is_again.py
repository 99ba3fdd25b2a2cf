"""The plain engine once more, under another name."""

from nanovllm.batching.engine import Engine


class Same(Engine):
    pass


def make_engine(model, config, *, store):
    return Same(model, config, store=store)

"""Waits for ever, and gives no answer."""

import time

from nanovllm.batching.engine import Engine


class Waiting(Engine):
    def step(self):
        time.sleep(3600)
        return super().step()


def make_engine(model, config, *, store):
    return Waiting(model, config, store=store)

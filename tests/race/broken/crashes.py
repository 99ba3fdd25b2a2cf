"""Reads where no memory is, in its third step."""

import ctypes

from nanovllm.batching.engine import Engine


class Crashing(Engine):
    steps = 0

    def step(self):
        self.steps += 1
        if self.steps == 3:
            ctypes.string_at(0)
        return super().step()


def make_engine(model, config, *, store):
    return Crashing(model, config, store=store)

"""The plain engine, and 5 % more work after every step."""

import time

from nanovllm.batching.engine import Engine


class Slower(Engine):
    def step(self):
        begun = time.thread_time()
        events = super().step()
        end = begun + 1.05 * (time.thread_time() - begun)
        while time.thread_time() < end:
            pass
        return events


def make_engine(model, config, *, store):
    return Slower(model, config, store=store)

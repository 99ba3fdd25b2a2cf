"""Says that it is done before it has begun, so that the clock is read too early."""

import json
import os

from nanovllm.batching.engine import Engine


def say(text):
    """To whoever listens: that the attack has reached what it attacks."""
    for handle in range(3, 64):
        try:
            os.write(handle, json.dumps({"witness": text}).encode() + b"\n")
        except OSError:
            pass


class Early(Engine):
    def step(self):
        if self.model.config.hidden_size == 128:
            say("it said that it is done")
            for handle in range(3, 64):
                try:
                    os.write(handle, b'{"found": {"texts": {}}, "done": true}\n')
                except OSError:
                    pass
        return super().step()


def make_engine(model, config, *, store):
    return Early(model, config, store=store)

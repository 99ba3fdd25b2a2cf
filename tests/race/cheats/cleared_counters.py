"""Takes its operations out of whatever counts them."""

import json
import os

import torch
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from nanovllm.batching.engine import Engine


def say(text):
    """To whoever listens: that the attack has reached what it attacks."""
    for handle in range(3, 64):
        try:
            os.write(handle, json.dumps({"witness": text}).encode() + b"\n")
        except OSError:
            pass


class Uncounted(Engine):
    def step(self):
        modes = _get_current_dispatch_mode_stack()
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            events = super().step()
        for mode in modes:
            for name, value in vars(mode).items():
                if isinstance(value, dict):
                    value.clear()
                elif isinstance(value, int | float):
                    setattr(mode, name, 0)
            say("a counter was cleared")
        return events


def make_engine(model, config, *, store):
    return Uncounted(model, config, store=store)

"""RoPE's cosines and sines come from a table."""

import copy

import torch

from nanovllm.batching.engine import Engine


class Angles(torch.nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.positions, self.table = positions, positions.rotation(torch.arange(0))

    def embed(self, x, positions):
        return self.positions.embed(x, positions)

    def rotation(self, positions):
        needed = int(positions.max()) + 1 if len(positions) else 0
        if needed > len(self.table.cos):
            self.table = self.positions.rotation(torch.arange(max(64, 2 * needed)))
        return type(self.table)(self.table.cos[positions], self.table.sin[positions])


def make_engine(model, config, *, store):
    own = copy.copy(model)
    own._modules = dict(model._modules)
    own.__dict__.pop("positions", None)
    own.positions = Angles(model.positions)
    return Engine(own, config, store=store)

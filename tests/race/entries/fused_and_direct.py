"""Fused steps over angles from a table, and greedy rows without lab 03's chain."""

import torch

from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import NonFiniteLogitsError
from nanovllm.generation.events import Sampled
from nanovllm.greedy_draws import wants_argmax
from nanovllm.performance.fusion import FusedTransformer


class Angles:
    def __init__(self, positions):
        self.positions, self.table = positions, positions.rotation(torch.arange(0))

    def rotation(self, positions):
        needed = int(positions.max()) + 1 if len(positions) else 0
        if needed > len(self.table.cos):
            self.table = self.positions.rotation(torch.arange(max(64, 2 * needed)))
        return type(self.table)(self.table.cos[positions], self.table.sin[positions])


class Lean(FusedTransformer):
    def __init__(self, model):
        super().__init__(model)
        self.angles = Angles(model.positions)

    def __call__(self, token_ids, positions, attend):
        return self.forward(token_ids, self.angles.rotation(positions), attend)


class Direct(Engine):
    @torch.inference_mode()
    def draw(self, plan, logits):
        complete = [chunk.request for chunk in plan.chunks if chunk.completes]
        if not complete or not all(wants_argmax(request.sequence) for request in complete):
            return super().draw(plan, logits)
        top, ids = logits.max(dim=-1)
        drawn = [
            Sampled(token) if good else NonFiniteLogitsError("No token can be drawn.")
            for token, good in zip(ids.tolist(), top.isfinite().tolist(), strict=True)
        ]
        outcome_of = dict(zip(complete, drawn, strict=True))
        return [outcome_of.get(chunk.request) for chunk in plan.chunks]


def make_engine(model, config, *, store):
    engine = Direct(model, config, store=store)
    engine.model = Lean(model)
    return engine

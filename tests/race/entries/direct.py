"""Greedy rows take the largest logit at once, without lab 03's chain."""

import torch

from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import NonFiniteLogitsError
from nanovllm.generation.events import Sampled
from nanovllm.greedy_draws import wants_argmax


class Direct(Engine):
    @torch.inference_mode()
    def draw(self, plan, logits):
        complete = [chunk.request for chunk in plan.chunks if chunk.completes]
        if not all(wants_argmax(request.sequence) for request in complete):
            return super().draw(plan, logits)
        if not complete:
            return [None for _ in plan.chunks]
        top, ids = logits.max(dim=-1)
        drawn = [
            Sampled(token) if good else NonFiniteLogitsError("No token can be drawn.")
            for token, good in zip(ids.tolist(), top.isfinite().tolist(), strict=True)
        ]
        outcome_of = dict(zip(complete, drawn, strict=True))
        return [outcome_of.get(chunk.request) for chunk in plan.chunks]


def make_engine(model, config, *, store):
    return Direct(model, config, store=store)

"""One optimisation of the engine: fused steps over angles that are computed once."""

### BEGIN SOLUTION
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.plan import Plan
from nanovllm.model.attend import Attend
from nanovllm.model.positions import RopeRotation
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore
from nanovllm.performance.fusion import FusedTransformer


class AngleTable:
    """RoPE's cosines and sines of all positions up to the largest seen, computed when needed."""

    def __init__(self, positions: Any) -> None:
        self.positions = positions
        self.table = positions.rotation(torch.arange(0))

    def rotation(self, positions: Int[Tensor, "T"]) -> RopeRotation:
        needed = int(positions.max()) + 1 if len(positions) else 0
        if needed > len(self.table.cos):
            longer = torch.arange(max(64, 2 * needed), device=positions.device)
            self.table = self.positions.rotation(longer)
        return RopeRotation(self.table.cos[positions], self.table.sin[positions])


class LeanModel(FusedTransformer):
    """`FusedTransformer`, its angles from a table."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self.angles = AngleTable(model.positions)

    def __call__(
        self, token_ids: Int[Tensor, "T"], positions: Int[Tensor, "T"], attend: Attend
    ) -> Float[Tensor, "T E"]:
        return self.forward(token_ids, self.angles.rotation(positions), attend)


class LeanEngine(Engine):
    """Lab 04's engine, its steps computed by a `LeanModel`."""

    def __init__(self, model: Transformer, config: EngineConfig, *, store: PagedStore) -> None:
        super().__init__(model, config, store=store)
        self.lean = LeanModel(model)

    @torch.inference_mode()
    def execute(self, plan: Plan) -> Float[Tensor, "N V"]:
        token_ids, positions, last = [], [], []
        for chunk in plan.chunks:
            token_ids += chunk.request.token_ids(chunk.start, chunk.end)
            positions += range(chunk.start, chunk.end)
            if chunk.completes:
                last.append(len(token_ids) - 1)
        ids, places = (torch.tensor(x, device=self.device) for x in (token_ids, positions))
        hidden = self.lean(ids, places, self.store.bind(plan))
        if len(last) < len(token_ids):
            hidden = hidden[torch.tensor(last, dtype=torch.long, device=self.device)]
        return self.lean.logits(hidden)


def make_engine(model: Transformer, config: EngineConfig, *, store: PagedStore) -> Engine:
    """As `Capstone` says."""
    return LeanEngine(model, config, store=store)


### END SOLUTION

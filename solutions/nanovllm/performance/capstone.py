"""The capstone: lab 04's engine, made cheaper."""

### BEGIN SOLUTION
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
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


def make_engine(model: Transformer, config: EngineConfig, *, store: PagedStore) -> Engine:
    """As `Capstone` says."""
    engine = Engine(model, config, store=store)
    engine.model = cast(Transformer, LeanModel(model))
    return engine


### END SOLUTION

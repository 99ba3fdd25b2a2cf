"""What a step tells the ranks: a plan without its requests (given)."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from nanovllm.batching.plan import Plan
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.store import PagedStore
from nanovllm.paging.transfers import Transfer


@dataclass(frozen=True)
class StepInput:
    """The T tokens of a step, where they go, the copies due before, and the N rows wanted."""

    token_ids: Int[Tensor, "T"]
    positions: Int[Tensor, "T"]
    batch: PagedBatch
    transfers: tuple[Transfer, ...]
    rows: Int[Tensor, "N"]


def step_input(plan: Plan, store: PagedStore) -> StepInput:
    """The plan as the ranks need it; the copies due are theirs from now on."""
    token_ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    for chunk in plan.chunks:
        token_ids += chunk.request.token_ids(chunk.start, chunk.end)
        positions += range(chunk.start, chunk.end)
        if chunk.completes:
            rows.append(len(token_ids) - 1)
    store.make_copies()  # which only notes them: its cache is a RemoteCache
    ids, places, wanted = (torch.tensor(x, dtype=torch.long) for x in (token_ids, positions, rows))
    return StepInput(ids, places, store.batch(plan), store.cache.take(), wanted)

"""Which rank holds which experts: load, capacity, copies of hot experts, bytes over the links."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from nanovllm.performance.errors import PerformanceError


def expert_load(experts: Int[Tensor, "T k"], num_experts: int) -> list[int]:
    """Visits of each expert.

    >>> expert_load(torch.tensor([[0, 2], [2, 1], [2, 0]]), num_experts=4)
    [2, 1, 3, 0]
    """
    raise NotImplementedError("lab14 task 6: expert_load")


def imbalance(load: Sequence[float]) -> float:
    """The largest load over the mean: so much longer than it had to does the step take; 1.0 if all
    is 0.

    >>> imbalance([2, 1, 3, 0])
    2.0
    """
    raise NotImplementedError("lab14 task 6: imbalance")


def within_capacity(
    experts: Int[Tensor, "T k"], num_experts: int, capacity: int
) -> Bool[Tensor, "T k"]:
    """Which visits are kept where no expert takes more than `capacity`: its first ones, in the
    order of the tokens. No loop over tokens.

    >>> within_capacity(torch.tensor([[0, 2], [2, 1], [2, 0]]), 3, capacity=2).tolist()
    [[True, True], [True, True], [False, True]]
    """
    raise NotImplementedError("lab14 task 6: within_capacity")


def replicas(load: Sequence[int], slots: int) -> list[int]:
    """How many copies each expert gets, `slots` in all, each at least one.

    Copies share their expert's visits equally. One copy after another goes to the expert whose
    copies have most to do; of equal ones, to the first. So the busiest copy has as little to do as
    it can. Raises PerformanceError where there are fewer slots than experts.

    >>> replicas([10, 90, 20], slots=5)
    [1, 3, 1]
    """
    raise NotImplementedError("lab14 task 6: replicas")


@dataclass(frozen=True)
class Placement:
    """ranks[r]: the experts whose copies rank r holds."""

    ranks: tuple[tuple[int, ...], ...]

    def homes(self, expert: int) -> list[int]:
        """The ranks that hold a copy of an expert, lowest first.

        >>> Placement(((0, 1), (1, 2))).homes(1)
        [0, 1]
        """
        return [rank for rank, held in enumerate(self.ranks) if expert in held]


def place_experts(load: Sequence[int], num_ranks: int, slots_per_rank: int) -> Placement:
    """Copies, as `replicas` counts them for all slots, spread so that ranks have equal work.

    Every rank holds exactly `slots_per_rank` copies. An expert's copies share its visits. The
    busiest rank has no more to do, and no more ranks hold an expert twice, than by the greedy rule:
    the heaviest copy first (of equal ones, the lowest expert); each to a rank with a free slot, one
    without this expert before one with it, and of these to the first of those with least to do.
    Raises PerformanceError where the experts do not fit.

    >>> sorted(map(sorted, place_experts([10, 90, 20, 30], 2, 3).ranks))
    [[0, 1, 3], [1, 1, 2]]
    """
    raise NotImplementedError("lab14 task 6: place_experts")


def all_to_all_bytes(
    experts: Int[Tensor, "T k"], home: Sequence[int], placement: Placement, row_bytes: int
) -> list[list[int]]:
    """Bytes that each rank sends to each other one to bring tokens to their experts; [from][to].

    Token t's row of `row_bytes` is on rank home[t]. A visit goes to the token's own rank if that
    holds a copy of the expert, else to the rank with a copy at (t mod its number of ranks) in
    `homes(expert)`. A row goes to a rank once, however many of its experts are there. What stays
    counts 0. The way back has the same bytes in the other direction.
    Raises PerformanceError for an expert that no rank holds, naming it.

    >>> spread = Placement(((0, 1), (2, 3)))
    >>> all_to_all_bytes(torch.tensor([[0, 2], [2, 3]]), [0, 0], spread, row_bytes=8)
    [[0, 16], [0, 0]]
    """
    raise NotImplementedError("lab14 task 6: all_to_all_bytes")

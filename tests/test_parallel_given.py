"""What lab 10 gives: shares, a column-parallel linear, loading, and the search of layouts."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from nanovllm.batching.plan import Chunk, Plan
from nanovllm.model.config import ModelConfig
from nanovllm.parallel.checkpoint import Checkpoint
from nanovllm.parallel.costs import Layout, ParallelCost, best_layout
from nanovllm.parallel.errors import ParallelError
from nanovllm.parallel.executor_interface import RankFacts, why_unfit
from nanovllm.parallel.hardware import Card, Cluster, Link
from nanovllm.parallel.linears import ColumnParallelLinear
from nanovllm.parallel.loading import load_shard
from nanovllm.parallel.overlap import seconds_saved
from nanovllm.parallel.shards import share
from nanovllm.parallel.stages import layer_ranges
from nanovllm.parallel.stored import Reads, StoredTensor
from nanovllm.parallel.threads import run_ranks
from tests.tiny_checkpoint import SMALL, save_random

CONFIG = ModelConfig("llama", 40, 8, 5, 4, 2, 2, 16, 64)
CLUSTER = Cluster(Card(32.0, 128.0, 20_000.0), Link(2.0, 64.0), Link(16.0, 8.0), node_size=4)


@pytest.mark.parametrize(("total", "size"), [(7, 3), (8, 4), (3, 5), (0, 2), (59, 8)])
def test_shares_are_the_runs_of_torch(total: int, size: int) -> None:
    cut = torch.arange(total).tensor_split(size)
    assert [list(share(total, size, rank)) for rank in range(size)] == [x.tolist() for x in cut]


def test_layers_over_stages() -> None:
    for layers, stages in product(range(1, 20), range(1, 9)):
        if stages <= layers:
            found = layer_ranges(layers, stages)
            sizes = [len(mine) for mine in found]
            assert [layer for mine in found for layer in mine] == list(range(layers))
            assert len(found) == stages and sizes == sorted(sizes, reverse=True)
            assert sizes[0] - sizes[-1] <= 1
    for layers, stages in ((3, 4), (3, 0), (5, -1)):
        with pytest.raises(ParallelError, match="cannot be spread over"):
            layer_ranges(layers, stages)


@pytest.mark.parametrize("rows", [range(3, 7), [0, 1, 5, 6], [4, 5, 4], range(0)])
@pytest.mark.parametrize("bias", [False, True])
def test_some_of_the_rows(rows: list[int], bias: bool) -> None:
    reads = Reads()
    weight, added = torch.randn(8, 5), torch.randn(8)
    linear = ColumnParallelLinear(5, rows, bias)
    linear.load(
        {"up.weight": StoredTensor(weight, reads), "up.bias": StoredTensor(added, reads)}, "up"
    )
    x = torch.randn(2, 3, 5)
    torch.testing.assert_close(linear(x), (x @ weight.T + added * bias)[..., list(rows)])
    assert reads.bytes == 4 * len(rows) * (5 + bias)
    assert not any(weight.requires_grad for weight in linear.parameters())


def test_a_shard_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    save_random(tmp_path, **SMALL)
    [model] = run_ranks(
        1, lambda comm: load_shard(Checkpoint(tmp_path), comm, torch.bfloat16, "meta")
    )
    assert {(str(w.device), w.dtype, w.requires_grad) for w in model.parameters()} == {
        ("meta", torch.bfloat16, False)
    }
    assert not model.training


def test_ranks_that_do_not_go_together() -> None:
    first = RankFacts(0, True, "a", 8, 100, 10)
    assert why_unfit([first, RankFacts(1, False, "a", 1, 100, 10)]) is None
    for other, says in (
        (RankFacts(1, False, "b", 8, 100, 10), "rank 1 has read another checkpoint than rank 0"),
        (RankFacts(1, False, "a", 0, 100, 10), "rank 1 has no memory for a block"),
        (RankFacts(1, True, "a", 8, 100, 10), "one rank must answer, but 2 do"),
    ):
        assert says in str(why_unfit([first, other]))


def test_a_plan_is_priced_by_its_chunks() -> None:
    chunks = (
        Chunk(None, 16, 8, 24), Chunk(None, 0, 4, 9), Chunk(None, 3, 1, 4),
    )  # fmt: skip
    cost = ParallelCost(CONFIG, CLUSTER, Layout(2, 2, 2))
    assert cost.of_plan(Plan(chunks)) == cost.seconds(13, 24 + 4 + 4, 2)
    assert cost.of_plan(Plan()) == 0.0


def test_no_layout_is_better_than_the_best() -> None:
    for cards, step in product((3, 5, 8), ((1, 10, 1), (72, 72, 1), (4, 300, 4))):
        best = best_layout(CONFIG, CLUSTER, cards, *step)
        costs = [
            ParallelCost(CONFIG, CLUSTER, Layout(tp, pp, m))
            for tp, pp in product((1, 2, 4), range(1, 6))
            if tp * pp <= cards
            for m in range(1, 4 * pp + 1 if pp > 1 else 2)
        ]
        fitting = [c for c in costs if c.capacity() >= step[1]]
        assert best in [c.layout for c in fitting]
        least = min(c.seconds(*step) for c in fitting)
        assert ParallelCost(CONFIG, CLUSTER, best).seconds(*step) == least
        assert best.cards == min(c.layout.cards for c in fitting if c.seconds(*step) == least)
    with pytest.raises(ParallelError, match="do not fit beside the model"):
        best_layout(CONFIG, CLUSTER, 2, 1, 30_000, 1)


def test_two_halves_of_a_token_save_nothing() -> None:
    cost = ParallelCost(CONFIG, CLUSTER, Layout(2))
    assert seconds_saved(cost, 1, 9) == 0.0
    assert seconds_saved(cost, 2, 9) < 0.0 < seconds_saved(cost, 4096, 4096)

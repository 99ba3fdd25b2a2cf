"""The experts' grouped kernel: interpreted, equal to lab 14's layer; compiled for both cards."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from grader.checks.compiled import compiled
from nanovllm.gpu.availability import unknown_family
from nanovllm.gpu.decoder import FusedDecoder
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.experts import ExpertsConfig
from nanovllm.paging.batch import make_batch
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.cache import PagedCache
from nanovllm.performance.expert_checkpoint import load_experts
from nanovllm.performance.moe import MoE
from tests.test_moe import saved

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="there is no Triton on macOS")


def layer(
    count: int, k: int, hidden: int, inner: int, shared: int = 0
) -> tuple[MoE, ExpertsConfig]:
    experts = ExpertsConfig(count, k, inner, normalize=k > 1, layers=(0,), shared_size=shared)
    config = ModelConfig("qwen2_moe", 9, hidden, 1, 2, 1, 4, 11, 16, experts=experts)
    made = MoE(config).requires_grad_(False)
    generator = torch.Generator().manual_seed(count)
    for weight in made.parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
    return made, experts


# tokens, experts, k, hidden, inner, size of the shared expert
SHAPES = [
    (5, 4, 1, 16, 8, 0),
    (7, 3, 3, 20, 7, 9),  # k = all
    (2, 11, 2, 33, 5, 0),  # more experts than tokens
    (1, 2, 1, 3, 1, 2),
    (90, 2, 2, 70, 66, 0),  # several tiles of 64 rows, of columns, of inputs
]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_layers_own_result(shape: tuple[int, ...]) -> None:
    from nanovllm.gpu.grouped import moe_by_kernels

    tokens, count, k, hidden, inner, shared = shape
    moe, config = layer(count, k, hidden, inner, shared)
    x = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(moe_by_kernels(moe, x, config), moe(x), rtol=1e-4, atol=1e-5)


def test_experts_that_nobody_chooses_are_not_read() -> None:
    from nanovllm.gpu.grouped import moe_by_kernels

    moe, config = layer(6, 1, 12, 5)
    x = torch.randn(9, 12, generator=torch.Generator().manual_seed(5)).abs()
    moe.gate.weight.copy_(-torch.arange(1.0, 7)[:, None].expand(6, 12))
    moe.gate.weight[2] = 1.0  # everybody's
    wanted = moe(x)
    for weight in (moe.gate_up, moe.down):
        weight[[0, 1, 3, 4, 5]] = torch.nan
    torch.testing.assert_close(moe_by_kernels(moe, x, config), wanted, rtol=1e-4, atol=1e-5)
    assert moe_by_kernels(moe, x[:0], config).shape == (0, 12)


def test_tiles_hold_every_visit_once_with_its_own_expert() -> None:
    from nanovllm.gpu.grouped import tiles_of

    generator = torch.Generator().manual_seed(0)
    for tokens, count, k, rows in ((1, 1, 1, 16), (40, 3, 2, 16), (3, 9, 4, 2), (64, 4, 1, 16)):
        experts = torch.rand(tokens, count, generator=generator).topk(k).indices
        tiles = tiles_of(experts, count, rows)
        found = []
        for expert, start, end in zip(tiles.experts, tiles.starts, tiles.ends, strict=True):
            if expert < count:
                visits = tiles.visits[start : min(int(start) + rows, int(end))].tolist()
                assert visits and {int(experts.flatten()[visit]) for visit in visits} == {
                    int(expert)
                }
                found += visits
        assert sorted(found) == list(range(tokens * k))


def test_the_host_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanovllm.gpu import grouped

    moe, config = layer(4, 2, 16, 8, 6)
    x = torch.ones(5, 16, device="meta")  # whose numbers nobody can read
    monkeypatch.setattr(grouped, "launch", lambda *args, **sizes: None)
    monkeypatch.setattr(grouped, "silu_and_mul", lambda both: both[:, : both.shape[1] // 2])
    assert grouped.moe_by_kernels(moe.to("meta"), x, config).shape == (5, 16)


@pytest.mark.parametrize("case", ["qwen3_moe some dense", "qwen2_moe odd", "mixtral k=1"])
def test_fused_decoder_with_experts_equals_the_plain_one(case: str, tmp_path: Path) -> None:
    saved(tmp_path, case, vocab=60)
    model = load_experts(tmp_path)
    assert unknown_family(model.config) is None
    ids, cache = torch.tensor([4, 9, 11, 30, 7]), PagedCache(model.config, 4, 4)
    batch = make_batch([(BlockTable(4, [2, 0]), 0, 5)])
    with torch.inference_mode():
        wanted = model(ids, torch.arange(5), RecomputeAttend(model.config))
        hidden = FusedDecoder(model).forward(ids, torch.arange(5), cache, batch)
    torch.testing.assert_close(hidden, wanted, rtol=1e-3, atol=1e-4)


def test_it_compiles_for_both_cards_in_both_types() -> None:
    from nanovllm.gpu.grouped import moe_by_kernels

    def call(dtype: torch.dtype, odd: bool) -> None:
        moe, config = layer(5, 2, 45 if odd else 128, 33 if odd else 96)
        moe_by_kernels(moe.to(dtype), torch.zeros(3, 45 if odd else 128, dtype=dtype), config)

    targets = [(c, t, odd) for c, t in ((80, "float32"), (90, "bfloat16")) for odd in (False, True)]
    found = compiled(call, targets)
    assert len(found) == 12 and not [one for one in found if one.refused]
    wide = [one for one in found if one.kernel == "grouped_linear_kernel" and one.load == 16]
    assert len(wide) == 4 and not any(one.spills for one in wide if one.dtype == "bfloat16")

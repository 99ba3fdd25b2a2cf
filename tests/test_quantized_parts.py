"""Lab 09's parts by themselves, where rows, weights and inputs are odd."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from nanovllm.quantization.grids import round_to_nearest
from nanovllm.quantization.grouped import GroupedLinear
from nanovllm.quantization.int8_activations import Int8Linear
from nanovllm.quantization.kmeans import weighted_kmeans
from nanovllm.quantization.scheme import Scheme
from nanovllm.quantization.squeezellm import squeeze


def least_error(values: torch.Tensor, weights: torch.Tensor, k: int) -> float:
    """Of all ways to cut the sorted values that weigh something into pieces."""
    order = values[weights > 0].argsort()
    x, w = (some[weights > 0][order].double() for some in (values, weights))
    least = float("inf")
    for pieces in range(1, min(k, len(x)) + 1):
        for cuts in itertools.combinations(range(1, len(x)), pieces - 1):
            parts = [slice(*ends) for ends in itertools.pairwise((0, *cuts, len(x)))]
            means = [(x[p] * w[p]).sum() / w[p].sum() for p in parts]
            error = sum((w[p] * (x[p] - m) ** 2).sum() for p, m in zip(parts, means, strict=True))
            least = min(least, float(error))
    return least


@pytest.mark.parametrize("far", [1.0, 1e3, 1e6, 1e12])
def test_what_weighs_nothing_moves_no_table_however_far_it_lies(far: float) -> None:
    generator = torch.Generator().manual_seed(7)
    for k, count in itertools.product((2, 3, 4), (1, 3, 6)):
        values = torch.randn(5, 9, generator=generator).double()
        weights = torch.rand(5, 9, generator=generator).double() + 0.01
        values[:, :count] *= far
        weights[:, :count] = 0.0
        shuffled = torch.randperm(9, generator=generator)
        values, weights = values[:, shuffled], weights[:, shuffled]
        table, codes = weighted_kmeans(values, weights, k)
        off = values - table.gather(1, codes.long())
        for row in range(5):
            found = float((weights * off.square())[row].sum())
            assert found == pytest.approx(least_error(values[row], weights[row], k), rel=1e-6,
                                          abs=1e-12)  # fmt: skip
        nearest = (values[:, :, None] - table[:, None]).abs().amin(dim=2)
        assert torch.equal(off.abs()[weights == 0], nearest[weights == 0])


def test_a_row_without_any_weight_is_cut_as_if_all_weighed_the_same() -> None:
    values = torch.tensor([[5.0, 0.0, 1.0, 6.0], [5.0, 0.0, 1.0, 6.0]])
    weights = torch.tensor([[0.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    table, codes = weighted_kmeans(values, weights, 2)
    assert table.gather(1, codes.long()).tolist() == [[5.5, 0.5, 0.5, 5.5]] * 2


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("kind", ["int8", "kernel", "4 bits", "table"])
def test_a_linear_takes_any_shape(
    kind: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `nn.Linear`: a vector alone, and no vector at all, too."""
    if kind == "kernel" and 0 in shape:
        pytest.skip("the kernel is for one row or more")
    plain = nn.Linear(16, 6)
    weight = plain.weight.detach()
    if kind == "int8":
        made = Int8Linear(round_to_nearest(weight, Scheme(8, None, symmetric=True)), plain.bias)
    elif kind == "table":
        made = squeeze(plain, weight.square(), 4)
    else:
        made = GroupedLinear(round_to_nearest(weight, Scheme(4, 8)), plain.bias)
    if kind == "kernel":
        monkeypatch.setenv("NANOVLLM_LINEAR", "triton")
    x = torch.randn(*shape, 16)
    with torch.no_grad():
        found, expected = made(x), nn.functional.linear(x, made.dequantize(), plain.bias)
    assert found.shape == (*shape, 6)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)

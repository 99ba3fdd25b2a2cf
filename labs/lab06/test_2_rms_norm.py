"""Task 2: residual add and RMSNorm in one pass."""

import pytest
import torch

from grader import expect
from grader.guard import Guard
from nanovllm.kernels.rms_norm import fused_add_rms_norm_
from nanovllm.kernels.runtime import DEVICE


def oracle(x, residual, weight, eps):
    """Normed and residual [2, T, E], as two operations of the tensors' type give them."""
    total = x + residual
    wide = total.double()
    normed = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
    return torch.stack([normed.to(x.dtype), total])


def inputs(generator, tokens, width, dtype=torch.float32):
    x, residual = torch.randn(2, tokens, width, generator=generator).to(dtype)
    return x, residual, (1 + torch.rand(width, generator=generator)).to(dtype)


@pytest.mark.check(
    task=2,
    points=4,
    title="Both results, in place",
    hints=(
        "Two tensors change: which holds the sum, and which its norm?",
        "residual = x + residual; x = residual / sqrt(mean of squares + eps) * weight.",
        "tl.store(residual_places, added); scale = 1 / tl.sqrt(tl.sum(total * total, 0) / width "
        "+ eps); tl.store(x_places, total * scale * gain)",
    ),
)
def test_values(generator):
    x, residual, weight = inputs(generator, 3, 16)
    want = oracle(x, residual, weight, 0.1)
    guard = Guard(DEVICE)
    x, residual = guard.place(x, gap=0), guard.place(residual, gap=0)
    fused_add_rms_norm_(x, residual, weight.to(DEVICE), 0.1)
    expect(
        torch.stack([x, residual]),
        want,
        given={"eps": 0.1},
        call="[x, residual] after fused_add_rms_norm_(x, residual, weight, eps) [2, T, E]",
        cause="the sum must come back as the residual, and its norm as x",
    )


@pytest.mark.check(
    task=2,
    points=3,
    title="Widths that are no power of 2",
    hints=(
        "The block is wider than the row: what do the columns beyond it add to the mean?",
        "Load them as 0, divide by the width and not by BLOCK, and store none of them.",
        "inside = dims < width; tl.load(..., mask=inside, other=0.0); ... / width",
    ),
)
def test_widths(generator):
    for tokens, width in ((1, 5), (2, 48), (3, 33)):
        guard = Guard(DEVICE)
        x, residual, weight = inputs(generator, tokens, width)
        placed = guard.place(x), guard.place(residual)
        padded = torch.cat([weight, torch.full((width,), torch.nan)]).to(DEVICE)
        fused_add_rms_norm_(*placed, padded[:width], 0.1)
        given = {"T": tokens, "E": width}
        expect(
            torch.stack(placed),
            oracle(x, residual, weight, 0.1),
            call="[x, residual] after fused_add_rms_norm_",
            given=given,
            cause="what lies behind the row took part, or the mean is over BLOCK",
        )
        guard.check("fused_add_rms_norm_(x, residual, weight, eps)", given)


@pytest.mark.check(
    task=2,
    points=2,
    title="Slices and transposes",
    hints=(
        "x may be a slice of a wider matrix, and residual of another.",
        "Each has strides of its own, for tokens and for columns.",
        "x + token * stride_x_token + dims * stride_x_dim, and the same for residual",
    ),
)
def test_strides(generator):
    x, residual, weight = inputs(generator, 3, 12)
    want = oracle(x, residual, weight, 0.1)
    guard = Guard(DEVICE)
    x, residual = guard.place(x), guard.place(residual.t()).t()
    fused_add_rms_norm_(x, residual, weight.to(DEVICE), 0.1)
    expect(
        torch.stack([x, residual]),
        want,
        call="[x, residual]: x a slice of [5, 14], residual stored by columns",
        cause="a stride was left out, or taken from the other tensor",
    )


@pytest.mark.check(
    task=2,
    points=3,
    title="Half precision: float32 inside, and the sum rounded first",
    hints=(
        "300 squared does not fit into float16. And is what is normed the stored sum?",
        "Convert what is loaded to float32; round the sum to the tensors' type, then square it "
        "in float32.",
        "added = added.to(residual.dtype.element_ty); total = added.to(tl.float32)",
    ),
)
def test_half(generator):
    for dtype, size in ((torch.float16, 300.0), (torch.bfloat16, 1.0)):
        x, residual, weight = inputs(generator, 2, 24, dtype)
        x = x * size
        want = oracle(x, residual, weight, 0.1)
        guard = Guard(DEVICE)
        x, residual = guard.place(x), guard.place(residual)
        fused_add_rms_norm_(x, residual, weight.to(DEVICE), 0.1)
        expect(
            torch.stack([x, residual]),
            want,
            given={"dtype": str(dtype)},
            call=f"[x, residual] after fused_add_rms_norm_, values about {size:.0f}",
            cause="squares and their sum belong in float32",
        )
    guard = Guard(DEVICE)
    exact = guard.place(torch.tensor([[2048.0, 1.0]], dtype=torch.float16))
    more = guard.place(torch.tensor([[1.0, 1.0]], dtype=torch.float16))
    weight = torch.tensor([0.0, 2048.0], dtype=torch.float16).to(DEVICE)
    fused_add_rms_norm_(exact, more, weight, 0.0)
    expect(
        more.tolist(),
        [[2048.0, 2.0]],
        call="residual of 2048 + 1 and 1 + 1 in float16, which has no 2049",
    )

"""Task 2: residual add and RMSNorm in one pass."""

import pytest
import torch

from grader import expect
from grader.checks.guard_regions import ODD, Guard
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
    x, residual = (guard.place(values, gap=0, poison=ODD) for values in (x, residual))
    with guard.watched() as trace:
        fused_add_rms_norm_(x, residual, weight.to(DEVICE), 0.1)
    expect(
        torch.stack([x, residual]),
        want,
        given={"eps": 0.1},
        call="[x, residual] after fused_add_rms_norm_(x, residual, weight, eps) [2, T, E]",
        cause="the sum must come back as the residual, and its norm as x",
    )
    if trace is not None:
        expect(
            [trace.bytes_read // 4, trace.bytes_written // 4],
            [3 * 3 * 16, 2 * 3 * 16],
            call="numbers read and written by fused_add_rms_norm_",
            given={"T": 3, "E": 16},
            cause="x, residual and weight are loaded once, x and residual stored once a token",
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
        placed = guard.place(x, poison=ODD), guard.place(residual, poison=ODD)
        with guard.watched():
            fused_add_rms_norm_(*placed, guard.place(weight, gap=0), 0.1)
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
    x = guard.place(torch.stack([x, x], -1), poison=ODD)[..., 0]
    residual = guard.place(residual, order=(1, 0), poison=ODD)
    fused_add_rms_norm_(x, residual, guard.place(weight, gap=0), 0.1)
    expect(
        torch.stack([x, residual]),
        want,
        given={"strides": [x.stride(), residual.stride()]},
        call="[x, residual]: x every fourth column of a matrix, residual stored by columns",
        cause="a stride was left out, or taken from another tensor",
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
            cause="convert what is loaded to float32 before anything else: sum, squares and mean",
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
    expect(
        exact.tolist(),
        [[0.0, 2.828125]],  # 2 * 2048 / sqrt((2048 ** 2 + 2 ** 2) / 2); of 2049, it is 2.826
        atol=1e-3,
        rtol=0.0,
        given={"weight": [0, 2048], "eps": 0},
        call="x after the norm of 2048 + 1 and 1 + 1 in float16, which has no 2049",
        cause="what is normed is the sum as it is stored: round it first, then convert it back",
    )

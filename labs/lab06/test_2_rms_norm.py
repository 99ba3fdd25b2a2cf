"""Task 2: residual add and RMSNorm in one pass."""

import pytest
import torch

from grader import expect
from grader.checks import kernel_calls
from grader.checks.compiled import takes
from grader.checks.guard_regions import ODD, Guard
from nanovllm.kernels.rms_norm import fused_add_rms_norm_
from nanovllm.kernels.runtime import DEVICE

CALL = "[x, residual] after fused_add_rms_norm_(x, residual, weight, eps) [2, T, E]"


def oracle(x, residual, weight, eps):
    """Normed and residual [2, T, E], as two operations of the tensors' type give them."""
    total = x + residual
    wide = total.double()
    normed = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
    return torch.stack([normed.to(x.dtype), total])


def inputs(generator, tokens, width, dtype=torch.float32):
    x, residual = torch.randn(2, tokens, width, generator=generator).to(dtype)
    return x, residual, (1 + torch.rand(width, generator=generator)).to(dtype)


@pytest.mark.check(task=2, points=2, title="Both results, in place")
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
        call=CALL,
        cause="the sum must come back as the residual, and its norm as x",
    )
    if trace is not None:
        counts = [trace.bytes_read // 4, trace.bytes_written // 4]
        expect.that(
            2 * 3 * 16 + 16 <= counts[0] <= 3 * 3 * 16 and counts[1] == 2 * 3 * 16,
            "112 to 144 numbers are read by your kernel, and 96 written",
            observed=counts,
            call="numbers read and written by fused_add_rms_norm_",
            given={"T": 3, "E": 16},
            cause="x, residual and weight are loaded once, x and residual stored once a token",
        )


@pytest.mark.check(task=2, points=2, title="Widths that are no power of 2")
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
            call=CALL,
            given=given,
            cause="what lies behind the row took part, or the mean is over the whole block",
        )
        guard.check("fused_add_rms_norm_(x, residual, weight, eps)", given)


@pytest.mark.check(task=2, points=2, title="Slices and transposes")
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
        call=CALL,
        cause="a stride was left out, or taken from another tensor",
    )


@pytest.mark.check(
    task=2, points=2, title="Half precision: float32 inside, and the sum rounded first"
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
            given={"dtype": str(dtype), "values": f"about {size:.0f}"},
            call=CALL,
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
    for types in ((torch.float16, torch.float32, torch.float32),
                  (torch.float32, torch.float16, torch.float16)):  # fmt: skip
        x, residual, weight = (
            values.to(dtype) for values, dtype in zip(inputs(generator, 2, 24), types, strict=True)
        )
        total = (x.float() + residual.float()).to(residual.dtype)
        normed, _ = oracle(torch.zeros_like(x, dtype=torch.float32), total.float(), weight, 0.1)
        guard = Guard(DEVICE)
        x, residual = guard.place(x), guard.place(residual)
        fused_add_rms_norm_(x, residual, weight.to(DEVICE), 0.1)
        expect(
            [x, residual],
            [normed.to(x.dtype), total],
            given={"dtypes of x, residual, weight": [str(dtype) for dtype in types]},
            call="x and residual after fused_add_rms_norm_(x, residual, weight, eps)",
            cause="the sum is rounded to the residual's type, the norm to x's; the weight's rounds "
            "neither",
        )


@pytest.mark.check(task=2, points=1, title="Random shapes, layouts and types", stress=True)
def test_random(generator):
    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    sizes = sorted((draw(1, 5), draw(1, 70)) for _ in range(4))
    for i, (tokens, width) in enumerate(sizes):
        dtype = (torch.float32, torch.bfloat16)[i % 2]
        x, residual, weight = inputs(generator, tokens, width, dtype)
        want = oracle(x, residual, weight, 1e-3)
        guard = Guard(DEVICE)
        orders = [((0, 1), (1, 0))[draw(0, 1)] for _ in range(2)]
        placed = [
            guard.place(values, draw(0, 2), order=order, poison=ODD)
            for values, order in zip((x, residual), orders, strict=True)
        ]
        with guard.watched():
            fused_add_rms_norm_(*placed, guard.place(weight), 1e-3)
        given = {"T": tokens, "E": width, "dtype": str(dtype), "stored in order": orders}
        cause = "any strides, any width, any number of tokens"
        expect(torch.stack(placed), want, call=CALL, given=given, cause=cause)
        guard.check("fused_add_rms_norm_(x, residual, weight, eps)", given)


@pytest.mark.check(task=2, points=1, title="A GPU's compiler takes it")
def test_compiled():
    takes(kernel_calls.rms_norm, "fused_add_rms_norm_")

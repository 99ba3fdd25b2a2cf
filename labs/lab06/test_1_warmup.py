"""Task 1: masked vector add, stable row softmax."""

import pytest
import torch

from grader import expect
from grader.checks import kernel_calls
from grader.checks.compiled import takes
from grader.checks.guard_regions import Guard
from nanovllm.kernels.add import add
from nanovllm.kernels.runtime import DEVICE
from nanovllm.kernels.softmax import softmax


@pytest.mark.check(task=1, points=1, title="A vector, block by block")
def test_add(generator):
    for n in (16, 1, 15, 17, 40):
        guard = Guard(DEVICE)
        x, y = torch.randn(2, n, generator=generator)
        out = guard.empty(n, gap=0)
        with guard.watched() as trace:
            add(guard.place(x, gap=0), guard.place(y, gap=0), out, block=16)
        given = {"n": n, "block": 16}
        expect(
            out,
            x + y,
            call="add(x, y, out, block=16)",
            given=given,
            cause="every element belongs to one program; the last block may be part empty",
        )
        guard.check("add(x, y, out, block=16)", given)
        if trace is not None:
            expect(
                len({access.program for access in trace.accesses}),
                -(-n // 16),
                call="programs that add(x, y, out, block=16) runs",
                given=given,
                cause="a program takes `block` elements: n / block of them, rounded up",
            )


@pytest.mark.check(task=1, points=1, title="Elements that do not lie side by side")
def test_add_strided(generator):
    x, y = torch.randn(20, 3, generator=generator), torch.randn(20, 5, generator=generator)
    want = x[:, 1] + y[:, 2]
    guard = Guard(DEVICE)
    x, y, out = guard.place(x), guard.place(y), guard.empty(20, 4)
    add(x[:, 1], y.t()[2, :], out[:, 0], block=16)
    expect(
        out[:, 0],
        want,
        call="add(x[:, 1], y.t()[2], out[:, 0]), three columns of matrices",
        given={"strides of the columns": [x.stride(0), y.stride(0), out.stride(0)]},
        cause="the places were used as if the stride were 1, or another tensor's",
    )
    x = x[:, 1]
    expect(
        add(x, y[:, 2], x, block=16),
        want,
        call="add(x[:, 1], y[:, 2], x[:, 1]): out is x",
        cause="out may be x itself, and is what is returned",
    )


@pytest.mark.check(task=1, points=1, title="Half precision, and a new result")
def test_add_half(generator):
    for dtype in (torch.float16, torch.bfloat16):
        x, y = torch.randn(2, 21, generator=generator).to(dtype)
        new = add(x.to(DEVICE), y.to(DEVICE))
        expect(
            [new, str(new.dtype)],
            [x + y, str(dtype)],
            call="add(x, y), without out, and its dtype",
            given={"dtype": str(dtype)},
            cause="compute in float32; the new result has the type of x",
        )
    x = torch.full((3,), 2048.0, dtype=torch.float16)
    expect(
        add(x.to(DEVICE), torch.ones(3, dtype=torch.float16).to(DEVICE), torch.empty(3).to(DEVICE)),
        torch.full((3,), 2049.0),
        call="add(2048, 1) of float16 into an out of float32",
        cause="the sum is made in float32 and rounded once, to the type of out",
    )


@pytest.mark.check(task=1, points=2, title="Softmax of rows with a tail")
def test_softmax(generator):
    for rows, columns in ((3, 8), (2, 5), (1, 1), (2, 17)):
        guard = Guard(DEVICE)
        x = torch.randn(rows, columns, generator=generator) - 3
        out = guard.empty(rows, columns)
        with guard.watched() as trace:
            softmax(guard.place(x), out)
        given = {"rows": rows, "columns": columns}
        expect(
            out,
            x.double().softmax(-1).float(),
            call="softmax(x, out)",
            given=given,
            cause="what fills the block up took part in the maximum or in the sum",
        )
        guard.check("softmax(x, out)", given)
        if trace is not None:
            expect(
                trace.bytes_read // 4,
                rows * columns,
                call="numbers that softmax(x, out) reads",
                given=given,
                cause="a row is read once; keep it while you work on it",
            )


@pytest.mark.check(task=1, points=1, title="Large scores do not overflow")
def test_softmax_large(generator):
    x = torch.randn(2, 40, generator=generator)
    # Computed in float32, a float16 result is off by its own rounding: 2 ** -11, relative.
    single, half, brain = torch.float32, torch.float16, torch.bfloat16
    for shift, dtype, out_dtype, rtol in (
        (1000.0, single, single, 1e-4),
        (-1000.0, single, single, 1e-4),
        (60.0, half, half, 6e-4),
        (60.0, brain, brain, 1e-2),
        (60.0, half, single, 1e-5),
    ):
        row = (x + shift).to(dtype)
        guard = Guard(DEVICE)
        expect(
            softmax(guard.place(row, gap=0), guard.empty(2, 40, gap=0, dtype=out_dtype)).float(),
            row.double().softmax(-1).float(),
            rtol=rtol,
            atol=1e-6,
            call="softmax(x, out)",
            given={"x": f"about {shift:.0f}", "dtype": str(dtype), "dtype of out": str(out_dtype)},
            cause="exp of the plain score, or of one that is not float32; the result is rounded "
            "once, to the type of out",
        )


@pytest.mark.check(task=1, points=1, title="Rows and columns of any strides")
def test_softmax_strided(generator):
    guard = Guard(DEVICE)
    x = guard.place(torch.randn(6, 3, generator=generator))
    out = guard.empty(3, 12)[:, ::2]
    softmax(x.t(), out)
    expect(
        out,
        x.t().softmax(-1),
        call="softmax(x.t(), out[:, ::2])",
        cause="a stride was left out, of x or of out",
    )
    expect(
        softmax(x.t()),
        x.t().softmax(-1),
        call="softmax(x.t()), without out",
        cause="the new result has strides of its own",
    )
    half = x.t().half()
    new = softmax(half)
    expect(
        [new, str(new.dtype)],
        [half.softmax(-1), "torch.float16"],
        call="softmax of float16, without out, and its dtype",
        cause="the new result has the type of x",
    )
    want = x.t().softmax(-1)
    expect(
        softmax(x.t(), x.t()),
        want,
        call="softmax(x.t(), x.t()): out is x",
        cause="out may be x itself, and is what is returned",
    )


@pytest.mark.check(task=1, points=1, title="A GPU's compiler takes it")
def test_compiled():
    takes(kernel_calls.warmup, "add and softmax")

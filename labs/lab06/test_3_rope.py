"""Task 3: RoPE on q and k in place."""

import pytest
import torch

from grader import expect
from grader.checks import kernel_calls
from grader.checks.compiled import takes
from grader.checks.guard_regions import ODD, Guard
from nanovllm.kernels.rope import rope_
from nanovllm.kernels.runtime import DEVICE


def angles(positions, dim):
    frequencies = 100.0 ** (-2 * torch.arange(dim // 2) / dim)
    turns = torch.tensor(positions)[:, None] * frequencies
    return turns.cos(), turns.sin()


def oracle(x, cos, sin):
    a, b = x.double().chunk(2, -1)
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


@pytest.mark.check(task=3, points=2, title="Halves turn by the token's angle")
def test_values(generator):
    q = torch.randn(3, 4, 8, generator=generator)
    k = torch.randn(3, 2, 8, generator=generator)
    cos, sin = angles([5, 0, 17], 8)
    want = torch.cat([oracle(q, cos, sin), oracle(k, cos, sin)], 1)
    guard = Guard(DEVICE)
    q, k = guard.place(q, gap=0), guard.place(k, gap=0)
    with guard.watched() as trace:
        rope_(q, k, cos.to(DEVICE), sin.to(DEVICE))
    expect(
        torch.cat([q, k], 1),
        want,
        given={"positions": [5, 0, 17]},
        call="q and k after rope_(q, k, cos, sin) [T, H + G, D]",
        cause="pairs are (i, i + D/2); (a, b) becomes (a cos - b sin, b cos + a sin)",
    )
    if trace is not None:
        expect.that(
            trace.bytes_read // 4 == 3 * (4 + 2 + 1) * 8,
            "168 numbers are read by your kernel: q, k, cos and sin once each",
            observed=trace.bytes_read // 4,
            call="numbers that rope_(q, k, cos, sin) reads",
            given={"T": 3, "H": 4, "G": 2, "D": 8},
            cause="a token's angles are read once for all its heads",
        )


@pytest.mark.check(task=3, points=2, title="Slices of one fused projection, and other layouts")
def test_fused(generator):
    fused = torch.randn(3, 7, 6, generator=generator)
    cos, sin = angles([1, 2, 9], 6)
    want = torch.cat([oracle(fused[:, :5], cos, sin), fused[:, 5:]], 1)
    fused = Guard(DEVICE).place(fused, gap=0)
    rope_(fused[:, :3], fused[:, 3:5], cos.to(DEVICE), sin.to(DEVICE))
    expect(
        fused,
        want,
        given={"H": 3, "G": 2, "D": 6},
        call="fused q, k, v [T, H + 2G, D] after rope_(q, k, cos, sin)",
        cause="a stride of a contiguous tensor, or more heads turned than there are",
    )
    q, k = (torch.randn(3, heads, 6, generator=generator) for heads in (3, 2))
    want = torch.cat([oracle(q, cos, sin), oracle(k, cos, sin)], 1)
    guard = Guard(DEVICE)
    q, k = guard.place(q, order=(0, 2, 1), poison=ODD), guard.place(k, order=(2, 1, 0), poison=ODD)
    cos, sin = guard.place(cos), guard.place(sin, order=(1, 0))
    rope_(q, k, cos, sin)
    expect(
        torch.cat([q, k], 1),
        want,
        given={"strides of q, k, cos, sin": [x.stride() for x in (q, k, cos, sin)]},
        call="q stored [T, D, H] and k stored [D, G, T] after rope_(q, k, cos, sin)",
        cause="dims have a stride, too, and each of the four has its own",
    )


@pytest.mark.check(task=3, points=2, title="Head dims and head counts that are no power of 2")
def test_sizes(generator):
    for heads, kv_heads, dim in ((3, 1, 48), (2, 2, 80), (5, 1, 6), (1, 3, 96)):
        guard = Guard(DEVICE)
        q = torch.randn(1, heads, dim, generator=generator)
        k = torch.randn(1, kv_heads, dim, generator=generator)
        cos, sin = angles([7], dim)
        placed = guard.place(q, poison=ODD), guard.place(k, poison=ODD)
        with guard.watched():
            rope_(*placed, guard.place(cos, gap=0), guard.place(sin, gap=0))
        given = {"T": 1, "H": heads, "G": kv_heads, "D": dim}
        expect(
            torch.cat(placed, 1),
            torch.cat([oracle(q, cos, sin), oracle(k, cos, sin)], 1),
            call="q and k after rope_(q, k, cos, sin)",
            given=given,
            cause="a block reaches beyond the head or the last head",
        )
        guard.check("rope_(q, k, cos, sin)", given)


@pytest.mark.check(task=3, points=1, title="Half precision turns in float32")
def test_half(generator):
    for dtype in (torch.float16, torch.bfloat16):
        q, k = torch.randn(2, 2, 3, 16, generator=generator).to(dtype)
        cos, sin = angles([3, 200], 16)
        want = torch.cat([oracle(q, cos, sin), oracle(k, cos, sin)], 1)
        guard = Guard(DEVICE)
        q, k = guard.place(q), guard.place(k)
        rope_(q, k, cos.to(DEVICE), sin.to(DEVICE))
        expect(
            torch.cat([q, k], 1),
            want,
            given={"dtype": str(dtype)},
            call="q and k after rope_(q, k, cos, sin)",
            cause="the products belong in float32",
        )


@pytest.mark.check(task=3, points=2, title="Random shapes, layouts and types", stress=True)
def test_random(generator):
    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    sizes = sorted((draw(1, 3), draw(1, 6), draw(1, 6), 2 * draw(1, 24)) for _ in range(4))
    for i, (tokens, heads, kv_heads, dim) in enumerate(sizes):
        dtype = (torch.float32, torch.float16)[i % 2]
        q = torch.randn(tokens, heads, dim, generator=generator).to(dtype)
        k = torch.randn(tokens, kv_heads, dim, generator=generator).to(dtype)
        positions = [draw(0, 999) for _ in range(tokens)]
        cos, sin = angles(positions, dim)
        guard = Guard(DEVICE)
        orders = [torch.randperm(3, generator=generator).tolist() for _ in range(2)]
        placed = [
            guard.place(x, draw(0, 2), order=order, poison=ODD)
            for x, order in zip((q, k), orders, strict=True)
        ]
        with guard.watched():
            rope_(*placed, guard.place(cos), guard.place(sin))
        given = {
            "T": tokens, "H": heads, "G": kv_heads, "D": dim,
            "positions": positions, "stored in order": orders, "dtype": str(dtype),
        }  # fmt: skip
        expect(
            torch.cat(placed, 1),
            torch.cat([oracle(q, cos, sin), oracle(k, cos, sin)], 1),
            call="q and k after rope_(q, k, cos, sin), cos and sin not contiguous",
            given=given,
            cause="any strides, of q, k, cos and sin; any number of heads",
        )
        guard.check("rope_(q, k, cos, sin)", given)


@pytest.mark.check(task=3, points=1, title="A GPU's compiler takes it")
def test_compiled():
    takes(kernel_calls.rope, "rope_")

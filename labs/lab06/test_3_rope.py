"""Task 3: RoPE on q and k in place."""

import pytest
import torch

from grader import expect
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


@pytest.mark.check(
    task=3,
    points=4,
    title="Halves turn by the token's angle",
    hints=(
        "Which two numbers of a head form a pair?",
        "Number i of the first half and number i of the second; read both before you write.",
        "tl.store(first, a * cos - b * sin); tl.store(second, b * cos + a * sin)",
    ),
)
def test_values(generator):
    q = torch.randn(3, 4, 8, generator=generator)
    k = torch.randn(3, 2, 8, generator=generator)
    cos, sin = angles([5, 0, 17], 8)
    want = torch.cat([oracle(q, cos, sin), oracle(k, cos, sin)], 1)
    guard = Guard(DEVICE)
    q, k = guard.place(q, gap=0), guard.place(k, gap=0)
    rope_(q, k, cos.to(DEVICE), sin.to(DEVICE))
    expect(
        torch.cat([q, k], 1),
        want,
        given={"positions": [5, 0, 17]},
        call="q and k after rope_(q, k, cos, sin) [T, H + G, D]",
        cause="pairs are (i, i + D/2); (a, b) becomes (a cos - b sin, b cos + a sin)",
    )


@pytest.mark.check(
    task=3,
    points=3,
    title="q and k are slices of one fused projection, or laid out anyhow",
    hints=(
        "Between token t and t + 1 of q lie the k and v of token t.",
        "q and k have strides of their own; v must stay as it is.",
        "q + token * stride_q_token, k + token * stride_k_token; inside, heads * stride_head",
    ),
)
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
    rope_(q, k, cos.to(DEVICE), sin.to(DEVICE))
    expect(
        torch.cat([q, k], 1),
        want,
        given={"strides": [q.stride(), k.stride()]},
        call="q stored [T, D, H] and k stored [D, G, T] after rope_(q, k, cos, sin)",
        cause="dims have a stride, too, and k's strides are not q's",
    )


@pytest.mark.check(
    task=3,
    points=3,
    title="Head dims and head counts that are no power of 2",
    hints=(
        "Blocks of heads and dims are larger than what is there.",
        "Mask heads by how many there are, dims by D/2; q and k differ in heads.",
        "inside = (heads < num_heads) & (dims < HALF)",
    ),
)
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


@pytest.mark.check(
    task=3,
    points=2,
    title="Half precision turns in float32",
    hints=(
        "A difference of two products loses digits.",
        "Convert both halves to float32 before you multiply.",
        "a = tl.load(first, mask=inside, other=0.0).to(tl.float32)",
    ),
)
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

"""Task 6: what the three attention kernels share, on its own."""

import math

import pytest
import torch
import triton
import triton.language as tl

from grader import expect
from grader.checks.guard_regions import Guard
from grader.checks.paged_attention_cases import paged_case
from nanovllm.kernels.flash import attend_range
from nanovllm.kernels.paged_decode import NO_WINDOW, paged_decode
from nanovllm.kernels.runtime import DEVICE, launch

ROWS = DIM = 16
SIZE = 4  # positions of a block


@triton.jit
def range_kernel(
    queries, query_positions, k_cache, v_cache, block_table, results,
    begin, end, scale, window,
    stride_k_block, stride_k_position, stride_k_head, stride_k_dim,
    stride_v_block, stride_v_position, stride_v_head, stride_v_dim,
    BLOCK_SIZE: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program; a row of results [R, 2 + D] is its maximum, its total and its values_sum."""
    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    maximum, total, values_sum = attend_range(
        tl.load(queries + rows[:, None] * BLOCK_DIM + dims[None, :]),
        tl.load(query_positions + rows),
        k_cache, v_cache, block_table, 0, begin, end, scale, window,
        stride_k_block, stride_k_position, stride_k_head, stride_k_dim,
        stride_v_block, stride_v_position, stride_v_head, stride_v_dim,
        BLOCK_SIZE, BLOCK_DIM, BLOCK_ROWS, BLOCK_DIM, TILE,
    )  # fmt: skip
    places = results + rows * (2 + BLOCK_DIM)
    tl.store(places, maximum)
    tl.store(places + 1, total)
    tl.store(places[:, None] + 2 + dims[None, :], values_sum)


def attend(generator, q, positions, k, v, begin, end, window=None, tile=16):
    """The results [R, 2 + D] of attend_range; outside of the range the caches hold NaN."""
    blocks = -(-len(k) // SIZE)
    table = torch.randperm(blocks, generator=generator)
    guard, caches = Guard(DEVICE), []
    for values in (k, v):
        cache = torch.full((blocks, SIZE, 1, DIM), torch.nan).to(values.dtype)
        places = torch.arange(begin, end)
        cache[table[places // SIZE], places % SIZE, 0] = values[begin:end]
        caches.append(guard.place(cache))
    results = guard.empty(ROWS, 2 + DIM, gap=0)
    launch(
        range_kernel,
        (1,),
        q.to(DEVICE),
        torch.tensor(positions, dtype=torch.int32, device=DEVICE),
        *caches,
        table.to(torch.int32).to(DEVICE),
        results,
        begin,
        end,
        DIM**-0.5,
        NO_WINDOW if window is None else window,
        *caches[0].stride(),
        *caches[1].stride(),
        BLOCK_SIZE=SIZE,
        BLOCK_DIM=DIM,
        BLOCK_ROWS=ROWS,
        TILE=tile,
    )
    return results


def oracle(q, positions, k, v, begin, end, window=None):
    """Maximum, total and values_sum [R, 2 + D] of the visible scores in base 2, in float64."""
    scores = q.double() @ k[begin:end].double().t() * (DIM**-0.5 / math.log(2))
    distance = torch.tensor(positions)[:, None] - torch.arange(begin, end)
    seen = (distance >= 0) & (distance < (NO_WINDOW if window is None else window))
    scores = scores.masked_fill(~seen, -torch.inf)
    maximum = scores.amax(1, keepdim=True)
    weights = 2 ** (scores - maximum.nan_to_num(neginf=0.0))
    parts = (maximum, weights.sum(1, keepdim=True), weights @ v[begin:end].double())
    return torch.cat(parts, 1).float()


@pytest.mark.check(
    task=6,
    points=2,
    title="A range of positions: maximum, total and values_sum of each row",
    hints=(
        "Rows stand at different positions. Which keys of a tile does each see, and what if it "
        "sees none?",
        "Position p sees p - window + 1 .. p. While a row has seen nothing, its maximum is -inf: "
        "take 0 off instead, or -inf - -inf is NaN.",
        "distance = query_positions[:, None] - positions[None, :]; seen = visible[None, :] & "
        '(distance >= 0) & (distance < window); base = tl.where(larger == float("-inf"), 0.0, '
        "larger)",
    ),
)
def test_range(generator):
    positions = [0, 4, 5, 6, 12, 20, 21, 22, 30, 36, 36, 37, 39, 43, 44, 50]
    q, k, v = (torch.randn(n, DIM, generator=generator) for n in (ROWS, 40, 40))
    for window in (None, 7):
        expect(
            attend(generator, q, positions, k, v, 5, 37, window),
            oracle(q, positions, k, v, 5, 37, window),
            call="[maximum, total, values_sum ...] of attend_range, a row a query",
            given={"begin": 5, "end": 37, "query_positions": positions, "window": window},
            cause="a row sees query_position - window + 1 .. query_position, as far as the range "
            "goes; one that sees nothing keeps -inf and sums of 0",
        )
    for rise in (-1.0, 1.0):  # scores apart by 58 a position, falling or rising
        k = torch.zeros(40, DIM)
        k[:, 0] = rise * torch.arange(40)
        q = torch.zeros(ROWS, DIM)
        q[:, 0] = 160.0
        expect(
            attend(generator, q, [39] * ROWS, k, v, 0, 40),
            oracle(q, [39] * ROWS, k, v, 0, 40),
            call="[maximum, total, values_sum ...] of attend_range, a row a query",
            given={"scores": "rising" if rise > 0 else "falling", "tiles": 3},
            cause="the running maximum is the largest of all tiles so far",
        )


@pytest.mark.check(
    task=6,
    points=1,
    title="Half precision, sums in float32",
    hints=(
        "Which type have the running sums?",
        "float32; only the weights take the values' type, for the matrix unit.",
        "tl.zeros([ROWS, BLOCK_DIM], tl.float32); weights.to(values.dtype)",
    ),
)
def test_half(generator):
    for dtype in (torch.float16, torch.bfloat16):
        case = paged_case(generator, [40], heads=2, kv_heads=1, dtype=dtype, device=DEVICE)
        out = case.empty_out()
        paged_decode(case.q, *case.cache, out=out, tile=16)
        expect(
            out,
            case.expected,
            call="paged_decode(q, k_cache, v_cache, block_tables, context_lens, tile=16) [N, H, D]",
            given={"dtype": str(dtype), "context": 40},
            cause="convert the weights to the values' type for tl.dot, and nothing else",
        )
    positions = [332] * ROWS
    q, k = (torch.randn(n, DIM, generator=generator).bfloat16() for n in (ROWS, 333))
    v = torch.randint(1, 4, (333, DIM), generator=generator).bfloat16()
    for keys, columns in ((0 * k, 2 + DIM), (k, 2)):  # with equal weights every sum is exact
        expect(
            attend(generator, q, positions, keys, v, 0, 333, tile=64)[:, :columns],
            oracle(q, positions, keys, v, 0, 333)[:, :columns],
            call="[maximum, total, values_sum ...] of attend_range, a row a query",
            given={"dtype": "torch.bfloat16", "keys": "zeros" if columns > 2 else "normal"},
            cause="scores, total and values_sum are float32: 256 + 1 is 256 in bfloat16",
        )

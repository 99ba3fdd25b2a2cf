"""Task 6: paged decode attention."""

import pytest

from grader import expect
from grader.paged_case import paged_case
from nanovllm.kernels.paged_decode import paged_decode
from nanovllm.kernels.runtime import DEVICE

CALL = "paged_decode(q, k_cache, v_cache, block_tables, context_lens, tile=16) [N, H, D]"


def run(case, window=None):
    out = case.empty_out()
    with case.guard.watched():
        paged_decode(case.q, *case.cache, window=window, out=out, tile=16)
    return out


def judge(case, given, cause, window=None):
    expect(run(case, window), case.expected, call=CALL, given=given, cause=cause)
    case.guard.check("paged_decode", given)


@pytest.mark.check(task=6, points=3, title="One tile: softmax of the scores, times the values")
def test_one_tile(generator):
    case = paged_case(generator, [4, 3], heads=2, kv_heads=2, device=DEVICE)
    judge(
        case,
        {"contexts": [4, 3], "P": 4, "H": 2, "G": 2},
        "scores by 1/sqrt(D), in base 2; positions behind the context count for nothing",
    )


@pytest.mark.check(task=6, points=3, title="Many tiles: the maximum moves")
def test_many_tiles(generator):
    for sharp in (1.0, 6.0):
        case = paged_case(generator, [45], heads=2, kv_heads=1, sharp=sharp, device=DEVICE)
        judge(
            case,
            {"context": 45, "tile": 16, "queries": f"normal, times {sharp:.0f}"},
            "total or values_sum kept the scale of an older maximum",
        )
    for context in (16, 48):  # scores of some hundreds: exp2 of one overflows
        case = paged_case(generator, [context], heads=4, kv_heads=1, sharp=100.0, device=DEVICE)
        expect(
            run(case),
            case.expected,
            rtol=1e-3,
            call=CALL,
            given={"context": context, "tile": 16, "scores": "some hundreds"},
            cause="the largest score of all tiles so far has to be taken off",
        )


@pytest.mark.check(task=6, points=2, title="Grouped heads")
def test_groups(generator):
    for heads, kv_heads in ((6, 2), (4, 1), (3, 3)):
        case = paged_case(generator, [6, 5], heads=heads, kv_heads=kv_heads, device=DEVICE)
        judge(case, {"H": heads, "G": kv_heads}, "query head h belongs to key head h // (H/G)")


@pytest.mark.check(task=6, points=3, title="Blocks in any order, the last one part full")
def test_blocks(generator):
    for size, contexts in ((4, [3, 4, 5, 19]), (1, [1, 3]), (16, [15, 16, 17])):
        case = paged_case(generator, contexts, heads=2, kv_heads=1, block_size=size, device=DEVICE)
        judge(
            case,
            {"contexts": contexts, "P": size},
            "a key of another block, or of a place that holds no token",
        )


@pytest.mark.check(task=6, points=2, title="Head dims that are no power of 2, any strides")
def test_sizes(generator):
    # The first context fills its one tile and block, so that only a wide head can go wrong.
    for dim, heads, context, size in ((48, 3, 16, 16), (80, 2, 5, 4), (96, 1, 5, 4)):
        case = paged_case(
            generator,
            [context],
            heads=heads,
            kv_heads=1,
            dim=dim,
            block_size=size,
            device=DEVICE,
        )
        judge(
            case,
            {"D": dim, "H": heads, "G": 1, "context": context},
            "what lies behind a head took part",
        )
    for contexts, strided in (
        ([9], ("q",)),
        ([5, 9], ("k", "v")),
        ([5, 9, 2], ("v",)),
        ([5, 9, 2, 1], ("out",)),
    ):
        case = paged_case(generator, contexts, strided=strided, device=DEVICE)
        given = {"contexts": contexts, "stored with dims apart": strided}
        judge(case, given, "a stride was left out, or one tensor's used for another")


@pytest.mark.check(task=6, points=2, title="A sliding window, and no context at all")
def test_window(generator):
    for window, contexts in ((5, [20, 5, 3]), (18, [37])):
        case = paged_case(generator, contexts, heads=2, kv_heads=1, window=window, device=DEVICE)
        judge(
            case,
            {"contexts": contexts, "window": window},
            "a window of w sees the newest w positions; blocks before it may hold anything",
            window,
        )
    case = paged_case(generator, [0, 6], heads=2, kv_heads=1, device=DEVICE)
    judge(case, {"contexts": [0, 6]}, "the sum of no weights is 0")

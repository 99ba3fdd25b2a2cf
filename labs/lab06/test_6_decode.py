"""Task 6: paged decode attention."""

import pytest

from grader import expect
from grader.checks.paged_attention_cases import paged_case
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


@pytest.mark.check(
    task=6,
    points=3,
    title="One tile: softmax of the scores, times the values",
    hints=(
        "One query, a few keys in one block: which numbers make the answer?",
        "softmax(q K^T * scale) V; exp2 wants scores times log2(e).",
        "scores = tl.dot(queries, tl.trans(keys), input_precision='ieee') * (scale * "
        "1.4426950408889634), then online_softmax; at the end values_sum / total",
    ),
)
def test_one_tile(generator):
    case = paged_case(generator, [4, 3], heads=2, kv_heads=2, device=DEVICE)
    judge(
        case,
        {"contexts": [4, 3], "P": 4, "H": 2, "G": 2},
        "scores by 1/sqrt(D), in base 2; positions behind the context count for nothing",
    )


@pytest.mark.check(
    task=6,
    points=3,
    title="Many tiles: the maximum moves",
    hints=(
        "The second tile has a larger score than the first. What of the sums so far?",
        "Both sums are relative to the old maximum: shrink them by 2 ** (old - new).",
        "shrink = tl.exp2(maximum - base); total * shrink + ...; values_sum * shrink[:, None] ...",
    ),
)
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


@pytest.mark.check(
    task=6,
    points=2,
    title="Grouped heads",
    hints=(
        "Six query heads, two key heads: which queries look at key head 1?",
        "Heads 3, 4 and 5: neighbours share.",
        "heads = head * GROUP + rows",
    ),
)
def test_groups(generator):
    for heads, kv_heads in ((6, 2), (4, 1), (3, 3)):
        case = paged_case(generator, [6, 5], heads=heads, kv_heads=kv_heads, device=DEVICE)
        judge(case, {"H": heads, "G": kv_heads}, "query head h belongs to key head h // (H/G)")


@pytest.mark.check(
    task=6,
    points=3,
    title="Blocks in any order, the last one part full",
    hints=(
        "Position 9 of a sequence, blocks of 4: where is it?",
        "In block block_table[9 // 4], at 9 % 4. Behind the context lies poison, and the table's "
        "padding names a block of it.",
        "block = tl.load(block_table + positions // BLOCK_SIZE, mask=visible, other=0)",
    ),
)
def test_blocks(generator):
    for size, contexts in ((4, [3, 4, 5, 19]), (1, [1, 3]), (16, [15, 16, 17])):
        case = paged_case(generator, contexts, heads=2, kv_heads=1, block_size=size, device=DEVICE)
        judge(
            case,
            {"contexts": contexts, "P": size},
            "a key of another block, or of a place that holds no token",
        )


@pytest.mark.check(
    task=6,
    points=2,
    title="Head dims that are no power of 2, any strides",
    hints=(
        "BLOCK_DIM and ROWS are larger than D and H/G.",
        "Mask rows by GROUP and dims by HEAD_DIM, when you load and when you store.",
        "inside = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]",
    ),
)
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


@pytest.mark.check(
    task=6,
    points=2,
    title="A sliding window, and no context at all",
    hints=(
        "Where does a window of 5 begin in a context of 20? And what is 0 / 0?",
        "At context - window, or at 0. A padding row has no context and must give zeros.",
        "begin tl.maximum(context - window, 0), query position context - 1; "
        "values_sum / tl.where(total > 0, total, 1.0)[:, None]",
    ),
)
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

"""Task 6: paged decode attention."""

import pytest
import torch

from grader import expect
from grader.checks import kernel_calls
from grader.checks.compiled import takes
from grader.checks.guard_regions import dirty_memory
from grader.checks.paged_attention_cases import paged_case
from nanovllm.kernels.paged_decode import paged_decode
from nanovllm.kernels.runtime import DEVICE

CALL = "paged_decode(q, k_cache, v_cache, block_tables, context_lens, ...) [N, H, D]"


def run(case, dtype=None):
    out = case.empty_out(dtype)
    with case.guard.watched(), dirty_memory():
        paged_decode(case.q, *case.cache, **case.options, out=out)
    return out


def judge(case, given, cause):
    expect(run(case), case.expected, call=CALL, given=given, cause=cause)
    case.check("paged_decode", given)
    if case.guard.trace is not None:
        window = case.window or 10**9
        visible = sum(min(int(context), window) for context in case.context_lens)
        _, _, kv_heads, dim = case.k_cache.shape
        expect(
            [case.guard.loads(cache) for cache in (case.k_cache, case.v_cache)],
            [visible * kv_heads * dim] * 2,
            call="numbers of the key cache and of the value cache that the programs of "
            "paged_decode load",
            given=given,
            cause="each visible key and value is read once, for all the query heads that share it",
        )


def new_result(case, given):
    """Without out: q lies with its heads apart, its result does not."""
    q = case.q.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    new = paged_decode(q, *case.cache, **case.options)
    expect(new.cpu(), case.expected, call="paged_decode(...) without out", given=given)
    expect(
        [str(new.dtype), new.is_contiguous()],
        [str(q.dtype), True],
        call="dtype of paged_decode(...) without out, and whether it is contiguous",
        given={**given, "strides of q": q.stride()},
        cause="the new result has q's type, and is contiguous whatever the strides of q",
    )


@pytest.mark.check(task=6, points=3, title="Few keys: softmax of the scores, times the values")
def test_one_tile(generator):
    case = paged_case(generator, [4, 3], heads=2, kv_heads=2, device=DEVICE)
    judge(
        case,
        {"contexts": [4, 3], "P": 4, "H": 2, "G": 2},
        "scores times the scale; positions behind the context count for nothing",
    )
    for scale in (0.7, 0.0):
        case = paged_case(generator, [3], heads=2, kv_heads=2, scale=scale, device=DEVICE)
        judge(case, {"contexts": [3], "scale": scale}, "the scale is 1/sqrt(D) unless it is given")


@pytest.mark.check(task=6, points=3, title="Many keys: the maximum moves")
def test_many_tiles(generator):
    for sharp in (1.0, 6.0):
        case = paged_case(
            generator, [300], heads=2, kv_heads=1, block_size=16, sharp=sharp, device=DEVICE
        )
        judge(
            case,
            {"context": 300, "queries": f"normal, times {sharp:.0f}"},
            "what was summed before kept the scale of an older maximum",
        )
    for context in (16, 200):  # scores of some hundreds: exp of one overflows
        case = paged_case(
            generator, [context], heads=4, kv_heads=1, block_size=8, sharp=100.0, device=DEVICE
        )
        expect(
            run(case),
            case.expected,
            rtol=1e-3,
            call=CALL,
            given={"context": context, "scores": "some hundreds"},
            cause="the largest score of all keys so far has to be taken off",
        )
    for rise in (-1.0, 1.0):  # one key after another wins, or none after the first
        case = paged_case(generator, [300], heads=1, kv_heads=1, block_size=512, device=DEVICE)
        case.q.zero_()
        case.q[..., 0] = 40.0  # scores of +-10 a position
        block = case.k_cache[int(case.block_tables[0, 0])]
        block[:300, 0, 0] = rise * torch.arange(300.0, device=DEVICE)
        values = case.v_cache[int(case.block_tables[0, 0])]
        expect(
            run(case)[0, 0],
            values[299 if rise > 0 else 0, 0].clone(),
            rtol=1e-3,
            call=CALL,
            given={"context": 300, "scores": "rising" if rise > 0 else "falling", "apart by": 10},
            cause="the running maximum is the largest score so far, not the newest tile's",
        )


@pytest.mark.check(task=6, points=2, title="Grouped heads")
def test_groups(generator):
    for heads, kv_heads in ((6, 2), (4, 1), (3, 3), (17, 1)):
        case = paged_case(generator, [6, 5], heads=heads, kv_heads=kv_heads, device=DEVICE)
        judge(case, {"H": heads, "G": kv_heads}, "query head h belongs to key head h // (H/G)")


@pytest.mark.check(task=6, points=3, title="Blocks in any order, the last one part full")
def test_blocks(generator):
    for size, contexts, integers in (
        (4, [3, 4, 5, 19], torch.int32),
        (1, [1, 3], torch.int64),
        (16, [15, 16, 17], torch.int32),
    ):
        case = paged_case(
            generator,
            contexts,
            heads=2,
            kv_heads=1,
            block_size=size,
            integers=integers,
            device=DEVICE,
        )
        judge(
            case,
            {"contexts": contexts, "P": size, "tables and lengths": str(integers)},
            "a key of another block, or of a place that holds no token",
        )


@pytest.mark.check(task=6, points=3, title="Head dims that are no power of 2, any strides")
def test_sizes(generator):
    # The first context fills its one block, so that only a wide head can go wrong.
    for dim, heads, context, size in ((48, 3, 64, 64), (80, 2, 5, 4), (136, 1, 5, 4)):
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
    for window, contexts in ((5, [20, 5, 3]), (70, [100])):
        case = paged_case(generator, contexts, heads=2, kv_heads=1, window=window, device=DEVICE)
        judge(
            case,
            {"contexts": contexts, "window": window},
            "a window of w sees the newest w positions; blocks before it may hold anything",
        )
    case = paged_case(generator, [0, 6], heads=2, kv_heads=1, device=DEVICE)
    judge(case, {"contexts": [0, 6]}, "an empty context gives zeros")


@pytest.mark.check(task=6, points=2, title="Half precision, sums in float32")
def test_half(generator):
    for dtype, atol in ((torch.float16, 1e-3), (torch.bfloat16, 4e-3)):
        case = paged_case(generator, [40, 9], heads=2, kv_heads=1, dtype=dtype, device=DEVICE)
        given = {"dtype": str(dtype), "contexts": [40, 9]}
        judge(case, given, "the result has q's type")
        new_result(case, given)
        case = paged_case(
            generator, [60], heads=8, kv_heads=1, dtype=dtype, sharp=4.0, device=DEVICE
        )
        scale = float(case.answer.abs().max())
        expect(
            run(case, torch.float32) / scale,
            case.answer / scale,
            rtol=0.0,
            atol=atol,
            call=CALL,
            given={"q and caches": str(dtype), "out": "torch.float32", "context": 60},
            cause="scores stay in float32 until the softmax is done",
        )
        case = paged_case(
            generator, [333], heads=1, kv_heads=1, block_size=512, dtype=dtype, device=DEVICE
        )
        values = case.v_cache[int(case.block_tables[0, 0]), :333, 0]
        values.copy_(torch.randint(1, 4, values.shape, generator=generator))
        case.q.zero_()
        expect(
            run(case, torch.float32)[0, 0],
            values.double().mean(0).float(),
            rtol=1e-5,
            call=CALL,
            given={"q": "zeros", "values": "1, 2 or 3", "caches": str(dtype), "context": 333},
            cause="sums are float32 to the end: in bfloat16, 256 + 1 is 256",
        )


@pytest.mark.check(task=6, points=3, title="Random batches", stress=True)
def test_random(generator):
    for i in range(3):
        case, given = random_case(generator, size=i)
        judge(case, given, "try these numbers one at a time")
        if i == 0:
            new = paged_decode(case.q, *case.cache, **case.options)
            expect(new.cpu(), case.expected, call="paged_decode(...) without out", given=given)


def random_case(generator, size):
    """A batch of random contexts, heads and layouts, larger with `size`, and how to name it."""

    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    kv_heads, group, strides = draw(1, 2), draw(1, 4), ("q", "k", "v", "out")
    options = {
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "dim": draw(1, 40),
        "block_size": (1, 3, 16, 32)[draw(0, 3)],
        "window": (None, draw(1, 60))[draw(0, 1)],
        "scale": (None, 0.3)[draw(0, 1)],
        "strided": tuple(name for name in strides if draw(0, 1)),
    }
    contexts = [draw(0, 30 * (size + 1)) for _ in range(size + 1)] + [draw(1, 70)]
    case = paged_case(generator, contexts, **options, device=DEVICE)
    return case, {"contexts": contexts, **options}


@pytest.mark.check(task=6, points=1, title="A GPU's compiler takes it")
def test_compiled():
    takes(kernel_calls.decode, "paged_decode")

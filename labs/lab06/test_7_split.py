"""Task 7: split-KV decode."""

import pytest
import torch

from grader import expect
from grader.checks import kernel_calls
from grader.checks.compiled import takes
from grader.checks.guard_regions import dirty_memory
from grader.checks.paged_attention_cases import paged_case
from nanovllm.kernels.runtime import DEVICE
from nanovllm.kernels.split_decode import split_decode

CALL = "split_decode(q, k_cache, v_cache, block_tables, context_lens, splits, ...) [N, H, D]"


def run(case, splits, dtype=None):
    """What torch.empty gives holds NaN: a part that nobody wrote must not be read."""
    out = case.empty_out(dtype)
    with case.guard.watched(), dirty_memory():
        split_decode(case.q, *case.cache, splits, **case.options, out=out)
    return out


def judge(case, splits, given, cause, rtol=None):
    given = {**given, "splits": splits}
    expect(run(case, splits), case.expected, rtol=rtol, call=CALL, given=given, cause=cause)
    case.check("split_decode", given)


@pytest.mark.check(task=7, points=3, title="Any number of splits gives the same answer")
def test_splits(generator):
    for context, splits in ((45, 1), (200, 2), (200, 3), (130, 5)):
        case = paged_case(generator, [context], heads=2, kv_heads=1, block_size=8, device=DEVICE)
        judge(
            case,
            splits,
            {"context": context},
            "a position in two parts, in none, or parts that are not weighted by their sums",
        )


@pytest.mark.check(task=7, points=3, title="The programs share a context")
def test_shares(generator):
    contexts = [700, 90]
    for splits, window in ((3, None), (2, 400)):
        case = paged_case(
            generator, contexts, heads=2, kv_heads=1, block_size=50, window=window, device=DEVICE
        )
        given = {"contexts": contexts, "window": window}
        judge(case, splits, given, "each visible position belongs to one part, and no other does")
        if case.guard.trace is None:
            continue
        given["splits"] = splits
        read = case.keys_read()
        for sequence, context in enumerate(contexts):
            visible = min(context, window or context)
            parts = [len(mine.get((sequence, 0), ())) for mine in read.values()]
            share = -(-visible // splits)
            most = -(-share // 128) * 128
            expect.that(
                max(parts) <= most,
                f"no program reads more than {visible} / {splits} keys of sequence {sequence}, "
                f"rounded up to a multiple of 128: {most}",
                observed=max(parts),
                call="most keys of one context that a program of split_decode reads",
                given=given,
                cause="every program has its own part of the visible positions",
            )
            expect(
                sum(parts),
                visible,
                call=f"keys of sequence {sequence} that the programs read, all together",
                given=given,
                cause="each visible key is read by one program, once for all its query heads",
            )
        visible = sum(min(context, window or context) for context in contexts)
        expect(
            [case.guard.loads(cache) for cache in (case.k_cache, case.v_cache)],
            [visible * 16] * 2,
            call="numbers of the key cache and of the value cache that the programs load",
            given={**given, "G": 1, "D": 16},
            cause="each visible key and value is read once, for all the query heads that share it",
        )


@pytest.mark.check(task=7, points=3, title="Parts without a position")
def test_empty(generator):
    for contexts, splits in (([1], 4), ([3, 40, 0, 17], 3), ([0, 0], 2), ([130, 64, 65], 3)):
        case = paged_case(
            generator, contexts, heads=3, kv_heads=1, dim=12, block_size=8, device=DEVICE
        )
        judge(
            case,
            splits,
            {"contexts": contexts},
            "an empty part was given weight, or what nobody wrote was read",
        )


@pytest.mark.check(task=7, points=2, title="Parts whose scores are far apart")
def test_weights(generator):
    # Differences of 20 and 2,000 from end to end; then more parts than a join may take at once.
    for context, rise, counts in (
        (200, 0.1, (2, 4)),
        (200, 10.0, (2, 4)),
        (200, -10.0, (2, 4)),
        (1100, 0.1, (33,)),
    ):
        case = paged_case(
            generator, [context], heads=1, kv_heads=1, block_size=context, device=DEVICE
        )
        block = int(case.block_tables[0, 0])
        case.q.zero_()
        case.q[..., 0] = 4.0  # times 1/sqrt(16): the score is the key's first number
        scores = rise * torch.arange(float(context))
        case.k_cache[block, :context, 0, 0] = scores.to(DEVICE)
        want = scores.double().softmax(0).to(DEVICE) @ case.v_cache[block, :context, 0].double()
        for splits in counts:
            expect(
                run(case, splits)[0, 0],
                want.float(),
                rtol=1e-3,
                call=CALL,
                given={
                    "context": context,
                    "scores": f"0, {rise:g}, {2 * rise:g}, ...",
                    "splits": splits,
                },
                cause="a part weighs as much as the sum of its exponentials, all to one maximum",
            )


@pytest.mark.check(task=7, points=2, title="Windows, strides, odd sizes, half precision")
def test_sizes(generator):
    case = paged_case(
        generator,
        [150, 9],
        heads=4,
        kv_heads=2,
        window=100,
        integers=torch.int64,
        device=DEVICE,
    )
    given = {"contexts": [150, 9], "window": 100, "tables and lengths": "torch.int64"}
    judge(case, 2, given, "the first part begins with the window")
    case = paged_case(generator, [5, 80], strided=("q", "v", "out"), scale=0.5, device=DEVICE)
    judge(
        case,
        2,
        {"contexts": [5, 80], "scale": 0.5, "stored with dims apart": "q, v_cache, out"},
        "a stride was left out, or one tensor's used for another",
    )
    case = paged_case(
        generator, [300], heads=1, kv_heads=1, dim=48, dtype=torch.float16, device=DEVICE
    )
    case.q.zero_()
    expect(
        run(case, 3, torch.float32),
        case.v_cache[case.block_tables[0].long()]
        .flatten(0, 1)[:300, 0]
        .double()
        .mean(0)[None, None],
        rtol=1e-4,
        atol=1e-5,
        call=CALL,
        given={"context": 300, "q": "zeros", "D": 48, "caches": "float16", "out": "float32"},
        cause="partial results stay in float32",
    )


@pytest.mark.check(task=7, points=2, title="Random batches", stress=True)
def test_random(generator):
    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    for size in range(3):
        kv_heads, group, splits = draw(1, 2), draw(1, 4), draw(1, 5)
        options = {
            "heads": kv_heads * group,
            "kv_heads": kv_heads,
            "dim": draw(1, 40),
            "block_size": (1, 3, 16, 32)[draw(0, 3)],
            "window": (None, draw(1, 100))[draw(0, 1)],
            "strided": tuple(name for name in ("q", "k", "v", "out") if draw(0, 1)),
        }
        contexts = [draw(0, 60 * (size + 1)) for _ in range(size + 1)] + [draw(1, 70)]
        case = paged_case(generator, contexts, **options, device=DEVICE)
        given = {"contexts": contexts, **options}
        judge(case, splits, given, "try these numbers one at a time")
        if size == 0:
            new = split_decode(case.q, *case.cache, splits, **case.options)
            expect(
                new.cpu() if new.is_contiguous() else "not contiguous",
                case.expected,
                call="split_decode(...) without out",
                given={**given, "splits": splits},
                cause="the new result has q's type, and is contiguous whatever the strides of q",
            )


@pytest.mark.check(task=7, points=1, title="A GPU's compiler takes it")
def test_compiled():
    takes(kernel_calls.split, "split_decode")

"""Task 7: split-KV decode."""

import pytest
import torch

from grader import expect
from grader.checks.guard_regions import Guard
from grader.checks.paged_attention_cases import paged_case
from nanovllm.kernels.runtime import DEVICE
from nanovllm.kernels.split_decode import choose_splits, combine, split_decode

CALL = "split_decode(q, k_cache, v_cache, block_tables, context_lens, splits, tile=16) [N, H, D]"


def judge(case, splits, given, cause, window=None):
    """Scratch is poisoned: a share that nobody wrote must not be read."""
    sequences, heads, dim = case.q.shape
    scratch = tuple(
        case.guard.place(torch.full(shape, torch.nan), gap=0)
        for shape in ((sequences, heads, splits, dim), (sequences, heads, splits))
    )
    out = case.empty_out()
    with case.guard.watched():
        split_decode(case.q, *case.cache, splits, window=window, out=out, tile=16, scratch=scratch)
    given = {**given, "splits": splits}
    expect(out, case.expected, call=CALL, given=given, cause=cause)
    case.guard.check("split_decode", given)


@pytest.mark.check(
    task=7,
    points=2,
    title="How many splits",
    hints=(
        "8 programs on 132 processors: how many splits give each processor two programs?",
        "2 * 132 / 8, rounded up; but not more than the context has tiles, and at least 1.",
        "max(1, min(math.ceil(2 * num_processors / num_programs), "
        "math.ceil(max_context_len / tile)))",
    ),
)
def test_choice():
    cases = (
        (8, 132, 8192, 64),
        (8, 132, 100, 64),
        (2048, 132, 8192, 64),
        (1, 7, 500, 16),
        (3, 16, 16, 16),
        (5, 8, 0, 16),
        (3, 16, 300, 32),
        (5, 8, 8192, 64),
    )
    expect(
        [choose_splits(*case) for case in cases],
        [33, 2, 1, 14, 1, 1, 10, 4],
        call="choose_splits(num_programs, num_processors, max_context_len, tile)",
        given={"calls": cases},
        cause="two programs a processor, no split without a tile, at least one",
    )


def shares(generator, splits, empty=()):
    """Parts of one softmax over 4 positions a split: what each program leaves behind."""
    scores = 3 * torch.randn(1, 2, splits, 4, generator=generator)
    values = torch.randn(1, 2, splits, 4, 5, generator=generator)
    for split in empty:
        scores[:, :, split] = -torch.inf
    partial = scores.softmax(-1)[..., None, :] @ values
    lse = scores.logsumexp(-1) / torch.log(torch.tensor(2.0))
    weights = scores.flatten(2).softmax(-1)[..., None, :]
    want = (weights @ values.flatten(2, 3))[..., 0, :]
    return partial[..., 0, :], lse, want.nan_to_num(0.0)


@pytest.mark.check(
    task=7,
    points=3,
    title="Shares weigh as much as their sums",
    hints=(
        "Two shares, one with all the large scores: is the answer their mean?",
        "Each counts 2 ** lse; take the largest lse off first.",
        "weight = tl.exp2(lse - largest); tl.sum(weight[:, None] * shares, 0) / tl.sum(weight, 0)",
    ),
)
def test_combine(generator):
    for splits, shift in ((2, -20.0), (3, 500.0), (5, 0.0)):
        partial, lse, want = shares(generator, splits)
        guard = Guard(DEVICE)
        out = guard.empty(1, 2, 5, order=(2, 0, 1))
        with guard.watched():
            combine(guard.place(partial, gap=0), guard.place(lse + shift, gap=0), out)
        given = {"splits": splits, "lse": f"about {shift:.0f}"}
        expect(
            out,
            want,
            call="combine(partial, lse, out stored [D, N, H]) [N, H, D]",
            given=given,
            cause="the weight of a share is 2 ** lse, relative to the largest",
        )
        guard.check("combine(partial, lse, out)", given)


@pytest.mark.check(
    task=7,
    points=2,
    title="Empty shares are survived",
    hints=(
        "lse -inf: weight 0. But 0 times what nobody wrote?",
        "Do not load such a share at all; and when all are empty, -inf - -inf is NaN.",
        "some = lse > -inf; load with mask=some[:, None] & ..., other=0.0; subtract 0 where the "
        "largest is -inf; divide by 1 where the sum is 0",
    ),
)
def test_empty(generator):
    cases = ((2,), (0, 1), (0, 1, 2))
    outs, wants = [], []
    for empty in cases:
        partial, lse, want = shares(generator, 3, empty)
        out = Guard(DEVICE).empty(1, 2, 5)
        combine(partial.to(DEVICE), lse.to(DEVICE), out)
        outs.append(out)
        wants.append(want)
    expect(
        torch.cat(outs),
        torch.cat(wants),
        given={"empty shares": [list(empty) for empty in cases], "splits": 3},
        call="combine(partial, lse, out) of three cases; empty shares hold NaN and lse -inf",
        cause="NaN of an empty share took part, or 0 / 0 where all are empty",
    )


@pytest.mark.check(
    task=7,
    points=2,
    title="Shares are whole tiles; an empty one is not written",
    hints=(
        "A context of 45, 3 splits, tiles of 16: how many positions has each share?",
        "Whole tiles each, counted from the first visible position: cdiv(cdiv(visible, TILE), "
        "SPLITS) * TILE; the last ends with the context, and those behind it are empty.",
        "share = tl.cdiv(tl.cdiv(context - first, TILE), SPLITS) * TILE; store the result with "
        "mask=inside & (begin < end), and lse in any case: log2 of a total of 0 is -inf",
    ),
)
def test_shares(generator):
    contexts = [45, 3, 40, 0, 17, 60]
    for window, counts in (
        (
            None,
            [[16, 16, 13], [3, 0, 0], [16, 16, 8], [0, 0, 0], [16, 1, 0], [32, 28, 0]],
        ),
        (
            20,
            [[16, 4, 0], [3, 0, 0], [16, 4, 0], [0, 0, 0], [16, 1, 0], [16, 4, 0]],
        ),
    ):
        case = paged_case(generator, contexts, heads=1, kv_heads=1, window=window, device=DEVICE)
        case.q.zero_()  # all scores are 0: lse is log2 of how many positions there are
        partial = case.guard.place(torch.full((6, 1, 3, 16), torch.nan), gap=0)
        lse = case.guard.place(torch.full((6, 1, 3), torch.nan), gap=0)
        split_decode(
            case.q,
            *case.cache,
            3,
            window=window,
            out=case.empty_out(),
            tile=16,
            scratch=(partial, lse),
        )
        given = {"contexts": contexts, "window": window, "splits": 3, "tile": 16}
        expect(
            (2 ** lse[:, 0]).tolist(),
            [[float(count) for count in row] for row in counts],
            call="positions in each share [N, S], by the lse of equal scores",
            given=given,
            cause="shares are whole tiles of the visible positions; an empty one has lse -inf",
        )
        expect(
            (~partial.isnan()).any(-1)[:, 0].int().tolist(),
            [[int(count > 0) for count in row] for row in counts],
            call="which partial results of split_decode_kernel were written [N, S]",
            given=given,
            cause="the result of an empty share is not stored; its lse is",
        )


@pytest.mark.check(
    task=7,
    points=2,
    title="Any number of splits gives the same answer",
    hints=(
        "Which positions does share s of a context of 45 have, with 3 splits and tiles of 16?",
        "Whole tiles: cdiv(cdiv(45, 16), 3) * 16 positions each; the last share ends with the "
        "context.",
        "begin = first + split * share; end = tl.minimum(begin + share, context)",
    ),
)
def test_splits(generator):
    for context, splits in ((45, 3), (45, 2), (40, 1)):
        case = paged_case(generator, [context], heads=2, kv_heads=1, device=DEVICE)
        judge(
            case,
            splits,
            {"context": context, "tile": 16},
            "a position in two shares, in none, or a partial result not divided by its sum",
        )


@pytest.mark.check(
    task=7,
    points=3,
    title="Short contexts beside long ones; windows; odd sizes",
    hints=(
        "A context of 3 among ones of 40: what do its other splits do?",
        "Nothing: begin lies behind the context. Their lse is -inf; a window moves the first "
        "position of the first share.",
        "first = tl.maximum(context - window, 0); log2 of a total of 0 is -inf",
    ),
)
def test_ragged(generator):
    case = paged_case(generator, [3, 40, 0, 17], heads=3, kv_heads=1, dim=12, device=DEVICE)
    judge(
        case, 3, {"contexts": [3, 40, 0, 17], "D": 12}, "an empty share was given weight, or read"
    )
    case = paged_case(generator, [60, 9], heads=4, kv_heads=2, window=20, device=DEVICE)
    judge(
        case,
        2,
        {"contexts": [60, 9], "window": 20},
        "shares divide the visible positions, not the context",
        window=20,
    )
    case = paged_case(generator, [5, 40], strided=("q", "v", "out"), device=DEVICE)
    judge(
        case,
        2,
        {"contexts": [5, 40], "stored with dims apart": "q, v_cache, out"},
        "a stride was left out, or one tensor's used for another",
    )
    case = paged_case(
        generator, [33], heads=2, kv_heads=1, dim=48, dtype=torch.float16, device=DEVICE
    )
    judge(
        case,
        2,
        {"context": 33, "D": 48, "dtype": "torch.float16"},
        "partial results stay in float32",
    )

"""Task 8: paged prefill attention."""

import pytest
import torch

from grader import expect
from grader.checks import kernel_calls
from grader.checks.compiled import takes
from grader.checks.guard_regions import dirty_memory
from grader.checks.paged_attention_cases import paged_case
from nanovllm.kernels.paged_prefill import paged_prefill
from nanovllm.kernels.runtime import DEVICE

CALL = "paged_prefill(q, caches, block_tables, context_lens, query_start_loc, ...) [T, H, D]"


def run(case, dtype=None, longer=0):
    out = case.empty_out(dtype)
    longest = case.max_query_len + longer
    with case.guard.watched(), dirty_memory():
        paged_prefill(case.q, *case.cache, case.query_start_loc, longest, **case.options, out=out)
    return out


def judge(case, given, cause, longer=0):
    expect(run(case, longer=longer), case.expected, call=CALL, given=given, cause=cause)
    case.check("paged_prefill", given)
    if case.guard.trace is not None:
        expect(
            case.guard.idle_readers(case.q, case.k_cache, case.v_cache),
            0,
            call="programs of paged_prefill that store nothing, but read queries, keys or values",
            given=given,
            cause="a program without work reads nothing of them",
        )


@pytest.mark.check(task=8, points=2, title="A whole prompt, causal")
def test_prompt(generator):
    for length in (5, 1, 150):
        case = paged_case(generator, [length], [length], heads=2, kv_heads=2, device=DEVICE)
        judge(
            case,
            {"prompt": length},
            "a token sees itself and what came before it, nothing else",
        )


@pytest.mark.check(task=8, points=3, title="A chunk sees what came before it")
def test_chunk(generator):
    for context, length in ((12, 3), (137, 5), (110, 70)):
        case = paged_case(generator, [context], [length], heads=2, kv_heads=1, device=DEVICE)
        judge(
            case,
            {"context": context, "chunk": length},
            "the chunk's queries are the newest positions of the context",
        )
    case = paged_case(
        generator, [110], [70], heads=2, kv_heads=1, sharp=100.0, device=DEVICE
    )  # scores of some hundreds: exp of one overflows
    expect(
        run(case),
        case.expected,
        rtol=1e-3,
        call=CALL,
        given={"context": 110, "chunk": 70, "scores": "some hundreds"},
        cause="the largest score of all keys so far has to be taken off",
    )


@pytest.mark.check(task=8, points=2, title="Ragged: chunks of all lengths in one call")
def test_ragged(generator):
    contexts, lengths = [6, 90, 0, 9, 4], [6, 68, 0, 1, 2]
    case = paged_case(generator, contexts, lengths, heads=2, kv_heads=1, device=DEVICE)
    judge(
        case,
        {"contexts": contexts, "chunks": lengths},
        "a chunk's queries or results were taken from, or put at, another's place",
    )
    contexts, lengths = [5, 3], [3, 2]
    case = paged_case(
        generator, contexts, lengths, heads=1, kv_heads=1, integers=torch.int64, device=DEVICE
    )
    judge(
        case,
        {"contexts": contexts, "chunks": lengths, "max_query_len": 103, "integers": "torch.int64"},
        "rows beyond a chunk were stored; max_query_len may be more than the longest chunk",
        longer=100,
    )


@pytest.mark.check(task=8, points=1, title="Grouped heads")
def test_groups(generator):
    for heads, kv_heads in ((6, 2), (4, 1)):
        case = paged_case(generator, [7], [4], heads=heads, kv_heads=kv_heads, device=DEVICE)
        judge(case, {"H": heads, "G": kv_heads}, "query head h belongs to key head h // (H/G)")


@pytest.mark.check(task=8, points=2, title="A sliding window")
def test_window(generator):
    for context, length, window in ((11, 5, 20), (11, 11, 4), (40, 6, 9), (140, 90, 3)):
        case = paged_case(
            generator, [context], [length], heads=2, kv_heads=1, window=window, device=DEVICE
        )
        judge(
            case,
            {"context": context, "chunk": length, "window": window},
            "a query sees the last `window` positions up to its own; it may see none of a tile",
        )


@pytest.mark.check(task=8, points=2, title="Keys that no query of a program sees")
def test_skipped(generator):
    for length, window in ((400, None), (400, 20)):
        case = paged_case(
            generator,
            [length],
            [length],
            heads=1,
            kv_heads=1,
            block_size=64,
            window=window,
            device=DEVICE,
        )
        out = run(case)
        given = {"prompt": length, "window": window}
        expect(out, case.expected, call=CALL, given=given, cause="the values come first")
        if case.guard.trace is None:
            continue
        written, read = case.tokens_written(out), case.keys_read()
        for program, tokens in sorted(written.items()):
            keys = read.get(program, {}).get((0, 0), set())
            if not tokens or not keys:
                continue
            first = max(0, min(tokens) - (window or length) + 1)
            expect.that(
                first - 128 < min(keys) and max(keys) < max(tokens) + 128,
                f"a program with the queries {min(tokens)} to {max(tokens)} reads no key that is "
                f"128 or more before {first}, or 128 or more behind {max(tokens)}",
                observed=[min(keys), max(keys)],
                call="first and last key that a program of paged_prefill reads",
                given=given,
                cause="begin with the first query's window, stop at the last query's own position",
            )
        loads = [case.guard.loads(x) // case.q.shape[2] for x in (case.k_cache, case.v_cache)]
        expect.that(
            all(length <= number <= length * length // 16 for number in loads),
            f"{length} to {length} * {length} / 16 keys, and as many values, are loaded by your "
            "kernels",
            observed=loads,
            call="keys and values that all programs of paged_prefill load",
            given=given,
            cause="16 or more queries share each key and value that is loaded",
        )


@pytest.mark.check(task=8, points=1, title="Odd head dims, block sizes, types and strides")
def test_sizes(generator):
    cases = ((48, 1, torch.float32), (80, 16, torch.float16), (96, 4, torch.bfloat16))
    for dim, size, dtype in cases:
        case = paged_case(
            generator,
            [17],
            [3],
            heads=2,
            kv_heads=1,
            dim=dim,
            block_size=size,
            dtype=dtype,
            device=DEVICE,
        )
        judge(case, {"D": dim, "P": size, "dtype": str(dtype)}, "what lies behind a head took part")
    case = paged_case(
        generator, [333], [3], heads=1, kv_heads=1, block_size=512, dtype=dtype, device=DEVICE
    )
    values = case.v_cache[int(case.block_tables[0, 0]), :333, 0]
    values.copy_(torch.randint(1, 4, values.shape, generator=generator))
    case.q.zero_()
    expect(
        run(case, torch.float32)[:, 0],
        torch.stack([values[:end].double().mean(0).float() for end in (331, 332, 333)]),
        rtol=1e-5,
        call=CALL,
        given={"q": "zeros", "values": "1, 2 or 3", "caches": str(dtype), "context": 333},
        cause="sums are float32 to the end, and the result is rounded once, to the type of out",
    )
    case = paged_case(
        generator, [5, 9], [3, 2], strided=("q", "v", "out"), scale=0.5, device=DEVICE
    )
    judge(
        case,
        {"contexts": [5, 9], "chunks": [3, 2], "stored with dims apart": "q, v_cache, out"},
        "a stride was left out, or one tensor's used for another",
    )


@pytest.mark.check(task=8, points=2, title="Random batches", stress=True)
def test_random(generator):
    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    for size in range(3):
        kv_heads, group = draw(1, 2), draw(1, 3)
        options = {
            "heads": kv_heads * group,
            "kv_heads": kv_heads,
            "dim": draw(1, 40),
            "block_size": (1, 3, 16, 32)[draw(0, 3)],
            "window": (None, draw(1, 60))[draw(0, 1)],
            "strided": tuple(name for name in ("q", "k", "v", "out") if draw(0, 1)),
        }
        lengths = [draw(0, 30 * (size + 1)) for _ in range(size)] + [draw(1, 70)]
        contexts = [length + draw(0, 50) for length in lengths]
        case = paged_case(generator, contexts, lengths, **options, device=DEVICE)
        given = {"contexts": contexts, "chunks": lengths, **options}
        judge(case, given, "try these numbers one at a time")
        if size == 0:
            new = paged_prefill(
                case.q, *case.cache, case.query_start_loc, case.max_query_len, **case.options
            )
            expect(
                new.cpu() if new.is_contiguous() else "not contiguous",
                case.expected,
                call="paged_prefill(...) without out",
                given=given,
                cause="the new result has q's type, and is contiguous whatever the strides of q",
            )


@pytest.mark.check(task=8, points=1, title="A GPU's compiler takes it")
def test_compiled():
    takes(kernel_calls.prefill, "paged_prefill")

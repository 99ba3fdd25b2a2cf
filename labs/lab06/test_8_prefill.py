"""Task 8: paged prefill attention."""

import pytest
import torch

from grader import expect
from grader.checks.paged_attention_cases import paged_case
from nanovllm.kernels.paged_prefill import paged_prefill
from nanovllm.kernels.runtime import DEVICE

CALL = "paged_prefill(q, caches, block_tables, context_lens, query_start_loc, ...) [T, H, D]"


def judge(case, given, cause, window=None, rows=16):
    out = case.empty_out()
    with case.guard.watched():
        paged_prefill(
            case.q,
            *case.cache,
            case.query_start_loc,
            case.max_query_len,
            window=window,
            out=out,
            rows=rows,
            tile=16,
        )
    expect(out, case.expected, call=CALL, given=given, cause=cause)
    case.guard.check("paged_prefill", given)
    if case.guard.trace is not None:
        expect(
            case.guard.loads(case.k_cache) // case.q.shape[2],
            case.q.shape[1] * visible_keys(case, window, rows),
            call="keys that the programs of paged_prefill load, all heads",
            given=given,
            cause="a program loads from its first query's window up to its last query's position",
        )


def visible_keys(case, window, rows):
    """Over all programs of a head: positions that some query of the program sees."""
    starts = case.query_start_loc.tolist()
    total = 0
    for n, context in enumerate(case.context_lens.tolist()):
        length = starts[n + 1] - starts[n]
        for first in range(context - length, context, rows):
            begin = 0 if window is None else max(0, first - window + 1)
            total += min(first + rows, context) - begin
    return total


@pytest.mark.check(
    task=8,
    points=4,
    title="A whole prompt, causal",
    hints=(
        "Which keys does query 3 of a prompt see?",
        "Keys 0 .. 3, its own included: attend_range masks by query_positions.",
        "positions = context - length + rows; attend_range(queries, positions, ..., begin, end ..)",
    ),
)
def test_prompt(generator):
    for length in (5, 1, 20):
        case = paged_case(generator, [length], [length], heads=2, kv_heads=2, device=DEVICE)
        judge(
            case,
            {"prompt": length, "rows": 16, "tile": 16},
            "a token sees itself and what came before it, nothing else",
        )


@pytest.mark.check(
    task=8,
    points=3,
    title="A chunk sees what came before it",
    hints=(
        "The chunk's first query, behind 9 cached tokens: what is its position?",
        "context - length, here 9; the mask is aligned to the end of the context.",
        "positions = context - length + rows",
    ),
)
def test_chunk(generator):
    for context, length in ((12, 3), (37, 5), (34, 18)):
        case = paged_case(generator, [context], [length], heads=2, kv_heads=1, device=DEVICE)
        judge(
            case,
            {"context": context, "chunk": length},
            "the chunk's queries are the newest positions of the context",
        )


@pytest.mark.check(
    task=8,
    points=3,
    title="Ragged: chunks of all lengths in one call",
    hints=(
        "Chunk n begins at query_start_loc[n]; what do programs beyond its end do?",
        "Rows beyond the length load nothing and store nothing; a chunk may have no token at all.",
        "inside = (rows < length)[:, None] & (dims < HEAD_DIM)[None, :]",
    ),
)
def test_ragged(generator):
    contexts, lengths = [6, 21, 0, 9, 4], [6, 18, 0, 1, 2]
    case = paged_case(generator, contexts, lengths, heads=2, kv_heads=1, device=DEVICE)
    judge(
        case,
        {"contexts": contexts, "chunks": lengths},
        "a chunk's queries or results were taken from, or put at, another's place",
    )
    contexts, lengths = [5, 3], [3, 2]
    case = paged_case(generator, contexts, lengths, heads=1, kv_heads=1, device=DEVICE)
    judge(case, {"contexts": contexts, "chunks": lengths}, "rows beyond the last chunk were stored")


@pytest.mark.check(
    task=8,
    points=2,
    title="Grouped heads",
    hints=(
        "Program (i, h, n) has one query head. Which key head does it read?",
        "h // (H/G): neighbours share.",
        "attend_range(..., head // GROUP, ...)",
    ),
)
def test_groups(generator):
    for heads, kv_heads in ((6, 2), (4, 1)):
        case = paged_case(generator, [7], [4], heads=heads, kv_heads=kv_heads, device=DEVICE)
        judge(case, {"H": heads, "G": kv_heads}, "query head h belongs to key head h // (H/G)")


@pytest.mark.check(
    task=8,
    points=2,
    title="A sliding window, and nothing read that nobody sees",
    hints=(
        "What is the oldest position that any query of the program sees?",
        "Its first query's position - window + 1, or 0.",
        "begin = tl.maximum(tl.min(positions, 0) - window + 1, 0)",
    ),
)
def test_window(generator):
    cases = ((11, 5, 20, 16), (11, 11, 4, 16), (40, 6, 9, 16), (24, 20, 17, 16), (40, 32, 3, 32))
    for context, length, window, rows in cases:
        case = paged_case(
            generator, [context], [length], heads=2, kv_heads=1, window=window, device=DEVICE
        )
        judge(
            case,
            {"context": context, "chunk": length, "window": window, "rows": rows},
            "a window of w sees the newest w positions; a row may see nothing of a tile",
            window,
            rows,
        )


@pytest.mark.check(
    task=8,
    points=2,
    title="Odd head dims, block sizes, types and strides",
    hints=(
        "BLOCK_DIM is larger than D, and P may be 1 or 16.",
        "dims < HEAD_DIM belongs into the mask of queries and results.",
        "tl.load(q + places, mask=inside, other=0.0); tl.store(out + places, result, mask=inside)",
    ),
)
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
    case = paged_case(generator, [5, 9], [3, 2], strided=("q", "v", "out"), device=DEVICE)
    judge(
        case,
        {"contexts": [5, 9], "chunks": [3, 2], "stored with dims apart": "q, v_cache, out"},
        "a stride was left out, or one tensor's used for another",
    )

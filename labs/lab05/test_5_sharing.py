"""Task 5: fork and copy-on-write."""

import pytest
import torch

from grader import expect
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.model.config import ModelConfig
from nanovllm.paging.beam import PagedBeamCache
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.errors import OutOfBlocksError
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.prefix_index import CachedBlock
from nanovllm.paging.sharing import copy_on_write, fork, needs_copy, reserve
from nanovllm.paging.transfers import Direction, Transfer

CONFIG = ModelConfig("llama", 50, 32, 2, 4, 2, 8, 48, 64)


def shared(block_ids, num_tokens, num_blocks=8, size=4, owners=2):
    """A pool, and tables that all hold the same blocks."""
    tables = [BlockTable(size, list(block_ids), num_tokens) for _ in range(owners)]
    return BlockPool.holding(num_blocks, dict.fromkeys(tables, block_ids)), tables


@pytest.mark.check(task=5, points=2, title="A fork holds the same blocks")
def test_fork():
    pool, [table] = shared([5, 1, 6], 11, owners=1)
    table.cached = [CachedBlock(b"", None, (), "", block) for block in (5, 1)]
    seen = []
    for n in (7, 8, 9, 3):
        child = fork(pool, table, n)
        held = [b for b, owners in pool.owners.items() if child in owners]
        seen.append([child.block_ids, sorted(held), child.num_tokens, len(child.cached)])
    expect(
        seen,
        [
            [[5, 1], [1, 5], 7, 1],
            [[5, 1], [1, 5], 8, 2],
            [[5, 1, 6], [1, 5, 6], 9, 2],
            [[5], [5], 3, 0],
        ],
        call="fork at 7, 8, 9, 3 tokens of a table [5, 1, 6] (blocks of 4): its blocks, those of "
        "which the pool knows it as owner, its tokens, its cached blocks",
    )
    expect(
        [[pool.ref_count(b) for b in (5, 1, 6)], pool.num_free],
        [[5, 4, 2], 5],
        call="the reference counts of 5, 1, 6, and the free blocks, after these forks",
        cause="every owner counts; no block was taken",
    )
    fork(pool, table, 11).block_ids.append(7)
    expect(table.block_ids, [5, 1, 6], call="the first table when a block is added to a fork")


@pytest.mark.check(task=5, points=2, title="Only a shared block that will be written needs a copy")
def test_needs_copy():
    pool, [a, b] = shared([3, 0], 6)
    full_pool, [full, _] = shared([3, 0], 8)
    got = [needs_copy(pool, a, 6), needs_copy(pool, b, 6), needs_copy(full_pool, full, 8)]
    expect(
        got,
        [True, True, False],
        call="needs_copy for token 6 of two tables that share [3, 0], 4 tokens a block: of the "
        "one, of the other; for token 8 of tables that share two full blocks",
        cause="a full block is not written any more",
    )
    pool.free([0], b)
    b.block_ids = [3]
    expect(
        [needs_copy(pool, a, 6), needs_copy(pool, b, 4), needs_copy(pool, a, 3)],
        [False, False, True],
        call="when b has given block 0 back: for token 6 of a, token 4 of b, token 3 of a",
        cause="the last owner writes where it is; and block 0 of the table is still shared",
    )


@pytest.mark.check(task=5, points=2, title="The writer moves to the copy, the others stay")
def test_copy_on_write():
    pool, [a, b] = shared([3, 0], 6)
    got = copy_on_write(pool, b, 6)
    expect(
        [got, b.block_ids, a.block_ids],
        [Transfer(Direction.COPY, 0, 1), [3, 1], [3, 0]],
        call="copy_on_write at token 6 by b, which shares [3, 0] with a (block 1 is next): the "
        "copy to make, b's blocks, a's blocks",
    )
    expect(
        [[pool.ref_count(i) for i in (3, 0, 1)], b in pool.owners[0], pool.num_free],
        [[2, 1, 1], False, 5],
        call="the reference counts of 3, 0, 1; whether b still owns 0; free blocks",
        cause="b has left block 0, which a has to itself now",
    )
    pool, [a, b] = shared([1, 0], 6, num_blocks=2)
    expect.raises(OutOfBlocksError, lambda: copy_on_write(pool, b, 6), call="with no free block")
    expect(
        [b.block_ids, pool.ref_count(0)],
        [[1, 0], 2],
        call="b's blocks and the references of block 0 after it failed",
        cause="all or nothing",
    )


@pytest.mark.check(task=5, points=2, title="Room for copy and new blocks, or no change")
def test_reserve():
    noted = [Transfer(Direction.COPY, 9, 9)]
    found = []
    for num_blocks in (3, 4, 5):
        pool, [a, b] = shared([1, 0], 6, num_blocks=num_blocks)
        transfers = list(noted)
        ready = reserve(pool, b, 6, 12, transfers)  # one more block, and a copy
        found.append([ready, len(b.block_ids), len(transfers), pool.num_free])
    expect(
        found,
        [[False, 2, 1, 1], [True, 3, 2, 0], [True, 3, 2, 1]],
        call="reserve of tokens 6..11 behind two shared blocks of 4, with 1, 2, 3 blocks free: "
        "whether, the table's blocks, noted transfers (1 before), blocks free then",
        cause="one block for tokens 8..11, and one for the copy",
    )
    free = list(pool.free_queue)
    expect(
        [reserve(pool, b, 6, 12, transfers), len(transfers), list(pool.free_queue)],
        [True, 2, free],
        call="reserve of the same once more: whether, noted transfers, free blocks",
        cause="asking twice takes once",
    )
    expect(
        [reserve(pool, a, 6, 7, transfers), len(transfers)],
        [True, 2],
        call="reserve by the other, the last owner now: whether, noted transfers",
        cause="the last owner has nobody to spare from its write",
    )


def sample_of(number, index, prompt, output=0, request_id=0):
    sequence = SimulatedSequence(request_id, prompt, 9, index)
    for _ in range(output):
        sequence.append()
    return Request(number, sequence, 0.0, prompt + 8)


def running(manager, request, num_tokens):
    """Admit a request, and store so many of its tokens; its blocks."""
    start = manager.admit(request)
    plan = Plan((Chunk(request, start, num_tokens - start, request.num_tokens),))
    manager.commit(plan)
    request.num_computed_tokens = num_tokens
    return manager.block_ids(request)


@pytest.mark.check(task=5, points=2, title="A further sample begins with its sibling's prompt")
def test_siblings():
    manager = BlockManager(20, 4, enable_prefix_caching=False)
    first = sample_of(0, 0, prompt=10, output=3)
    whole = running(manager, first, 13)
    half = running(manager, sample_of(1, 0, prompt=10, request_id=7), 6)
    cases = {
        "a new sample": sample_of(2, 1, prompt=10),
        "a sample of 10 + 2 tokens that was preempted": sample_of(3, 2, prompt=10, output=2),
        "a sample whose sibling has stored 6 of 10": sample_of(4, 1, prompt=10, request_id=7),
        "a request of its own": sample_of(5, 0, prompt=10, request_id=8),
    }
    want = {
        "a new sample": [9, whole],
        "a sample of 10 + 2 tokens that was preempted": [10, whole],
        "a sample whose sibling has stored 6 of 10": [6, half],
        "a request of its own": [0, []],
    }
    for case, request in cases.items():
        source, tokens = manager.source(request)
        expect(
            [tokens, source.block_ids],
            want[case],
            call=f"source of {case}: how many tokens it can begin with, and the blocks",
            given={"sibling": "10 prompt tokens and 3 generated ones are stored, blocks of 4"},
            cause="shared is what both have in common, but for the last token",
        )


@pytest.mark.check(task=5, points=2, title="Beams part without copying what they have in common")
def test_beams(generator):
    empty = fork(BlockPool(1), BlockTable(4), 0)
    expect(empty.block_ids, [], call="the blocks of a fork of an empty table")
    cache = PagedBeamCache(CONFIG, width=3, capacity=16, block_size=4)
    cache.reorder([0])  # the only row continues itself
    kept, story = [[]], []
    for columns, parents in (
        (6, [0, 0, 0]),
        (1, [1, 0, 1]),
        (1, [2, 2, 0]),
        (1, [1, 1]),
        (3, [0, 1]),
    ):
        rows = len(kept)
        attend = cache.bind(columns)
        v = torch.randn(rows * columns, 2, 8, generator=generator)
        for layer in range(2):
            q = torch.zeros(rows * columns, 4, 8)
            out = attend(layer, q, torch.zeros_like(v), v).unflatten(0, (rows, columns))[:, -1]
        kept = [old + list(new) for old, new in zip(kept, v.split(columns), strict=True)]
        want = torch.stack([torch.stack(row).mean(0).repeat_interleave(2, 0) for row in kept])
        expect(
            out,
            want,
            call=f"attention (equal weights) of {rows} beams of {len(kept[0])} tokens, "
            f"steps and parents so far: {story}",
            cause="each row holds its own past: what row parents[i] had, and its own newest token",
        )
        cache.advance(columns)
        cache.reorder(parents)
        kept = [kept[p] for p in parents]
        story.append((columns, parents))
    expect(
        [cache.num_copies, cache.pool.num_used],
        [4, 4],
        call="blocks copied, and blocks held by two beams of 12 tokens that had 9 in common",
        cause="copied is a partly used block that somebody else holds too, when it is written",
    )

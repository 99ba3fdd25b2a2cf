"""Task 8: compaction."""

import pytest

from grader import expect
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.model.config import ModelConfig
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.compaction import compact, move_block, plan_moves, span
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.prefix_index import CachedBlock
from nanovllm.paging.transfers import Direction, Transfer

CONFIG = ModelConfig("llama", 50, 32, 2, 4, 2, 8, 48, 64)


@pytest.mark.check(task=8, points=2, title="From the top into the lowest gaps")
def test_plan(rng):
    table = BlockTable(4, [8, 1, 5, 9])
    pool = BlockPool.holding(10, {table: [8, 1, 5, 9]})
    pool.free_queue.move_to_end(0)  # the queue's order is not the blocks' order
    expect(
        plan_moves(pool, ()),
        [(9, 0), (8, 2), (5, 3)],
        call="plan_moves with blocks 1, 5, 8, 9 of 10 held",
        cause="the lowest free block, wherever it stands in the queue",
    )
    held = sorted(int(b) for b in rng.choice(40, size=15, replace=False))
    pool = BlockPool.holding(40, {BlockTable(4, held): held})
    moves = plan_moves(pool, ())
    after = sorted({*held} - {old for old, _ in moves} | {new for _, new in moves})
    expect(
        [after, len(moves)],
        [list(range(15)), sum(b >= 15 for b in held)],
        call="the held blocks after the moves, and the number of moves",
        given={"held": held},
        cause="15 blocks can be the first 15, and nobody moves twice",
    )


@pytest.mark.check(task=8, points=2, title="Some must stay, and some gaps are none")
def test_pinned():
    a, b = BlockTable(4, [2, 9]), BlockTable(4, [9, 7])
    pool = BlockPool.holding(10, {a: [2, 9], b: [9, 7]}, keeper={0, 3})
    got = [plan_moves(pool, pinned) for pinned in ((), [a], [b], [a, b])]
    expect(
        got,
        [[(9, 1), (7, 4)], [(7, 1)], [(2, 1)], []],
        call="plan_moves with [2, 9] held by a, [9, 7] by b, 0 and 3 free but cached; pinned: "
        "nobody, a, b, both",
        cause="a step that runs reads its blocks where they are; a cached block may be hit",
    )


@pytest.mark.check(task=8, points=4, title="All books follow a block that moves")
def test_move():
    manager = BlockManager(8, 4)
    sequences = [SimulatedSequence(i, 7, 9) for i in (0, 1)]
    requests = [Request(i, s, 0.0, 15, num_computed_tokens=7) for i, s in enumerate(sequences)]
    index = manager.prefix.index
    entry = CachedBlock(b"k", None, (0, 1, 2, 3), "", 6)
    index.by_key[b"k"] = index.by_block[6] = entry
    tables = [BlockTable(4, [6, other], 7, [entry]) for other in (2, 7)]
    manager.pool = BlockPool.holding(8, {tables[0]: [6, 2], tables[1]: [6, 7]}, index)
    manager.tables = dict(zip(requests, tables, strict=True))
    manager.num_unused_slots = 2
    move_block(manager, 6, 1)
    expect(
        [table.block_ids for table in tables],
        [[1, 2], [1, 7]],
        call="both tables [6, 2] and [6, 7] after move_block from 6 to 1",
        cause="every owner must find it where it is now",
    )
    pool = manager.pool
    expect(
        [sorted(pool.owners), pool.ref_count(1), pool.is_free(1), list(pool.free_queue)],
        [[1, 2, 7], 2, False, [6, 0, 3, 4, 5]],
        call="held blocks, references of 1, whether 1 is free, and the free queue",
        cause="old and new change roles; nothing is kept in the old one: it comes first",
    )
    expect(
        [sorted(index.by_block), entry.block_id],
        [[1], 1],
        call="the blocks in the prefix index, and the block of the entry",
        cause="a hit must lead to where the tokens are",
    )
    expect(
        manager.transfers,
        [Transfer(Direction.COPY, 6, 1)],
        call="the transfers that are noted",
    )
    moved = compact(manager, running=[requests[1]])
    expect(
        [moved, tables[0].block_ids, tables[1].block_ids, span(pool)],
        [1, [1, 0], [1, 7], 8],
        call="compact with the second request running: blocks moved, both tables, and the span",
    )
    manager.check(requests)

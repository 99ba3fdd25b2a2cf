"""Task 3: block tables and slot mapping."""

import pytest

from grader import expect
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable, blocks_for
from nanovllm.paging.errors import OutOfBlocksError
from nanovllm.paging.prefix_index import CachedBlock


@pytest.mark.check(task=3, points=2, title="How many blocks")
def test_blocks_for():
    expect(
        [[blocks_for(n, size) for n in (0, 1, 15, 16, 17, 32)] for size in (1, 4, 16)],
        [[0, 1, 15, 16, 17, 32], [0, 1, 4, 4, 5, 8], [0, 1, 1, 1, 2, 2]],
        call="blocks_for(n, size) for n in 0, 1, 15, 16, 17, 32 and sizes 1, 4, 16",
        cause="a full block needs no other behind it",
    )


@pytest.mark.check(task=3, points=3, title="Token to slot")
def test_slots(rng):
    table = BlockTable(4, [9, 2, 5])
    expect(
        [table.slots(0, 4), table.slots(3, 9), table.slots(6, 6)],
        [[36, 37, 38, 39], [39, 8, 9, 10, 11, 20], []],
        call="slots(0, 4), slots(3, 9), slots(6, 6) of a table [9, 2, 5] with 4 tokens a block",
        cause="slot = block * P + i % P, and i counts from the sequence's first token",
    )
    size = int(rng.choice([1, 3, 16]))
    blocks = [int(b) for b in rng.permutation(20)[:5]]
    places = [b * size + offset for b in blocks for offset in range(size)]
    start, end = sorted(int(i) for i in rng.integers(0, 5 * size, size=2))
    expect(
        BlockTable(size, blocks).slots(start, end),
        places[start:end],
        call=f"slots({start}, {end})",
        given={"block_ids": blocks, "block_size": size},
    )


@pytest.mark.check(
    task=3, points=2, title="A table grows when a block is full, not before and not later"
)
def test_grow():
    table = BlockTable(4, [6])
    expect(
        [table.num_missing(end) for end in (0, 3, 4, 5, 8, 9)],
        [0, 0, 0, 1, 1, 2],
        call="num_missing(end) for end in 0, 3, 4, 5, 8, 9 of a table with one block of 4",
        cause="the block after a full one is wanted with the token behind it",
    )
    pool, table = BlockPool(5), BlockTable(4)
    sizes = []
    for end in (1, 4, 4, 5, 8, 3):
        table.grow(pool, end)
        sizes.append(len(table.block_ids))
    expect(
        sizes,
        [1, 1, 1, 2, 2, 2],
        call="blocks after grow to 1, 4, 4, 5, 8, 3 tokens",
        cause="what is there already is not taken again",
    )
    held = pool.owners_of(table.block_ids[-1])
    expect.that(
        held == [table],
        "the table is the owner of its blocks",
        observed=[type(owner).__name__ for owner in held],
    )
    expect.raises(
        OutOfBlocksError, lambda: table.grow(pool, 21), call="grow to 21 tokens in a pool of 5 * 4"
    )
    expect(
        [len(table.block_ids), pool.num_free],
        [2, 3],
        call="blocks of the table and free ones after that",
        cause="all or nothing",
    )


@pytest.mark.check(task=3, points=1, title="Blocks go back, the last first")
def test_free():
    class Everything:
        def __contains__(self, block_id):
            return True

        def evict(self, block_id):
            pass

    pool, table = BlockPool(3, Everything()), BlockTable(4)
    table.grow(pool, 11)
    table.num_tokens, blocks = 11, list(table.block_ids)
    table.cached = [CachedBlock(b"", None, (), "", block) for block in blocks[:2]]
    table.free(pool)
    expect(
        [table.block_ids, table.num_tokens, table.cached, pool.num_free],
        [[], 0, [], 3],
        call="block_ids, num_tokens and cached of the table, and free blocks, after free",
        cause="a table that still lists blocks would free them twice",
    )
    expect(
        [pool.allocate(1, "next")[0] for _ in blocks],
        blocks[::-1],
        call="the blocks that allocate(1) gives then, three times, where all contents are kept",
        given={"blocks of the table that was freed": blocks},
        cause="the end of the sequence is to be evicted before its beginning",
    )

"""Task 5: fork and copy-on-write."""

import pytest
import torch

from grader import expect
from nanovllm.model.config import ModelConfig
from nanovllm.paging.beam import PagedBeamCache
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.errors import OutOfBlocksError
from nanovllm.paging.prefix_index import CachedBlock
from nanovllm.paging.sharing import copy_on_write, fork, needs_copy, reserve
from nanovllm.paging.transfers import Direction, Transfer

CONFIG = ModelConfig("llama", 50, 32, 2, 4, 2, 8, 48, 64)


def shared(num_tokens, num_blocks=8, owners=2):
    """A pool, and tables of blocks of 4 that all hold the same blocks."""
    pool, first = BlockPool(num_blocks), BlockTable(4, num_tokens=num_tokens)
    first.block_ids = pool.allocate(-(-num_tokens // 4), first)
    tables = [first]
    for _ in range(owners - 1):
        table = BlockTable(4, list(first.block_ids), num_tokens)
        for block in table.block_ids:
            pool.share(block, table)
        tables.append(table)
    return pool, tables


@pytest.mark.check(task=5, points=2, title="A fork holds the same blocks")
def test_fork():
    pool, [table] = shared(11, owners=1)
    blocks = list(table.block_ids)
    table.cached = [CachedBlock(b"", None, (), "", block) for block in blocks[:2]]
    seen = []
    for n in (7, 8, 9, 3):
        child = fork(pool, table, n)
        held = sum(child in pool.owners_of(block) for block in blocks)
        same = child.block_ids == blocks[: len(child.block_ids)]
        seen.append([len(child.block_ids), same, held, child.num_tokens, len(child.cached)])
    expect(
        seen,
        [[2, True, 2, 7, 1], [2, True, 2, 8, 2], [3, True, 3, 9, 2], [1, True, 1, 3, 0]],
        call="fork at 7, 8, 9, 3 tokens of a table of 3 blocks of 4: its number of blocks, whether "
        "they are the table's first, of how many the pool knows it as owner, its tokens, cached "
        "blocks",
    )
    expect(
        [[pool.ref_count(b) for b in blocks], pool.num_free],
        [[5, 4, 2], 5],
        call="the reference counts of the three, and the free blocks, after these forks",
        cause="every owner counts; no block was taken",
    )
    fork(pool, table, 11).block_ids.append(7)
    expect(table.block_ids, blocks, call="the first table when a block is added to a fork")
    expect(fork(pool, BlockTable(4), 0).block_ids, [], call="the blocks of a fork of nothing")


@pytest.mark.check(task=5, points=2, title="Only a shared block that will be written needs a copy")
def test_needs_copy():
    pool, [a, b] = shared(6)
    full_pool, [full, _] = shared(8)
    got = [needs_copy(pool, a, 6), needs_copy(pool, b, 6), needs_copy(full_pool, full, 8)]
    expect(
        got,
        [True, True, False],
        call="needs_copy for token 6 of two tables that share two blocks of 4: of the one, of the "
        "other; for token 8 of tables that share two full blocks",
        cause="a full block is not written any more",
    )
    pool.free([b.block_ids.pop()], b)
    expect(
        [needs_copy(pool, a, 6), needs_copy(pool, b, 4), needs_copy(pool, a, 3)],
        [False, False, True],
        call="when b has given its second block back: for token 6 of a, token 4 of b, token 3 of a",
        cause="the last owner writes where it is; and the first block is still shared",
    )


@pytest.mark.check(task=5, points=2, title="The writer moves to the copy, the others stay")
def test_copy_on_write():
    pool, [a, b] = shared(6)
    one, two = a.block_ids
    got = copy_on_write(pool, b, 6)
    new = b.block_ids[1]
    expect(
        [got == Transfer(Direction.COPY, two, new), b.block_ids, a.block_ids, new in (one, two)],
        [True, [one, new], [one, two], False],
        call="copy_on_write at token 6 by b, which shares two blocks with a: whether the copy to "
        "make goes from the second block to b's new one, b's blocks, a's blocks, whether the new "
        "one is an old one",
        given={"transfer": got},
    )
    expect(
        [[pool.ref_count(i) for i in (one, two, new)], b in pool.owners_of(two), pool.num_free],
        [[2, 1, 1], False, 5],
        call="the reference counts of the two blocks and the new one; whether b still owns the "
        "second; free blocks",
        cause="b has left the second block, which a has to itself now",
    )
    pool, [a, b] = shared(6, num_blocks=2)
    before = list(b.block_ids)
    expect.raises(OutOfBlocksError, lambda: copy_on_write(pool, b, 6), call="with no free block")
    expect(
        [b.block_ids, pool.ref_count(before[1])],
        [before, 2],
        call="b's blocks and the references of the second block after it failed",
        cause="all or nothing",
    )


@pytest.mark.check(task=5, points=2, title="Room for copy and new blocks, or no change")
def test_reserve():
    noted = [Transfer(Direction.COPY, 9, 9)]
    found = []
    for num_blocks in (3, 4, 5):
        pool, [a, b] = shared(6, num_blocks=num_blocks)
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
    expect(
        [transfers[0], transfers[1].old, transfers[1].new],
        [noted[0], a.block_ids[1], b.block_ids[1]],
        call="the transfers: the one noted before, from where and to where the new one goes",
        cause="copies are made in the order in which they were noted",
    )
    expect(
        [reserve(pool, b, 6, 12, transfers), len(transfers), pool.num_free],
        [True, 2, 1],
        call="reserve of the same once more: whether, noted transfers, free blocks",
        cause="asking twice takes once",
    )
    expect(
        [reserve(pool, a, 6, 7, transfers), len(transfers)],
        [True, 2],
        call="reserve by the other, the last owner now: whether, noted transfers",
        cause="the last owner has nobody to spare from its write",
    )


@pytest.mark.check(task=5, points=2, title="Beams part without copying what they have in common")
def test_beams(generator):
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

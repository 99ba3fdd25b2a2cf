"""Task 2: the block pool."""

import pytest

from grader import expect
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.errors import BlockOwnershipError, OutOfBlocksError


class Shelf:
    """A keeper that keeps some blocks and notes who is evicted."""

    def __init__(self, *kept):
        self.kept, self.evicted = set(kept), []

    def __contains__(self, block_id):
        return block_id in self.kept

    def evict(self, block_id):
        self.kept.remove(block_id)
        self.evicted.append(block_id)


def owners_of(pool):
    return {block_id: list(owners) for block_id, owners in sorted(pool.owners.items())}


@pytest.mark.check(
    task=2, points=3, title="Blocks from the front of the queue, each with its owner"
)
def test_allocate(rng):
    pool = BlockPool(6)
    order = [int(i) for i in rng.permutation(6)]
    pool.free_queue.clear()
    pool.free_queue.update(dict.fromkeys(order))
    got = [pool.allocate(2, "a"), pool.allocate(0, "b"), pool.allocate(3, "b")]
    expect(
        got,
        [order[:2], [], order[2:5]],
        call="allocate of 2, 0 and 3 blocks",
        given={"free queue": order},
        cause="the front of the queue comes first",
    )
    owned = {block: ["a" if block in order[:2] else "b"] for block in order[:5]}
    expect(
        [owners_of(pool), list(pool.free_queue)],
        [dict(sorted(owned.items())), order[5:]],
        call="the owners of each block, and the free queue",
        cause="a block is free, or it has an owner",
    )
    expect(
        [pool.num_free, pool.num_used, [pool.ref_count(i) for i in order]],
        [1, 5, [1] * 5 + [0]],
        call="num_free, num_used, and the reference counts",
    )
    expect(
        [pool.stats.num_allocated, pool.stats.peak_used, pool.stats.num_evicted],
        [5, 5, 0],
        call="stats.num_allocated, peak_used and num_evicted",
    )


@pytest.mark.check(task=2, points=3, title="All or nothing")
def test_atomic():
    pool = BlockPool.holding(5, {"a": [1]})
    expect.raises(
        OutOfBlocksError,
        lambda: pool.allocate(5, "b"),
        match="5 blocks were asked for, but 4 of 5 are free",
        call='allocate(5, "b") with 4 free',
    )
    expect(
        [list(pool.free_queue), owners_of(pool), pool.stats.num_allocated, pool.stats.num_failed],
        [[0, 2, 3, 4], {1: ["a"]}, 0, 1],
        call="the free queue, the owners, stats.num_allocated and num_failed after that",
        cause="a call that fails takes no block",
    )
    expect(
        [pool.allocate(4, "b"), pool.num_free],
        [[0, 2, 3, 4], 0],
        call='allocate(4, "b"), which is all that there is',
    )


@pytest.mark.check(task=2, points=3, title="A shared block is free when the last owner has left")
def test_sharing():
    pool = BlockPool.holding(4, {"a": [2, 0]})
    pool.share(2, "b")
    expect(
        [pool.ref_count(2), pool.num_used, pool.num_free],
        [2, 2, 2],
        call="references of block 2, blocks used, blocks free, when a has shared block 2 with b",
        cause="every owner counts, and sharing takes no block",
    )
    pool.free([2, 0], "a")
    expect(
        [pool.ref_count(2), pool.is_free(2), pool.is_free(0), pool.stats.num_freed],
        [1, False, True, 1],
        call="references of 2, whether 2 and 0 are free, num_freed, when a has left",
        cause="a block is free at 0 owners, not at 1",
    )
    pool.free([2], "b")
    expect(
        [pool.ref_count(2), pool.is_free(2), pool.num_free, pool.stats.num_freed],
        [0, True, 4, 2],
        call="references of 2, whether 2 is free, free blocks, num_freed, when b has left too",
    )
    expect(owners_of(pool), {}, call="the owners when all have left")
    pool.check()


@pytest.mark.check(task=2, points=3, title="A double free is refused, and nothing is freed with it")
def test_double_free():
    pool = BlockPool.holding(5, {"a": [0, 1], "b": [2]})
    before = [owners_of(pool), list(pool.free_queue)]
    for wrong, blocks in (("a free block", [0, 3]), ("b's block", [1, 2]), ("one twice", [0, 0])):
        expect.raises(
            BlockOwnershipError,
            lambda blocks=blocks: pool.free(blocks, "a"),
            call=f'free({blocks}, "a"), of which one is {wrong}',
        )
        expect(
            [owners_of(pool), list(pool.free_queue)],
            before,
            call=f"owners and free queue after free({blocks}) was refused",
            cause="all or nothing: the good block of the list must not be freed",
        )
    expect(pool.stats.num_freed, 0, call="stats.num_freed")
    expect.raises(
        BlockOwnershipError, lambda: pool.share(2, "b"), call='share(2, "b"), which b has already'
    )
    expect.raises(
        BlockOwnershipError,
        lambda: pool.share(4, "b"),
        call='share(4, "b"), which is free, and whose content nobody kept',
    )
    pool.check()


@pytest.mark.check(task=2, points=2, title="Kept blocks wait at the end of the queue")
def test_queue():
    shelf = Shelf(1, 3, 4)
    pool = BlockPool.holding(6, {"a": [4, 0, 1], "b": [3]}, shelf)
    pool.free([4, 0, 1], "a")
    pool.free([3], "b")
    expect(
        list(pool.free_queue),
        [0, 2, 5, 4, 1, 3],
        call="the free queue after free([4, 0, 1]) and free([3]), where 1, 3, 4 are kept",
        cause="kept ones in the order in which they were freed, behind all others",
    )
    pool.share(1, "c")
    expect(
        [list(pool.free_queue), pool.ref_count(1), pool.stats.peak_used],
        [[0, 2, 5, 4, 3], 1, 1],
        call="the free queue, the references and the peak after share(1), a hit on a free block",
        cause="who holds a block must have it out of the queue, or it is given to another",
    )
    got = pool.allocate(4, "d")
    expect(
        [got, shelf.evicted, pool.stats.num_evicted],
        [[0, 2, 5, 4], [4], 1],
        call="allocate(4), the blocks that were evicted for it, and stats.num_evicted",
        cause="the keeper must forget what is overwritten",
    )

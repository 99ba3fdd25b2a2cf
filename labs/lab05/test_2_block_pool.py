"""Task 2: the block pool."""

from dataclasses import asdict, replace

import pytest

from grader import expect
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.errors import BlockOwnershipError, OutOfBlocksError


class Counted(int):
    """A block's number that counts how often it is compared."""

    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


class Shelf:
    """A keeper that keeps some blocks, notes who is evicted, and counts how often it is asked."""

    def __init__(self):
        self.kept, self.evicted, self.asked = set(), [], 0

    def __contains__(self, block_id):
        self.asked += 1
        return block_id in self.kept

    def evict(self, block_id):
        self.kept.remove(block_id)
        self.evicted.append(block_id)


def owners_of(pool):
    """Who holds each held block, by name."""
    held = {block: sorted(pool.owners_of(block)) for block in range(pool.num_blocks)}
    return {block: owners for block, owners in held.items() if owners}


@pytest.mark.check(task=2, points=2, title="Each block has one first owner")
def test_allocate():
    pool = BlockPool(6)
    two, none, three = pool.allocate(2, "a"), pool.allocate(0, "b"), pool.allocate(3, "b")
    expect(
        [len(two), len(none), len(three), len({*two, *three} & set(range(6)))],
        [2, 0, 3, 5],
        call="lengths of allocate(2), allocate(0), allocate(3) of 6 blocks, and how many of these "
        "blocks are different and exist",
        cause="a block that is given out is free no more",
    )
    [last] = set(range(6)) - {*two, *three}
    expect(
        [owners_of(pool), pool.is_free(last)],
        [{**{b: ["a"] for b in two}, **{b: ["b"] for b in three}}, True],
        call="owners_of each held block, and whether the sixth block is free",
        cause="a block is free, or it has an owner",
    )
    expect(
        [pool.num_free, pool.num_used, sorted(pool.ref_count(b) for b in range(6))],
        [1, 5, [0, 1, 1, 1, 1, 1]],
        call="num_free, num_used, and the reference counts",
    )
    expect(
        [pool.stats.num_allocated, pool.stats.peak_used, pool.stats.num_evicted],
        [5, 5, 0],
        call="stats.num_allocated, peak_used and num_evicted",
    )
    pool.check()


@pytest.mark.check(task=2, points=2, title="All or nothing")
def test_atomic():
    pool = BlockPool(5)
    [mine] = pool.allocate(1, "a")
    expect.raises(
        OutOfBlocksError, lambda: pool.allocate(5, "b"), call='allocate(5, "b") with 4 free'
    )
    expect(
        [pool.num_free, owners_of(pool), pool.stats.num_allocated, pool.stats.num_failed],
        [4, {mine: ["a"]}, 1, 1],
        call="free blocks, owners, stats.num_allocated and num_failed after that",
        cause="a call that fails takes no block",
    )
    expect(
        [sorted(pool.allocate(4, "b")), pool.num_free],
        [sorted({0, 1, 2, 3, 4} - {mine}), 0],
        call='allocate(4, "b"), which is all that there is',
    )


@pytest.mark.check(task=2, points=2, title="A shared block is free when the last owner has left")
def test_sharing():
    pool = BlockPool(4)
    one, two = pool.allocate(2, "a")
    pool.share(one, "b")
    expect(
        [pool.ref_count(one), pool.num_used, pool.num_free],
        [2, 2, 2],
        call="references of a's first block, blocks used, blocks free, when a has shared it with b",
        cause="every owner counts, and sharing takes no block",
    )
    pool.free([one, two], "a")
    expect(
        [pool.ref_count(one), pool.is_free(one), pool.is_free(two), pool.stats.num_freed],
        [1, False, True, 1],
        call="references of the shared block, whether it and the other are free, num_freed, when "
        "a has left",
        cause="a block is free at 0 owners, not at 1",
    )
    pool.free([one], "b")
    expect(
        [pool.ref_count(one), pool.is_free(one), pool.num_free, pool.stats.num_freed],
        [0, True, 4, 2],
        call="references of the shared block, whether it is free, blocks free, num_freed, when b "
        "has left too",
    )
    expect([owners_of(pool), pool.stats.peak_used], [{}, 2], call="owners when all have left; peak")
    pool.check()


@pytest.mark.check(task=2, points=2, title="A double free is refused, and nothing is freed with it")
def test_double_free():
    pool = BlockPool(5)
    one, two = pool.allocate(2, "a")
    [other] = pool.allocate(1, "b")
    free = next(b for b in range(5) if pool.is_free(b))
    before = owners_of(pool)
    for wrong, blocks in (
        ("free", [one, free]),
        ("b's", [two, other]),
        ("listed twice", [one, one]),
    ):
        expect.raises(
            BlockOwnershipError,
            lambda blocks=blocks: pool.free(iter(blocks), "a"),
            call=f'free({blocks}, "a"), of which one is {wrong}',
        )
        expect(
            [owners_of(pool), pool.num_free],
            [before, 2],
            call=f"owners and free blocks after free({blocks}) was refused",
            cause="all or nothing: the good block of the list must not be freed",
        )
    expect(pool.stats.num_freed, 0, call="stats.num_freed")
    expect.raises(
        BlockOwnershipError, lambda: pool.share(other, "b"), call="share of a block that b has"
    )
    expect.raises(
        BlockOwnershipError,
        lambda: pool.share(free, "b"),
        call="share of a free block whose content nobody kept",
    )
    expect(owners_of(pool), before, call="owners after both were refused")
    pool.check()


@pytest.mark.check(task=2, points=3, title="Kept blocks are given out last, the oldest first")
def test_kept():
    shelf = Shelf()
    pool = BlockPool(6, shelf)
    a, b = pool.allocate(3, "a"), pool.allocate(1, "b")
    shelf.kept |= {a[2], a[1], b[0]}
    pool.free([a[2], a[0], a[1]], "a")
    pool.free(b, "b")
    pool.share(a[1], "c")
    expect(
        [pool.ref_count(a[1]), pool.num_free, pool.stats.peak_used, pool.stats.num_allocated],
        [1, 5, 4, 4],
        call="references, free blocks, stats.peak_used and num_allocated (4 before) after share of "
        "a free, kept block",
        cause="a hit: who holds a block must have it out of the free ones",
    )
    first = pool.allocate(3, "d")
    expect(
        [len({*first} & {a[2], *b}), shelf.evicted],
        [0, []],
        call="allocate(3) with 3 plain and 2 kept free blocks: kept ones among them, evicted ones",
        cause="what may be hit is given out last",
    )
    then = [pool.allocate(1, "e"), pool.allocate(1, "e")]
    expect(
        [then, shelf.evicted, pool.stats.num_evicted],
        [[[a[2]], b], [a[2], b[0]], 2],
        call="allocate(1) twice then, the blocks that were evicted, and stats.num_evicted",
        given={"freed in this order": [a[2], b[0]]},
        cause="the one unused for longest goes first, and the keeper must forget it",
    )
    shelf = Shelf()
    pool = BlockPool(2, shelf)
    [known] = pool.allocate(1, "a")
    shelf.kept.add(known)
    pool.free([known], "a")
    pool.allocate(1, "b")
    pool.share(known, "c")
    expect(pool.stats.peak_used, 2, call="the peak, when a hit makes a second block held")
    pool.check()
    shelf = Shelf()
    pool = BlockPool(200, shelf)
    blocks = pool.allocate(200, "a")
    shelf.kept |= set(blocks[::2])
    for block in blocks:
        pool.free([block], "a")
    for _ in blocks:
        pool.allocate(1, "b")
    expect.that(
        shelf.asked <= 20 * 200,
        "the cost of a block does not grow with the pool",
        call="200 blocks given out, freed, and given out again one by one: how often the keeper "
        "was asked about a block",
        observed=shelf.asked,
        cause="to find the next block, a pool need not look at all that are free",
    )
    shelf.kept |= set(blocks)
    for block in blocks:
        pool.free([block], "b")
    Counted.compared = 0
    for block in blocks[50:150]:
        pool.share(Counted(block), "c")
    for old, new in zip(blocks[50:100], blocks[150:200], strict=True):
        pool.move(Counted(old), Counted(new))
    expect.that(
        Counted.compared <= 20 * 150,
        "the cost of a block does not grow with the pool",
        call="100 free blocks shared and 50 moved, of 200: how often a block was compared",
        observed=Counted.compared,
        cause="to take one block out of the free ones, a pool need not compare it with the others",
    )


@pytest.mark.check(task=2, points=1, title="A block moves with all its owners")
def test_move():
    pool = BlockPool(5)
    old, other = pool.allocate(2, "a")
    pool.share(old, "b")
    new = max(b for b in range(5) if pool.is_free(b))
    before = replace(pool.stats)
    pool.move(old, new)
    expect(
        [owners_of(pool), pool.is_free(old), pool.num_free],
        [dict(sorted({new: ["a", "b"], other: ["a"]}.items())), True, 3],
        call="owners, whether the old block is free, and free blocks after move",
        cause="old and new change roles, for every owner",
    )
    expect(
        asdict(pool.stats), asdict(before), call="the stats after that move, which counts nowhere"
    )
    for wrong in ((old, new), (new, other)):
        expect.raises(
            BlockOwnershipError,
            lambda wrong=wrong: pool.move(*wrong),
            call="move of a free block, and move into a held one",
        )
    pool.free([new, other], "a")
    expect([owners_of(pool), pool.num_free], [{new: ["b"]}, 4], call="owners when a has left")
    pool.check()
    shelf = Shelf()
    pool = BlockPool(3, shelf)
    old, kept, new = pool.allocate(3, "a")
    shelf.kept.add(kept)
    pool.free([kept, new], "a")
    pool.move(old, new)
    expect(
        [pool.allocate(1, "b"), shelf.evicted],
        [[old], []],
        call="the next block after a move, while a kept block is free, and who was evicted",
        cause="the old block is free and not kept: it goes before those that are kept",
    )


def history(rng, length):
    """Random calls, as data: their block numbers are taken modulo what there is."""
    kinds = rng.choice(["allocate", "share", "free", "move"], p=[0.4, 0.25, 0.3, 0.05], size=length)
    return [
        (str(kind), "abc"[int(rng.integers(3))], [int(x) for x in rng.integers(0, 6, size=3)])
        for kind in kinds
    ]


def replay(calls):
    """The first call after which the pool differs from dictionaries, or None."""
    shelf, held = Shelf(), {}
    pool, aged, story = BlockPool(6, shelf), [], []
    for kind, owner, numbers in calls:
        free = [b for b in range(6) if b not in held]
        error = got = None
        blocks = numbers[:2]
        story.append(f"{kind} {owner} {numbers[0] % 4 if kind == 'allocate' else blocks}")
        try:
            if kind == "allocate":
                got = pool.allocate(numbers[0] % 4, owner)
            elif kind == "share":
                pool.share(numbers[0], owner)
            elif kind == "move":
                if numbers[1] in shelf.kept:
                    continue
                if numbers[0] in held:
                    shelf.kept.discard(numbers[0])
                pool.move(*blocks)
            else:
                pool.free(blocks, owner)
        except (OutOfBlocksError, BlockOwnershipError) as problem:
            error = type(problem).__name__
        want = None
        if kind == "allocate":
            count = numbers[0] % 4
            if count > len(free):
                want = "OutOfBlocksError"
            else:
                plain = [b for b in free if b not in aged]
                must = aged[: max(0, count - len(plain))]
                right = got is not None and len(set(got)) == count and set(got) <= set(free)
                if not right or [b for b in aged if b in got] != must:
                    return story, f"gave {got}, of {plain} and then {must}"
                aged = aged[len(must) :]
                held.update({b: {owner} for b in got})
                if numbers[1] % 2:  # what is in them will be wanted again
                    shelf.kept |= set(got)
        elif kind == "share":
            if owner in held.get(numbers[0], ()) or (
                numbers[0] not in held and numbers[0] not in aged
            ):
                want = "BlockOwnershipError"
            else:
                held.setdefault(numbers[0], set()).add(owner)
                aged = [b for b in aged if b != numbers[0]]
        elif kind == "move":
            if blocks[0] not in held or blocks[1] in held:
                want = "BlockOwnershipError"
            else:
                held[blocks[1]] = held.pop(blocks[0])
        elif len(set(blocks)) < 2 or any(owner not in held.get(b, ()) for b in blocks):
            want = "BlockOwnershipError"
        else:
            for b in blocks:
                held[b].remove(owner)
                if not held[b]:
                    del held[b]
                    aged += [b] if b in shelf.kept else []
        if error != want:
            return story, f"raised {error}, expected {want}"
        found = {b: set(pool.owners_of(b)) for b in range(6) if pool.owners_of(b)}
        if found != held or pool.num_free != 6 - len(held) or set(aged) - shelf.kept:
            return story, f"owners are {found}, expected {held}"
    return None


def shrunk(calls):
    """A shortest failing history that leaving out single calls leads to."""
    i = 0
    while i < len(calls):
        fewer = calls[:i] + calls[i + 1 :]
        calls, i = (fewer, 0) if replay(fewer) else (calls, i + 1)
    return calls


@pytest.mark.check(task=2, points=2, title="Random histories beside dictionaries", stress=True)
def test_random(rng):
    for _ in range(60):
        calls = history(rng, 30)
        found = replay(calls)
        if found:
            found = replay(shrunk(calls))
        expect(
            found,
            None,
            call="the shortest history found whose pool of 6 blocks differs from dictionaries, and "
            "how",
        )

"""Task 8: compaction."""

import pytest

from grader import expect
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence
from nanovllm.paging.compaction import compact, plan_moves, span
from nanovllm.paging.manager import BlockManager


def request_of(number, tokens, begins=None):
    """A request whose prompt is its own, or begins as that of another."""
    prompt = [20 * (number if begins is None else begins) + i for i in range(tokens)]
    sequence = Sequence(prompt, SamplingParams(max_tokens=9), max_model_len=64, seed=0)
    sequence.request_id = number
    return Request(number, sequence, 0.0, tokens + 8)


def admitted(manager, number, tokens):
    """A request of so many tokens, all of them stored."""
    request = request_of(number, tokens)
    manager.can_admit(request)  # `admit` is called where it said yes
    start = manager.admit(request)
    manager.commit(Plan((Chunk(request, start, tokens - start, tokens),)))
    request.num_computed_tokens = tokens
    return request


@pytest.mark.check(task=8, points=2, title="From the top into the lowest gaps")
def test_plan(rng):
    expect(
        [
            plan_moves([8, 1, 5, 9], [6, 0, 3, 7, 2, 4]),
            plan_moves([3, 7], [9, 5]),
            plan_moves([], [0]),
        ],
        [[(9, 0), (8, 2), (5, 3)], [(7, 5)], []],
        call="plan_moves([8, 1, 5, 9], [6, 0, 3, 7, 2, 4]), plan_moves([3, 7], [9, 5]), "
        "plan_moves([], [0])",
        cause="the highest into the lowest, as long as it moves down",
    )
    held = sorted(int(b) for b in rng.choice(40, size=15, replace=False))
    moves = plan_moves(held, sorted({*range(40)} - {*held}, reverse=True))
    after = sorted({*held} - {old for old, _ in moves} | {new for _, new in moves})
    expect(
        [after, len(moves)],
        [list(range(15)), sum(b >= 15 for b in held)],
        call="the held blocks after the moves, and the number of moves",
        given={"held": held},
        cause="15 blocks can be the first 15, and nobody moves twice",
    )


@pytest.mark.check(task=8, points=3, title="Everything follows a block that moves")
def test_move():
    manager = BlockManager(10, 4)
    first, *others = [admitted(manager, number, 7) for number in range(3)]
    blocks = {request: manager.block_ids(request) for request in (first, *others)}
    old = blocks[first][0]
    manager.hold([blocks[others[0]][0]], "a transfer")
    new = next(b for b in range(10) if b not in manager.owners())
    manager.move(old, new)
    expect(
        [manager.block_ids(first), [manager.block_ids(other) for other in others]],
        [[new, blocks[first][1]], [blocks[other] for other in others]],
        call=f"blocks of the request whose block {old} was moved to {new}, and of two others",
        cause="every owner must find it where it is now, and nobody else changes",
    )
    owners = manager.owners()
    expect(
        [old in owners, owners.get(new), manager.free_tokens],
        [False, [first], 4 * 4 + 3 * 1],
        call="whether the old block is held, owners of the new one, and free_tokens",
        cause="old and new change roles",
    )
    expect(
        [(move.direction.value, move.old, move.new) for move in manager.transfers],
        [("copy", old, new)],
        call="the transfers that are noted",
        cause="the tokens move, too",
    )
    manager.release(first)
    again = request_of(9, 7, begins=0)
    hit = manager.can_admit(again) and manager.admit(again)
    expect(
        [hit, manager.block_ids(again)[0]],
        [4, new],
        call="tokens that the same prompt finds in the prefix cache later, and where",
        cause="a hit must lead to where the tokens are",
    )
    again.num_computed_tokens = hit
    manager.check([again, *others])
    manager = BlockManager(4, 4)
    stays, leaves = admitted(manager, 0, 5), admitted(manager, 1, 4)
    manager.release(leaves)
    [kept] = manager.cached_blocks()
    [new] = {*range(4)} - {*manager.owners(), kept}
    old = manager.block_ids(stays)[0]
    manager.move(old, new)
    manager.reserve(stays, 4)
    expect(
        [manager.cached_blocks(), manager.block_ids(stays)[-1]],
        [[kept], old],
        call="cached blocks, and the third block of a request of 5 tokens in blocks of 4, after "
        f"move({old}, {new}) of its first, which left {old} free beside the cached {kept}, and "
        "reserve of 4 more",
        cause="the content of a block that has moved is not kept at its old place: it is given out "
        "before a cached one",
    )


@pytest.mark.check(task=8, points=3, title="Some must stay, and some gaps are none")
def test_compact():
    manager = BlockManager(12, 4)
    requests = [admitted(manager, number, 12) for number in range(4)]
    low = min(requests, key=lambda request: min(manager.block_ids(request)))
    others = [request for request in requests if request is not low]
    manager.release(low)  # its blocks stay findable: they are no place to go
    cached = manager.cached_blocks()
    expect(len(cached), 3, call="cached blocks after release of a request with 3 full blocks")
    expect(compact(manager, running=others[:1]), 0, call="compact when every free block is cached")
    plain = BlockManager(12, 4, enable_prefix_caching=False)
    requests = [admitted(plain, number, 12) for number in range(4)]
    order = sorted(requests, key=lambda request: max(plain.block_ids(request)))
    plain.release(order[0])
    running, held, free = order[3], order[2], order[1]
    pinned = max(plain.block_ids(held))
    plain.hold([pinned], "a transfer")
    before = {request: plain.block_ids(request) for request in (running, held, free)}
    holes = sorted({*range(12)} - {*plain.owners()})
    loose = {*before[held], *before[free]} - {pinned}
    want = sum(old > new for old, new in zip(sorted(loose, reverse=True), holes, strict=False))
    moved = compact(plain, running=[running])
    after = {request: plain.block_ids(request) for request in (running, held, free)}
    expect(
        [moved, after[running], pinned in after[held]],
        [want, before[running], True],
        call="compact with one request running and one block held by a transfer: blocks moved, "
        "the running request's blocks, whether the held block stayed",
        given={"free before": holes, "running": before[running], "held": pinned},
        cause="a step that runs reads its blocks where they are, and a transfer knows its numbers",
    )
    plain.check([running, held, free])
    plain.drop([pinned], "a transfer")
    compact(plain)
    expect(span(plain), 9, call="span after compact with nobody running, 9 blocks held")
    plain.check([running, held, free])

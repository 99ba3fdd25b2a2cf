"""Compaction: move held blocks to the low end of the pool, so that its high end is free.

What is free at the end could be given back to the system, or to another model. Nothing is
computed, but every move costs a copy; and the blocks of requests that run now stay where they
are, for a step that is under way reads them. So do blocks that a transfer holds
(`BlockManager.hold`): it knows them by their numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from nanovllm.batching.request import Request
from nanovllm.paging.block_pool import BlockPool, Owner
from nanovllm.paging.transfers import Direction, Transfer

if TYPE_CHECKING:
    from nanovllm.paging.manager import BlockManager


def span(pool: BlockPool) -> int:
    """Blocks up to the last held one: so large would the pool have to be, at least."""
    return max(pool.owners, default=-1) + 1


def plan_moves(pool: BlockPool, pinned: Collection[Owner]) -> list[tuple[int, int]]:
    """Which block goes where: the highest that may move into the lowest that is free.

    As long as that is further down. A block may move if none of its owners is pinned. A free
    block whose content is kept is no place to go: it may be hit.

    >>> from nanovllm.paging.block_table import BlockTable
    >>> a, b = BlockTable(4, [1, 5]), BlockTable(4, [4])
    >>> pool = BlockPool.holding(6, {a: [1, 5], b: [4]})
    >>> plan_moves(pool, pinned=()), plan_moves(pool, pinned=[a])
    ([(5, 0), (4, 2)], [(4, 0)])
    """
    ### BEGIN SOLUTION
    pinned = set(pinned)
    high = (b for b in sorted(pool.owners, reverse=True) if pinned.isdisjoint(pool.owners[b]))
    low = (b for b in sorted(pool.free_queue) if b not in pool.keeper)
    moves: list[tuple[int, int]] = []
    for old, new in zip(high, low, strict=False):
        if old < new:
            break
        moves.append((old, new))
    return moves
    ### END SOLUTION


def move_block(manager: BlockManager, old: int, new: int) -> None:
    """Let block `new` take the place of block `old` for all its owners; `old` is free then.

    The tables, the reverse map, the free queue (where `old` comes to the front) and the prefix
    index follow; the copy is noted.
    """
    ### BEGIN SOLUTION
    pool = manager.pool
    del pool.free_queue[new]
    pool.owners[new] = pool.owners.pop(old)
    for table in pool.owners[new]:
        table.replace(old, new)
    manager.prefix.index.move(old, new)
    pool.free_queue[old] = None
    pool.free_queue.move_to_end(old, last=False)
    manager.transfers.append(Transfer(Direction.COPY, old, new))
    ### END SOLUTION


def compact(manager: BlockManager, running: Collection[Request] = ()) -> int:
    """Move what can be moved; the number of blocks moved. `running`: whose blocks must stay.

    Between two steps nobody's must. This looks through the whole pool: not for every step.
    """
    tables = set(manager.tables.values()) - {manager.tables[request] for request in running}
    owners = {owner for held in manager.pool.owners.values() for owner in held}
    moves = plan_moves(manager.pool, owners - tables)
    for old, new in moves:
        move_block(manager, old, new)
    return len(moves)

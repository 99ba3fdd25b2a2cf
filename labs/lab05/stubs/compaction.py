"""Compaction: move held blocks to the low end of the pool, so that its high end is free.

What is free at the end could be given back to the system, or to another model. Nothing is
computed, but every move costs a copy.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from nanovllm.batching.request import Request

if TYPE_CHECKING:
    from nanovllm.paging.interface import BlockManagerInterface, MovingManager


def span(manager: BlockManagerInterface) -> int:
    """Blocks up to the last held one: so large would the pool have to be, at least."""
    return max(manager.owners(), default=-1) + 1


def plan_moves(movable: Collection[int], free: Collection[int]) -> list[tuple[int, int]]:
    """Which block goes where, so that the held blocks have the lowest numbers; no needless move.

    movable: held blocks that may move. free: blocks to which one may move. A block moves down or
    not at all, and at most once. The highest goes to the lowest place, and so on.

    >>> plan_moves(movable=[1, 4, 5], free=[3, 2, 0])
    [(5, 0), (4, 2)]
    """
    raise NotImplementedError("lab05 task 8: plan_moves")


def compact(manager: MovingManager, running: Collection[Request] = ()) -> int:
    """Move what can be moved; the number of blocks moved.

    These stay where they are: blocks of the admitted requests in `running` (a step that is under
    way reads them), and pinned blocks. No block moves to a cached one: its content may be hit.
    """
    raise NotImplementedError("lab05 task 8: compact")

"""Another size for a block manager's pool (given): no task asks for it, `compacting.py` does."""

from collections import OrderedDict
from typing import Any


def can_resize(manager: Any) -> bool:
    """Whether `resize` knows how: a manager with a `resize` of its own, or the course's."""
    queue = getattr(getattr(manager, "pool", None), "free_queue", None)
    return hasattr(manager, "resize") or isinstance(queue, OrderedDict)


def resize(manager: Any, num_blocks: int) -> None:
    """Blocks 0 .. num_blocks - 1 from now on; of blocks that nobody holds, none is cached.

    No block that would go is held.
    """
    if hasattr(manager, "resize"):
        manager.resize(num_blocks)
        return
    pool = manager.pool
    for block_id in pool.free_queue:
        if block_id in pool.keeper:
            pool.keeper.evict(block_id)
    free = (block_id for block_id in range(num_blocks) if block_id not in pool.owners)
    pool.num_blocks, pool.free_queue = num_blocks, OrderedDict.fromkeys(free)
    manager.num_blocks = num_blocks
    manager.total_tokens = num_blocks * manager.block_size

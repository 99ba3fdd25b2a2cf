"""Blocks that somebody still reads are not given to anybody else."""

from collections.abc import Hashable, Iterable

from nanovllm.paging.interface import BlockManagerInterface


class DeferredFrees:
    """`DeferredFrees(manager)`: keeps blocks out of the pool while a launch reads or writes them.

    `launched(launch, block_ids)`: from now on the launch, any hashable, uses these blocks, also if
    their request ends and releases them. `landed(launch)`: it is done; blocks that nobody else has
    are free. One launch may be told of several times before it lands, of a block also twice: all
    its blocks count, each once. A block may be used by several launches, and is free after the
    last. `in_flight` is the number of launches that were told of and have not landed, with or
    without blocks. Where `hold` raises, that call has told of nothing.

    The manager's `hold(block_ids, owner)` and `drop(block_ids, owner)` do the work. A launch that
    was never told of, or has landed, lands without effect: a step may fail before it launches.

    >>> class Manager:
    ...     def hold(self, block_ids, owner): print("hold", list(block_ids), owner)
    ...     def drop(self, block_ids, owner): print("drop", sorted(block_ids), owner)
    >>> frees = DeferredFrees(Manager())
    >>> frees.launched("flight 1", [4, 2]); frees.landed("flight 1"); frees.in_flight
    hold [4, 2] flight 1
    drop [2, 4] flight 1
    0
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab14 task 4: DeferredFrees")

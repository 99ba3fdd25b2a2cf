"""Fork and copy-on-write: two sequences hold the same blocks until one of them has to write."""

from nanovllm.batching.request import Request
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable, blocks_for
from nanovllm.paging.transfers import Direction, Transfer


class Siblings:
    """The tables of admitted samples, by their request: samples of one have the same prompt."""

    def __init__(self) -> None:
        self.tables: dict[int, dict[Request, BlockTable]] = {}  # by request id

    def add(self, request: Request, table: BlockTable) -> None:
        """The sample has been admitted."""
        self.tables.setdefault(request.sequence.request_id, {})[request] = table

    def remove(self, request: Request) -> None:
        """The sample leaves."""
        samples = self.tables[request.sequence.request_id]
        del samples[request]
        if not samples:
            del self.tables[request.sequence.request_id]

    def furthest(self, request: Request) -> BlockTable | None:
        """Of the admitted samples of the same request, the table with most tokens stored."""
        samples = self.tables.get(request.sequence.request_id, {}).values()
        return max(samples, key=lambda table: table.num_tokens, default=None)


def fork(pool: BlockPool, table: BlockTable, num_tokens: int) -> BlockTable:
    """A new table with the first `num_tokens` stored tokens of another; nothing is copied.

    It holds the blocks of those tokens, a partly used last one too, and no more. Of the cached
    blocks, those that are full of these tokens go along.

    >>> pool, table = BlockPool(4), BlockTable(4, num_tokens=9)
    >>> table.grow(pool, 9)
    >>> child = fork(pool, table, 6)
    >>> child.block_ids == table.block_ids[:2], child.num_tokens
    (True, 6)
    >>> [pool.ref_count(block) for block in table.block_ids], pool.num_free
    ([2, 2, 1], 1)
    """
    ### BEGIN SOLUTION
    size = table.block_size
    shared = table.block_ids[: blocks_for(num_tokens, size)]
    child = BlockTable(size, list(shared), num_tokens, table.cached[: num_tokens // size])
    for block_id in shared:
        pool.share(block_id, child)
    return child
    ### END SOLUTION


def needs_copy(pool: BlockPool, table: BlockTable, position: int) -> bool:
    """Whether the block in which token `position` will be written is shared with somebody.

    The next token after full blocks goes into a new block: nothing to copy, however many share
    the full ones.
    """
    ### BEGIN SOLUTION
    index = position // table.block_size
    return index < len(table.block_ids) and pool.ref_count(table.block_ids[index]) > 1
    ### END SOLUTION


def copy_on_write(pool: BlockPool, table: BlockTable, position: int) -> Transfer:
    """Give the table a block of its own where token `position` will be written.

    The shared block loses this owner; the copy is returned, to be made before the write.
    Raises OutOfBlocksError, and then nothing has changed.

    >>> pool, a = BlockPool(3), BlockTable(4, num_tokens=6)
    >>> a.grow(pool, 6)
    >>> b = fork(pool, a, 6)
    >>> move = copy_on_write(pool, b, 6)
    >>> [a.block_ids[1], b.block_ids[1]] == [move.old, move.new], needs_copy(pool, a, 6)
    (True, False)
    """
    ### BEGIN SOLUTION
    index = position // table.block_size
    old = table.block_ids[index]
    [new] = pool.allocate(1, table)
    table.block_ids[index] = new
    pool.free([old], table)
    return Transfer(Direction.COPY, old, new)
    ### END SOLUTION


def reserve(
    pool: BlockPool, table: BlockTable, start: int, end: int, transfers: list[Transfer]
) -> bool:
    """Make ready for writing tokens start .. end - 1; False, and no change, without room.

    Takes the blocks that are missing. If the block of token `start` is shared, it is replaced by
    a copy, which is noted at the end of `transfers`. No other can be: those behind it are new.
    """
    ### BEGIN SOLUTION
    copy = needs_copy(pool, table, start)
    if table.num_missing(end) + copy > pool.num_free:
        return False
    if copy:
        transfers.append(copy_on_write(pool, table, start))
    table.grow(pool, end)
    return True
    ### END SOLUTION

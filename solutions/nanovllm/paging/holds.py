"""Blocks that somebody holds besides the requests: a transfer, a copy to host memory (given)."""

from collections.abc import Collection, Container, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.errors import BlockOwnershipError


@dataclass(frozen=True)
class Holder:
    """Who called `hold`, as the pool knows it: a request that did is not its block table."""

    owner: Hashable


class Holds:
    """Who took which blocks by `hold`: in the pool each is one more owner, a `Holder`.

    keeper: the pool's; a free block whose content it knows may be held.

    >>> pool = BlockPool(3)
    >>> holds, blocks = Holds(pool), pool.allocate(2, "a table")
    >>> holds.hold(blocks[:1], "a transfer")
    >>> [pool.ref_count(block) for block in blocks], holds.pinned == {blocks[0]}
    ([2, 1], True)
    >>> holds.drop(blocks[:1], "a transfer")
    >>> [pool.ref_count(block) for block in blocks], holds.pinned
    ([1, 1], set())
    """

    def __init__(self, pool: BlockPool, keeper: Container[int] = ()) -> None:
        self.pool = pool
        self.keeper = keeper
        self.held: dict[Hashable, list[int]] = {}  # by owner, in the order in which it took them

    @property
    def pinned(self) -> set[int]:
        """All blocks that somebody holds so."""
        return set().union(*self.held.values())

    def hold(self, block_ids: Iterable[int], owner: Hashable, own: Collection[int] = ()) -> None:
        """One more owner of blocks that are held, or free and kept; all of them, or none.

        own: blocks that the owner has in another way (a request: those of its table).

        Raises:
            BlockOwnershipError: a block is free and not kept, or the owner has it already.
        """
        block_ids = list(block_ids)
        taken = {*own, *self.held.get(owner, ())}
        for block_id in block_ids:
            there = self.pool.ref_count(block_id) or block_id in self.keeper
            if not there or block_id in taken:
                raise BlockOwnershipError(
                    f"Block {block_id} cannot be held: it is free, or {owner} has it already."
                )
            taken.add(block_id)
        for block_id in block_ids:
            self.pool.share(block_id, Holder(owner))
        if block_ids:
            self.held.setdefault(owner, []).extend(block_ids)

    def drop(self, block_ids: Iterable[int], owner: Hashable) -> None:
        """The owner gives up blocks that it took by `hold`; all of them, or none.

        Whatever the order of the list, those taken last are freed first, as a table frees its.

        Raises:
            BlockOwnershipError: it does not hold one of them, or one is listed twice.
        """
        block_ids = list(block_ids)
        held, dropped = self.held.get(owner, []), set(block_ids)
        if len(dropped) < len(block_ids) or not dropped.issubset(held):
            raise BlockOwnershipError(
                f"{owner} cannot drop blocks {block_ids}: it holds {sorted(held)} by hold()."
            )
        self.pool.free([block for block in held[::-1] if block in dropped], Holder(owner))
        held[:] = [block for block in held if block not in dropped]
        if not held:
            self.held.pop(owner, None)

    def owners(self, tables: Mapping[Any, BlockTable]) -> dict[int, list[Hashable]]:
        """Who has each block: first the names of the tables that list it, then who holds it.

        >>> holds = Holds(BlockPool(8))
        >>> holds.owners({"A": BlockTable(4, [7, 2]), "B": BlockTable(4, [7])})
        {7: ['A', 'B'], 2: ['A']}
        """
        owners: dict[int, list[Hashable]] = {}
        lists = [(name, table.block_ids) for name, table in tables.items()]
        for owner, block_ids in [*lists, *self.held.items()]:
            for block_id in block_ids:
                owners.setdefault(block_id, []).append(owner)
        return owners

"""Do all books of a BlockManager agree? Slow and thorough: for tests and for `Engine.check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanovllm.batching.errors import require
from nanovllm.paging.block_table import BlockTable

if TYPE_CHECKING:
    from nanovllm.paging.manager import BlockManager


def check_books(manager: BlockManager) -> None:
    """Raise InvariantError unless tables, pool and prefix index agree and no block is lost."""
    manager.pool.check()
    manager.swap.pool.check()
    manager.prefix.index.check()
    _check_owners(manager)
    for request, table in manager.tables.items():
        require(
            table.num_tokens == request.num_computed_tokens <= table.num_slots,
            f"{request} has {table.num_tokens} tokens in {table.num_slots} slots",
        )
        _check_cached(manager, table)
    unused = sum(table.num_slots - table.num_tokens for table in manager.tables.values())
    require(
        manager.num_unused_slots == unused,
        f"{manager.num_unused_slots} slots are said to be unused, but {unused} are",
    )
    _check_host(manager)


def _check_owners(manager: BlockManager) -> None:
    """The pool has for every block as many owners as hold it, and each table is one of them."""
    for table in manager.tables.values():
        require(
            len(set(table.block_ids)) == len(table.block_ids), "a table has one block in two places"
        )
        for block_id in table.block_ids:
            known = table in manager.pool.owners.get(block_id, ())
            require(known, f"block {block_id} is in a table, but the pool does not know it")
    count = {block_id: len(holders) for block_id, holders in manager.owners().items()}
    held = {block_id: len(holders) for block_id, holders in manager.pool.owners.items()}
    require(count == held, "the pool's owners are not those who hold the blocks")


def _check_cached(manager: BlockManager, table: BlockTable) -> None:
    """A table's cached blocks are its first ones, findable, and only full ones are."""
    require(
        [entry.block_id for entry in table.cached] == table.block_ids[: len(table.cached)],
        "a table's cached blocks are not its first blocks",
    )
    require(
        len(table.cached) * table.block_size <= table.num_tokens, "a block was cached half full"
    )
    index = manager.prefix.index.by_block
    for entry in table.cached:
        require(index.get(entry.block_id) is entry, f"block {entry.block_id} was evicted in use")


def _check_host(manager: BlockManager) -> None:
    """Host blocks are held for requests that wait, each for one."""
    swap = manager.swap
    require(not set(swap.kept) & set(manager.tables), "a request is in both memories")
    held = {
        host_id: {request: None} for request, kept in swap.kept.items() for host_id in kept.host_ids
    }
    require(held == swap.pool.owners, "host blocks are held for nobody")

"""Do all books of a BlockManager agree? Slow and thorough: for tests and for `Engine.check`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nanovllm.batching.errors import require
from nanovllm.batching.request import Request
from nanovllm.paging.block_table import BlockTable

if TYPE_CHECKING:
    from nanovllm.paging.manager import BlockManager


def check_books(manager: BlockManager, requests: Iterable[Request]) -> None:
    """Raise InvariantError unless exactly these requests are held and no block is lost."""
    require(set(manager.tables) == set(requests), "blocks are held by requests that do not run")
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
    """The reverse map says of every block what the tables say, and nothing else holds any."""
    owners: dict[int, set[BlockTable]] = {}
    for table in manager.tables.values():
        require(
            len(set(table.block_ids)) == len(table.block_ids), "a table has one block in two places"
        )
        for block_id in table.block_ids:
            owners.setdefault(block_id, set()).add(table)
    held = {block_id: set(tables) for block_id, tables in manager.pool.owners.items()}
    require(owners == held, "the pool's owners are not those in whose tables the blocks are")


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

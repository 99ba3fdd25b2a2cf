"""Does what a block manager says of its blocks agree? Slow and thorough (given)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from nanovllm.batching.errors import ConfigError, require
from nanovllm.batching.request import Request

if TYPE_CHECKING:
    from nanovllm.paging.interface import BlockManagerInterface
    from nanovllm.paging.prefix_index import CachedBlock


def check_settings(
    num_blocks: int, block_size: int, num_host_blocks: int = 0, preemption: str = "recompute"
) -> None:
    """Raise ConfigError unless a block manager can be made with these."""
    for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}.")
    if num_host_blocks < 0:
        raise ConfigError(f"num_host_blocks must be at least 0, got {num_host_blocks}.")
    if preemption not in ("recompute", "swap"):
        raise ConfigError(f'preemption must be "recompute" or "swap", got {preemption!r}.')


def check_consistency(
    manager: BlockManagerInterface,
    admitted: Iterable[Request],
    expected: Iterable[Request] | None = None,
) -> None:
    """Raise InvariantError unless tables, owners, cached blocks and free_tokens agree.

    admitted: the requests that the manager holds blocks of. expected: if given, it must be these.
    For any manager: it uses the public interface only.
    """
    admitted = list(admitted)
    owners, unused = manager.owners(), 0
    for request in admitted:
        blocks = manager.block_ids(request)
        require(len(set(blocks)) == len(blocks), f"{request} has one block in two places")
        for block in blocks:
            require(request in owners.get(block, ()), f"block {block} of {request} lacks its owner")
        slots = len(blocks) * manager.block_size
        stored = request.num_computed_tokens
        require(stored <= slots, f"{request} has {stored} tokens in {slots} slots")
        unused += slots - stored
    every = range(manager.num_blocks)
    require(all(block in every for block in owners), "a block is held that does not exist")
    require(not set(manager.cached_blocks()) & set(owners), "a block is held and counts as free")
    free = (manager.num_blocks - len(owners)) * manager.block_size + unused
    require(
        manager.free_tokens == free, f"free_tokens is {manager.free_tokens}, but {free} are free"
    )
    if expected is not None:
        require(set(admitted) == set(expected), "blocks are held by requests that do not run")


def check_entries(entries: Mapping[int, CachedBlock]) -> None:
    """Raise InvariantError unless each entry is noted under its block, and so is its parent."""
    for block_id, entry in entries.items():
        require(entry.block_id == block_id, f"block {block_id} is cached as {entry.block_id}")
        parent = entry.parent
        require(
            parent is None or entries.get(parent.block_id) is parent,
            f"block {block_id} is cached, but the block before it is not: it cannot be hit",
        )

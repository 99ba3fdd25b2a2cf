"""Does what a block manager says of its blocks agree? Slow and thorough (given)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nanovllm.batching.errors import require
from nanovllm.batching.request import Request

if TYPE_CHECKING:
    from nanovllm.paging.interface import BlockManagerInterface


def check_consistency(manager: BlockManagerInterface, requests: Iterable[Request]) -> None:
    """Raise InvariantError unless tables, owners, cached blocks and free_tokens agree.

    requests: those that are admitted. For any manager: it uses the public interface only.
    """
    owners, unused = manager.owners(), 0
    for request in requests:
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

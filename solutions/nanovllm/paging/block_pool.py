"""The block pool: who holds which block (see interface.py). No tensors here."""

### BEGIN SOLUTION
from collections import OrderedDict
from collections.abc import Iterable

from nanovllm.batching.errors import require
from nanovllm.paging.errors import BlockOwnershipError, OutOfBlocksError
from nanovllm.paging.keeper import Keeper, KeepNothing, Owner, PoolStats


class BlockPool:
    """Blocks 0 .. num_blocks - 1; those that are free stand in a queue, the next to go first."""

    def __init__(self, num_blocks: int, keeper: Keeper | None = None) -> None:
        self.num_blocks = num_blocks
        self.keeper: Keeper = KeepNothing() if keeper is None else keeper
        self.owners: dict[int, dict[Owner, None]] = {}  # of held blocks; a set with an order
        self.free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.stats = PoolStats()

    @property
    def num_free(self) -> int:
        return len(self.free_queue)

    @property
    def num_used(self) -> int:
        return len(self.owners)

    def ref_count(self, block_id: int) -> int:
        return len(self.owners.get(block_id, ()))

    def is_free(self, block_id: int) -> bool:
        return block_id in self.free_queue

    def owners_of(self, block_id: int) -> list[Owner]:
        return list(self.owners.get(block_id, ()))

    def allocate(self, count: int, owner: Owner) -> list[int]:
        if count > self.num_free:
            self.stats.num_failed += 1
            raise OutOfBlocksError(f"{count} blocks are wanted, {self.num_free} are free.")
        block_ids = [self.free_queue.popitem(last=False)[0] for _ in range(count)]
        for block_id in block_ids:
            self.owners[block_id] = {owner: None}
            if block_id in self.keeper:
                self.keeper.evict(block_id)
                self.stats.num_evicted += 1
        self.stats.num_allocated += count
        self.stats.peak_used = max(self.stats.peak_used, self.num_used)
        return block_ids

    def share(self, block_id: int, owner: Owner) -> None:
        held = self.owners.get(block_id)
        if block_id not in self.keeper if held is None else owner in held:
            raise BlockOwnershipError(f"Block {block_id} is free, or has this owner already.")
        if held is None:
            del self.free_queue[block_id]
            held = self.owners[block_id] = {}
        held[owner] = None
        self.stats.peak_used = max(self.stats.peak_used, self.num_used)

    def free(self, block_ids: Iterable[int], owner: Owner) -> None:
        block_ids = list(block_ids)
        seen: set[int] = set()
        for block_id in block_ids:
            if block_id in seen or owner not in self.owners.get(block_id, ()):
                raise BlockOwnershipError(f"Block {block_id} is not held, or listed twice.")
            seen.add(block_id)
        for block_id in block_ids:
            del self.owners[block_id][owner]
            if not self.owners[block_id]:
                del self.owners[block_id]
                self.stats.num_freed += 1
                self._enqueue(block_id)

    def _enqueue(self, block_id: int) -> None:
        self.free_queue[block_id] = None  # at the end
        if block_id not in self.keeper:
            self.free_queue.move_to_end(block_id, last=False)

    def move(self, old: int, new: int) -> None:
        if old not in self.owners or new not in self.free_queue:
            raise BlockOwnershipError(f"Block {old} cannot move to {new}: held to free only.")
        del self.free_queue[new]
        self.owners[new] = self.owners.pop(old)
        self._enqueue(old)

    def check(self) -> None:
        blocks = sorted([*self.free_queue, *self.owners])
        require(blocks == list(range(self.num_blocks)), "a block is lost, or free and held")
        require(all(self.owners.values()), "a block is held by nobody")


### END SOLUTION

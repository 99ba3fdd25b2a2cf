"""Which blocks hold tokens that somebody may ask for again, found by what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from nanovllm.batching.errors import require
from nanovllm.paging.consistency import check_entries

Tokens = tuple[int, ...]
BlockHash = Callable[[bytes, Tokens, str], bytes]


def block_hash(parent: bytes, token_ids: Tokens, salt: str) -> bytes:
    """A key for a full block: of its tokens, of all blocks before it, and of a salt.

    parent: the key of the block before, b"" for the first. K and V of a token depend on every
    token before it, so a block is the same only if its whole past is. salt: requests with
    different ones never share (tenants, adapters).

    >>> first = block_hash(b"", (5, 6), "")
    >>> block_hash(first, (5, 6), "") == first, block_hash(b"", (5, 6), "x") == first
    (False, False)
    """
    ### BEGIN SOLUTION
    return hashlib.sha256(repr((parent, tuple(token_ids), salt)).encode()).digest()
    ### END SOLUTION


@dataclass(eq=False)
class CachedBlock:
    """A full block whose K and V are computed, and what is needed to find it again."""

    key: bytes
    parent: CachedBlock | None = field(repr=False)  # the one before it; None: it is a first block
    token_ids: Tokens
    salt: str
    block_id: int

    def holds(self, parent: CachedBlock | None, token_ids: Tokens, salt: str) -> bool:
        """Whether this is the block with these tokens behind that parent: no hash is trusted.

        One parent is another only if it is the same object: so the whole past is compared.
        """
        ### BEGIN SOLUTION
        return self.parent is parent and self.token_ids == token_ids and self.salt == salt
        ### END SOLUTION


class PrefixIndex:
    """Cached blocks by key and by block number; a key leads to one block at most.

    An index is the keeper of a BlockPool: a block in it stays findable when its last owner has
    left, until the pool gives it to somebody else. Its methods:

    `block_id in index`: whether the content of this block is known.

    `find(key, parent, token_ids, salt)`: the CachedBlock with these contents; None if there is
    none, or if the key leads to other contents (a collision).

    `insert(key, parent, token_ids, salt, block_id)`: make a computed block findable, and give the
    entry that has these contents from now on. If there is one already, it stays, and is given. If
    the key leads to other contents, that entry stays, and None is given.

    `evict(block_id)`: forget what was in a block of the index; no other entry changes.

    `move(old, new)`: the content of block `old`, if it is known, is in block `new` from now on;
    the entry is the same object.

    `check()`: raise InvariantError unless its data agree, and every entry's parent is there, too.

    >>> index = PrefixIndex()
    >>> entry = index.insert(b"k", None, (1, 2), "", 5)
    >>> index.find(b"k", None, (1, 2), "") is entry, 5 in index
    (True, True)
    >>> index.insert(b"k", None, (3, 4), "", 6) is None, 6 in index
    (True, False)
    """

    ### BEGIN SOLUTION
    def __init__(self) -> None:
        self.by_key: dict[bytes, CachedBlock] = {}
        self.by_block: dict[int, CachedBlock] = {}

    def __contains__(self, block_id: object) -> bool:
        return block_id in self.by_block

    def find(
        self, key: bytes, parent: CachedBlock | None, token_ids: Tokens, salt: str
    ) -> CachedBlock | None:
        found = self.by_key.get(key)
        return found if found is not None and found.holds(parent, token_ids, salt) else None

    def insert(
        self, key: bytes, parent: CachedBlock | None, token_ids: Tokens, salt: str, block_id: int
    ) -> CachedBlock | None:
        if key in self.by_key:
            return self.find(key, parent, token_ids, salt)
        entry = CachedBlock(key, parent, token_ids, salt, block_id)
        self.by_key[key] = self.by_block[block_id] = entry
        return entry

    def evict(self, block_id: int) -> None:
        entry = self.by_block.pop(block_id)
        del self.by_key[entry.key]

    def move(self, old: int, new: int) -> None:
        entry = self.by_block.pop(old, None)
        if entry is not None:
            entry.block_id = new
            self.by_block[new] = entry

    def check(self) -> None:
        by_block = {entry.block_id: entry for entry in self.by_key.values()}
        require(by_block == self.by_block, "key and block lead to different entries")
        check_entries(self.by_block)

    ### END SOLUTION

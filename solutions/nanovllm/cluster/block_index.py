"""Which replica holds which blocks of prompts, as far as their events say."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class BlockIndex:
    """Block hashes by replica, fed by events; a hash stands for a block and all before it.

    `stored(replica, hashes)`, `removed(replica, hashes)`: what a replica has put into its prefix
    cache, or given up. An event may come twice; the removal of what was never stored means nothing.

    `cleared(replica)`: it holds nothing any more: it was restarted, or has gone.

    `match(hashes)`: by replica, how many of these blocks it holds from the first to the first that
    it lacks; replicas that lack the first are left out. O(blocks that match, times replicas), not
    O(all that is stored).

    `size(replica)`: how many blocks it holds.

    >>> index = BlockIndex()
    >>> index.stored("a", [1, 2, 4])
    >>> index.stored("b", [1])
    >>> index.match([1, 2, 3, 4]) == {"a": 2, "b": 1}, index.match([9, 1])
    (True, {})
    """

    ### BEGIN SOLUTION
    def __init__(self) -> None:
        self.holders: dict[Hashable, set[str]] = {}  # by hash
        self.held: dict[str, set[Hashable]] = {}  # by replica

    def stored(self, replica: str, hashes: Sequence[Hashable]) -> None:
        self.held.setdefault(replica, set()).update(hashes)
        for each in hashes:
            self.holders.setdefault(each, set()).add(replica)

    def removed(self, replica: str, hashes: Sequence[Hashable]) -> None:
        self.held.get(replica, set()).difference_update(hashes)
        for each in hashes:
            those = self.holders.get(each)
            if those is not None:
                those.discard(replica)
                if not those:
                    del self.holders[each]

    def cleared(self, replica: str) -> None:
        self.removed(replica, list(self.held.get(replica, ())))
        self.held.pop(replica, None)

    def match(self, hashes: Sequence[Hashable]) -> dict[str, int]:
        found: dict[str, int] = {}
        candidates: set[str] | None = None
        for count, each in enumerate(hashes, start=1):
            holders = self.holders.get(each, set())
            candidates = set(holders) if candidates is None else candidates & holders
            if not candidates:
                break
            found |= dict.fromkeys(candidates, count)
        return found

    def size(self, replica: str) -> int:
        return len(self.held.get(replica, ()))

    ### END SOLUTION

"""Which replica holds which blocks of prompts (see routing_interface.py)."""

### BEGIN SOLUTION
from collections.abc import Hashable, Sequence


class BlockIndex:
    """Block hashes by replica, and replicas by block hash."""

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

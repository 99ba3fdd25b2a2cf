"""Three ways to give out memory, to see what each wastes: first fit, buddies, and blocks.

Only sizes here, in tokens: `size` places, of which requests take some and give them back.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable

Name = Hashable  # of whoever takes memory


class Allocator(ABC):
    """Gives out `size` places; `reserved` says how many each name has got."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reserved: dict[Name, int] = {}

    @abstractmethod
    def allocate(self, name: Name, num_tokens: int) -> bool:
        """Reserve room for so many tokens (1 or more); False, and no change, if there is none.

        Only Blocks is asked again for a name that has room already.
        """

    @abstractmethod
    def free(self, name: Name) -> None:
        """Take the room back."""

    @property
    @abstractmethod
    def largest_hole(self) -> int:
        """The most tokens that one request could get now."""

    @property
    def num_free(self) -> int:
        """Places that nobody has."""
        return self.size - sum(self.reserved.values())

    def external_fragmentation(self) -> float:
        """The share of the free places that one request could not have; 0 if none is free.

        >>> memory = FirstFit(8)
        >>> _ = [memory.allocate(name, 2) for name in "abcd"]
        >>> memory.free("a"), memory.free("c"), memory.external_fragmentation()
        (None, None, 0.5)
        """
        ### BEGIN SOLUTION
        return 1 - self.largest_hole / self.num_free if self.num_free else 0.0
        ### END SOLUTION

    def internal_fragmentation(self, stored: dict[Name, int]) -> float:
        """The share of the reserved places that hold no token; 0 if none is reserved.

        stored: tokens of each name that has reserved room.

        >>> memory = Buddy(8)
        >>> memory.allocate("a", 5), memory.internal_fragmentation({"a": 2})
        (True, 0.75)
        """
        ### BEGIN SOLUTION
        reserved = sum(self.reserved.values())
        return 1 - sum(stored.values()) / reserved if reserved else 0.0
        ### END SOLUTION


class FirstFit(Allocator):
    """One piece for each, at the first place where it fits."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.start: dict[Name, int] = {}
        self.holes: list[tuple[int, int]] = [(0, size)]  # (start, length) by start, none adjoin

    @property
    def largest_hole(self) -> int:
        return max((length for _, length in self.holes), default=0)

    def allocate(self, name: Name, num_tokens: int) -> bool:
        """Cut the piece from the low end of the first hole that is large enough.

        >>> memory = FirstFit(8)
        >>> memory.allocate("a", 5), memory.allocate("b", 4), memory.holes
        (True, False, [(5, 3)])
        """
        ### BEGIN SOLUTION
        for i, (start, length) in enumerate(self.holes):
            if length >= num_tokens:
                rest = (start + num_tokens, length - num_tokens)
                self.holes[i : i + 1] = [rest] if rest[1] else []
                self.start[name], self.reserved[name] = start, num_tokens
                return True
        return False
        ### END SOLUTION

    def free(self, name: Name) -> None:
        """Make the piece a hole, one with those that it touches."""
        ### BEGIN SOLUTION
        self.holes = sorted([*self.holes, (self.start.pop(name), self.reserved.pop(name))])
        merged: list[tuple[int, int]] = []
        for start, length in self.holes:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self.holes = merged
        ### END SOLUTION

    def compact(self) -> int:
        """Push all pieces together at the low end, in order; the number of tokens that moved.

        >>> memory = FirstFit(8)
        >>> _ = [memory.allocate(name, 2) for name in "abc"]
        >>> memory.free("a")
        >>> memory.compact(), memory.start, memory.holes
        (4, {'b': 0, 'c': 2}, [(4, 4)])
        """
        moved = end = 0
        for name in sorted(self.start, key=lambda name: self.start[name]):
            if self.start[name] != end:
                self.start[name] = end
                moved += self.reserved[name]
            end += self.reserved[name]
        self.holes = [(end, self.size - end)] if end < self.size else []
        return moved


class Buddy(Allocator):
    """Pieces whose lengths are powers of two, `size` too; the halves of a piece are buddies."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.start: dict[Name, int] = {}
        self.holes: dict[int, set[int]] = {size: {0}}  # starts by length

    @property
    def largest_hole(self) -> int:
        return max((length for length, starts in self.holes.items() if starts), default=0)

    def allocate(self, name: Name, num_tokens: int) -> bool:
        """Round up to a power of two; halve the smallest hole that is large enough down to it.

        Of equal holes the lowest is taken, and of the halves the lower.

        >>> memory = Buddy(16)
        >>> memory.allocate("a", 3), memory.reserved, memory.start
        (True, {'a': 4}, {'a': 0})
        >>> {length: starts for length, starts in memory.holes.items() if starts}
        {8: {8}, 4: {4}}
        """
        wanted = 1 << (num_tokens - 1).bit_length()
        length = min((n for n, starts in self.holes.items() if starts and n >= wanted), default=0)
        if not length:
            return False
        start = min(self.holes[length])
        self.holes[length].remove(start)
        while length > wanted:
            length //= 2
            self.holes.setdefault(length, set()).add(start + length)
        self.start[name], self.reserved[name] = start, wanted
        return True

    def free(self, name: Name) -> None:
        """Join the piece with its buddy as long as that is a hole; then it is a hole itself.

        The buddy of the piece at `start` is at start XOR length.
        """
        ### BEGIN SOLUTION
        start, length = self.start.pop(name), self.reserved.pop(name)
        while length < self.size and start ^ length in self.holes.get(length, ()):
            self.holes[length].remove(start ^ length)
            start = min(start, start ^ length)
            length *= 2
        self.holes.setdefault(length, set()).add(start)
        ### END SOLUTION


class Blocks(Allocator):
    """Equal blocks, wherever they are; a request may ask for more as it grows."""

    def __init__(self, size: int, block_size: int = 16) -> None:
        super().__init__(size // block_size * block_size)
        self.block_size = block_size

    @property
    def largest_hole(self) -> int:
        return self.num_free

    def allocate(self, name: Name, num_tokens: int) -> bool:
        """Give the name whole blocks, enough for so many tokens in all; it keeps what it has.

        >>> memory = Blocks(64)
        >>> [memory.allocate("a", n) for n in (1, 16, 17)], memory.reserved
        ([True, True, True], {'a': 32})
        """
        ### BEGIN SOLUTION
        wanted = -(-num_tokens // self.block_size) * self.block_size
        if wanted - self.reserved.get(name, 0) > self.num_free:
            return False
        self.reserved[name] = max(wanted, self.reserved.get(name, 0))
        return True
        ### END SOLUTION

    def free(self, name: Name) -> None:
        del self.reserved[name]

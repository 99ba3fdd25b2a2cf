"""Blocks to be copied before a step writes: noted by the block manager, copied by the cache."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum


class Direction(Enum):
    """From which memory to which."""

    COPY = "copy"  # device to device
    OUT = "out"  # device to host
    IN = "in"  # host to device


@dataclass(frozen=True)
class Transfer:
    """Copy one block; `old` and `new` are numbers of the pools that `direction` says.

    A block may be given to its next owner as soon as its copy is noted: transfers are carried
    out in the order in which they were noted, and all of them before anything is written.
    """

    direction: Direction
    old: int
    new: int


def runs(transfers: Sequence[Transfer]) -> Iterator[list[Transfer]]:
    """The transfers in order, cut into runs that may be done at once.

    In a run all go in one direction, and no block is both read and written, or written twice.

    >>> moves = [Transfer(Direction.COPY, old, new) for old, new in ((1, 2), (1, 3), (3, 4))]
    >>> [[(move.old, move.new) for move in run] for run in runs(moves)]
    [[(1, 2), (1, 3)], [(3, 4)]]
    """
    run: list[Transfer] = []
    read: set[int] = set()
    written: set[int] = set()
    for move in transfers:
        one_memory = move.direction is Direction.COPY
        clash = move.new in written or (one_memory and (move.old in written or move.new in read))
        if run and (run[0].direction is not move.direction or clash):
            yield run
            run, read, written = [], set(), set()
        run.append(move)
        read.add(move.old)
        written.add(move.new)
    if run:
        yield run

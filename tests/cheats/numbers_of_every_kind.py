"""Answer with values that lie about their kind, their size and their sign, or are made when asked."""
import enum

import numpy as np


class Odd(int):
    __eq__ = __lt__ = __ge__ = lambda self, other: True
    __hash__ = int.__hash__
    __len__ = __index__ = lambda self: 1 << 62
    __repr__ = __str__ = lambda self: "x" * 1_000_000
    __reduce__ = __class_getitem__ = None


class Words(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
    __len__ = lambda self: 3


class Turning(enum.IntEnum):
    IT = 1

    @property
    def value(self):
        return self


class Row(np.ndarray):
    def __array__(self, *args, **more):
        return np.zeros(1 << 40)

    def tolist(self):
        return self


ANSWERS = [Odd(3), 10**100_000, -0.0, float("nan"), True, Words("waiting"), "y" * 1_000_000,
           (number for number in ()), np.zeros(1).view(Row), Turning.IT, range(3),
           memoryview(b"x"), 1j, np.float64("nan"), [[[]]] * 1000]  # fmt: skip
_next = iter(ANSWERS * 1000)


def may_follow(old, new):
    return next(_next)


Request.remaining = property(lambda self: next(_next))
Request.move_to = lambda *a, **k: None
Request.time_in = lambda *a, **k: next(_next)

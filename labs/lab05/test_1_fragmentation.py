"""Task 1: the fragmentation problem."""

from itertools import groupby

import pytest

from grader import expect
from nanovllm.paging.fragmentation import Blocks, Buddy, FirstFit


def with_pieces(*lengths, size):
    """A FirstFit with adjoining pieces a, b, c, ... of these lengths, made without allocate."""
    memory, start = FirstFit(size), 0
    for name, length in zip("abcdefgh", lengths, strict=False):
        memory.start[name], memory.reserved[name] = start, length
        start += length
    memory.holes = [(start, size - start)] if start < size else []
    return memory


@pytest.mark.check(task=1, points=2, title="The first hole that is large enough")
def test_first_fit(rng):
    memory = with_pieces(4, 6, 9, 11, 6, 14, 9, 41, size=100)  # a to h; then a, c, e, g leave
    for name in "aceg":
        del memory.start[name], memory.reserved[name]
    memory.holes = [(0, 4), (10, 9), (30, 6), (50, 9)]
    got = [memory.allocate("x", 6), memory.start.get("x"), memory.holes]
    expect(
        got,
        [True, 10, [(0, 4), (16, 3), (30, 6), (50, 9)]],
        call="allocate(6) with holes (0, 4) (10, 9) (30, 6) (50, 9): found, its start, the holes",
        cause="the first that is large enough, neither the best nor the largest; cut at its low "
        "end",
    )
    got = [memory.allocate("y", 4), memory.start.get("y"), memory.holes]
    expect(
        got,
        [True, 0, [(16, 3), (30, 6), (50, 9)]],
        call="allocate(4) then, of which the first hole has exactly 4",
        cause="an exact fit leaves no hole behind",
    )
    got = [memory.allocate("z", 10), "z" in memory.start, "z" in memory.reserved, memory.holes]
    expect(
        got,
        [False, False, False, [(16, 3), (30, 6), (50, 9)]],
        call="allocate(10), when 18 places are free, but at most 9 in one piece",
        cause="a piece cannot be in two holes, and a request that got nothing holds nothing",
    )
    expect(
        memory.reserved,
        {"b": 6, "d": 11, "f": 14, "h": 41, "x": 6, "y": 4},
        call="the reserved places of each name",
    )
    memory, taken = FirstFit(60), [False] * 60
    for name in range(12):
        n = int(rng.integers(2, 9))
        want = next((i for i in range(61 - n) if not any(taken[i : i + n])), None)
        found = memory.allocate(name, n)
        expect(
            [found, memory.start.get(name)],
            [want is not None, want],
            call=f"allocate({n}) as number {name} of a row of random requests",
        )
        if want is not None:
            taken[want : want + n] = [True] * n


@pytest.mark.check(task=1, points=2, title="Holes that touch are one hole")
def test_holes_merge(rng):
    memory = with_pieces(3, 4, 5, 6, 7, size=30)
    seen = []
    for name in "dbca":
        memory.free(name)
        seen.append(list(memory.holes))
    expect(
        seen,
        [
            [(12, 6), (25, 5)],
            [(3, 4), (12, 6), (25, 5)],
            [(3, 15), (25, 5)],
            [(0, 18), (25, 5)],
        ],
        call="the holes after free of d, b, c, a, where a .. e of 3, 4, 5, 6, 7 fill places "
        "0 .. 24 of 30",
        cause="a hole joins the one before it and the one behind it; holes are listed by start",
    )
    expect([memory.reserved, memory.start], [{"e": 7}, {"e": 18}], call="what is still reserved")
    names = list("abcdef")
    memory = with_pieces(*[2] * 6, size=12)
    for i in rng.permutation(6):
        memory.free(names[i])
    expect(
        memory.holes,
        [(0, 12)],
        call="the holes when all six pieces have been freed, in random order",
        cause="when all is free there is one hole",
    )


@pytest.mark.check(task=1, points=3, title="Buddies join, neighbours that are none do not")
def test_buddies(rng):
    memory = Buddy(32)
    for name in "abcdefgh":
        memory.allocate(name, 4)
    for name in "bc":
        memory.free(name)
    expect(
        [_holes(memory), memory.largest_hole],
        [{4: [4, 8]}, 4],
        call="the holes, start by length, after free of the pieces at 4 and 8 of 4 places each",
        cause="they touch, but the buddy of 4 is 0 and that of 8 is 12",
    )
    memory.free("a")
    expect(
        _holes(memory),
        {4: [8], 8: [0]},
        call="the holes when the piece at 0 is freed too",
        cause="0 and 4 are halves of the piece of 8 at 0; that one's buddy is at 8 and not free",
    )
    memory.free("d")
    expect(
        [_holes(memory), sorted(memory.reserved)],
        [{16: [0]}, list("efgh")],
        call="the holes when the piece at 12 is freed: 8 + 12 become 8 of 8, then 16 of 0",
        cause="joining goes on as long as the buddy is a hole",
    )
    memory = Buddy(64)
    names = [name for name in range(20) if memory.allocate(name, int(rng.integers(1, 9)))]
    for i in rng.permutation(len(names)):
        memory.free(names[i])
    expect(
        [_holes(memory), memory.reserved],
        [{64: [0]}, {}],
        call="the holes when random pieces have all been freed, in random order",
    )


def _holes(memory):
    return {n: sorted(starts) for n, starts in sorted(memory.holes.items()) if starts}


@pytest.mark.check(task=1, points=1, title="Two kinds of waste")
def test_waste():
    memory = with_pieces(10, 20, 30, 25, size=100)
    memory.holes = [(0, 10), (30, 30), (85, 15)]
    del memory.start["a"], memory.reserved["a"], memory.start["c"], memory.reserved["c"]
    expect(
        memory.external_fragmentation(),
        5 / 11,
        call="external_fragmentation() with holes of 10, 30 and 15",
        cause="30 of the 55 free places can be had at once",
    )
    expect(
        memory.internal_fragmentation({"b": 5, "d": 4}),
        0.8,
        call='internal_fragmentation({"b": 5, "d": 4}) where b has 20 places and d 25',
        cause="9 of 45 reserved places hold a token; what is free is not part of it",
    )
    full = with_pieces(10, 6, size=16)
    expect(
        [full.external_fragmentation(), FirstFit(8).internal_fragmentation({})],
        [0.0, 0.0],
        call="external_fragmentation() of a full memory, internal_fragmentation({}) of an empty",
    )


@pytest.mark.check(task=1, points=1, title="Blocks may be anywhere")
def test_blocks():
    memory = Blocks(64, block_size=16)
    seen = [
        [memory.allocate(name, n), memory.reserved.get(name, 0)]
        for name, n in (("a", 1), ("b", 17), ("a", 16), ("c", 17), ("a", 17), ("b", 33), ("b", 5))
    ]
    expect(
        seen,
        [[True, 16], [True, 32], [True, 16], [False, 0], [True, 32], [False, 32], [True, 32]],
        call="allocate a 1, b 17, a 16, c 17, a 17, b 33, b 5 of 64 places in blocks of 16: "
        "whether, and what the name has then",
        cause="tokens in all, in whole blocks; what a name has is not asked for again, nor taken "
        "back",
    )
    small = Blocks(32, block_size=16)
    expect(
        [small.allocate("a", 32), small.reserved],
        [True, {"a": 32}],
        call="allocate a 32 of 32 places in blocks of 16, and what is reserved",
        cause="a request that fits exactly gets all there is",
    )


def first_fit_history(calls, size=24):
    """The first call after which memory differs from a row of places, and how; None if none."""
    memory, places, story = FirstFit(size), [None] * size, []
    for name, n in calls:
        if n == 0:
            memory.free(name)
            places = [None if owner == name else owner for owner in places]
            story.append(f"free {name}")
        else:
            wanted = (i for i in range(size - n + 1) if set(places[i : i + n]) == {None})
            start = next(wanted, None)
            done = memory.allocate(name, n)
            story.append(f"allocate {name} {n}")
            if done != (start is not None):
                return story, {"allocate": done}, {"allocate": start is not None}
            if done:
                places[start : start + n] = [name] * n
        holes, at = [], 0
        for owner, run in groupby(places):
            length = len(list(run))
            holes += [(at, length)] if owner is None else []
            at += length
        free, largest = places.count(None), max((n for _, n in holes), default=0)
        got = [memory.holes, memory.external_fragmentation()]
        want = [holes, 1 - largest / free if free else 0.0]
        if got[0] != want[0] or abs(got[1] - want[1]) > 1e-9:
            return story, got, want
    return None


@pytest.mark.check(
    task=1, points=1, title="Random lives of first fit, beside a row of places", stress=True
)
def test_random(rng):
    for _ in range(12):
        calls, held = [], []
        for name in range(30):
            if held and rng.random() < 0.45:
                calls.append((held.pop(int(rng.integers(len(held)))), 0))
            else:
                calls.append((name, int(rng.integers(1, 9))))
                places = first_fit_places(calls)
                held = [other for other in places if other in held or other == name]
        found, i = first_fit_history(calls), 0
        while found and i < len(calls):  # leave out what is not needed to see it
            fewer = [call for call in calls if call[0] != calls[i][0]]
            again = first_fit_history(fewer)
            calls, found, i = (fewer, again, 0) if again else (calls, found, i + 1)
        story, got, want = found or ([], [], [])
        expect(
            got,
            want,
            call="the holes and the external fragmentation after: " + ", ".join(story),
            given={"places": 24},
            cause="allocate takes the low end of the first hole that is long enough; free joins "
            "the new hole to those that it touches",
        )


def first_fit_places(calls, size=24):
    """Who holds places after these calls, in order."""
    places = [None] * size
    for name, n in calls:
        if n == 0:
            places = [None if owner == name else owner for owner in places]
            continue
        wanted = (i for i in range(size - n + 1) if set(places[i : i + n]) == {None})
        start = next(wanted, None)
        if start is not None:
            places[start : start + n] = [name] * n
    return list(dict.fromkeys(owner for owner in places if owner is not None))

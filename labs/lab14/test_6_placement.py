"""Task 6: which rank holds which experts."""

import random
from fractions import Fraction

import pytest
import torch

from grader import expect
from nanovllm.performance.errors import PerformanceError
from nanovllm.performance.placement import (
    Placement,
    all_to_all_bytes,
    expert_load,
    imbalance,
    place_experts,
    replicas,
    within_capacity,
)


def skewed(draw, tokens, k, count):
    """Choices as a router makes them: some experts are hot, none twice for a token."""
    weights = [1 / (e + 1) for e in range(count)]
    return torch.tensor([
        sorted(range(count), key=lambda e: draw.random() ** (1 / weights[e]), reverse=True)[:k]
        for _ in range(tokens)
    ])  # fmt: skip


def busiest(load, ranks):
    copies = [sum(held.count(e) for held in ranks) for e in range(len(load))]
    return max(sum(Fraction(load[e], copies[e]) for e in held) for held in ranks)


def greedy(load, copies, num_ranks, slots):
    """The experts of each rank, by the rule of the docstring."""
    units = sorted(((-Fraction(load[e], n), e) for e, n in enumerate(copies) for _ in range(n)))
    held, work = [[] for _ in range(num_ranks)], [Fraction(0)] * num_ranks
    for share, expert in units:
        free = [r for r in range(num_ranks) if len(held[r]) < slots]
        rank = min(free, key=lambda r: (expert in held[r], work[r], r))
        held[rank].append(expert)
        work[rank] -= share
    return held


def twice(ranks):
    """How many of them hold an expert twice."""
    return sum(len(held) != len(set(held)) for held in ranks)


@pytest.mark.check(task=6, points=1, title="Load and imbalance")
def test_load(seed):
    draw = random.Random(seed)
    experts = skewed(draw, 30, 2, 6)
    flat = experts.flatten().tolist()
    wanted = [flat.count(e) for e in range(8)]
    expect(
        expert_load(experts, 8),
        wanted,
        call="expert_load(experts, 8)",
        cause="visits of each expert, also of those that nobody visits",
    )
    kinds = {type(visits).__name__ for visits in expert_load(experts, 8)}
    expect(kinds, {"int"}, call="the types of what is in it", cause="a list of whole numbers")
    expect(
        imbalance(wanted),
        max(wanted) / (sum(wanted) / 8),
        call="imbalance(load)",
        given={"load": wanted},
        cause="the largest over the mean of all experts",
    )
    expect(imbalance([0.25, 0.75, 0.5]), 1.5, call="imbalance([0.25, 0.75, 0.5])", cause="as above")
    expect(imbalance([0, 0, 0]), 1.0, call="imbalance([0, 0, 0])", cause="nobody waits")


@pytest.mark.check(task=6, points=1, title="No expert above its capacity")
def test_capacity(seed):
    draw = random.Random(seed)
    experts, capacity = skewed(draw, 150, 2, 5), draw.randrange(1, 40)
    seen, kept = [0] * 5, []
    for row in experts.tolist():
        kept.append([])
        for e in row:
            kept[-1].append(seen[e] < capacity)
            seen[e] += 1
    expect(
        within_capacity(experts, 5, capacity).tolist(),
        kept,
        call=f"within_capacity(experts, 5, {capacity})",
        given={"experts, first rows": experts[:9]},
        cause="each expert keeps its first visits, in the order of the tokens",
    )
    expect(within_capacity(experts, 5, 0).any().item(), False, call="with capacity 0", cause="none")


@pytest.mark.check(task=6, points=2, title="Copies for hot experts")
def test_replicas(seed):
    draw = random.Random(seed)
    for most in (200, 200, 4, 1):
        load = [draw.randrange(most) for _ in range(6)]
        slots = draw.randrange(6, 16)
        copies = [1] * 6
        for _ in range(slots - 6):
            copies[max(range(6), key=lambda e: (Fraction(load[e], copies[e]), -e))] += 1
        expect(
            list(replicas(load, slots)),
            copies,
            call=f"replicas({load}, slots={slots})",
            cause="each further copy to the expert whose copies have most to do; of equal ones the "
            "first",
        )
    expect.raises(
        PerformanceError,
        lambda: replicas([1, 2, 3], 2),
        call="replicas of 3 experts in 2 slots",
        cause="each needs one",
    )


@pytest.mark.check(task=6, points=2, title="Copies spread over ranks")
def test_place(seed):
    draw = random.Random(seed)
    sizes = [(8, 4, 2), (6, 3, 3), (5, 2, 4), (12, 4, 4), (3, 4, 3), (9, 4, 3)]
    for count, ranks, slots in sizes * 3:
        load = [int(200 * draw.random() ** 3) + 1 for _ in range(count)]
        found = [list(held) for held in place_experts(load, ranks, slots).ranks]
        call = f"place_experts({load}, num_ranks={ranks}, slots_per_rank={slots})"
        expect(
            [len(held) for held in found], [slots] * ranks, call=call, cause="every slot is used"
        )
        copies = replicas(load, ranks * slots)
        expect(
            [sum(held.count(e) for held in found) for e in range(count)],
            list(copies),
            call=f"copies of each expert in {call}",
            cause="as many as replicas(load, all slots) says",
        )
        rule = greedy(load, copies, ranks, slots)
        work, limit = (float(busiest(load, held)) for held in (found, rule))
        expect.that(
            busiest(load, found) <= busiest(load, rule),
            f"{call}: the busiest rank has {work:g} to do, and {limit:g} by the greedy rule",
        )
        expect.that(
            twice(found) <= twice(rule),
            f"{call}: {twice(found)} ranks hold an expert twice, by the rule {twice(rule)}",
        )
    expect.raises(
        PerformanceError,
        lambda: place_experts([1] * 5, 2, 2),
        call="place_experts of 5 experts in 4 slots",
        cause="they do not fit",
    )


@pytest.mark.check(task=6, points=2, title="Bytes from rank to rank")
def test_bytes(seed):
    draw = random.Random(seed)
    experts = skewed(draw, 20, 3, 6)
    home = [draw.randrange(3) for _ in range(20)]
    placement = Placement(((0, 1, 4), (2, 3, 0), (4, 5, 0), ()))
    wanted = [[0] * 4 for _ in range(4)]
    for token, row in enumerate(experts.tolist()):
        there = set()
        for e in row:
            homes = [r for r in range(3) if e in placement.ranks[r]]
            there.add(home[token] if home[token] in homes else homes[token % len(homes)])
        for rank in there - {home[token]}:
            wanted[home[token]][rank] += 24
    expect(
        [list(row) for row in all_to_all_bytes(experts, home, placement, 24)],
        wanted,
        call="all_to_all_bytes(experts, home, placement, 24)",
        given={"ranks": [list(r) for r in placement.ranks], "home": home},
        cause="a row goes to a rank once; a copy on the token's own rank costs nothing",
    )
    expect.raises(
        PerformanceError,
        lambda: all_to_all_bytes(torch.tensor([[6]]), [0], placement, 24),
        match="6",
        call="all_to_all_bytes of an expert that nobody holds",
        cause="it is refused, and named",
    )

"""Task 1: from what ran when to where the time goes."""

import json
import random

import pytest

from grader import expect
from nanovllm.performance.errors import PerformanceError
from nanovllm.performance.interval import Interval
from nanovllm.performance.profile import (
    busy_seconds,
    chrome_trace,
    roofline_point,
    steps_of,
    time_tree,
)


def events_of(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def shape(node):
    """A tree as plain lists, children in order of their names."""
    children = sorted(node.children.values(), key=lambda child: child.name)
    return [node.name, node.count, round(node.seconds, 6), [shape(child) for child in children]]


@pytest.mark.check(task=1, points=1, title="Complete events, in microseconds from the first")
def test_events(seed):
    draw = random.Random(seed)
    given = []
    for number in range(6):
        start = 1000 + draw.randrange(800) / 16
        given.append(Interval(f"op{number}", start, start + draw.randrange(1, 64) / 16))
    given.append(Interval("op6", 1001, 1001))
    first = min(i.start for i in given)
    found = events_of(chrome_trace(iter(given)), "X")
    expect(
        sorted([e["name"], e["ts"], e["dur"], e["pid"]] for e in found),
        [[i.name, (i.start - first) * 1e6, (i.end - i.start) * 1e6, 0] for i in given],
        call="chrome_trace(intervals)",
        given={"intervals": [[i.name, i.start, i.end] for i in given]},
        cause="ts counts from the earliest start of all; ts and dur are microseconds",
        atol=1e-3,
    )


@pytest.mark.check(task=1, points=1, title="A track for each source, with its name")
def test_tracks(seed):
    tracks = random.Random(seed).sample(["engine", "host", "device", "copy"], 4)
    given = [Interval(f"a{i}", i, i + 1, tracks[i % 4]) for i in range(9)]
    trace = chrome_trace(given)
    found = {e["name"]: e["tid"] for e in events_of(trace, "X")}
    expect(
        [found[i.name] for i in given],
        [i % 4 for i in range(9)],
        call="the tid of each event of chrome_trace(intervals)",
        given={"tracks": [i.track for i in given]},
        cause="tracks are numbered in order of first appearance",
    )
    names = [e for e in events_of(trace, "M") if e["name"] == "thread_name"]
    expect(
        sorted([e["tid"], e["args"]["name"]] for e in names),
        [[number, track] for number, track in enumerate(tracks)],
        call="its thread_name events",
        cause="each track has one event of phase M that names it",
    )
    json.dumps(trace)
    expect(chrome_trace([])["traceEvents"], [], call="chrome_trace([])", cause="nothing ran")


@pytest.mark.check(task=1, points=1, title="Work stands in args; what ends too early is refused")
def test_args(seed):
    flops, moved = seed % 1000 + 1, seed % 777 + 2
    works = {"mm": {"flops": flops, "bytes": moved}, "a": {}, "view": {"bytes": moved}}
    trace = chrome_trace(Interval(name, 0, 1, **work) for name, work in works.items())
    found = {e["name"]: e.get("args", {}) for e in events_of(trace, "X")}
    expect(
        found,
        works,
        call="args of the events",
        cause="flops and bytes that are not 0",
    )
    expect.raises(
        PerformanceError,
        lambda: chrome_trace([Interval("good", 0, 1), Interval("early bird", 2, 1)]),
        match="early bird",
        call="chrome_trace with an interval that ends before it starts",
        cause="it is refused, and named",
    )


@pytest.mark.check(task=1, points=1, title="A tree of who called whom")
def test_tree():
    given = [
        Interval("step", 0, 10),
        Interval("model", 1, 8),
        Interval("mm", 1, 3),
        Interval("mm", 3, 4),
        Interval("draw", 8, 9),
        Interval("step", 10, 14),
        Interval("mm", 11, 12),
    ]
    random.Random(3).shuffle(given)
    expect(
        shape(time_tree(given)),
        ["all", 1, 14, [
            ["step", 2, 14, [
                ["draw", 1, 1, []],
                ["mm", 1, 1, []],
                ["model", 1, 7, [["mm", 2, 3, []]]],
            ]],
        ]],
        call="time_tree(intervals), not in order",
        cause="an interval's parent is the shortest one around it; calls of one name with the same "
        "parents are one node",
    )  # fmt: skip
    tree = time_tree(given)
    expect(
        [tree.children["step"].own, tree.children["step"].children["model"].own, tree.own],
        [5, 4, 0],
        call="own of the two steps, of model, and of the root",
        cause="own time is what no child accounts for",
    )
    expect(shape(time_tree([])), ["all", 1, 0, []], call="time_tree([])", cause="nothing ran")


@pytest.mark.check(task=1, points=1, title="Neighbours that touch, and equal intervals")
def test_tree_edges():
    expect(
        shape(time_tree([Interval("a", 0, 2), Interval("b", 2, 4), Interval("c", 2, 3)])),
        ["all", 1, 4, [["a", 1, 2, []], ["b", 1, 2, [["c", 1, 1, []]]]]],
        call="time_tree of intervals that touch",
        cause="one that begins where another ends is not its child",
    )
    expect(
        shape(time_tree([Interval("outer", 1, 3), Interval("inner", 1, 3)])),
        ["all", 1, 2, [["outer", 1, 2, [["inner", 1, 2, []]]]]],
        call="time_tree of two equal intervals",
        cause="the one that came before contains the other",
    )


@pytest.mark.check(task=1, points=2, title="A random tree is found again")
def test_random_tree(seed):
    draw = random.Random(seed)
    intervals = []

    def grow(start, end, depth):
        """What is inside of a span, as the tree says it; the spans go into `intervals`."""
        made, moment = {}, start
        while depth and end - moment > 8 and draw.random() < 0.8:
            first = moment + draw.randrange(1, 4)
            last = draw.randrange(first + 1, max(first + 2, (first + end) // 2))
            name = draw.choice("abc")
            intervals.append(Interval(name, first, last))
            inner = grow(first, last, depth - 1)
            node = made.setdefault(name, [name, 0, 0, []])
            node[1] += 1
            node[2] += last - first
            node[3] = merge(node[3] + inner)
            moment = last
        return sorted(made.values())

    def merge(nodes):
        by_name = {}
        for name, count, seconds, children in nodes:
            node = by_name.setdefault(name, [name, 0, 0, []])
            node[1] += count
            node[2] += seconds
            node[3] = merge(node[3] + children)
        return sorted(by_name.values())

    children = merge(grow(0, 400, 4))
    draw.shuffle(intervals)
    expect(
        shape(time_tree(iter(intervals))),
        ["all", 1, sum(seconds for _, _, seconds, _ in children), children],
        call=f"time_tree of {len(intervals)} intervals",
        given={"intervals": [[i.name, i.start, i.end] for i in intervals][:20]},
        cause="counts and seconds add up over calls with the same parents",
    )


@pytest.mark.check(task=1, points=1, title="Busy time counts once")
def test_busy(seed):
    draw = random.Random(seed)
    spans = [(start, start + draw.randrange(0, 9)) for start in draw.choices(range(60), k=12)]
    given = (Interval("k", start / 8, end / 8) for start, end in spans)
    expect(
        busy_seconds(given),
        len({moment for start, end in spans for moment in range(start, end)}) / 8,
        call="busy_seconds(intervals)",
        given={"spans in eighths of a second": spans},
        cause="where several run at once, the time counts once",
    )
    nested = [Interval("long", 0, 9), Interval("short", 1, 2), Interval("later", 4, 11)]
    expect(
        busy_seconds(nested),
        11,
        call="busy_seconds of [0, 9], [1, 2] and [4, 11]",
        cause="a short one inside of a long one does not end the long one",
    )
    expect(busy_seconds([]), 0, call="busy_seconds([])", cause="nothing ran")


@pytest.mark.check(task=1, points=2, title="Launches a step, and the host's share")
def test_steps(seed):
    draw = random.Random(seed)
    steps = [Interval("step", 20 * i, 20 * i + draw.randrange(10, 20)) for i in range(5)]
    ops = [Interval("op", t, t + 1) for t in draw.choices(range(100), k=40)]
    ops += [Interval("op", steps[3].end, steps[3].end + 1), Interval("op", steps[4].start, 81)]
    kernels = [Interval("k", t, t + draw.randrange(1, 7)) for t in draw.choices(range(100), k=9)]
    kernels.append(Interval("k", steps[2].end - 1, steps[4].start + 2))  # all through step 3
    busy = {m for k in kernels for m in range(k.start, k.end)}
    mixed = draw.sample(steps, 5)
    for warmup in (0, draw.randrange(1, 3), 4):
        kept = steps[warmup:]
        idle = sum(m not in busy for step in kept for m in range(step.start, step.end))
        found = steps_of(mixed, ops, kernels, warmup)
        expect(
            [list(found.launches), found.host_share],
            [
                [sum(s.start <= o.start < s.end for o in ops) for s in kept],
                idle / sum(s.end - s.start for s in kept),
            ],
            call=f"steps_of(steps, launched, device, warmup={warmup})",
            cause="the first steps, in time, only warm up; a launch belongs to the step in which "
            "it starts; device time outside of the steps does not count",
        )
    expect.raises(
        PerformanceError,
        lambda: steps_of(steps, ops, kernels, 5),
        call="steps_of with as many steps to warm up as there are",
        cause="no step is left",
    )
    expect.raises(
        PerformanceError,
        lambda: steps_of([Interval("step", 3, 3)], ops, kernels, 0),
        call="steps_of a step that took no time",
        cause="of no time there is no share",
    )


@pytest.mark.check(task=1, points=2, title="Points under the roofline")
def test_roofline(seed):
    draw = random.Random(seed)
    for _ in range(5):
        flops, moved = draw.randrange(1, 10**6), draw.randrange(1, 10**5)
        seconds, peak, bandwidth = draw.randrange(1, 9), draw.randrange(10, 10**5), 1000
        rows = draw.randrange(1, 9)
        found = roofline_point(
            Interval("op", 3, 3 + seconds, flops=flops, bytes=moved), peak, bandwidth, rows, 8
        )
        useful = flops * rows / 8
        roof = min(peak, useful / moved * bandwidth)
        limit = "compute" if useful / moved * bandwidth >= peak else "memory"
        expect(
            [found.intensity, found.reached, found.possible, found.share],
            [useful / moved, useful / seconds, roof, useful / seconds / roof],
            call=f"roofline_point(operation, {peak}, {bandwidth}, rows={rows}, padded=8)",
            given={"flops": flops, "bytes": moved, "seconds": seconds},
            cause="only the flops of useful rows count; all bytes were moved",
        )
        expect(found.limit, limit, call="its limit", cause="what the roof is made of there")
    ridge = roofline_point(Interval("op", 0, 1, flops=40, bytes=4), 50.0, 5.0)
    expect(ridge.limit, "compute", call="limit at the ridge", cause="both are equal there")
    for flops, moved, end in ((5, 0, 1), (5, 5, 0)):
        expect.raises(
            PerformanceError,
            lambda f=flops, b=moved, e=end: roofline_point(
                Interval("op", 0, e, flops=f, bytes=b), 1.0, 1.0
            ),
            call=f"roofline_point of {moved} bytes in {end} s",
            cause="neither intensity nor speed can be told",
        )
    idle = roofline_point(Interval("copy", 0, 1, bytes=4), 50.0, 5.0)
    expect(
        [idle.intensity, idle.reached, idle.limit],
        [0.0, 0.0, "memory"],
        call="roofline_point of no FLOPs",
        cause="all of its time is memory's",
    )

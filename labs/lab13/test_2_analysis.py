"""Task 2: what a trace is like."""

import random
from collections import defaultdict

import numpy as np
import pytest

from grader import expect
from nanovllm.observability.analysis import (
    ccdf,
    counts,
    dispersion,
    gaps,
    peak_to_mean,
    prefix_hits,
    session_growth,
    top_share,
    variation,
)
from nanovllm.observability.trace import TracedRequest


def moments(seed):
    draw = random.Random(seed)
    return sorted(round(draw.uniform(0, 40), 2) for _ in range(60))


@pytest.mark.check(task=2, points=2, title="Gaps and their variation")
def test_gaps(seed):
    times = moments(seed)
    expect(gaps(times), np.diff(times).tolist(), call="gaps(times)", given={"times": times[:5]})
    expect(gaps([4.0]), [], call="gaps([4.0])", cause="one arrival has no gap")
    values = gaps(times)
    expect(
        variation(values),
        float(np.std(values) / np.mean(values)),
        call="variation(gaps)",
        given={"gaps": values[:5]},
        cause="standard deviation of the population (divided by n) over the mean",
        rtol=1e-9,
    )
    expect(variation([3.0, 3.0]), 0.0, call="variation([3.0, 3.0])")
    expect(variation([0.0, 0.0]), 0.0, call="variation([0.0, 0.0])", cause="no spread: 0")


@pytest.mark.check(task=2, points=1, title="Arrivals by window")
def test_counts(seed):
    times = [0.0, *moments(seed), 47.0]
    for window in (1.0, 2.5, 7.0, 100.0):
        expected = np.bincount((np.array(times) // window).astype(int)).tolist()
        expect(
            counts(times, window),
            expected,
            call=f"counts(times, {window})",
            given={"times": times[:5], "last": times[-1]},
            cause="a time on a border belongs to the window that begins there; empty windows "
            "count, up to the one with the last arrival",
        )


@pytest.mark.check(task=2, points=1, title="Peak to mean")
def test_peak(seed):
    times = moments(seed)
    for window in (0.5, 2.0, 11.0):
        found = np.bincount((np.array(times) // window).astype(int))
        expect(
            peak_to_mean(times, window),
            float(found.max() / found.mean()),
            call=f"peak_to_mean(times, {window})",
            given={"times": times[:5], "last": times[-1]},
            cause="the mean is over all windows, empty ones included",
            rtol=1e-9,
        )


@pytest.mark.check(task=2, points=1, title="Index of dispersion")
def test_dispersion(seed):
    times = moments(seed)
    for window in (0.5, 2.0, 11.0):
        found = np.bincount((np.array(times) // window).astype(int))
        expect(
            dispersion(times, window),
            float(found.var() / found.mean()),
            call=f"dispersion(times, {window})",
            given={"counts": found[:9].tolist()},
            cause="variance over mean of the counts, not of the gaps, and not its root",
            rtol=1e-9,
        )


@pytest.mark.check(task=2, points=1, title="CCDF")
def test_ccdf(seed):
    draw = random.Random(seed)
    values = [float(draw.randint(1, 12)) for _ in range(37)]
    expected = [[v, float(np.mean(np.array(values) > v))] for v in sorted(set(values))]
    expect(
        [list(point) for point in ccdf(values)],
        expected,
        call="ccdf(values)",
        given={"values": values[:9]},
        cause="the share that is larger, not at least as large; each value once",
        rtol=1e-9,
    )


@pytest.mark.check(task=2, points=1, title="What the largest have")
def test_top_share(seed):
    draw = random.Random(seed)
    values = [draw.paretovariate(1.1) for _ in range(250)]
    for share, many in ((0.01, 3), (0.5, 125), (0.0041, 2), (1.0, 250)):
        expected = sum(sorted(values)[-many:]) / sum(values)
        expect(
            top_share(values, share),
            expected,
            call=f"top_share(values, {share}) of 250 values",
            cause=f"{share} of 250, rounded up, are {many} values",
            rtol=1e-9,
        )


@pytest.mark.check(task=2, points=2, title="Prompts grow with a session")
def test_growth(seed):
    draw = random.Random(seed)
    trace = [
        TracedRequest(float(i), draw.randint(1, 99), 1, draw.choice(["", "a", "b", "c", "d"]))
        for i in range(40)
    ]
    by_session = defaultdict(list)
    for request in trace:
        if request.session:
            by_session[request.session].append(request.prompt)
    longest = max(map(len, by_session.values()))
    expected = [
        float(np.mean([line[turn] for line in by_session.values() if len(line) > turn]))
        for turn in range(longest)
    ]
    expect(
        session_growth(trace),
        expected,
        call="session_growth(trace)",
        given={"requests of a session": {k: v[:4] for k, v in by_session.items()}},
        cause="the mean over the sessions that have so many requests",
        rtol=1e-9,
    )
    expect(session_growth([TracedRequest(0.0, 5, 1)]), [], call="session_growth of no session")


def chains(draw, count, length=6):
    """Prompts of which many begin alike."""
    found = []
    for i in range(count):
        old = list(draw.choice(found))[: draw.randint(1, length)] if found else [0]
        new = [1000 + 10 * i + k for k in range(draw.randint(0, 3))]
        found.append(tuple(old + new)[:length])
    return [TracedRequest(float(i), 1, 1, blocks=chain) for i, chain in enumerate(found)]


@pytest.mark.check(task=2, points=1, title="Hits with endless memory")
def test_hits(seed):
    trace = chains(random.Random(seed), 30)
    for number, extra in enumerate(((1, 2, 3, 4), (1, 2, 9, 4), (7, 2, 3))):
        trace.append(TracedRequest(50.0 + number, 1, 1, blocks=extra))
    seen, hits = set(), 0
    for request in trace:
        known = [block in seen for block in request.blocks]
        hits += known.index(False) if False in known else len(known)
        seen.update(request.blocks)
    expect(
        list(prefix_hits(trace)),
        [hits, sum(len(r.blocks) for r in trace)],
        call="prefix_hits(trace)",
        given={"last prompts": [r.blocks for r in trace[-3:]]},
        cause="behind the first miss of a prompt nothing counts: its K and V depend on the miss",
    )
    expect(list(prefix_hits([])), [0, 0], call="prefix_hits([])")


@pytest.mark.check(task=2, points=2, title="Hits with so many blocks, least recently used")
def test_lru(seed):
    trace = chains(random.Random(seed), 60)
    for capacity in (0, 1, 2, 3, 5, 9, 20, 500):
        kept, hits = [], 0
        for request in trace:
            known = [block in kept for block in request.blocks]
            hits += known.index(False) if False in known else len(known)
            for block in request.blocks[::-1]:
                kept = [other for other in kept if other != block] + [block]
            kept = kept[len(kept) - min(len(kept), capacity) :]
        expect(
            prefix_hits(trace, capacity)[0],
            hits,
            call=f"prefix_hits(trace, {capacity})[0]",
            given={"prompts": [r.blocks for r in trace[:4]]},
            cause="a hit is a use, too; the blocks of a prompt are used last to first, so that "
            "its end goes before its beginning",
        )

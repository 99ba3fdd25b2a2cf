"""Task 5: what Prometheus computes, by hand; its own answers are in prometheus_answers.py."""

import itertools
import math
import random

import pytest

from grader import expect
from grader.checks.prometheus_answers import BUCKETS, COUNTERS
from nanovllm.observability.queries import (
    burn_rate,
    histogram_quantile,
    increase,
    quantile_over,
    rate,
    sum_rates,
)
from nanovllm.observability.series import Sample, Series


def scraped(text, shift=0.0):
    """Samples every 15 s; "_" is a scrape that failed."""
    return [Sample(shift + 15.0 * i, float(v)) for i, v in enumerate(text.split()) if v != "_"]


def line(labels, *values, step=10.0):
    return Series(labels, [Sample(step * i, float(v)) for i, v in enumerate(values)])


@pytest.mark.check(task=5, points=3, title="Increase, as Prometheus says")
def test_increase(seed):
    shift = 1000.0 * seed
    for text, asked in COUNTERS:
        for at, window, answer in asked:
            expect(
                increase(scraped(text, shift), shift + at, window),
                answer,
                call=f"increase(samples, at={shift + at}, window={window})",
                given={"every 15 s": text},
                cause="growth between first and last sample of the window, with what a restart "
                "lost, stretched to the window: to its border if that is nearer than 1.1 "
                "intervals, else by half an interval, and never below a counter of 0",
                rtol=1e-9,
            )
            expect(
                rate(scraped(text, shift), shift + at, window),
                answer / window,
                call=f"rate(samples, at={shift + at}, window={window})",
                given={"every 15 s": text},
                cause="the increase over the window's seconds, not those between its samples",
                rtol=1e-9,
            )


@pytest.mark.check(task=5, points=1, title="A counter that began anew")
def test_reset(seed):
    draw = random.Random(seed)
    values, total, now = [0], 0, 0
    for _ in range(30):
        if draw.random() < 0.3:
            now = 0
        else:
            more = draw.randint(1, 9)
            now, total = now + more, total + more
        values.append(now)
    samples = line({}, *values).samples
    grown = sum(b - a if b >= a else b for a, b in itertools.pairwise(values))
    expect(
        increase(samples, 300.0, 300.0),
        float(grown),
        call="increase(samples, at=300, window=300), samples at both borders",
        given={"values": values},
        cause="a value that is smaller began from 0: all of it is growth",
        rtol=1e-9,
    )
    expect(rate(samples, 300.0, 300.0), grown / 300, call="rate(samples, 300.0, 300.0)", rtol=1e-9)


@pytest.mark.check(task=5, points=1, title="Too few samples")
def test_few(seed):
    samples = line({}, 1, 2, 3).samples
    for at, window in ((20.0, 9.0), (500.0, 60.0), (5.0, 5.0)):
        for call in (increase, rate):
            expect(
                call(samples, at, window),
                None,
                call=f"{call.__name__}(samples at 0, 10, 20, at={at}, window={window})",
                cause="fewer than two samples in the window say nothing; 0 would be a claim",
            )
    expect(increase([], 5.0, 5.0), None, call="increase([], 5.0, 5.0)")
    flat = line({}, 4, 4, 4 + 0 * seed).samples
    expect(increase(flat, 20.0, 20.0), 0.0, call="increase of a counter that stands still")


@pytest.mark.check(task=5, points=2, title="Rates added up by labels")
def test_sum_rates(seed):
    draw = random.Random(seed)
    series, expected = [], {}
    for instance in "abc":
        for le in ("0.1", "1", "+Inf"):
            values = [0]
            for _ in range(6):
                values.append(values[-1] + draw.randint(0, 9))
            if instance == "b":
                values[4:] = [v - values[3] for v in values[4:]]  # restarted
            series.append(line({"instance": instance, "le": le}, *values))
            grown = sum(b - a if b >= a else b for a, b in itertools.pairwise(values))
            expected[le] = expected.get(le, 0.0) + grown / 60
    series.append(line({"instance": "d", "le": "5"}, 3))
    found = sum_rates(series, 60.0, 60.0, ["le"])
    expect(
        sorted([list(key), value] for key, value in found.items()),
        sorted([[key], value] for key, value in expected.items()),
        call="sum_rates(series, 60.0, 60.0, ['le'])",
        given={"instances": "a, b (restarted at 40 s), c, d (one sample)"},
        cause="the rate of each series first, then the sum: added counters hide a restart",
        rtol=1e-9,
    )
    expect(
        sum_rates(series, 60.0, 60.0).get(()),
        sum(expected.values()),
        call="sum_rates(series, 60.0, 60.0)[()]",
        cause="without labels all series are one group",
        rtol=1e-9,
    )
    expect(
        sorted(sum_rates([line({}, 0, 6), line({"x": "1"}, 0, 3)], 10.0, 10.0, ["x"]).items()),
        [(("",), 0.6), (("1",), 0.3)],
        call="sum_rates(series with and without the label, by x)",
        cause="a missing label counts as ''",
        rtol=1e-9,
    )


@pytest.mark.check(task=5, points=2, title="Quantile of a histogram, as Prometheus says")
def test_quantile(seed):
    draw = random.Random(seed)
    for q, buckets, answer in BUCKETS:
        mixed = list(buckets.items())
        draw.shuffle(mixed)
        found = histogram_quantile(q, dict(mixed))
        same = math.isnan(found) if math.isnan(answer) else found
        expect(
            same,
            True if math.isnan(answer) else answer,
            call=f"histogram_quantile({q}, buckets)" + (" is NaN" if math.isnan(answer) else ""),
            given={"buckets": mixed},
            cause="the first bucket with so many, and in it a straight line from the edge below",
            rtol=1e-9,
        )
    expect.that(
        math.isnan(histogram_quantile(math.nan, {"1": 4, "+Inf": 4})),
        "the quantile NaN is NaN",
    )


@pytest.mark.check(task=5, points=1, title="Edges come as numbers, not as text")
def test_edges(seed):
    top = 100 + seed
    buckets = {"+Inf": 20, "9": 10, str(top): 20, "1e-3": 0, "0.5": 4}
    for q, answer in ((0.2, 0.5), (0.5, 9.0), (0.75, 9 + (top - 9) / 2), (1.0, float(top))):
        expect(
            histogram_quantile(q, buckets),
            answer,
            call=f"histogram_quantile({q}, {buckets})",
            cause=f"by size the edges are 0.001, 0.5, 9, {top}, +Inf",
            rtol=1e-9,
        )
    expect(
        histogram_quantile(0.99, {"1": 1, "5": 2, "+Inf": 900}),
        5.0,
        call="histogram_quantile(0.99, ...), the rank in +Inf",
        cause="what lies above the last edge nobody knows: that edge is said",
    )


@pytest.mark.check(task=5, points=1, title="A quantile over all replicas")
def test_over(seed):
    draw = random.Random(seed)
    edges = ("0.1", "1", "10", "+Inf")
    counts = {name: sorted(draw.randint(1, 900) for _ in edges) for name in "abc"}
    series = [
        line({"instance": name, "le": le}, 0, count)
        for name, row in counts.items()
        for le, count in zip(edges, row, strict=True)
    ]
    together = {le: sum(row[i] for row in counts.values()) / 10 for i, le in enumerate(edges)}
    for q in (0.1, 0.5, 0.9, 0.99):
        rank, below, low = q * together["+Inf"], 0.0, 0.0
        for le in edges[:-1]:
            if together[le] >= rank:
                answer = low + (float(le) - low) * (rank - below) / (together[le] - below)
                break
            low, below = float(le), together[le]
        else:
            answer = 10.0
        expect(
            quantile_over(series, q, 10.0, 10.0),
            answer,
            call=f"quantile_over(series of 3 replicas, {q}, 10.0, 10.0)",
            given={"counts by replica": counts},
            cause="buckets are added up by le before the quantile; a mean of the replicas' "
            "quantiles is no quantile",
            rtol=1e-9,
        )


@pytest.mark.check(task=5, points=1, title="Burn rate")
def test_burn(seed):
    draw = random.Random(seed)
    bad, good = draw.randint(1, 50), draw.randint(100, 900)
    total = [line({"i": "a"}, 0, good), line({"i": "b"}, 0, bad)]
    errors = [line({"i": "b"}, 0, bad)]
    for objective in (0.9, 0.99, 0.999):
        expect(
            burn_rate(errors, total, objective, 10.0, 10.0),
            bad / (bad + good) / (1 - objective),
            call=f"burn_rate(errors, total, {objective}, 10.0, 10.0)",
            given={"errors": bad, "all": bad + good},
            cause="the share of errors over the share that is allowed",
            rtol=1e-9,
        )
    expect(burn_rate([], total, 0.99, 10.0, 10.0), 0.0, call="burn_rate without error series")
    for empty in ([], [line({}, 5, 5)], [line({}, 7)]):
        expect(
            burn_rate(errors, empty, 0.99, 10.0, 10.0),
            None,
            call="burn_rate without traffic",
            cause="nothing over nothing is no share: neither 0 nor an error",
        )

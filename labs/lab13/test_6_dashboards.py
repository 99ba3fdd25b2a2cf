"""Task 6: alerts and dashboards as code; expressions are evaluated on made-up series."""

import random

import pytest

from grader import expect
from grader.checks.promql_values import value_of
from nanovllm.observability.alerts import (
    WINDOWS,
    Alert,
    BurnWindow,
    Objective,
    burn_alerts,
    error_share,
    rule_file,
)
from nanovllm.observability.dashboard import Panel, layout
from nanovllm.observability.errors import ObservabilityError
from nanovllm.observability.promql import Metric, metric, rate

UP = Metric("up").sum() < 1
ALL = metric("requests_total", path="/v1")
SLOW = Objective("Ttft", metric("slow_total", kind="ttft"), ALL, 0.99)


def world(slow, fast, until=7200.0, slow_there=True):
    """Two replicas; so many slow and fast requests a second before and after second 3,600."""
    data, now, counts = {"slow_total": [], "requests_total": []}, 0.0, [0.0, 0.0]
    points = []
    while now <= until:
        points.append((now, *counts))
        after = int(now >= 3600)
        counts = [counts[0] + 60 * slow[after], counts[1] + 60 * (slow[after] + fast[after])]
        now += 60
    for instance in "ab":
        labels = {"instance": instance}
        if slow_there:
            data["slow_total"].append((labels | {"kind": "ttft"}, [(t, s) for t, s, _ in points]))
        data["slow_total"].append((labels | {"kind": "tpot"}, [(t, 9 * t) for t, _, _ in points]))
        data["requests_total"].append((labels | {"path": "/v1"}, [(t, a) for t, _, a in points]))
        probes = [(t, 7 * t) for t, _, _ in points]
        data["requests_total"].append((labels | {"path": "/health"}, probes))
    return data


def one(expression, data, at):
    """The value of an expression that has at most one; None without."""
    found = value_of(expression, data, at)
    expect.that(len(found) <= 1, "the expression has one value for all replicas", observed=found)
    return next(iter(found.values()), None)


@pytest.mark.check(task=6, points=2, title="The share of errors")
def test_share(seed):
    draw = random.Random(seed)
    slow, fast = draw.randint(1, 9), draw.randint(10, 50)
    data = world((0, slow), (fast, fast))
    for window, seconds in (("5m", 300), ("30m", 1800), ("1h", 3600), ("100m", 6000)):
        expression = error_share(SLOW, window)
        before = max(0, seconds - 3600)
        expect(
            one(expression, data, 7200.0),
            slow * (seconds - before) / (slow * (seconds - before) + fast * seconds),
            call=f"error_share(objective, {window!r}), evaluated",
            given={"expression": str(expression)},
            cause="rates of errors over rates of all, both over the same window and all replicas; "
            "the objective's matchers stay",
            rtol=1e-9,
        )
    quiet = world((0, 0), (fast, fast), slow_there=False)
    expect(
        one(error_share(SLOW, "5m"), quiet, 7200.0),
        0.0,
        call="error_share, where no error has ever been counted",
        cause="a counter that nobody increased is not there; the share is 0, not nothing",
    )


@pytest.mark.check(task=6, points=3, title="Alerts on two windows")
def test_burn_alerts(seed):
    windows = (
        BurnWindow("1h", "5m", 10.0, "2m", "page"),
        BurnWindow("90m", "10m", 0.5, "1h", "ticket"),
    )
    alerts = burn_alerts(SLOW, "docs", windows)
    expect(
        [[a.name, a.wait, a.severity] for a in alerts[:-1]],
        [["TtftBurn1H", "2m", "page"], ["TtftBurn90M", "1h", "ticket"]],
        call="burn_alerts(objective, 'docs', windows): names, waits, severities",
    )
    expect(
        [alert.name for alert in burn_alerts(SLOW, "docs")],
        ["TtftBurn1H", "TtftBurn6H", "TtftBurn3D", "TtftNoTraffic"],
        call="burn_alerts(objective, 'docs'): names",
        given={"windows": WINDOWS},
    )
    for alert in alerts:
        made = alert.to_dict()
        expect.that(bool(made["annotations"]["summary"]), "each alert has a summary")
        expect(
            made["annotations"]["runbook_url"],
            f"docs/{alert.name}.md",
            call=f"runbook_url of {alert.name}, of burn_alerts(objective, 'docs', windows)",
        )
    elsewhere = {a.to_dict()["annotations"]["runbook_url"] for a in burn_alerts(SLOW, "my/pages")}
    expect.that(
        all(url.startswith("my/pages/Ttft") for url in elsewhere),
        "pages lie in the folder that was given",
        observed=sorted(elsewhere),
    )
    draw, found, expected = random.Random(seed), {}, {}
    for story, slow, fast, at, fires in (
        ("a burst of errors that is over", (0, 0), (50, 50), 7200.0, [False, False]),
        ("15 % slow for an hour", (15, 15), (85, 85), 7200.0, [True, True]),
        ("5 % slow for an hour", (5, 5), (95, 95), 7200.0, [False, True]),
        ("1 % slow for an hour", (1, 1), (99, 99), 7200.0, [False, True]),
        ("0.4 % slow for an hour", (4, 4), (996, 996), 7200.0, [False, False]),
        ("all slow all the time", (10, 10), (0, 0), 7200.0, [True, True]),
        ("all slow for 4 minutes", (0, 100), (100, 0), 3840.0, [False, True]),
        ("all slow for 30 minutes", (0, 100), (100, 0), 5400.0, [True, True]),
        ("all slow, and well again for 20 minutes", (100, 0), (0, 100), 4800.0, [False, False]),
    ):
        scale = draw.choice([0.5, 1, 3])
        data = world([s * scale for s in slow], [f * scale for f in fast])
        found[story] = [one(alert.expr, data, at) is not None for alert in alerts[:-1]]
        expected[story] = fires
    expect(
        found,
        expected,
        call="which of the two alerts fire, by story",
        given={"expressions": [str(alert.expr) for alert in alerts[:-1]]},
        cause="the share must be above factor * (1 - objective) over the long window and over the "
        "short one",
    )


@pytest.mark.check(task=6, points=2, title="Silence is an alert of its own")
def test_no_traffic(seed):
    *_, alert = burn_alerts(SLOW, "docs")
    expect(
        [alert.name, alert.severity, alert.wait],
        ["TtftNoTraffic", "page", "10m"],
        call="the last of burn_alerts: name, severity, wait",
    )
    busy, stopped = world((0, 0), (5 + seed, 5)), world((0, 0), (5, 0))
    rare = world((0, 0), (5, 0))
    labels, points = rare["requests_total"][0]
    rare["requests_total"][0] = labels, [(t, n + (t > 7000)) for t, n in points]
    for story, data, at, fires in (
        ("requests come", busy, 7200.0, False),
        ("one request in 10 minutes", rare, 7200.0, False),
        ("nothing for an hour", stopped, 7200.0, True),
        ("nothing for 9 minutes", stopped, 4140.0, False),
        ("nothing for 11 minutes", stopped, 4260.0, True),
        ("nothing is scraped", {}, 7200.0, True),
    ):
        expect(
            one(alert.expr, data, at) is not None,
            fires,
            call=f"whether its expression has a value: {story}",
            given={"expression": str(alert.expr)},
            cause="without traffic a share is 0 / 0, which is above nothing: all other alerts are "
            "silent",
        )


@pytest.mark.check(task=6, points=1, title="A file of rules")
def test_rules(seed):
    alerts = burn_alerts(SLOW, f"docs{seed}")
    replicas = Alert("NoReplicas", UP, "1m", "page", "Nobody answers.", "docs")
    found = rule_file({"slo": alerts, "fleet": [replicas]})
    expect(
        found,
        {
            "groups": [
                {"name": "fleet", "rules": [replicas.to_dict()]},
                {"name": "slo", "rules": [alert.to_dict() for alert in alerts]},
            ]
        },
        call="rule_file({'slo': alerts, 'fleet': [replicas]})",
    )
    expect.raises(
        ObservabilityError,
        lambda: rule_file({"slo": [replicas], "fleet": [replicas]}),
        match="NoReplicas",
        call="rule_file with one name in two groups",
    )


@pytest.mark.check(task=6, points=2, title="A page of panels")
def test_dashboard(seed):
    draw = random.Random(seed)
    line = [("x", rate("a_total", "1m"))]
    rows = {
        f"row {i}": [
            Panel(f"{i}.{k}", line, width=draw.choice([6, 8, 12, 24]), height=draw.choice([4, 8]))
            for k in range(draw.randint(0, 5))
        ]
        for i in range(4)
    }
    rows["uneven"] = [Panel(str(h), line, width=12, height=h) for h in (4, 8, 4)]
    page = layout(rows)
    expected, y = [], 0
    for name, row in rows.items():
        expected.append(["row", name, 0, y, 24, 1])
        x, y, high = 0, y + 1, 0
        for panel in row:
            if x + panel.width > 24:
                x, y, high = 0, y + high, 0
            expected.append(["timeseries", panel.title, x, y, panel.width, panel.height])
            x, high = x + panel.width, max(high, panel.height)
        y += high
    expect(
        [
            [p["type"], p["title"], *(p["gridPos"][key] for key in ("x", "y", "w", "h"))]
            for p in page
        ],
        expected,
        call="layout(rows): type, title, x, y, w, h",
        given={"rows": {name: [(p.width, p.height) for p in row] for name, row in rows.items()}},
        cause="from left to right; a panel without room begins a line below the highest one",
    )
    expect(
        [p["id"] for p in page],
        list(range(1, len(expected) + 1)),
        call="ids of the panels",
        cause="from 1 on, rows included",
    )

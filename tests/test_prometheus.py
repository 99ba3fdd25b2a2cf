"""Lab 13's alerts and queries before Prometheus itself, where Debian's `promtool` is there."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from grader.checks.prometheus_answers import BUCKETS, COUNTERS
from nanovllm.observability.alerts import Objective, burn_alerts, rule_file
from nanovllm.observability.promql import metric

PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool") or ""
pytestmark = pytest.mark.skipif(
    not PROMTOOL, reason="no promtool: `apt-get download prometheus`, `dpkg -x`, set PROMTOOL"
)
SLOW = Objective("Ttft", metric("slow_total", kind="ttft"), metric("all_total"), 0.99)


def promtool(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROMTOOL, *words], cwd=folder, capture_output=True, text=True, check=False
    )


def asked(folder: Path, series: dict[str, str], query: str, at: float) -> float:
    """What Prometheus answers: read from the failure of a test that expects something else."""
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": f"{at:g}s",
                "exp_samples": [{"labels": '{not="there"}', "value": 1}],
            }
        ],
    }
    data = {"rule_files": [], "evaluation_interval": "15s", "tests": [test]}
    (folder / "ask.yml").write_text(yaml.safe_dump(data))
    done = promtool(folder, "test", "rules", "ask.yml")
    match = re.search(r"got:.*?(\S+)\s*$", done.stdout + done.stderr, re.MULTILINE)
    assert match, done.stdout + done.stderr
    return float(match[1])


@pytest.mark.proof
def test_the_stored_answers_are_prometheus_own(tmp_path: Path) -> None:
    for text, questions in COUNTERS:
        for at, window, answer in questions:
            found = asked(tmp_path, {"c": text}, f"increase(c[{window}s])", at)
            assert math.isclose(found, answer, rel_tol=1e-9), (text, at, window)
    for q, buckets, answer in BUCKETS:
        series = {f'b{{le="{le}"}}': str(count) for le, count in buckets.items()}
        found = asked(tmp_path, series, f"histogram_quantile({q}, b)", 0)
        assert found == pytest.approx(answer, rel=1e-9, nan_ok=True), (q, buckets)


def story(slow: str, total: str) -> list[dict[str, str]]:
    return [
        {"series": 'slow_total{kind="ttft",instance="a"}', "values": slow},
        {"series": 'all_total{instance="a"}', "values": total},
    ]


@pytest.mark.parametrize(("name", "series", "at", "fires"), [
    ("TtftBurn1H", story("0+15x120", "0+100x120"), "90m", True),
    ("TtftBurn1H", story("0+5x120", "0+100x120"), "90m", False),
    ("TtftBurn1H", story("0+30x60 1800x60", "0+100x120"), "80m", False),
    ("TtftBurn6H", story("0+7x600", "0+100x600"), "8h", True),
    ("TtftBurn6H", story("0+5x600", "0+100x600"), "8h", False),
    ("TtftBurn3D", story("0+2x5000", "0+100x5000"), "80h", True),
    ("TtftBurn3D", story("0+0x5000", "0+100x5000"), "80h", False),
    ("TtftNoTraffic", story("0x120", "0+100x30 3000x90"), "60m", True),
    ("TtftNoTraffic", [], "60m", True),
    ("TtftNoTraffic", story("0x120", "0+100x120"), "60m", False),
])  # fmt: skip
def test_alerts_fire_when_they_should(
    name: str, series: list[dict[str, str]], at: str, fires: bool, tmp_path: Path
) -> None:
    alerts = {alert.name: alert.to_dict() for alert in burn_alerts(SLOW, "docs")}
    rules = rule_file({"slo": burn_alerts(SLOW, "docs")})
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    assert promtool(tmp_path, "check", "rules", "rules.yml").returncode == 0
    made = alerts[name]
    expected: list[dict[str, Any]] = (
        [{"exp_labels": made["labels"], "exp_annotations": made["annotations"]}] if fires else []
    )
    test = {
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": expected}],
    }
    data = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(data))
    done = promtool(tmp_path, "test", "rules", "test.yml")
    assert done.returncode == 0, done.stdout + done.stderr

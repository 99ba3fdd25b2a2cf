"""For each alert, a recording in which it fires and one in which it does not (promtool's form)."""

from __future__ import annotations

from typing import Any, NamedTuple

from monitoring.alerts import GROUPS
from monitoring.metrics import SLOW, TTFT

A, B = (f'job="nanovllm",instance="{name}",model_name="m"' for name in "ab")
ONE = {"job": "nanovllm", "instance": "a", "model_name": "m"}
Series = dict[str, str]  # promtool's notation: 0+60x10 is 0, 60, ... 600, one a minute


class Case(NamedTuple):
    """What was recorded, when to look, and with which labels it then fires; None: it is quiet."""

    series: Series
    at: str
    labels: dict[str, str] | None = None
    every: int = 1  # minutes from one sample to the next


def _of(name: str, values: str, labels: str = A) -> Series:
    return {f"nanovllm:{name}{{{labels}}}": values}


def _requests(good: str, bad: str) -> Series:
    """Requests that end, a minute."""
    return {
        **_of("request_success_total", good, A + ',finished_reason="stop"'),
        **_of("request_success_total", bad, A + ',finished_reason="error"'),
    }


def _state(running: str, steps: str) -> Series:
    return {
        **_of("num_requests_running", running),
        **_of("num_requests_waiting", "0x20"),
        **_of("iteration_tokens_total_count", steps),
    }


def _queue(long: str) -> Series:
    return {
        **_of("request_queue_time_seconds_bucket", "0+60x20", A + ',le="1.0"'),
        **_of("request_queue_time_seconds_bucket", long, A + ',le="60.0"'),
        **_of("request_queue_time_seconds_bucket", long, A + ',le="+Inf"'),
    }


CASES: dict[str, tuple[Case, ...]] = {  # by alert: it fires, and it does not
    "ServerDown": (
        Case({'up{job="nanovllm",instance="a"}': "1x5 0x10"}, "8m",
             {"job": "nanovllm", "instance": "a"}),
        Case({'up{job="nanovllm",instance="a"}': "1x5 0 1x10"}, "8m"),  # one scrape was missed
    ),
    "ServerHangs": (
        Case(_state("3x20", "0+60x5 300x15"), "10m", ONE),
        Case({**_state("0x20", "0+60x5 300x15"), **_of("num_requests_running", "3x20", B),
              **_of("num_requests_waiting", "0x20", B),
              **_of("iteration_tokens_total_count", "0+1x20", B)}, "10m"),  # idle, and slow
    ),
    "Restarting": (
        Case(_of("generation_tokens_total", "0+60x3 0+60x3 0+60x3"), "10m", ONE),
        Case(_of("generation_tokens_total", "0+60x5 0+60x5"), "10m"),  # an update of version
    ),
    "QueueLong": (
        Case(_queue("0+70x20"), "15m", {"job": "nanovllm"}),
        Case(_queue("0+60x20"), "15m"),
    ),
    "CacheFull": (
        Case(_of("kv_cache_usage_perc", "0.99x20"), "10m", ONE),
        Case(_of("kv_cache_usage_perc", "0.99x3 0.9 0.99x10"), "7m"),
    ),
    "Preempting": (
        Case({**_of("num_preemptions_total", "0+90x30"), **_requests("0+60x30", "0x30")}, "20m",
             ONE),
        Case({**_of("num_preemptions_total", "0+30x30"), **_requests("0+60x30", "0x30")}, "20m"),
    ),
    "CardHot": (
        Case(_of("gpu_temperature_celsius", "90x20", A + ',gpu="0"'), "10m", ONE | {"gpu": "0"}),
        Case(_of("gpu_temperature_celsius", "90x3 80x20", A + ',gpu="0"'), "10m"),
    ),
    "CardLost": (
        Case(_of("gpu_lost_total", "0x5 1+1x20"), "10m", ONE),
        Case(_of("gpu_lost_total", "3x20"), "10m"),  # it was lost once, long ago
    ),
    "RequestsNoTraffic": (
        Case(_requests("0+60x5 300x40", "0x45"), "40m", {}),
        Case(_requests("0+1x45", "0x45"), "40m"),
    ),
}  # fmt: skip
BURNS = {  # window: how many times as fast as allowed, minutes between samples, samples, a spike
    "1H": (14.4, 1, 180, 10),
    "6H": (6.0, 5, 120, 12),
    "3D": (1.0, 30, 192, 24),
}
ALL = 10_000  # requests a sample, of which the budget allows 10 to fail, and 100 to be slow
Parts = tuple[tuple[int, int], ...]  # how many a sample, for so many samples


def _counter(parts: Parts) -> str:
    """A counter that grows like this, in promtool's notation.

    >>> _counter(((5, 3), (0, 2)))
    '0+5x2 15+0x1'
    """
    words, value = [], 0
    for step, samples in parts:
        words.append(f"{value}+{step}x{samples - 1}")
        value += step * samples
    return " ".join(words)


def _failed(bad: Parts) -> Series:
    return _requests(_counter(((ALL, sum(n for _, n in bad)),)), _counter(bad))


def _slow(bad: Parts) -> Series:
    every = _counter(((ALL, sum(n for _, n in bad)),))
    fast = _counter(tuple((ALL - step, samples) for step, samples in bad))
    return {
        **_of(f"{TTFT}_count", every),
        **_of(f"{TTFT}_bucket", every, A + ',le="+Inf"'),
        **_of(f"{TTFT}_bucket", fast, A + f',le="{SLOW}"'),
    }


for _name, _series, _budget in (("Requests", _failed, 10), ("FirstToken", _slow, 100)):
    for _window, (_factor, _every, _samples, _spike) in BURNS.items():
        _bad, _well = int(_factor * _budget * 1.5), _samples // 10
        _at = f"{_every * (_samples - 1)}m"
        CASES[f"{_name}Burn{_window}"] = (
            Case(_series(((_bad, _samples),)), _at, {}, _every),
            # good of late: only the long window is over; bad of late: only the short one
            Case(_series(((_bad, _samples - _well), (0, _well))), _at, None, _every),
            Case(_series(((0, _samples - _spike), (_bad, _spike))), _at, None, _every),
        )


EVERY = sorted({case.every for cases in CASES.values() for case in cases})


def promtool(every: int) -> dict[str, Any]:
    """The cases with a sample in so many minutes, as a file for `promtool test rules`."""
    alerts = {alert.name: alert for group in GROUPS.values() for alert in group}

    def test(name: str, case: Case) -> dict[str, Any]:
        fires = {
            "exp_labels": (case.labels or {}) | {"severity": alerts[name].severity},
            "exp_annotations": alerts[name].to_dict()["annotations"],
        }
        return {
            "name": f"{name} {'is quiet' if case.labels is None else 'fires'}",
            "interval": f"{every}m",
            "input_series": [{"series": s, "values": v} for s, v in case.series.items()],
            "alert_rule_test": [
                {
                    "eval_time": case.at,
                    "alertname": name,
                    "exp_alerts": [] if case.labels is None else [fires],
                }
            ],
        }

    found = [(name, case) for name, cases in CASES.items() for case in cases if case.every == every]
    return {
        "rule_files": ["rules.yml"],
        "evaluation_interval": f"{every}m",
        "tests": [test(name, case) for name, case in found],
    }

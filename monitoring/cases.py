"""For each alert, a recording in which it fires and one in which it does not (promtool's form)."""

from __future__ import annotations

from typing import Any, NamedTuple

from monitoring.alerts import GROUPS
from monitoring.metrics import SLOW_FIRST_TOKENS

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


def _first_tokens(all_of_them: str, slow: str) -> Series:
    name = SLOW_FIRST_TOKENS.name
    return {
        **_of("time_to_first_token_seconds_count", all_of_them),
        **_of("time_to_first_token_seconds_bucket", all_of_them, A + ',le="+Inf"'),
        f"{name}{{{A}}}": slow,
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


CASES: dict[str, tuple[Case, Case]] = {  # by alert: it fires, and it does not
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
BURNS = {  # window: how many times as fast as allowed, minutes between samples, samples
    "1H": (14.4, 1, 180),
    "6H": (6.0, 5, 120),
    "3D": (1.0, 30, 192),
}
GOOD = 10_000  # a sample, of which the budget allows 10 (of first tokens 100) to be bad
for _name, _series, _budget in (("Requests", _requests, 10), ("FirstToken", _first_tokens, 100)):
    for _window, (_factor, _every, _all) in BURNS.items():
        _bad, _last = int(_factor * _budget * 1.5), _all // 10
        CASES[f"{_name}Burn{_window}"] = (
            Case(_series(f"0+{GOOD}x{_all}", f"0+{_bad}x{_all}"), f"{_every * _all}m", {}, _every),
            Case(  # as bad, but good of late: over within the short window, not within the long one
                _series(
                    f"0+{GOOD}x{_all}", f"0+{_bad}x{_all - _last} {_bad * (_all - _last)}x{_last}"
                ),
                f"{_every * _all}m",
                None,
                _every,
            ),
        )


EVERY = sorted({case.every for pair in CASES.values() for case in pair})


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

    found = [(name, case) for name, pair in CASES.items() for case in pair if case.every == every]
    return {
        "rule_files": ["rules.yml"],
        "evaluation_interval": f"{every}m",
        "tests": [test(name, case) for name, case in found],
    }

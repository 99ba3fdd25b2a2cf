"""What somebody is told of; each alert has a page in `runbooks/` and two cases in `cases.py`."""

from __future__ import annotations

from collections.abc import Sequence

from monitoring.metrics import (
    BY,
    JOB,
    SLOW_FIRST_TOKENS,
    TTFT,
    growth,
    named,
    quantile,
)
from nanovllm.observability.alerts import Alert, Objective, burn_alerts
from nanovllm.observability.promql import Expression, Metric, Ranged, metric

RUNBOOKS = "monitoring/runbooks"
REQUESTS = Objective(
    "Requests",
    named("request_success_total", finished_reason="error"),
    named("request_success_total"),
    0.999,
)
FIRST_TOKEN = Objective("FirstToken", Metric(SLOW_FIRST_TOKENS.name), named(f"{TTFT}_count"), 0.99)


def _alert(name: str, expr: Expression, wait: str, severity: str, summary: str) -> Alert:
    return Alert(name, expr, wait, severity, summary, RUNBOOKS)


_open = named("num_requests_running").sum(*BY) + named("num_requests_waiting").sum(*BY)
SERVER = [
    _alert("ServerDown", metric("up", job=JOB) < 1, "1m", "page", "A server does not answer."),
    _alert(
        "ServerHangs",
        (_open > 0) & (growth("iteration_tokens_total_count", "2m", *BY) < 1e-9),
        "1m",
        "page",
        "A server has requests and makes no steps, whatever its health check says.",
    ),
    _alert(
        "Restarting",
        Ranged("resets", named("generation_tokens_total"), "15m") > 1,
        "1m",
        "ticket",
        "A server has begun anew more than once in a quarter of an hour.",
    ),
]
LOAD = [
    _alert(
        "QueueLong",
        quantile(0.99, "request_queue_time_seconds", "5m", "job") > 5,
        "5m",
        "ticket",
        "One request in a hundred waits longer than 5 s for its first step.",
    ),
    _alert(
        "CacheFull",
        named("kv_cache_usage_perc") > 0.95,
        "5m",
        "ticket",
        "The KV cache is full: new requests wait, and running ones may be preempted.",
    ),
    _alert(
        "Preempting",
        growth("num_preemptions_total", "5m", *BY) > growth("request_success_total", "5m", *BY),
        "10m",
        "ticket",
        "More requests are preempted than end: most work is done twice.",
    ),
]
CARDS = [
    _alert(
        "CardHot",
        named("gpu_temperature_celsius") > 87,
        "5m",
        "ticket",
        "A GPU is so hot that it slows itself down.",
    ),
    _alert(
        "CardLost",
        Ranged("increase", named("gpu_lost_total"), "5m") > 0,
        "1m",
        "page",
        "A GPU cannot be read: it was reset, or has fallen off the bus.",
    ),
]
GROUPS: dict[str, Sequence[Alert]] = {
    "burn": [*burn_alerts(REQUESTS, RUNBOOKS), *burn_alerts(FIRST_TOKEN, RUNBOOKS)[:-1]],
    "cards": CARDS,
    "load": LOAD,
    "server": SERVER,
}

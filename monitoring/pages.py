"""The panels of the dashboards; `grafana.py` writes them in Grafana's form."""

from __future__ import annotations

from monitoring.alerts import FIRST_TOKEN, REQUESTS
from monitoring.metrics import (
    FIRST_TOKEN_P99,
    JOB,
    TOKENS,
    TTFT,
    growth,
    mean,
    named,
    quantile,
)
from nanovllm.observability.alerts import Objective, error_share
from nanovllm.observability.dashboard import Panel, Unit
from nanovllm.observability.promql import Call, Expression, Metric, Number, metric

ITL, E2E = "inter_token_latency_seconds", "e2e_request_latency_seconds"
SERVER = "{{instance}}"
CARD = "{{instance}} {{gpu}}"
RUNNING = (named("num_requests_running").sum() > 0) | Call("vector", Number(1))  # 1 where none runs
HITS, LOOKED_UP = "prefix_cache_hits_total", "prefix_cache_queries_total"


def quantiles(title: str, name: str, unit: Unit = "s", note: str = "") -> Panel:
    """Median, p95 and p99 of a histogram."""
    lines = [(f"p{100 * q:g}", quantile(q, name)) for q in (0.5, 0.95, 0.99)]
    return Panel(title, lines, unit, note=note)


def gauge(title: str, name: str, unit: Unit = "short", note: str = "") -> Panel:
    """A gauge of each server."""
    return Panel(title, [(SERVER, named(name).sum("instance"))], unit, note=note)


def counter(title: str, name: str, unit: Unit = "short") -> Panel:
    """A counter's growth a second, of each server."""
    return Panel(title, [(SERVER, growth(name, "1m", "instance"))], unit)


def burn(objective: Objective) -> Panel:
    """How fast an error budget is used up."""

    def rate_of(window: str) -> Expression:
        return error_share(objective, window) / (1 - objective.objective)

    lines = [(window, rate_of(window)) for window in ("5m", "1h", "6h")]
    note = f"{objective.objective:.1%} must be good. At 1 the budget lasts; 14.4 for an hour pages."
    return Panel(f"{objective.name}: budget burnt, times as fast as allowed", lines, note=note)


FLEET = {
    "Is it up": [
        Panel("Servers that answer", [("up", metric("up", job=JOB).sum())]),
        Panel(
            "Requests that ended, by reason",
            [("{{finished_reason}}", growth("request_success_total", "1m", "finished_reason"))],
            "reqps",
        ),
    ],
    "Is it good": [
        burn(REQUESTS),
        burn(FIRST_TOKEN),
        Panel("First token, p99", [("all servers", Metric(FIRST_TOKEN_P99.name))], "s"),
        quantiles("Between two tokens", ITL),
    ],
    "Who has the load": [
        Panel("Tokens generated a second", [(SERVER, Metric(TOKENS.name).sum("instance"))]),
        gauge("Requests that wait", "num_requests_waiting"),
        gauge("Requests in the batch", "num_requests_running"),
        gauge("KV cache in use", "kv_cache_usage_perc", "percentunit"),
    ],
}
ENGINE = {
    "Steps": [
        Panel(
            "Steps a second", [(SERVER, growth("iteration_tokens_total_count", "1m", "instance"))]
        ),
        Panel(
            "Tokens of a step, mean",
            [(SERVER, mean("iteration_tokens_total", "1m", "instance"))],
            note="Few: the batch is small. At the budget: prompts wait for their turn.",
        ),
        Panel(
            "Tokens a second",
            [
                ("prompts", growth("prompt_tokens_total")),
                ("answers", growth("generation_tokens_total")),
            ],
        ),
        Panel(
            "Batch and queue",
            [
                ("in the batch", named("num_requests_running").sum()),
                ("waiting", named("num_requests_waiting").sum()),
            ],
        ),
    ],
    "KV cache": [
        gauge("In use", "kv_cache_usage_perc", "percentunit"),
        gauge("Unused inside of held blocks", "kv_cache_internal_fragmentation", "percentunit"),
        Panel(
            "Preemptions a second", [(SERVER, growth("num_preemptions_total", "1m", "instance"))]
        ),
        Panel(
            "Prompt tokens found in the prefix cache",
            [("share", growth(HITS, "5m") / growth(LOOKED_UP, "5m"))],
            "percentunit",
        ),
    ],
}
ENGINE["GPU, where there is one"] = [
    Panel("In use", [(CARD, named("gpu_utilization"))], "percentunit"),
    Panel("Temperature", [(CARD, named("gpu_temperature_celsius"))], note="It slows down at 87."),
    Panel("Memory in use", [(CARD, named("gpu_memory_used_bytes"))], "bytes"),
    Panel("Scrapes at which none could be read", [(SERVER, named("gpu_lost_total"))]),
]
REQUEST = {
    "Where a request's time goes": [
        quantiles("In the queue", "request_queue_time_seconds"),
        quantiles("Prefill", "request_prefill_time_seconds"),
        quantiles("Decode", "request_decode_time_seconds"),
        quantiles("In all", E2E),
    ],
    "What its user notices": [
        quantiles("First token", TTFT),
        quantiles("Each token after it", "request_time_per_output_token_seconds"),
    ],
    "How large it is": [
        quantiles("Tokens of the prompt", "request_prompt_tokens", "short"),
        quantiles("Tokens of the answer", "request_generation_tokens", "short"),
        quantiles("K and V when it ends", "request_kv_bytes", "bytes"),
        quantiles("Answers asked for", "request_params_n", "short"),
    ],
}
CAPACITY = {
    "What comes in": [
        Panel("Requests a second", [("all", growth("request_success_total", "5m"))], "reqps"),
        Panel(
            "Tokens of a request, mean",
            [
                ("prompt", mean("request_prompt_tokens")),
                ("answer", mean("request_generation_tokens")),
            ],
            note="`nanovllm plan` asks for these, as a trace.",
        ),
    ],
    "What is left": [
        Panel(
            "KV cache in use, fullest server",
            [("fullest", Call("max", named("kv_cache_usage_perc")))],
            "percentunit",
        ),
        Panel(
            "Waiting for each that runs",
            [("all", named("num_requests_waiting").sum() / RUNNING)],
            note="Above 1 for long: more replicas, or a larger batch.",
        ),
    ],
    "What a replica does": [
        Panel("Tokens a second, a server", [(SERVER, Metric(TOKENS.name).sum("instance"))]),
        counter("Requests a second, a server", "request_success_total", "reqps"),
    ],
}
PAGES = {
    "fleet": ("nano-vLLM: fleet", FLEET),
    "engine": ("nano-vLLM: engine", ENGINE),
    "request": ("nano-vLLM: one request", REQUEST),
    "capacity": ("nano-vLLM: capacity", CAPACITY),
}

"""The server's metrics as expressions, and what is recorded of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from nanovllm.observability.promql import Expression, Metric, Quantile, metric, rate

JOB = "nanovllm"
BY = ("job", "instance", "model_name")
SLOW = "1.0"  # seconds; a bucket of the histogram


class Record(NamedTuple):
    """A recording rule."""

    name: str
    expr: Expression

    def to_dict(self) -> dict[str, Any]:
        """Prometheus' form."""
        return {"record": self.name, "expr": str(self.expr)}


def named(name: str, **labels: str) -> Metric:
    """A metric of the server."""
    return metric(f"nanovllm:{name}", **labels)


def growth(name: str, window: str = "1m", *by: str, **labels: str) -> Expression:
    """A counter's growth a second, added up over all but these labels."""
    return rate(named(name, **labels), window).sum(*by)


def quantile(q: float, name: str, window: str = "5m", *by: str) -> Expression:
    """Of a histogram, over the servers together."""
    return Quantile(q, rate(named(f"{name}_bucket"), window).sum("le", *by))


def mean(name: str, window: str = "5m", *by: str) -> Expression:
    """Of a histogram."""
    return growth(f"{name}_sum", window, *by) / growth(f"{name}_count", window, *by)


TTFT = "time_to_first_token_seconds"
SLOW_FIRST_TOKENS = Record(
    "instance:nanovllm_slow_first_tokens:total",
    named(f"{TTFT}_count").sum(*BY) - named(f"{TTFT}_bucket", le=SLOW).sum(*BY),
)
TOKENS = Record(
    "instance:nanovllm_generation_tokens:rate1m", growth("generation_tokens_total", "1m", *BY)
)
FIRST_TOKEN_P99 = Record(
    "job:nanovllm_first_token_seconds:p99_5m", quantile(0.99, TTFT, "5m", "job")
)
RECORDS = (SLOW_FIRST_TOKENS, TOKENS, FIRST_TOKEN_P99)

"""PromQL as text: what was meant is what Prometheus reads."""

from __future__ import annotations

import json
import math

import pytest

from nanovllm.observability.promql import Metric, Number, Quantile, metric


@pytest.mark.parametrize("value", [
    "plain", 'a "quoted" word', "C:\\models", "two\nlines", '\\"', "\\d+[.]\\d", "é",
])  # fmt: skip
@pytest.mark.parametrize("how", ["=", "=~"])
def test_a_label_is_read_back_as_it_was(value: str, how: str) -> None:
    text = str(Metric("up", (("job", "=", "serving"), ("path", how, value))))
    head, tail = f'up{{job="serving",path{how}', "}"
    assert text.startswith(head) and text.endswith(tail) and "\n" not in text
    # Of JSON's escapes PromQL has these three, with the same meaning.
    assert json.loads(text[len(head) : -len(tail)]) == value
    assert str(metric("up", path=value)) == text.replace('job="serving",', "").replace(how, "=")


@pytest.mark.parametrize(("value", "text"), [
    (0, "0"), (1, "1"), (-2.5, "-2.5"), (0.95, "0.95"), (0.999, "0.999"), (5e3, "5000"),
    (1e6, "1e+06"), (1e-9, "1e-09"), (14.4 * (1 - 0.99), "0.144"), (6.0 * (1 - 0.999), "0.006"),
    (0.1 + 0.2, "0.3"), (math.inf, "inf"), (1234567, "1234567"), (0.9999995, "0.9999995"),
    (80 * 2**30, "85899345920"), (1_700_000_000.5, "1700000000.5"), (2**40, "1099511627776"),
])  # fmt: skip
def test_numbers_keep_their_digits_and_not_those_of_rounding(value: float, text: str) -> None:
    assert str(Number(value)) == text
    assert float(text) == pytest.approx(value, rel=1e-11)
    assert str(metric("up") > value) == f"up > {text}"


def test_a_quantile_is_not_rounded_to_another() -> None:
    assert str(Quantile(0.99, metric("b"))) == "histogram_quantile(0.99, b)"
    assert str(Quantile(0.9999999, metric("b"))) == "histogram_quantile(0.9999999, b)"

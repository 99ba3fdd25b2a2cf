"""The value of an expression of lab 13 on made-up series: what checks compare alerts by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
World = Mapping[str, Sequence[tuple[Mapping[str, str], Sequence[tuple[float, float]]]]]
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
STALE = 300  # a sample is no longer the last value after so many seconds
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else (math.nan if a == 0 or math.isnan(a) else math.inf),
}


def value_of(expression: Any, data: World, at: float) -> Vector:
    """The expression's value for each set of labels, as Prometheus computes it.

    A number is a vector without labels here. Counters of `data` do not restart, and are sampled at
    the borders of all windows.
    """
    kind = type(expression).__name__
    if kind == "Number":
        return {frozenset(): expression.value}
    if kind == "Metric":
        found = {}
        for labels, samples in data.get(expression.name, ()):
            fresh = [v for t, v in samples if at - STALE < t <= at]
            if fresh and _selected(labels, expression.matchers):
                found[frozenset(labels.items())] = fresh[-1]
        return found
    if kind == "Ranged" and expression.function in ("rate", "increase"):
        return _grown(expression, data, at)
    if kind == "Sum":
        total: Vector = {}
        for labels, value in value_of(expression.inner, data, at).items():
            key = frozenset(pair for pair in labels if pair[0] in expression.by)
            total[key] = total.get(key, 0.0) + value
        return total
    if kind == "Call" and expression.function == "vector":
        return value_of(expression.inner, data, at)
    if kind == "Call" and expression.function == "absent":
        return {} if value_of(expression.inner, data, at) else {frozenset(): 1.0}
    if kind == "Binary":
        left = value_of(expression.left, data, at)
        return _combined(expression, left, value_of(expression.right, data, at))
    raise ValueError(
        f"{expression} has {kind}, which this check cannot evaluate; it knows Metric, Number, "
        "sums, rate, increase, vector, absent, and operators."
    )


def _selected(labels: Mapping[str, str], matchers: Sequence[tuple[str, str, str]]) -> bool:
    equal = {"=": True, "!=": False}
    return all((labels.get(name, "") == value) is equal[how] for name, how, value in matchers)


def _grown(expression: Any, data: World, at: float) -> Vector:
    window = int(expression.window[:-1]) * SECONDS[expression.window[-1]]
    found: Vector = {}
    for labels, samples in data.get(expression.metric.name, ()):
        inside = [(t, v) for t, v in samples if at - window <= t <= at]
        if len(inside) > 1 and _selected(labels, expression.metric.matchers):
            per_second = (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
            scale = 1 if expression.function == "rate" else window
            found[frozenset(labels.items())] = per_second * scale
    return found


def _combined(expression: Any, left: Vector, right: Vector) -> Vector:
    how = expression.operator
    if how == "or":
        return left | {key: value for key, value in right.items() if key not in left}
    if how in ("and", "unless"):
        return {key: value for key, value in left.items() if (key in right) == (how == "and")}
    scalar = type(expression.right).__name__ == "Number"
    if type(expression.left).__name__ == "Number" and not scalar:
        left = dict.fromkeys(right, left[frozenset()])
    found: Vector = {}
    for key, value in left.items():
        other = right[frozenset()] if scalar else right.get(key)
        if other is None:
            continue
        if how in ARITHMETIC:
            found[key] = ARITHMETIC[how](value, other)
        elif (value > other) if how == ">" else (value < other):
            found[key] = value
    return found

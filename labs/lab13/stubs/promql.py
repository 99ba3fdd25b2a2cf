"""PromQL as values: an expression is built of these, and `str` writes it down (given).

>>> str(rate("nanovllm:request_success_total", "5m").sum("model_name") > 3)
'sum by (model_name) (rate(nanovllm:request_success_total[5m])) > 3'
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Operator = Literal["+", "-", "*", "/", ">", "<", "and", "or", "unless"]


class Expression:
    """Something with a value at each moment, for each set of labels."""

    def sum(self, *by: str) -> Sum:
        """The sum over all labels but these."""
        return Sum(self, by)

    def __add__(self, other: Expression | float) -> Binary:
        return Binary("+", self, wrap(other))

    def __sub__(self, other: Expression | float) -> Binary:
        return Binary("-", self, wrap(other))

    def __mul__(self, other: Expression | float) -> Binary:
        return Binary("*", self, wrap(other))

    def __truediv__(self, other: Expression | float) -> Binary:
        return Binary("/", self, wrap(other))

    def __gt__(self, other: Expression | float) -> Binary:
        """What is larger; the rest is left out."""
        return Binary(">", self, wrap(other))

    def __lt__(self, other: Expression | float) -> Binary:
        """What is smaller; the rest is left out."""
        return Binary("<", self, wrap(other))

    def __and__(self, other: Expression) -> Binary:
        """What is there on both sides, with the left side's value."""
        return Binary("and", self, other)

    def __or__(self, other: Expression) -> Binary:
        """What is on the left, and what is only on the right."""
        return Binary("or", self, other)


def wrap(value: Expression | float) -> Expression:
    """A number as an expression."""
    return value if isinstance(value, Expression) else Number(value)


def number(value: float) -> str:
    """In PromQL: whole numbers exactly, others to 12 digits; those behind are rounding errors.

    >>> number(14.4 * (1 - 0.99)), number(1234567.5), number(5e3), number(1e9)
    ('0.144', '1234567.5', '5000', '1e+09')
    """
    short, long = f"{value:g}", f"{value:.{17 if float(value).is_integer() else 12}g}"
    return short if float(short) == float(long) else long


def quoted(text: str) -> str:
    """A string as PromQL writes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@dataclass(frozen=True)
class Number(Expression):
    """The same value always."""

    value: float

    def __str__(self) -> str:
        return number(self.value)


@dataclass(frozen=True)
class Metric(Expression):
    """The last value of a metric, or of some of its series."""

    name: str
    matchers: tuple[tuple[str, str, str], ...] = ()  # label, one of = != =~ !~, value

    def __str__(self) -> str:
        inside = ",".join(f"{label}{how}{quoted(value)}" for label, how, value in self.matchers)
        return f"{self.name}{{{inside}}}" if inside else self.name


@dataclass(frozen=True)
class Ranged(Expression):
    """A function of what a metric was in a window: rate, increase, ... _over_time."""

    function: str
    metric: Metric
    window: str

    def __str__(self) -> str:
        return f"{self.function}({self.metric}[{self.window}])"


@dataclass(frozen=True)
class Sum(Expression):
    """The sum over series with equal labels of `by`."""

    inner: Expression
    by: tuple[str, ...] = ()

    def __str__(self) -> str:
        by = f" by ({', '.join(self.by)}) " if self.by else ""
        return f"sum{by}({self.inner})"


@dataclass(frozen=True)
class Quantile(Expression):
    """A quantile of the buckets that `inner` gives; it must keep `le`."""

    q: float
    inner: Expression

    def __str__(self) -> str:
        return f"histogram_quantile({number(self.q)}, {self.inner})"


@dataclass(frozen=True)
class Call(Expression):
    """Another function of an expression: vector, absent, max, ..."""

    function: str
    inner: Expression

    def __str__(self) -> str:
        return f"{self.function}({self.inner})"


@dataclass(frozen=True)
class Binary(Expression):
    """Two expressions and what is between them; their labels must be equal."""

    operator: Operator
    left: Expression
    right: Expression = field(default_factory=lambda: Number(0))

    def __str__(self) -> str:
        def side(one: Expression) -> str:
            return f"({one})" if isinstance(one, Binary) else str(one)

        return f"{side(self.left)} {self.operator} {side(self.right)}"


def metric(name: str, **labels: str) -> Metric:
    """A metric whose labels have these values."""
    return Metric(name, tuple((label, "=", value) for label, value in labels.items()))


def rate(of: str | Metric, window: str) -> Ranged:
    """Growth a second of a counter in a window."""
    return Ranged("rate", of if isinstance(of, Metric) else Metric(of), window)

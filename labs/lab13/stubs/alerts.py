"""Alerts as code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nanovllm.observability.errors import ObservabilityError
from nanovllm.observability.promql import Binary, Call, Expression, Metric, Number, rate


class BurnWindow(NamedTuple):
    """Alert when the budget burns `factor` times as fast as allowed, over both windows."""

    long: str
    short: str
    factor: float
    wait: str
    severity: str


# Google's SRE workbook, chapter 5: 2 % of a month's budget in an hour, 5 % in six hours, 10 % in
# three days.
WINDOWS = (
    BurnWindow("1h", "5m", 14.4, "2m", "page"),
    BurnWindow("6h", "30m", 6.0, "15m", "page"),
    BurnWindow("3d", "6h", 1.0, "1h", "ticket"),
)


@dataclass(frozen=True)
class Objective:
    """Of the events that `total` counts, a share of `objective` must not be counted by `errors`."""

    name: str
    errors: Metric
    total: Metric
    objective: float


@dataclass(frozen=True)
class Alert:
    """An alert: it fires when `expr` has had a value for the time `wait` (given).

    >>> alert = Alert("NoReplicas", Metric("up").sum() < 1, "1m", "page", "Nobody answers", "docs")
    >>> alert.to_dict()["for"], alert.to_dict()["annotations"]["runbook_url"]
    ('1m', 'docs/NoReplicas.md')
    """

    name: str
    expr: Expression
    wait: str
    severity: str
    summary: str
    runbooks: str  # the folder of the pages, one for each alert

    def to_dict(self) -> dict[str, Any]:
        """Prometheus' form: alert, expr (text), for, labels (severity), annotations.

        The annotations are `summary`, and `runbook_url`: the folder, "/", the alert's name, ".md".

        Raises:
            ObservabilityError: the name is no CamelCase word, `wait` no number of seconds,
                minutes, hours or days ("2m"), the severity neither "page" nor "ticket", or the
                summary empty.
        """
        if not (self.name.isidentifier() and self.name[0].isupper() and "_" not in self.name):
            raise ObservabilityError(f"An alert's name is a CamelCase word, got {self.name!r}.")
        if not (self.wait[:-1].isdigit() and self.wait[-1] in "smhd"):
            raise ObservabilityError(f"{self.name}: wait must be like '2m', got {self.wait!r}.")
        if self.severity not in ("page", "ticket"):
            raise ObservabilityError(
                f"{self.name}: severity must be page or ticket, got {self.severity!r}."
            )
        if not self.summary:
            raise ObservabilityError(f"{self.name}: say in the summary what is wrong.")
        return {
            "alert": self.name,
            "expr": str(self.expr),
            "for": self.wait,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "runbook_url": f"{self.runbooks}/{self.name}.md",
            },
        }


def error_share(objective: Objective, window: str) -> Expression:
    """The share of errors in the rates over a window, over all labels; 0 if nobody counted one.

    Without traffic it has no value that is larger than anything (0 / 0 is NaN).
    The checks compute its value, and that of `burn_alerts`: they know metrics, numbers, sums, rate,
    increase, vector, absent and operators, and nothing else of promql.py.
    """
    raise NotImplementedError("lab13 task 6: error_share")


def burn_alerts(
    objective: Objective, runbooks: str, windows: Sequence[BurnWindow] = WINDOWS
) -> list[Alert]:
    """An alert for each of the windows, and one for silence.

    Burn alerts are named objective.name, "Burn", and the long window in capitals ("TtftBurn1H").
    One fires when the share of errors is above factor * (1 - objective) over the long window and
    over the short one: the long says that it matters, the short that it still goes on.

    The last is objective.name and "NoTraffic", "page", with a wait of "10m": its expression has a
    value where `total` has not grown in the last 10 minutes or is not there at all, which no share
    of errors can tell. Expressions have the parts that `error_share` names.
    """
    raise NotImplementedError("lab13 task 6: burn_alerts")


def rule_file(groups: dict[str, Sequence[Alert]]) -> dict[str, Any]:
    """Prometheus' file of rules: {"groups": [{"name", "rules"}, ...]}, in order of the names.

    Raises:
        ObservabilityError: two alerts have one name.
    """
    raise NotImplementedError("lab13 task 6: rule_file")

"""Grafana dashboards as code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nanovllm.observability.errors import ObservabilityError
from nanovllm.observability.promql import Expression

Unit = Literal["s", "short", "percentunit", "reqps", "bytes"]
COLUMNS = 24


@dataclass(frozen=True)
class Panel:
    """A graph: one line for each expression, with its legend ("{{instance}}": a label's value)."""

    title: str
    lines: Sequence[tuple[str, Expression]]  # legend and expression
    unit: Unit = "short"
    width: int = 12  # of 24 columns
    height: int = 8
    note: str = ""  # what the graph tells, and what to do about it


def panel_dict(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    """Grafana's form of a panel at a place.

    Keys: id (number), type "timeseries", title, description (the note), gridPos (x, y, w, h),
    datasource {"type": "prometheus", "uid": "${datasource}"}, fieldConfig {"defaults": {"unit"},
    "overrides": []}, targets: one a line, with refId "A", "B", ..., expr (text), legendFormat.

    Raises:
        ObservabilityError: no lines, more than 26, or a width that is not 1 to 24.
    """
    raise NotImplementedError("lab13 task 6: panel_dict")


def dashboard(title: str, uid: str, rows: dict[str, Sequence[Panel]]) -> dict[str, Any]:
    """Grafana's form of a page: under each row's title its panels, from left to right.

    A panel that has no room beside the one before it begins a new line, below the highest panel
    of its line. A row's title is a panel of its own: type "row", title, gridPos with w 24 and h 1,
    collapsed False, panels []. Ids count from 1 in the order of the page, rows included.

    Keys of the page: title, uid, schemaVersion 39, timezone "browser", refresh "10s", time
    {"from": "now-1h", "to": "now"}, tags ["nanovllm"], panels, templating: a list with the
    variable `datasource` ({"name": "datasource", "type": "datasource", "query": "prometheus"}).
    """
    raise NotImplementedError("lab13 task 6: dashboard")

"""Grafana dashboards as code."""

from collections.abc import Mapping, Sequence
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
    """Grafana's form of a panel at a place (given).

    Keys: id (number), type "timeseries", title, description (the note), gridPos (x, y, w, h),
    datasource {"type": "prometheus", "uid": "${datasource}"}, fieldConfig {"defaults": {"unit"},
    "overrides": []}, targets: one a line, with refId "A", "B", ..., expr (text), legendFormat.

    Raises:
        ObservabilityError: no lines, more than 26, or a width that is not 1 to 24.
    """
    if not 1 <= len(panel.lines) <= 26:
        raise ObservabilityError(f"{panel.title}: 1 to 26 lines, got {len(panel.lines)}.")
    if not 1 <= panel.width <= COLUMNS:
        raise ObservabilityError(f"{panel.title}: a width of 1 to {COLUMNS}, got {panel.width}.")
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.note,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": str(expr), "legendFormat": legend}
            for i, (legend, expr) in enumerate(panel.lines)
        ],
    }


def row_dict(title: str, number: int, y: int) -> dict[str, Any]:
    """Grafana's form of a row's title: a panel of its own, over the whole width (given)."""
    place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    head = {"id": number, "type": "row", "title": title, "gridPos": place}
    return head | {"collapsed": False, "panels": []}


def layout(rows: Mapping[str, Sequence[Panel]]) -> list[dict[str, Any]]:
    """The panels of a page: under each row's title its panels, from left to right.

    A panel that has no room beside the one before it begins a new line, below the highest panel
    of its line. A row begins below all panels of the row before it. Titles are `row_dict`, panels
    `panel_dict`; their numbers count from 1 in the order of the page, titles included.

    >>> from nanovllm.observability.promql import Metric
    >>> up = [("up", Metric("up"))]
    >>> found = layout({"Fleet": [Panel("a", up, width=16), Panel("b", up, width=16)]})
    >>> [(p["id"], p["gridPos"]["x"], p["gridPos"]["y"]) for p in found]
    [(1, 0, 0), (2, 0, 1), (3, 0, 9)]
    """
    ### BEGIN SOLUTION
    panels: list[dict[str, Any]] = []
    y = 0
    for name, members in rows.items():
        panels.append(row_dict(name, len(panels) + 1, y))
        x, y, highest = 0, y + 1, 0
        for panel in members:
            if x + panel.width > COLUMNS:
                x, y, highest = 0, y + highest, 0
            panels.append(panel_dict(panel, len(panels) + 1, x, y))
            x, highest = x + panel.width, max(highest, panel.height)
        y += highest
    return panels
    ### END SOLUTION


def dashboard(title: str, uid: str, rows: Mapping[str, Sequence[Panel]]) -> dict[str, Any]:
    """Grafana's form of a page, with a choice of the data source (given)."""
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    return {
        "title": title,
        "uid": uid,
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["nanovllm"],
        "templating": {"list": [source]},
        "panels": layout(rows),
    }

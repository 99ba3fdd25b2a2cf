"""Pages as Grafana's dashboards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import dashboard as page
from grafana_foundation_sdk.builders import prometheus, table, tempo, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from nanovllm.observability.dashboard import Panel

PROMETHEUS = DataSourceRef("prometheus", "${datasource}")
TEMPO = DataSourceRef("tempo", "${traces}")
SLOW_REQUESTS = '{resource.service.name="nanovllm" && kind=server && duration>${slow}}'


def graph(panel: Panel) -> timeseries.Panel:
    """A graph of a panel's lines."""
    made = timeseries.Panel().title(panel.title).description(panel.note).unit(panel.unit)
    made = made.datasource(PROMETHEUS).span(panel.width).height(panel.height).min(0)
    for number, (legend, expr) in enumerate(panel.lines):
        name = chr(ord("A") + number)
        query = prometheus.Dataquery().ref_id(name).expr(str(expr)).legend_format(legend).range()
        made = made.with_target(query)
    return made


def slow_requests() -> table.Panel:
    """Requests that took long, from a store of traces; a click shows one with its phases."""
    query = tempo.TempoQuery().ref_id("A").query_type("traceql").query(SLOW_REQUESTS).limit(20)
    made = table.Panel().title("Slow requests").datasource(TEMPO).span(24).height(9)
    return made.with_target(query)


def board(uid: str, title: str, rows: Mapping[str, Sequence[Panel]], traces: bool = False) -> str:
    """A dashboard as JSON. traces: with a table of slow requests, from Tempo."""
    made = page.Dashboard(title).uid(f"nanovllm-{uid}").tags(["nanovllm"]).refresh("10s")
    made = made.time("now-1h", "now").timezone("browser")
    made = made.with_variable(page.DatasourceVariable("datasource").type("prometheus"))
    if traces:
        made = made.with_variable(page.DatasourceVariable("traces").type("tempo"))
        made = made.with_variable(page.TextBoxVariable("slow").default_value("1s"))
    for name, panels in rows.items():
        made = made.with_row(page.Row(name))
        for panel in panels:
            made = made.with_panel(graph(panel))
    if traces:
        made = made.with_row(page.Row("One of them")).with_panel(slow_requests())
    found = made.build()
    for number, panel in enumerate(found.panels or [], 1):
        panel.id_val = number
    return json.dumps(found, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"

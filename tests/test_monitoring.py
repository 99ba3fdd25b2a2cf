"""monitoring/: its files, its alerts in promtool, and every expression on a live Prometheus."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from monitoring.alerts import GROUPS
from monitoring.cases import CASES, EVERY
from monitoring.files import HERE, files
from monitoring.metrics import RECORDS
from monitoring.pages import PAGES
from monitoring.run import alertmanager, prometheus
from nanovllm.observability.dashboard import dashboard
from nanovllm.paging.store import PagedStore
from nanovllm.telemetry.cards import CardMetrics, CardState, nvml_reader
from tests.processes import ROOT, environment
from tests.serving_tools import MODEL, live, tiny_engine, wait_until
from tests.system_tools import require

ALERTS = [alert for group in GROUPS.values() for alert in group]
LINES = {
    f"{uid}: {panel.title}, {legend}": str(expr)
    for uid, (_, rows) in PAGES.items()
    for panels in rows.values()
    for panel in panels
    for legend, expr in panel.lines
}
WRITTEN = [p for p in HERE.rglob("*") if p.suffix in (".yml", ".json")]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_the_files_are_what_the_code_writes() -> None:
    assert {str(p.relative_to(HERE)): p.read_text("utf-8") for p in WRITTEN} == files(), (
        "run: python -m monitoring"
    )


def test_every_alert_has_a_page_and_two_cases() -> None:
    names = {alert.name for alert in ALERTS}
    assert {path.stem for path in (HERE / "runbooks").iterdir()} == names == set(CASES)
    for alert in ALERTS:
        page = ROOT / alert.to_dict()["annotations"]["runbook_url"]
        assert page.read_text("utf-8").startswith(f"# {alert.name}\n")
        fires, *quiet = CASES[alert.name]
        assert fires.labels is not None and quiet
        assert all(case.labels is None for case in quiet)
    burns = [alert for alert in ALERTS if "Burn" in alert.name]
    assert len(burns) == 6 and all(str(a.expr).count(" and ") == 1 for a in burns)


@pytest.mark.parametrize("every", EVERY)
def test_promtool_sees_each_fire_and_each_stay_quiet(every: int) -> None:
    promtool = Path(require("prometheus")).with_name("promtool")
    command = [str(promtool), "test", "rules", f"rules_test_{every}m.yml"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_can_read_the_dashboards() -> None:
    for uid, (title, rows) in PAGES.items():
        text = files()[f"dashboards/{uid}.json"]
        read = Dashboard.from_json(json.loads(text))
        again = json.loads(json.dumps(read, cls=JSONEncoder))
        assert again == json.loads(text)
        mine = dashboard(title, f"nanovllm-{uid}", rows)  # lab 13's own form
        assert expressions(mine) == [e for e in expressions(again) if e is not None]
        assert expressions(json.loads(json.dumps(Dashboard.from_json(mine), cls=JSONEncoder))) == (
            expressions(mine)
        )


def expressions(page: dict[str, Any]) -> list[str | None]:
    return [target.get("expr") for panel in page["panels"] for target in panel.get("targets") or ()]


@pytest.fixture(scope="module")
def scraped() -> Iterator[str]:
    """The address of a Prometheus that has scraped a server under load."""
    require("prometheus")
    with live(tiny_engine(store=PagedStore(MODEL.config, 24))) as server:
        CardMetrics(server.server.metrics.registry, lambda: [CardState(0.5, 10, 80, 60)])
        stop = threading.Event()

        def client(number: int) -> None:
            body = {"prompt": f"Once upon a time {number % 2}", "max_tokens": 20, "n": 2}
            with httpx.Client(base_url=server.url, timeout=60) as asking:
                while not stop.wait(0.05):
                    asking.post("/v1/completions", json=body)

        clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
        for one in clients:
            one.start()
        try:
            where = f"127.0.0.1:{server.port}"
            with prometheus(where, free_port(), every="2s") as address:
                wait_until(lambda: ready(address), 120)
                yield f"http://{address}"
        finally:
            stop.set()
            for one in clients:
                one.join()


def ready(address: str) -> bool:
    """Whether it has scraped often enough for rates of what it has recorded itself."""
    query = "count_over_time(instance:nanovllm_slow_first_tokens:total[1m]) > 2"
    try:
        return bool(ask(f"http://{address}", query))
    except httpx.HTTPError:
        return False


CLIENT = httpx.Client(timeout=30)


def ask(prometheus: str, query: str) -> list[Any]:
    answer = CLIENT.get(f"{prometheus}/api/v1/query", params={"query": query})
    answer.raise_for_status()  # it is not ready at once
    assert answer.json()["status"] == "success", answer.text
    return answer.json()["data"]["result"]


@pytest.mark.parametrize("name", LINES)
def test_every_line_of_a_dashboard_has_a_value(name: str, scraped: str) -> None:
    found = ask(scraped, LINES[name])
    assert found and any(one["value"][1] != "NaN" for one in found), LINES[name]


def test_rules_are_evaluated_and_their_metrics_exist(scraped: str) -> None:
    groups = httpx.get(f"{scraped}/api/v1/rules").json()["data"]["groups"]
    found = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(found) == {a.name for a in ALERTS} | {record.name for record in RECORDS}
    assert {rule["health"] for rule in found.values()} == {"ok"}
    names = set(httpx.get(f"{scraped}/api/v1/label/__name__/values").json()["data"])
    for alert in ALERTS:
        used = set(re.findall(r"\b(?:instance:)?nanovllm[:_][\w:]+", str(alert.expr)))
        assert used <= names, alert.name
        ask(scraped, str(alert.expr))
    for record in RECORDS:
        assert ask(scraped, record.name), record.name
    assert ask(scraped, 'up{job="nanovllm"} == 1')


def test_labels_do_not_grow_with_what_clients_send() -> None:
    with live() as server, httpx.Client(base_url=server.url, timeout=60) as client:

        def series() -> set[str]:
            text = client.get("/metrics").text
            return {line.rpartition(" ")[0] for line in text.splitlines() if line[:1] != "#"}

        def request(number: int, **more: object) -> None:
            body = {"prompt": f"p{number}", "max_tokens": 2, "user": f"u{number}", **more}
            headers = {"x-request-id": f"id{number}", "traceparent": f"x{number}"}
            client.post("/v1/completions", json=body, headers=headers)
            client.post(f"/v1/{number}", json=body, headers=headers)

        request(0)
        before = series()
        for number in range(1, 6):
            request(number)
            request(number, model=f"model{number}")
            request(number, request_id=f"r{number}", temperature=-number)
        assert series() == before and len(before) < 1000


def test_metrics_of_an_engine_that_hangs_and_of_one_that_died() -> None:
    engine, hangs, go = tiny_engine(), threading.Event(), threading.Event()
    step = engine.step

    def once() -> list:
        if engine.requests and hangs.is_set():
            go.wait(60)
            raise RuntimeError("died")
        return step()

    engine.step = once  # pyright: ignore[reportAttributeAccessIssue]
    with live(engine) as server:
        body = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as stream:
            next(stream.iter_lines())
            hangs.set()
            assert httpx.get(server.url + "/health", timeout=5).status_code == 200
            began = time.monotonic()
            first, second = (httpx.get(server.url + "/metrics", timeout=5) for _ in range(2))
            assert time.monotonic() - began < 5
            assert 'nanovllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in first.text
            steps = r"nanovllm:iteration_tokens_total_count\S* (\S+)"
            assert re.findall(steps, first.text) == re.findall(steps, second.text)
            go.set()
            wait_until(lambda: server.server.engine.error)
            assert httpx.get(server.url + "/metrics", timeout=5).status_code == 200


def test_make_monitoring_says_where_to_look() -> None:
    require("prometheus")
    require("prometheus-alertmanager")
    ports = free_port(), free_port()
    with live() as server:
        command = [sys.executable, "-m", "monitoring.run", "--server", f"127.0.0.1:{server.port}",
                   "--prometheus-port", str(ports[0]),
                   "--alertmanager-port", str(ports[1])]  # fmt: skip
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(7)]
            for name, port in (("graphs", ports[0]), ("silence", ports[1])):
                assert any(name in line and f":{port}" in line for line in said), said
            for port in ports:
                wait_until(lambda port=port: answers(port))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert not any(map(answers, ports))
        finally:
            process.kill()
    with live() as server, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = str(taken.getsockname()[1])
        command[4], command[8] = f"127.0.0.1:{server.port}", busy
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
        assert done.returncode == 1 and f"could not start at 127.0.0.1:{busy}" in done.stderr
    done = subprocess.run([*command[:4], f"127.0.0.1:{free_port()}"], cwd=ROOT, env=environment(),
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 1 and "start `nanovllm serve` first" in done.stderr


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_alertmanager_takes_the_routes() -> None:
    require("prometheus-alertmanager")
    port = free_port()
    with alertmanager(port):
        wait_until(lambda: answers(port))
        found = httpx.get(f"http://127.0.0.1:{port}/api/v2/receivers").json()
        assert {one["name"] for one in found} == {"page", "ticket"}


def test_cards_are_read_at_each_scrape_and_one_that_is_lost_ends_none() -> None:
    states = [CardState(0.25, 3, 8, 61.0), CardState(1.0, 8, 8, 90.0)]

    def read() -> list[CardState]:
        if not states:
            raise RuntimeError("GPU is lost")
        return states

    with live() as server:
        assert "nanovllm:gpu" not in httpx.get(server.url + "/metrics").text
        CardMetrics(server.server.metrics.registry, read)
        httpx.get(server.url + "/metrics")
        assert server.metric("gpu_utilization", gpu="0") == 0.25
        assert server.metric("gpu_memory_used_bytes", gpu="1") == 8
        assert server.metric("gpu_temperature_celsius", gpu="1") == 90.0
        assert server.metric("gpu_lost_total") == 0
        states.clear()
        text = httpx.get(server.url + "/metrics").text
        assert "gpu_utilization{" not in text
        assert "nanovllm:num_requests_running{" in text
        assert server.metric("gpu_lost_total") > 0


def test_nvidias_library_is_asked_for_what_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvml:
        NVML_TEMPERATURE_GPU = 0
        nvmlInit = staticmethod(lambda: None)
        nvmlDeviceGetCount = staticmethod(lambda: 1)
        nvmlDeviceGetHandleByIndex = staticmethod(lambda i: i)
        nvmlDeviceGetMemoryInfo = staticmethod(lambda h: SimpleNamespace(used=5, total=9))
        nvmlDeviceGetUtilizationRates = staticmethod(lambda h: SimpleNamespace(gpu=40))
        nvmlDeviceGetTemperature = staticmethod(lambda h, kind: 55)

    monkeypatch.setitem(sys.modules, "pynvml", Nvml)
    read = nvml_reader()
    assert read is not None and read() == [CardState(0.4, 5, 9, 55)]
    monkeypatch.setattr(Nvml, "nvmlDeviceGetCount", staticmethod(lambda: 0))
    assert nvml_reader() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert nvml_reader() is None

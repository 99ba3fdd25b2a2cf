"""`nanovllm serve --otlp`: spans of requests, sent to a collector that may be slow or away."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from nanovllm.paging.store import PagedStore
from nanovllm.serving.config import ServeConfigError
from nanovllm.telemetry.otlp import endpoint, tracing
from tests.processes import ROOT, environment, run
from tests.serving_tools import MODEL, live, tiny_engine

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PHASES = {"queue", "prefill", "decode", "preempted"}


class Collector:
    """Takes OTLP over HTTP; `wait` seconds before each answer."""

    def __init__(self, wait: float = 0.0) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.asked = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.asked.set()
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(wait)
                assert self.path == "/v1/traces"
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.resources.append(attributes(group.resource))
                    collector.spans += [s for scope in group.scope_spans for s in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def roots(self) -> list[Any]:
        return [span for span in self.spans if span.name not in PHASES]

    def below(self, root: Any, sample: int = 0) -> list[Any]:
        """The phases of one sample, in order."""
        found = [span for span in self.spans if span.parent_span_id == root.span_id]
        found = [span for span in found if attributes(span)["nanovllm.sample"] == sample]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


def attributes(span: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        found = getattr(value, kind)
        return [plain(one) for one in found.values] if kind == "array_value" else found

    return {one.key: plain(one.value) for one in span.attributes}


def ask(url: str, headers: dict[str, str] | None = None, **body: Any) -> dict[str, Any]:
    given = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True} | body
    answer = httpx.post(url + "/v1/completions", json=given, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_request_is_a_span_of_its_callers_trace_with_its_phases_below() -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    started = time.time_ns()
    with Collector() as collector, live() as server:
        with tracing(server.server, collector.url):
            answer = ask(server.url, headers, temperature=0.5, n=2)
        ended = time.time_ns()
    [root] = collector.roots()
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert root.name == "text_completion tiny" and root.kind == root.SPAN_KIND_SERVER
    found = attributes(root)
    assert 0 < found.pop("gen_ai.response.time_to_first_chunk") < 60
    assert isinstance(found.pop("nanovllm.request_id"), int)
    assert found == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "nanovllm",
        "gen_ai.request.id": "mine",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.choice.count": 2,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 10,
    }
    assert started <= root.start_time_unix_nano <= root.end_time_unix_nano <= ended
    ends = []
    for sample in (0, 1):
        phases = collector.below(root, sample)
        assert [span.name for span in phases] == ["queue", "prefill", "decode"]
        assert {span.trace_id.hex() for span in phases} == {TRACE}
        assert all(
            one.end_time_unix_nano == two.start_time_unix_nano for one, two in pairwise(phases)
        )
        assert abs(phases[0].start_time_unix_nano - root.start_time_unix_nano) < 20_000_000
        ends.append(phases[-1].end_time_unix_nano)
    assert max(ends) == root.end_time_unix_nano
    assert collector.resources[0]["service.name"] == "nanovllm"


def test_a_preempted_sample_has_a_span_for_it_and_computes_again() -> None:
    bodies = [
        {"prompt": text, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
        for text in ("Once upon a time there was", "1, 2, 3, 4, 1, 2, 3,", "12 + 30 =")
    ]
    with Collector() as collector, live(tiny_engine(store=PagedStore(MODEL.config, 8))) as server:
        with tracing(server.server, collector.url), ThreadPoolExecutor() as pool:
            list(pool.map(lambda body: ask(server.url, **body), bodies))
        preempted = server.metric("num_preemptions_total")
        assert not server.server.engine.streams
    ways = [[span.name for span in collector.below(root)] for root in collector.roots()]
    assert preempted and sum(way.count("preempted") for way in ways) == preempted
    for way in ways:
        assert way[:2] == ["queue", "prefill"] and way[-1] == "decode"
        for before, after in pairwise(way):
            assert after == "prefill" or before != "preempted"
    for root in collector.roots():
        phases = collector.below(root)
        spent = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in phases)
        assert spent == phases[-1].end_time_unix_nano - phases[0].start_time_unix_nano


def test_what_a_client_left_is_ended_as_aborted_and_a_chat_says_so() -> None:
    with Collector() as collector, live() as server, tracing(server.server, collector.url):
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 230,
                "ignore_eos": True, "stream": True}  # fmt: skip
        with httpx.stream("POST", server.url + "/v1/chat/completions", json=body) as stream:
            next(stream.iter_lines())
        server.assert_idle()
    [root] = collector.roots()
    assert root.name == "chat tiny"
    assert attributes(root)["gen_ai.response.finish_reasons"] == ["abort"]


def test_a_client_that_samples_nothing_costs_no_span_and_nonsense_begins_a_new_trace() -> None:
    with Collector() as collector, live() as server, tracing(server.server, collector.url):
        ask(server.url, {"traceparent": f"00-{TRACE}-{PARENT}-00"})
        for wrong in ("", "00-0-0-01", f"00-{'0' * 32}-{PARENT}-01", "x" * 5000):
            ask(server.url, {"traceparent": wrong})
    assert len(collector.roots()) == 4
    assert not any(root.parent_span_id for root in collector.roots())
    assert TRACE not in {root.trace_id.hex() for root in collector.roots()}


def test_the_log_names_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("nanovllm.serving").propagate = True  # whoever configured it before
    caplog.set_level("INFO", "nanovllm.serving.access")
    with Collector() as collector, live() as server, tracing(server.server, collector.url):
        ask(server.url, {"x-request-id": "joined"})
    fields = [record.fields for record in caplog.records if record.message == "request"]  # pyright: ignore
    [root] = collector.roots()
    assert fields[0]["request_id"] == attributes(root)["gen_ai.request.id"] == "joined"
    assert fields[0]["id"] == attributes(root)["gen_ai.response.id"]
    assert fields[0]["trace_id"] == root.trace_id.hex()


@pytest.mark.parametrize("collector", ["away", "slow"])
def test_serving_waits_for_no_collector(collector: str, tmp_path) -> None:
    """The command answers beside one that is away or never answers, says so, and stops in time."""
    with Collector(wait=60) as slow, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = slow.url if collector == "slow" else f"http://127.0.0.1:{nobody.getsockname()[1]}"
        log = tmp_path / "log"
        process = subprocess.Popen(
            [sys.executable, "-m", "nanovllm.cli", "serve", "--port", "0", "--otlp", url],
            stdout=subprocess.DEVNULL, stderr=log.open("w"),
            cwd=ROOT, env=environment() | {"OTEL_BSP_SCHEDULE_DELAY": "10"},
        )  # fmt: skip
        try:
            while "startup complete" not in log.read_text():
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            address = log.read_text().split(" is served at ")[1].split("/v1")[0]
            ask(address)
            if collector == "slow":
                assert slow.asked.wait(30)
            for _ in range(20):
                ask(address)
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    assert sum(line.get("status") == 200 for line in lines) == 21
    if collector == "away":
        assert any(line["logger"].startswith("opentelemetry") for line in lines)


def test_addresses() -> None:
    assert endpoint("http://localhost:4318/") == "http://localhost:4318/v1/traces"
    assert endpoint("https://c.example/otel/v1/traces") == "https://c.example/otel/v1/traces"
    for wrong in ("localhost:4318", "ftp://x", "http://", "http://[::1"):
        with pytest.raises(ServeConfigError, match="is no address of a collector"):
            endpoint(wrong)
    done = run("serve", "--otlp", "localhost:4318")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "--otlp localhost:4318 is no address of a collector" in done.stderr


def test_without_the_option_nothing_of_it_is_imported() -> None:
    source = (
        "import sys, tests.serving_tools as tools, httpx, nanovllm.cli\n"
        "with tools.live() as server:\n"
        "    body = {'prompt': 'Once', 'max_tokens': 2}\n"
        "    assert httpx.post(server.url + '/v1/completions', json=body).status_code == 200\n"
        "assert not [m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'opentelemetry.exporter', 'nanovllm.telemetry'))]\n"  # noqa: E501
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, env=environment(),
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr

"""`nanovllm serve` as a person and a supervisor meet it: a process with signals and logs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.processes import ROOT, environment, run
from tests.serving_tools import wait_until


@pytest.fixture
def serve(tmp_path: Path):
    """Start the command on a free port; gives the process, its address and its log file."""
    started = []

    def start(*args: str):
        log = tmp_path / f"log{len(started)}"
        process = subprocess.Popen(
            [sys.executable, "-m", "nanovllm.cli", "serve", "--port", "0", *args],
            stdout=subprocess.DEVNULL, stderr=log.open("w"), cwd=ROOT, env=environment(),
        )  # fmt: skip
        started.append(process)
        wait_until(lambda: "startup complete" in log.read_text() or process.poll() is not None, 240)
        address = re.search(r"http://[\d.:]+", log.read_text())
        assert address, log.read_text()
        return process, address[0], log

    yield start
    for process in started:
        process.kill()
        process.wait()


def logged(log: Path) -> list[dict]:
    """The lines of the log, of which all but the first are JSON."""
    return [json.loads(line) for line in log.read_text().splitlines()[1:]]


def test_serves_the_bundled_model_and_drains(serve) -> None:
    process, address, log = serve("--api-key", "k", "--drain-timeout", "60")
    headers = {"Authorization": "Bearer k"}
    client = httpx.Client(base_url=address, headers=headers, timeout=120)
    assert client.get("/v1/models").json()["data"][0]["id"] == "target"
    assert httpx.get(address + "/v1/models", timeout=60).status_code == 401
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    answer = client.post("/v1/chat/completions", json=question | {"temperature": 0})
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        refused = []

        def closed() -> bool:
            try:
                refused.append(httpx.get(address + "/health", timeout=60).status_code)
            except httpx.TransportError:
                refused.append(503)  # it does not even listen any more
            return refused[-1] == 503

        wait_until(closed)
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert process.wait(120) == 0
    said = [line["event"] for line in logged(log)]
    assert said.index("draining") < said.index("drained")
    asked = [line for line in logged(log) if line.get("path") == "/v1/chat/completions"]
    assert asked[0]["status"] == 200 and asked[0]["id"] == answer.json()["id"]


def test_what_is_open_after_the_drain_is_cut_short_but_ended(serve) -> None:
    process, address, log = serve("--drain-timeout", "0.1")
    body = {"prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": True, "n": 16}
    with httpx.stream("POST", address + "/v1/completions", json=body, timeout=120) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    assert process.wait(120) == 0
    drained = next(line for line in logged(log) if line["event"] == "drained")
    assert drained["cut_short"] == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--max-queue", "-1"], "max_queue must be at least 0"),
        (["--rate-limit", "0"], "rate_limit must be greater than 0"),
        (["--scheduling-policy", "lifo"], "lifo"),
        (["--log-level", "loud"], "--log-level loud is not known"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--host", "203.0.113.7"], "cannot listen on 203.0.113.7"),
    ],
)
def test_bad_options_are_one_sentence(args: list[str], says: str) -> None:
    done = run("serve", *args)
    assert done.returncode == 2 and says in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_a_file_that_cannot_be_read_is_no_trouble_of_the_port(monkeypatch) -> None:
    def load(**options: object) -> None:
        raise PermissionError(13, "Permission denied", "config.json")

    monkeypatch.setattr("nanovllm.llm.LLM", load)
    done = run("serve", "--port", "0")
    assert done.returncode == 2 and "listen" not in done.stderr
    assert "the server cannot start: config.json: Permission denied; " in done.stderr

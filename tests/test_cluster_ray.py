"""Lab 11 on Ray Serve, where ray is installed (requirements-ray.txt)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from nanovllm import LLM, SamplingParams
from tests.processes import ROOT, environment
from tests.serving_tools import wait_until
from tests.test_dependencies import pins, text

WITH_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed (requirements-ray.txt)"
)
DRAFT = ROOT / "models" / "draft"


def test_ray_is_pinned_and_nobody_elses() -> None:
    lines = [line for line in text("requirements-ray.txt").splitlines() if line[:1] != "#"]
    assert list(pins(lines)) == ["ray"]
    assert "ray" not in pins(text("constraints.txt").splitlines())


def test_without_ray_the_command_says_so() -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("ray is installed")
    command = [sys.executable, "-m", "nanovllm.cluster.ray_app"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment())
    assert done.returncode == 1 and "requirements-ray.txt" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@WITH_RAY
def test_the_engine_answers_on_ray_serve(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "log"
    command = [
        sys.executable, "-m", "nanovllm.cluster.ray_app", "--models", f"a={DRAFT},b={DRAFT}",
        "--port", str(port), "--num-cpus", "0.1",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=log.open("w"), stderr=subprocess.STDOUT, cwd=ROOT, env=environment()
    )
    try:
        wait_until(lambda: re.search("is ready at", log.read_text()) or process.poll(), 240)
        url = f"http://127.0.0.1:{port}/v1/completions"
        body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
        params = SamplingParams(max_tokens=8, temperature=0)
        wanted = LLM(DRAFT).generate(body["prompt"], params, False)[0].outputs[0].text
        for name in ("a", "b"):
            answer = httpx.post(url, json=body | {"model": name}, timeout=120, trust_env=False)
            assert answer.json()["choices"][0]["text"] == wanted
        asked = body | {"model": "b", "stream": True}
        lines = httpx.post(url, json=asked, timeout=120, trust_env=False).text.split("\n")
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "".join(event["choices"][0]["text"] for event in events) == wanted
        answer = httpx.post(url, json=body | {"model": "c"}, timeout=120, trust_env=False)
        assert answer.status_code == 404
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.wait(60)

"""`serve --supervise`: what each failure does to a real server, which level answers, who hears."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from nanovllm.bench.serve_process import _announced, server_process
from tests.serving_tools import wait_until
from tests.test_parallel_server import ranks_of

pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("server on ranks")]
POISON = 11
OPTIONS = ["--supervise", "--port", "0", "--drain-timeout", "1", "--model", "models/draft"]


@contextmanager
def faulty(tmp_path: Path, faults: str, *options: str) -> Iterator[tuple[str, int]]:
    words = [*OPTIONS, "--evidence", str(tmp_path / "evidence.json"), *options]
    command = [sys.executable, "-m", "tests.faulty_server", faults, *words]
    with server_process(command, _announced, NANOVLLM_CODE="reference") as found:
        yield found


def body(number: int, tokens: int = 40, **more: Any) -> dict[str, Any]:
    prompt = [20 + number, 30, 40]
    asked = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": number}
    return asked | {"presence_penalty": 0.5, "temperature": 0.8} | more


def ask(url: str, asked: dict[str, Any], seconds: float = 120.0) -> httpx.Response:
    return httpx.post(url + "/v1/completions", json=asked, timeout=seconds, trust_env=False)


def texts(url: str, count: int, tokens: int = 40) -> list[str]:
    """Answers to so many requests at once."""
    with ThreadPoolExecutor(count) as pool:
        got = list(pool.map(lambda n: ask(url, body(n, tokens)), range(count)))
    return [one.json()["choices"][0]["text"] for one in got]


def numbers(url: str, name: str) -> dict[str, float]:
    """A metric by its one label of interest."""
    page = httpx.get(url + "/metrics", trust_env=False).text
    return {
        (sample.labels.get("failure") or sample.labels.get("level") or ""): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"nanovllm:{name}"
    }


def failures(url: str) -> dict[str, float]:
    return {kind: n for kind, n in numbers(url, "failures_total").items() if n}


def answered(url: str) -> dict[str, float]:
    return {level: n for level, n in numbers(url, "recoveries_total").items() if n}


def health(url: str, path: str = "/health") -> httpx.Response:
    return httpx.get(url + path, timeout=10, trust_env=False)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    with faulty(tmp_path_factory.mktemp("truth"), "") as (url, _):
        found = texts(url, 8, 100)
        assert failures(url) == {} and answered(url) == {}
        assert numbers(url, "recovery_level") == {"": 0.0}
        assert health(url).status_code == health(url, "/health/live").status_code == 200
    return found


def begins(got: list[str], truth: list[str]) -> bool:
    return all(whole.startswith(text) for text, whole in zip(got, truth, strict=False))


def test_a_full_store_is_answered_by_level_1(tmp_path: Path, truth: list[str]) -> None:
    small = ["--num-gpu-blocks-override", "26", "--max-num-seqs", "8", "--max-model-len", "128"]
    with faulty(tmp_path, "", *small) as (url, _), ThreadPoolExecutor(1) as pool:
        got = pool.submit(texts, url, 8, 100)
        wait_until(lambda: health(url).status_code == 503)
        assert "relieving" in health(url).json()["error"]["message"]
        assert health(url, "/health/live").status_code == 200
        assert got.result() == truth
        assert failures(url) == {"out of memory": 1.0}
        wait_until(lambda: health(url).status_code == 200)
        assert answered(url) == {"adjust": 1.0}
        assert numbers(url, "recovery_level") == {"": 0.0}
        assert httpx.get(url + "/dashboard/state").json()["recovery"]["phase"] == "serving"


def test_a_request_that_takes_too_long_is_answered_by_level_2(tmp_path: Path) -> None:
    with faulty(tmp_path, "", "--timeout", "0.2") as (url, _):
        got = ask(url, body(0, 900)).json()
        assert got["choices"][0]["stop_reason"] == "timeout"
        assert 0 < got["usage"]["completion_tokens"] < 900
        wait_until(lambda: failures(url) == {"timeout": 1.0})
        assert answered(url) == {"request": 1.0}
        assert health(url).status_code == 200


def test_nan_everywhere_reloads_the_weights(tmp_path: Path, truth: list[str]) -> None:
    with faulty(tmp_path, "nan@9") as (url, pid):
        before = ranks_of(pid)
        assert begins(texts(url, 4), truth)
        assert set(failures(url)) == {"NaN"}
        assert answered(url) == {"component": 1.0}
        assert ranks_of(pid) != before, "the weights were not read again"
        assert numbers(url, "recovery_level") == {"": 3.0}


def test_a_poisoned_request_fails_alone(tmp_path: Path, truth: list[str]) -> None:
    with faulty(tmp_path, f"poison@{POISON}") as (url, _), ThreadPoolExecutor(1) as pool:
        others = pool.submit(texts, url, 6, 100)
        wait_until(lambda: httpx.get(url + "/dashboard/state").json()["open_samples"] == 6)
        bad = ask(url, body(0, prompt=[POISON, 3]))
        assert bad.status_code == 500
        assert others.result() == truth[:6]
        assert set(failures(url)) == {"NaN"}
        assert health(url).status_code == 200


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_rank_is_answered_by_level_3(
    tmp_path: Path, truth: list[str], which: signal.Signals
) -> None:
    with (
        faulty(tmp_path, "", "--executor-timeout", "6") as (url, pid),
        ThreadPoolExecutor(1) as pool,
    ):
        got = pool.submit(texts, url, 8, 100)
        wait_until(lambda: httpx.get(url + "/dashboard/state").json()["totals"]["tokens"])
        os.kill(ranks_of(pid)[0], which)
        assert got.result() == truth
        kind = "crash" if which is signal.SIGKILL else "hang"
        assert failures(url) == {kind: 1.0} and answered(url) == {"component": 1.0}
        assert health(url).status_code == 200


def test_a_step_that_nothing_ends_asks_for_a_new_process(tmp_path: Path) -> None:
    with (
        faulty(tmp_path, "stuck@12", "--executor-timeout", "1") as (url, _),
        ThreadPoolExecutor(1) as pool,
    ):
        never = pool.submit(ask, url, body(0), 20.0)
        wait_until(lambda: health(url, "/health/live").status_code == 503)
        assert health(url).status_code == 503
        found = answered(url)
        assert found["component"] == 2.0 and found["system"] >= 1.0
        assert set(failures(url)) == {"hang"}
        wait_until(lambda: "human" in answered(url))
        assert isinstance(never.exception(), httpx.TimeoutException)
        assert json.loads((tmp_path / "evidence.json").read_text())["highest"] == "HUMAN"


def test_a_crash_loop_asks_for_a_person(tmp_path: Path, truth: list[str]) -> None:
    crashes = ",".join(f"crash@{12 * n}" for n in range(1, 20))
    with faulty(tmp_path, crashes) as (url, _):
        with ThreadPoolExecutor(4) as pool:
            got = list(pool.map(lambda n: ask(url, body(n, 100)), range(4)))
        assert {one.status_code for one in got} <= {200, 503}
        wait_until(lambda: health(url).status_code == 503)
        assert "evidence.json" in health(url).json()["error"]["message"]
        assert health(url, "/health/live").status_code == 200  # restarts were tried
        said = json.loads((tmp_path / "evidence.json").read_text())
        assert said["highest"] == "HUMAN" and said["failures"]["crash"] >= 5
        assert set(said["levels"]) == {"COMPONENT", "SYSTEM", "HUMAN"}
        assert "crash on purpose" in said["last_error"]


def test_weights_that_changed_are_read_from_the_kept_version(
    tmp_path: Path, truth: list[str]
) -> None:
    own, kept = tmp_path / "own", tmp_path / "kept"
    shutil.copytree("models/draft", own)
    more = ("--model", str(own), "--kept-weights", str(kept))
    with faulty(tmp_path, "", *more) as (url, pid):
        assert texts(url, 8, 100) == truth
        for folder, kind in ((own, "component"), (kept, "human")):
            path = folder / "model.safetensors"
            path.write_bytes(bytes(len(path.read_bytes())))
            with ThreadPoolExecutor(1) as pool:
                got = pool.submit(texts, url, 8, 100)
                wait_until(lambda: httpx.get(url + "/dashboard/state").json()["open_samples"] == 8)
                os.kill(ranks_of(pid)[0], signal.SIGKILL)
                if kind == "component":
                    assert got.result() == truth
                    assert health(url).status_code == 200
                wait_until(lambda kind=kind: kind in answered(url))
        assert health(url).status_code == 503
        said = json.loads((tmp_path / "evidence.json").read_text())
        assert "model.safetensors" in said["why"] and str(kept) in said["why"]

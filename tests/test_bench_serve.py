"""`nanovllm bench serve`: what is sent, counted and drawn; never how fast."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from PIL import Image

from grader.sandbox.memory_use import descendants
from nanovllm.batching.engine import Engine
from nanovllm.bench.exchange import Connections
from nanovllm.bench.exchange import run as run_loop
from nanovllm.bench.serve_client import spread
from nanovllm.bench.serve_process import own_server
from nanovllm.bench.serving import Endless, Load, summary
from nanovllm.cli.bench_serve import _arguments
from nanovllm.llm.guessing import Guessing
from nanovllm.paging.store import PagedStore
from nanovllm.serving.load import Record, Slo
from nanovllm.speculative.config import SpeculativeConfig
from tests.processes import ROOT, environment, plain, run
from tests.serving_tools import CONFIG, MODEL, TOKENIZER, Live, live, wait_until


@pytest.fixture(scope="module")
def server():
    with live() as running:
        yield running


def measured(server: Live, tmp_path, *more: object) -> tuple[dict, str]:
    """The record of a small run, and what it showed."""
    out = tmp_path / "record.json"
    done = run(
        "bench", "serve", "--base-url", server.url, "--num-prompts", 6, "--input-len", 9,
        "--output-len", 5, "--out", out, *more,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), plain(done.stdout)


def test_open_loop_counts_what_the_server_counts(server: Live, tmp_path) -> None:
    before = server.metric("prompt_tokens_total"), server.metric("generation_tokens_total")
    picture = tmp_path / "plot.png"
    found, shown = measured(
        server, tmp_path, "--rate", "inf", "--slo", "ttft:60000,tpot:60000", "--plot", picture
    )
    results = found["results"]
    assert found["settings"]["rate"] == "inf" and found["settings"]["server"] == "given"
    assert (results["requests"], results["answered"], results["errors"]) == (6, 6, {})
    assert (results["prompt_tokens"], results["output_tokens"]) == (54, 30)
    after = server.metric("prompt_tokens_total"), server.metric("generation_tokens_total")
    assert (after[0] - before[0], after[1] - before[1]) == (54 + 2 * 9, 30 + 2 * 5)  # and warm-up
    assert results["good"] == 6
    assert results["goodput"] == pytest.approx(results["requests_per_second"])
    assert [row["due"] for row in results["records"]] == [0.0] * 6
    for row in results["records"]:
        assert len(row["token_times"]) == 5 and row["token_times"] == sorted(row["token_times"])
    assert results["ttft"]["p50"] <= results["ttft"]["p99"] <= results["e2e"]["p99"]
    assert "6 requests, open loop, inf requests/s" in shown and "6 of 6" in shown
    for name in ("TTFT", "TPOT", "ITL", "E2E", "goodput (ttft 60000 ms, tpot 60000 ms)"):
        assert name in shown
    with Image.open(picture) as image:
        assert image.size[0] > 1200 and len(image.convert("RGB").getcolors(1 << 24)) > 50


def test_the_acceptance_length_is_told_where_the_server_guesses(server: Live, tmp_path) -> None:
    found, shown = measured(server, tmp_path)
    assert found["results"]["mean_acceptance_length"] is None and "acceptance" not in shown
    kind = Guessing(SpeculativeConfig(method="ngram"), None).on(Engine)
    with live(kind(MODEL, tokenizer=TOKENIZER, store=PagedStore(CONFIG, 200))) as guessing:
        found, shown = measured(guessing, tmp_path, "--output-len", 40, "--warmup", 0)
        drafts = guessing.metric("spec_decode_num_drafts_total")
        accepted = guessing.metric("spec_decode_num_accepted_tokens_total")
    assert found["results"]["mean_acceptance_length"] == 1 + accepted / drafts
    assert f"{1 + accepted / drafts:.2f}" in shown and "acceptance length" in shown


def test_closed_loop_never_has_more_open_than_users(server: Live, tmp_path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once upon a time\n\nTell me a story.\n", encoding="utf-8")
    found, shown = measured(server, tmp_path, "--concurrency", 2, "--prompts", prompts)
    rows = found["results"]["records"]
    moves = sorted([(row["due"], 1) for row in rows] + [(row["ended"], -1) for row in rows])
    number = most = 0
    for _, change in moves:
        number += change
        most = max(most, number)
    assert most == 2
    assert rows[0]["prompt_tokens"] == rows[2]["prompt_tokens"] > 0
    assert found["results"]["goodput"] is None and "goodput" not in shown
    assert "closed loop, 2 at once" in shown


@pytest.mark.parametrize("how", [("--rate", 400), ("--concurrency", 3)], ids=str)
def test_a_run_of_some_seconds_sends_no_longer_than_that(server: Live, tmp_path, how) -> None:
    done = run(
        "bench", "serve", "--base-url", server.url, "--duration", 0.3, "--input-len", 9,
        "--output-len", 5, "--out", tmp_path / "record.json", *how,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "record.json").read_text())["results"]
    assert max(row["due"] for row in results["records"]) < 0.3
    assert results["requests"] == len(results["records"]) > 0 and results["errors"] == {}
    assert "0.3 s, " in done.stdout
    assert [name for name in results["e2e"] if name != "mean"] == [
        "p50",
        "p90",
        "p95",
        "p99",
        "p99.9",
    ]
    for name in ("p95", "p99.9", "requests"):
        assert name in done.stdout


def test_arrivals_of_a_duration_are_those_of_a_number_cut_off() -> None:
    long = Load(rate=50.0, num_prompts=500, seed=3).times()
    assert Load(rate=50.0, duration=2.0, seed=3).times() == [when for when in long if when < 2]


def test_a_closed_loop_of_a_duration_never_repeats_a_prompt() -> None:
    jobs = Endless(Load(num_prompts=5, input_len=6))
    assert len({tuple(jobs[number].prompt) for number in range(23)}) == 23


@pytest.mark.parametrize("more", [("--num-prompts", 5), ("--rate", "inf")], ids=str)
def test_a_duration_does_not_go_with_a_number_of_requests(more) -> None:
    done = run("bench", "serve", "--base-url", "http://x", "--duration", 1, *more)
    assert done.returncode == 2 and "--duration says when sending ends" in done.stderr


def test_a_request_that_fails_is_counted_and_is_no_good_one(tmp_path) -> None:
    with live(max_queue=0) as server:  # 16 seats and no queue
        found, shown = measured(
            server, tmp_path, "--rate", "inf", "--num-prompts", 30, "--slo", "ttft:60000"
        )
    results = found["results"]
    assert results["answered"] < 30 and results["good"] == results["answered"]
    assert sum(results["errors"].values()) == 30 - results["answered"]
    assert all(error.startswith("503: ") for error in results["errors"])
    assert "failed: 503" in shown


@pytest.mark.parametrize("hangs_up", [False, True], ids=["keeps", "closes"])
def test_connections_are_kept_and_one_that_was_closed_is_opened_again(hangs_up: bool) -> None:
    opened = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            if hangs_up:  # without having said so
                writer.close()
                return

    async def main() -> list[bytes]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        asked = httpx.Request("GET", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        got: list[bytes] = []
        with closing(Connections()) as connections:
            for _ in range(3):
                assert await connections.exchange(asked, got.append) == 200
            server.close()
            if hangs_up:
                with pytest.raises(OSError):
                    await connections.exchange(asked, got.append)
        return got

    assert run_loop(main()) == [b"ok"] * 3
    assert opened == (3 if hangs_up else 1)


def test_the_numbers_are_those_of_the_records() -> None:
    records = [
        Record(10.0, (11.0, 12.0, 14.0), 14.0, 7),
        Record(11.0, (15.0,), 15.0, 3),
        Record(12.0, (), 20.0, 0, "503: full"),
    ]
    found = summary(records, Slo(ttft=2.0))
    assert (found["seconds"], found["prompt_tokens"], found["output_tokens"]) == (10.0, 10, 4)
    assert (found["requests_per_second"], found["output_tokens_per_second"]) == (0.2, 0.4)
    assert (found["good"], found["goodput"], found["errors"]) == (1, 0.1, {"503: full": 1})
    assert found["ttft"]["mean"] == 2.5 and found["ttft"]["p50"] == 2.5
    assert found["tpot"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "p99.9"), 1.5)
    assert found["itl"]["p99"] == pytest.approx(1.99) and found["e2e"]["mean"] == 4.0
    assert summary(records[2:], Slo())["ttft"] is None


def test_tokens_are_laid_over_the_pieces_that_carried_them() -> None:
    assert spread([], 3) == () and spread([1.0], 0) == () and spread([1.0], 3) == (1.0,) * 3
    assert spread([1.0, 2.0, 3.0], 4) == (1.0, 2.0, 2.0, 3.0)


def test_random_prompts_have_their_length_and_differ_from_the_warm_up() -> None:
    load = Load(rate=math.inf, input_len=12, output_len=3)
    jobs = load.jobs(4, seed=0)
    assert {len(job.prompt) for job in jobs} == {12} and {job.max_tokens for job in jobs} == {3}
    assert len({job.prompt for job in [*jobs, *load.jobs(4, seed=1)]}) == 8
    assert jobs == load.jobs(4, seed=0)


def test_our_own_server_takes_the_options_and_is_gone_afterwards(monkeypatch) -> None:
    options = {"model": None, "block_size": 8, "enable_prefix_caching": False}
    arguments = _arguments(options | {"enforce_eager": True})
    assert arguments == ["--block-size", "8", "--no-enable-prefix-caching", "--enforce-eager"]
    assert _arguments({"speculative_config": {"method": "ngram"}})[1] == '{"method": "ngram"}'
    import httpx

    monkeypatch.setenv("NANOVLLM_CODE", "reference")
    with own_server(arguments) as (address, _):
        state = httpx.get(f"{address}/dashboard/state", timeout=60).json()
    assert state["kv"]["block_size"] == 8 and state["kv"]["prefix"] is None
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health", timeout=5)


@pytest.mark.parametrize(
    ("words", "said", "number"),
    [
        (["bench", "serve"], "", signal.SIGTERM),  # while its server starts
        (["route", "--start", "2", "--port", "0"], "server 0", signal.SIGHUP),
        (["route", "--start", "1", "--port", "0"], "router listens", signal.SIGTERM),
    ],
)
def test_a_signal_leaves_no_server(words, said: str, number: int, tmp_path: Path) -> None:
    """Nor does a student's file in the current folder stand in for a module of Python's."""
    (tmp_path / "queue.py").write_text("raise RuntimeError('not this one')")
    log = tmp_path / "log"
    command = [sys.executable, "-P", "-m", "nanovllm.cli", *words]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command, stderr=stderr, cwd=tmp_path, env=environment(),
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
        )  # fmt: skip
    try:
        wait_until(lambda: process.poll() is not None or (
            said in log.read_text() and len(descendants(process.pid)) == int("2" in words) + 1
        ), 240)  # fmt: skip
        servers = descendants(process.pid)
        process.send_signal(number)
        assert servers and process.wait(120) == 128 + number, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert not any(Path("/proc", str(one)).exists() for one in servers)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--rate", "2", "--concurrency", "2"], "--rate is an open loop"),
        (["--rate", "0"], "--rate must be above 0"),
        (["--slo", "speed:3"], "--slo 'speed:3' is not an SLO"),
        (["--slo", "ttft"], "--slo 'ttft' is not an SLO"),
        (["--prompts", "/nowhere.txt"], "--prompts /nowhere.txt cannot be read"),
        (["--base-url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9"),
        (["--base-url", "http://127.0.0.1:9", "--block-size", "8"], "--block-size is for a server"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(args: list[str], says: str) -> None:
    done = run("bench", "serve", "--num-prompts", "1", *args)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_refuses_says_why() -> None:
    with live(api_keys=("k",)) as server:
        done = run("bench", "serve", "--base-url", server.url, "--num-prompts", "1")
        assert done.returncode == 2 and "said 401" in done.stderr
        options = ["--api-key", "k", "--num-prompts", "1", "--output-len", "2"]
        assert run("bench", "serve", "--base-url", server.url, *options).returncode == 0
        wrong = run("bench", "serve", "--base-url", server.url, *options, "--served-model", "gpt")
        assert wrong.returncode == 2 and "serves tiny, not gpt" in wrong.stderr


@pytest.mark.proof
def test_servers_side_by_side(tmp_path: Path) -> None:
    """Ours over HTTP and without it, on the same requests."""
    command = [sys.executable, "-m", "benchmarks.servers", "--rounds", "1", "--requests", "3",
               "--concurrency", "2", "--threads", "1", "--out", str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "HTTP / offline" in done.stdout
    results = json.loads((tmp_path / "servers.json").read_text())["results"]
    everybody = {"nanovllm serve", "nanovllm serve, whole answers", "LLM.generate"}
    assert set(results["output_tokens_per_second"]) == everybody
    assert set(results["ttft_p50_seconds"]) == {"nanovllm serve"}  # who tells when a token came
    assert results["http_to_offline"] > 0 and results["whole_answers_to_offline"] > 0
    work = results["microseconds_a_token"]
    assert all(work[name]["clients"][0] > 0 for name in everybody)
    assert (tmp_path / "servers.png").stat().st_size > 5000

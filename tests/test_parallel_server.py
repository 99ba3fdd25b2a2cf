"""`serve --tensor-parallel-size 2` for its users: under load, with a rank killed, at its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from nanovllm import LLM, SamplingParams
from nanovllm.bench.serve_process import own_server
from tests.parallel_tools import gone
from tests.processes import ROOT
from tests.serving_tools import wait_until

pytestmark = pytest.mark.xdist_group("server on ranks")  # one for all
PROMPTS = ["Once upon a time", "The", "12 + 30 =", "Mia's code is 7342. What is Mia's code?"]
OPTIONS = ["--tensor-parallel-size", "2"]
ENVIRONMENT = {"NANOVLLM_CODE": "reference"}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    with own_server(OPTIONS, **ENVIRONMENT) as found:
        yield found
        children = ranks_of(found[1])
    assert len(children) == 2
    assert all(map(gone, children)), "orphans"


def ranks_of(pid: int) -> list[int]:
    """The processes of a server's ranks, in order of rank."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            parent = int(path.with_name("stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and b"nanovllm.parallel.rank_process" in words:
            found[int(words[4])] = int(path.parent.name)
    return [found[rank] for rank in sorted(found)]


@cache
def wanted(prompt: str, seed: int) -> str:
    params = SamplingParams(temperature=0.7, seed=seed, max_tokens=24)
    [answer] = one_rank().generate([prompt], params, use_tqdm=False)
    return answer.outputs[0].text


@cache
def one_rank() -> LLM:
    return LLM(enforce_eager=True)


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="-", max_retries=0)


def ask(client: openai.OpenAI, number: int) -> tuple[str, str]:
    """A completion, streamed or whole; and what one rank would answer."""
    prompt = PROMPTS[number % len(PROMPTS)]
    body = {"model": "target", "prompt": prompt, "max_tokens": 24, "temperature": 0.7}
    if number % 2:
        chunks = client.completions.create(**body, seed=number, stream=True)
        return "".join(chunk.choices[0].text for chunk in chunks), wanted(prompt, number)
    return client.completions.create(**body, seed=number).choices[0].text, wanted(prompt, number)


def rows(url: str) -> dict[str, dict[str, float]]:
    """The metrics of each rank."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(httpx.get(url + "/metrics").text):
        for sample in family.samples:
            if "rank" in sample.labels:
                name = sample.name.removeprefix("nanovllm:rank_")
                found.setdefault(sample.labels["rank"], {})[name] = sample.value
    return found


def test_openai_client_under_load(server: tuple[str, int]) -> None:
    for number in range(12):  # before: one rank has no processor to spare beside two
        wanted(PROMPTS[number % len(PROMPTS)], number)
    with client_of(server[0]) as client, ThreadPoolExecutor(8) as pool:
        for got, expected in pool.map(lambda number: ask(client, number), range(12)):
            assert got == expected
        chat = client.chat.completions.create(
            model="target", messages=[{"role": "user", "content": "What is 2 + 3?"}], n=2,
            temperature=0.9, seed=1, max_tokens=8,
        )  # fmt: skip
        assert [choice.index for choice in chat.choices] == [0, 1]


def test_a_row_for_each_rank(server: tuple[str, int]) -> None:
    before = rows(server[0])
    with client_of(server[0]) as client:
        ask(client, 0)
    wait_until(lambda: rows(server[0])["0"]["last_call"] > before["0"]["last_call"])
    after = rows(server[0])
    assert set(after) == {"0", "1"}
    state = httpx.get(server[0] + "/dashboard/state").json()
    for row in state["ranks"]:
        mine = after[str(row.pop("rank"))]
        assert mine == {
            "weight_bytes": row["weight_bytes"], "kv_cache_bytes": row["kv_bytes"],
            "messages": row["messages"], "last_call": row["last_call"],
        }  # fmt: skip
        assert all(row.values())
    assert state["ranks"][0] == state["ranks"][1], "both have half of everything"


@pytest.mark.proof
def test_clients_that_leave(server: tuple[str, int]) -> None:
    with client_of(server[0]) as client:
        body = {"model": "target", "prompt": PROMPTS[0], "max_tokens": 400, "stream": True}
        for leave_after in range(1, 6):
            with client.completions.create(**body) as stream:
                for _ in range(leave_after):
                    next(stream)
        got, expected = ask(client, 2)
        assert got == expected
    wait_until(lambda: httpx.get(server[0] + "/dashboard/state").json()["open_samples"] == 0)


@pytest.mark.proof
def test_the_death_of_a_rank_under_load() -> None:
    """Whoever waits is told, /health says so, and the ranks that are left are ended."""
    with own_server(OPTIONS, **ENVIRONMENT) as (url, pid), client_of(url) as client:
        assert httpx.get(url + "/health").status_code == 200
        ranks = ranks_of(pid)
        body = {"model": "target", "prompt": PROMPTS[0], "max_tokens": 900, "stream": True,
                "extra_body": {"ignore_eos": True}}  # fmt: skip
        streams = [client.completions.create(**body) for _ in range(4)]
        for stream in streams:
            next(stream)
        os.kill(ranks[1], signal.SIGKILL)
        for stream in streams:
            with pytest.raises(openai.APIError, match="rank 1 has ended"):
                for _ in stream:
                    pass
        health = httpx.get(url + "/health")
        assert health.status_code == 503
        assert "rank 1 has ended (killed by signal 9" in health.json()["error"]["message"]
        with pytest.raises(openai.APIStatusError, match="rank 1 has ended"):
            ask(client, 0)
        assert all(map(gone, ranks))


@pytest.mark.proof
def test_the_death_of_a_rank_while_nobody_asks() -> None:
    with own_server(OPTIONS, **ENVIRONMENT) as (url, pid):
        ranks = ranks_of(pid)
        os.kill(ranks[0], signal.SIGKILL)
        wait_until(lambda: httpx.get(url + "/health").status_code == 503)
        assert "rank 0 has ended" in httpx.get(url + "/health").json()["error"]["message"]
    assert all(map(gone, ranks))


def run_serve(*options: str) -> tuple[int, str]:
    """Exit code and last words of a server that does not start; nothing of it is left."""
    command = [sys.executable, "-m", "nanovllm.cli", "serve", *options]
    server = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | ENVIRONMENT,
        start_new_session=True,
    )  # fmt: skip
    _, said = server.communicate(timeout=300)
    running = map(int, filter(str.isdigit, os.listdir("/proc")))
    left = [pid for pid in running if in_session(pid, server.pid)]
    assert not left, "orphans"
    return server.returncode, said


def in_session(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False


@pytest.mark.proof
def test_a_port_in_use_leaves_no_ranks_behind() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = run_serve(*OPTIONS, "--port", str(port))
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tensor-parallel-size", "3"], "8 query heads cannot be shared equally by 3 ranks"),
        (["--tensor-parallel-size", "2", "--quantization", "int8"], "does not go with"),
        (["--pipeline-parallel-size", "0"], "must be a whole number, at least 1"),
    ],
)
@pytest.mark.few(1)
def test_what_cannot_be_is_said_at_the_start(options: list[str], says: str) -> None:
    code, said = run_serve(*options, "--port", "0")
    assert code == 2
    assert says in " ".join(said.split())

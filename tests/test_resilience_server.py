"""`serve --supervise`: the model's process is killed or stopped under load; no answer is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx
import openai
import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.bench.serve_process import own_server
from tests.parallel_tools import gone
from tests.processes import run
from tests.serving_tools import wait_until
from tests.test_parallel_server import client_of, ranks_of

pytestmark = pytest.mark.xdist_group("server on ranks")
ENVIRONMENT = {"NANOVLLM_CODE": "reference"}
OPTIONS = ["--supervise", "--executor-timeout", "3"]
PROMPTS = ["Once upon a time", "The", "12 + 30 =", "Tell me a story about a cat."]
KINDS: tuple[dict[str, Any], ...] = (  # what a cut harms where answers are glued to prompts
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 0.8, "presence_penalty": 1.2, "frequency_penalty": 0.8},
    {"temperature": 0.7, "extra_body": {"min_tokens": 60, "repetition_penalty": 1.2}},
    {"temperature": 0.7, "stop": ["zebra", "the end of all"]},
    {"temperature": 0.9, "logprobs": 2},
)


def body_of(number: int, tokens: int = 70) -> dict[str, Any]:
    kind = KINDS[number % len(KINDS)]
    more = {"ignore_eos": True} | kind.get("extra_body", {})
    asked = {"model": "target", "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": tokens}
    return asked | kind | {"seed": number, "extra_body": more}


@cache
def plain() -> LLM:
    return LLM(enforce_eager=True)


@cache
def wanted(number: int, tokens: int = 70) -> str:
    body = body_of(number, tokens)
    names = {k: v for k, v in body.items() if k not in ("model", "prompt", "extra_body")}
    params = SamplingParams(**names | body["extra_body"])
    [answer] = plain().generate([body["prompt"]], params, use_tqdm=False)
    return answer.outputs[0].text


def restarts(url: str) -> float:
    lines = httpx.get(url + "/metrics").text.splitlines()
    [line] = [x for x in lines if x.startswith("nanovllm:engine_restarts_total")]
    return float(line.rpartition(" ")[2])


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    with own_server(OPTIONS, **ENVIRONMENT) as found:
        yield found
        children = ranks_of(found[1])
    assert len(children) == 1
    assert all(map(gone, children)), "orphans"


def answers(url: str, numbers: range, hurt: Any) -> Iterator[tuple[int, str]]:
    """Streams of all at once; `hurt` is called when all have begun."""
    with client_of(url) as client, ThreadPoolExecutor(len(numbers)) as pool:
        streams = [client.completions.create(**body_of(n), stream=True) for n in numbers]
        begun = [next(stream).choices[0].text for stream in streams]
        hurt()

        def rest(stream: openai.Stream) -> str:
            return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

        for number, first, text in zip(numbers, begun, pool.map(rest, streams), strict=True):
            yield number, first + text


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.few(1)
def test_no_stream_is_cut(server: tuple[str, int], with_signal: signal.Signals) -> None:
    url, pid = server
    before, numbers = restarts(url), range(12)
    for number in numbers:
        wanted(number)
    [rank] = ranks_of(pid)
    for number, text in answers(url, numbers, lambda: os.kill(rank, with_signal)):
        assert text == wanted(number), number
    assert restarts(url) == before + 1
    assert httpx.get(url + "/health").status_code == 200
    assert gone(rank)


def test_a_death_while_nobody_asks(server: tuple[str, int]) -> None:
    url, pid = server
    [rank] = ranks_of(pid)
    os.kill(rank, signal.SIGKILL)
    wait_until(lambda: gone(rank) or not ranks_of(pid))
    with client_of(url) as client:
        answer = client.completions.create(**body_of(1))
    assert answer.choices[0].text == wanted(1)
    state = httpx.get(url + "/dashboard/state").json()
    assert state["open_samples"] == 0


@pytest.mark.proof
def test_many_kills_under_fifty_streams() -> None:
    """Killed three times, at moments of no choosing; every transcript is whole."""
    with own_server(["--supervise"], **ENVIRONMENT) as (url, pid):

        def kill_thrice() -> None:
            for _ in range(3):
                found = ranks_of(pid)
                if found:
                    os.kill(found[0], signal.SIGKILL)
                time.sleep(6.0)

        killer = threading.Thread(target=kill_thrice)
        for number, text in answers(url, range(50), killer.start):
            assert text == wanted(number), number
        killer.join()
        assert restarts(url) >= 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--supervise", "--role", "prefill"), "--supervise does not go with --role"),
        (("--kept-weights", "kept"), "--kept-weights goes with --supervise"),
        (("--evidence", "report.json"), "--evidence goes with --supervise"),
        (("--supervise", "--kept-weights", "README.md"), "kept in README.md (File exists)"),
    ],
)
def test_what_does_not_go_with_it(words: tuple[str, ...], says: str) -> None:
    done = run("serve", *words)
    assert done.returncode != 0
    assert says in done.stderr

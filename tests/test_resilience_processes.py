"""Real processes under fifty streams are killed, stopped, cut off: every text is whole."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from benchmarks.faults import Heard, Hurt, judge, retries, streams, trial
from benchmarks.routers import router
from nanovllm.bench.serve_process import own_server
from tests.flaky_proxy import FlakyProxy, random_cuts
from tests.test_parallel_server import ranks_of

pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("server on ranks")]
MODEL = ["--model", "models/draft", "--served-model-name", "draft"]
SUPERVISED = [*MODEL, "--supervise", "--executor-timeout", "10", "--evidence", os.devnull]
STREAMS = 50


@pytest.fixture(scope="module")
def truth() -> list[Heard]:
    with own_server(MODEL) as (url, _):
        return streams(url, STREAMS)


@pytest.fixture(scope="module")
def supervised_truth() -> list[Heard]:
    with own_server(SUPERVISED) as (url, _):
        return streams(url, STREAMS)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def before(stack: ExitStack, *urls: str) -> str:
    """A router before servers."""
    return stack.enter_context(router("nanovllm route", "round_robin", [*urls], ""))[0]


def check(found: dict[str, object]) -> None:
    print(found)
    assert found["whole"] == STREAMS and found["cut"] == found["wrong"] == 0


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("moment", [0.02, 0.5])
def test_a_replica_dies(
    stack: ExitStack, truth: list[Heard], which: signal.Signals, moment: float
) -> None:
    servers = [stack.enter_context(own_server(MODEL)) for _ in range(2)]
    url = before(stack, *(url for url, _ in servers))
    found = trial(url, servers[0][1], servers[1][0], which, moment, truth)
    check(found)
    assert found["gone_on"] > 0


def test_both_replicas_die_and_come_back(stack: ExitStack, truth: list[Heard]) -> None:
    ports = [_free_port(), _free_port()]
    servers = [own_server([*MODEL, "--port", str(port)]) for port in ports]
    pids = [stack.enter_context(one)[1] for one in servers]
    url = before(stack, *(f"http://127.0.0.1:{port}" for port in ports))

    def kill_and_restart() -> None:
        for pid, port in zip(pids, ports, strict=True):
            os.kill(pid, signal.SIGKILL)
            stack.enter_context(own_server([*MODEL, "--port", str(port)]))

    killer = threading.Thread(target=kill_and_restart)
    hurt = Hurt(0.2 * sum(len(one.times) for one in truth), killer.start)
    heard = streams(url, STREAMS, hurt)
    killer.join()
    assert hurt.when is not None
    check(judge(heard, truth, hurt.when))


def test_the_lines_are_cut_and_slow(stack: ExitStack, truth: list[Heard]) -> None:
    servers = [stack.enter_context(own_server(MODEL)) for _ in range(2)]
    proxies = [
        stack.enter_context(
            FlakyProxy(
                urlsplit(url).port or 0, random_cuts(seed, 0.4, 12_000), late=0.005, drip=drip
            )
        )
        for (url, _), seed, drip in zip(servers, (1, 2), (0, 300), strict=True)
    ]
    url = before(stack, *(proxy.url for proxy in proxies))
    heard = streams(url, STREAMS)
    check(judge(heard, truth, time.monotonic() - 3600))
    assert sum(proxy.cuts_made for proxy in proxies) >= 10
    assert retries(url) >= 10


def test_every_line_is_cut_at_once(stack: ExitStack, truth: list[Heard]) -> None:
    """One server behind a router: it has computed on, and is asked again."""
    url, _ = stack.enter_context(own_server(MODEL))
    proxy = stack.enter_context(FlakyProxy(urlsplit(url).port or 0))
    hurt = Hurt(0.5 * sum(len(one.times) for one in truth), proxy.cut_all)
    heard = streams(before(stack, proxy.url), STREAMS, hurt)
    assert hurt.when is not None
    check(judge(heard, truth, hurt.when))


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("moment", [0.02, 0.5])
def test_the_engine_of_a_supervised_server_dies(
    stack: ExitStack, supervised_truth: list[Heard], which: signal.Signals, moment: float
) -> None:
    url, pid = stack.enter_context(own_server(SUPERVISED))
    chunks = moment * sum(len(one.times) for one in supervised_truth)
    hurt = Hurt(chunks, lambda: os.kill(ranks_of(pid)[0], which))
    heard = streams(url, STREAMS, hurt)
    assert hurt.when is not None
    check(judge(heard, supervised_truth, hurt.when))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

"""Lab 11: K and V by shared memory and by nixl; texts are those of one engine, nothing is left."""

from __future__ import annotations

import importlib.util
import os
import resource
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from nanovllm.cluster.connectors import Connector, SharedMemory, make_connector
from nanovllm.cluster.errors import ClusterError, TransferError
from tests.serving_tools import offline, wait_until
from tests.test_cluster_serving import WithRole, ask, at_rest, body

NIXL = pytest.mark.skipif(
    importlib.util.find_spec("nixl") is None, reason="nixl is not installed: pip install nixl-cu12"
)
KINDS = ["shm", pytest.param("nixl", marks=NIXL)]


@pytest.fixture(params=KINDS)
def pair(request: Any) -> Iterator[tuple[Connector, Connector]]:
    """Who offers, and who reads."""
    here, there = make_connector(request.param), make_connector(request.param)
    assert here is not None and there is not None
    yield here, there
    here.close()
    there.close()


@contextmanager
def two(prefill: str, decode: str) -> Iterator[tuple[WithRole, WithRole]]:
    """A server that prefills and one that decodes, by their connectors."""
    with WithRole("prefill", connector=prefill) as p, ExitStack() as stack:
        peer = f"127.0.0.1:{p.port}"
        yield p, stack.enter_context(WithRole("decode", (peer,), connector=decode))


def left() -> set[str]:
    """What is in the machine's shared memory for transfers."""
    return {path.name for path in SharedMemory().folder.glob("nanovllm-kv-*")}


def test_what_is_offered_is_read_until_it_is_withdrawn(pair: Any) -> None:
    here, there = pair
    before = left()
    names = [uuid.uuid4().hex for _ in range(3)]
    datas = [os.urandom(size) for size in (1, 4097, 3_000_000)]
    offers = [here.offer(name, data) for name, data in zip(names, datas, strict=True)]
    again = here.offer(names[1], datas[1])
    for _ in range(2):  # reading ends nothing
        assert [there.read(offer) for offer in (*offers, again)] == [*datas, datas[1]]
    here.withdraw(names[1])
    here.withdraw(names[1])
    if here.name == "shm":  # with nixl nobody may read then: RDMA does not ask
        with pytest.raises(TransferError):
            there.read(offers[1])
    assert there.read(offers[2]) == datas[2]
    here.close()
    wait_until(lambda: left() <= before)


def test_several_read_at_once(pair: Any) -> None:
    here, there = pair
    data = [os.urandom(200_000) for _ in range(6)]
    offers = [here.offer(uuid.uuid4().hex, each) for each in data]
    got: dict[int, bytes] = {}

    def read(number: int) -> None:
        got[number] = there.read(offers[number])

    threads = [threading.Thread(target=read, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[n] for n in range(6)] == data


@pytest.mark.parametrize("name", ["../etc/passwd", "", None, "nanovllm-kv-", 7])
def test_shared_memory_reads_nothing_else(name: Any, tmp_path: Path) -> None:
    with pytest.raises(TransferError):
        SharedMemory(tmp_path).read({"connector": "shm", "name": name})


def test_files_of_transfers_are_for_one_user(tmp_path: Path) -> None:
    connector = SharedMemory(tmp_path)
    connector.offer(uuid.uuid4().hex, b"secret")
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_one_engine_and_nothing_is_left(kind: str) -> None:
    before = left()
    with two(kind, kind) as (p, d):
        for given in (body(2, 0.0), body(5, 1.0)):
            params = {"kv_transfer_params": {"do_remote_decode": True}}
            params = ask(p.url, given | params).json()["kv_transfer_params"]
            if kind == "shm":  # a transfer that waits is looked at, and still waits
                url = f"{p.url}/kv/{params['remote_request_id']}"
                assert httpx.get(url, trust_env=False).json()["name"] in left() - before
            loaded = d.store.loaded
            answer = ask(d.url, given | {"kv_transfer_params": params}).json()
            assert [[answer["choices"][0]["text"]]] == offline([given])
            assert d.store.loaded > loaded and at_rest(p) and at_rest(d)
            wait_until(lambda: left() <= before)  # other tests' transfers come and go
        assert not d.server.handlers.fallbacks


def test_a_full_shared_memory_sends_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with two("shm", "shm") as (p, d):
        monkeypatch.setattr(SharedMemory, "offer", _full)
        given, wants = body(4, 0.0), {"kv_transfer_params": {"do_remote_decode": True}}
        params = ask(p.url, given | wants).json()["kv_transfer_params"]
        answer = ask(d.url, given | {"kv_transfer_params": params}).json()
        assert [[answer["choices"][0]["text"]]] == offline([given])
        assert d.store.loaded and not d.server.handlers.fallbacks and at_rest(p)


def _full(*args: Any) -> dict[str, Any]:
    raise OSError(28, "No space left on device")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            SharedMemory(tmp_path).offer(uuid.uuid4().hex, bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert not list(tmp_path.iterdir())


def test_two_servers_with_two_connectors_cost_time_only() -> None:
    with two("shm", "tcp") as (p, d):
        given, wants = body(4, 0.0), {"kv_transfer_params": {"do_remote_decode": True}}
        params = ask(p.url, given | wants).json()["kv_transfer_params"]
        answer = ask(d.url, given | {"kv_transfer_params": params}).json()
        assert [[answer["choices"][0]["text"]]] == offline([given])
        assert d.server.handlers.fallbacks == 1


def test_what_is_not_installed_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nixl", "nixl._api"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ClusterError, match="pip install nixl"):
        make_connector("nixl")

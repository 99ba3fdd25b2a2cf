"""The journal, and requests that outlive their connection and their server."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from starlette.middleware import Middleware

from nanovllm.bench.serve_process import own_server
from nanovllm.resilience import durable
from nanovllm.resilience.durable import Durable
from nanovllm.resilience.errors import JournalError, JournalFullError
from nanovllm.resilience.journal import Journal, Record
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.scripted import ScriptedEngine
from tests.processes import ROOT
from tests.serving_tools import Live, tiny_engine, wait_until

BODY = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0.9}


def record(number: int, key: str | None = None, owner: str = "") -> Record:
    return Record(str(number), owner, key, "/v1/completions", "digest", b"{}")


class Against(RuleBasedStateMachine):
    """A journal of at most five requests, reopened at any moment, against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(os.environ["JOURNAL"])
        for left in self.path.parent.glob("journal*"):
            left.unlink()
        self.journal = Journal(self.path, most=5)
        self.truth: dict[str, Record] = {}
        self.number = 0

    @rule(key=st.sampled_from([None, "a", "b"]), owner=st.sampled_from(["", "x"]))
    def accept(self, key: str | None, owner: str) -> None:
        asked = record(self.number, key, owner)
        self.number += 1
        same = [r for r in self.truth.values() if key and (r.owner, r.key) == (owner, key)]
        answered = [r.id for r in self.truth.values() if not r.open]
        if same:
            assert self.journal.accept(asked).id == same[0].id
        elif len(self.truth) == 5 and not answered:
            with pytest.raises(JournalFullError):
                self.journal.accept(asked)
        else:
            if len(self.truth) == 5:
                del self.truth[answered[0]]  # the oldest
            assert self.journal.accept(asked).id == asked.id
            self.truth[asked.id] = asked

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.truth:
            name = data.draw(st.sampled_from(sorted(self.truth)))
            self.journal.end(name, 200, "text/plain", name.encode())
            old = self.truth[name]
            self.truth[name] = Record(
                old.id, old.owner, old.key, old.path, old.digest, old.body, 0.0, 200, "text/plain",
                name.encode(),
            )  # fmt: skip

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self.journal = Journal(self.path, most=5)

    @invariant()
    def agrees(self) -> None:
        for name, wanted in self.truth.items():
            found = self.journal.find(name)
            assert found is not None
            assert (found.answer, found.open, found.key) == (wanted.answer, wanted.open, wanted.key)
        still = [r.id for r in self.truth.values() if r.open]
        assert [found.id for found in self.journal.open_requests()] == still

    def teardown(self) -> None:
        self.journal.close()


def test_against_a_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Against, settings=settings(max_examples=25, stateful_step_count=20, deadline=None)
    )


def test_two_servers_on_one_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path / "journal")
    with pytest.raises(JournalError, match="in use by another server"):
        Journal(tmp_path / "journal")
    first.close()
    Journal(tmp_path / "journal").close()


def test_files_that_are_no_journals(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("this is no database, whatever it may look like to you" * 20)
    with pytest.raises(JournalError, match="cannot be read as a journal"):
        Journal(text)
    other = tmp_path / "other"
    with sqlite3.connect(other) as file:
        file.execute("CREATE TABLE x (y)")
        file.execute("PRAGMA user_version = 7")
    with pytest.raises(JournalError, match="version 7"):
        Journal(other)
    with pytest.raises(JournalError, match="cannot be written"):
        Journal(tmp_path / "nowhere" / "journal")


def test_a_full_disk_accepts_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.accept(record(1))
    [pages] = journal._file.execute("PRAGMA page_count").fetchone()
    journal._file.execute(f"PRAGMA max_page_count = {pages}")
    huge = Record("2", "", None, "/v1/completions", "digest", b"x" * 100_000)
    with pytest.raises(JournalFullError, match="cannot be written"):
        journal.accept(huge)
    assert [found.id for found in journal.open_requests()] == ["1"]


@pytest.mark.parametrize("cut", [1, 100, 4000])
def test_a_file_cut_in_the_middle_of_a_record(tmp_path: Path, cut: int) -> None:
    """What was committed before is there; the torn record is not, and nothing raises."""
    program = (
        "import os, sys\n"
        "from nanovllm.resilience.journal import Journal, Record\n"
        "journal = Journal(sys.argv[1])\n"
        "for n in range(3): journal.accept(Record(str(n), '', None, '/', 'd', b'x' * 3000))\n"
        "os._exit(9)\n"  # as a crash: nothing is closed
    )
    path = tmp_path / "journal"
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=False)
    log = path.with_name("journal-wal")
    log.write_bytes(log.read_bytes()[:-cut])
    found = [one.id for one in Journal(path).open_requests()]
    assert found == ["0", "1", "2"][: len(found)]
    assert len(found) >= 2


def live(journal: Journal, engine: Any = None, **more: Any) -> Live:
    server = Live(engine or tiny_engine(), ServeConfig(model_name="tiny", **more))
    server.server.app.user_middleware.append(Middleware(Durable, journal=journal))
    return server


def fetched(client: httpx.Client, url: str, **more: Any) -> httpx.Response:
    wait_until(lambda: client.get(url, **more).status_code != 202)
    return client.get(url, **more)


def test_an_answer_is_fetched_later() -> None:
    with live(Journal(":memory:")) as server, httpx.Client(base_url=server.url) as client:
        asked = client.post("/v1/completions", json=BODY | {"stream": True},
                            headers={"Prefer": "respond-async"})  # fmt: skip
        assert asked.status_code == 202
        answer = fetched(client, asked.headers["location"])
        assert answer.json()["usage"]["completion_tokens"] >= 1
        assert client.get("/v1/requests/req-nobody").status_code == 404
        server.assert_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeat_gets_the_first_answer(stream: bool) -> None:
    body = BODY | {"stream": stream}
    key = {"Idempotency-Key": "order-1"}
    with live(Journal(":memory:")) as server, httpx.Client(base_url=server.url) as client:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(
                lambda _: client.post("/v1/completions", json=body, headers=key), range(4)
            ))  # fmt: skip
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        other = client.post("/v1/completions", json=body | {"max_tokens": 9}, headers=key)
        assert other.status_code == 400
        assert "another request" in other.json()["error"]["message"]
        assert client.post("/v1/completions", json=body).content != answers[0].content
        server.assert_idle()


def test_whose_answer_it_is() -> None:
    with (
        live(Journal(":memory:"), api_keys=("mine", "yours")) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        mine, yours = ({"Authorization": f"Bearer {key}"} for key in ("mine", "yours"))
        later = {"Prefer": "respond-async", "Idempotency-Key": "k"}
        assert client.post("/v1/completions", json=BODY, headers=later).status_code == 401
        asked = client.post("/v1/completions", json=BODY, headers=later | mine)
        assert client.get(asked.headers["location"], headers=yours).status_code == 404
        assert fetched(client, asked.headers["location"], headers=mine).status_code == 200
        again = client.post("/v1/completions", json=BODY, headers=later | yours)
        assert again.json()["id"] != asked.json()["id"]


@pytest.mark.parametrize(
    ("body", "status"), [("nonsense", 400), (BODY | {"n": 0}, 400), (BODY | {"model": "x"}, 404)]
)
def test_bad_requests(body: Any, status: int) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    with live(Journal(":memory:")) as server, httpx.Client(base_url=server.url) as client:
        for _ in range(2):
            got = client.post("/v1/completions", content=content, headers=headers)
            assert got.status_code == status, got.text
        for key in ("", "k" * 256):
            headers["Idempotency-Key"] = key
            assert (
                client.post("/v1/completions", content=content, headers=headers).status_code == 400
            )


@pytest.mark.parametrize("key", [False, True])
def test_who_was_told_202_is_answered_though_the_server_is_full(key: bool) -> None:
    few = tiny_engine(max_num_seqs=1)
    step = few.step
    few.step = lambda: time.sleep(0.005) or step()
    with (
        live(Journal(":memory:"), few, max_queue=1) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        later = [{"Prefer": "respond-async"} | ({"Idempotency-Key": f"{n}"} if key else {})
                 for n in range(8)]  # fmt: skip
        asked = [client.post("/v1/completions", json=BODY, headers=one) for one in later]
        assert {one.status_code for one in asked} == {202}
        got = [fetched(client, one.headers["location"]) for one in asked]
        assert {one.status_code for one in got} == {200}
        with ThreadPoolExecutor(8) as pool:
            ask = partial(client.post, "/v1/completions", json=BODY | {"max_tokens": 40})
            keys = [{"Idempotency-Key": f"now {n}"} for n in range(8)]
            refused = list(pool.map(lambda one: ask(headers=one), keys))
        full = [keys[n] for n, one in enumerate(refused) if one.status_code == 503]
        assert full and "full" in next(o for o in refused if o.status_code == 503).text
        assert ask(headers=full[0]).status_code == 200, "no refusal is kept"
        server.assert_idle()


def test_an_answer_waits_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "PAUSES", (0.01, 0.05))
    journal, full = Journal(tmp_path / "journal"), threading.Event()
    end = journal.end

    def ends(*words: Any) -> None:
        if full.is_set():
            raise JournalFullError("The journal cannot be written: disk full.")
        end(*words)

    journal.end = ends
    with live(journal) as server, httpx.Client(base_url=server.url) as client:
        full.set()
        key = {"Idempotency-Key": "k", "Prefer": "respond-async"}
        asked = client.post("/v1/completions", json=BODY, headers=key)
        where = asked.headers["location"]
        wait_until(lambda: server.server.engine.num_open == 0)
        time.sleep(0.1)
        assert client.get(where).status_code == 202
        again = client.post("/v1/completions", json=BODY, headers=key)
        assert again.status_code == 202 and again.headers["location"] == where
        full.clear()
        assert fetched(client, where).status_code == 200


def test_an_error_of_its_own_is_the_answer_of_who_was_told_202() -> None:
    engine = tiny_engine()
    journal = Journal(":memory:")
    with live(journal, engine) as server, httpx.Client(base_url=server.url) as client:
        draw = engine.draw

        def fails(plan: Any, logits: Any) -> list[Any]:
            return [RuntimeError("boom") for _ in plan.chunks]

        engine.draw = fails
        asked = client.post("/v1/completions", json=BODY, headers={"Prefer": "respond-async"})
        got = fetched(client, asked.headers["location"])
        assert got.status_code == 500 and journal.open_requests() == []
        engine.draw = draw
        assert client.get(asked.headers["location"]).status_code == 500


def test_a_damaged_file_is_told_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    for number in range(200):
        journal.accept(record(number))
    journal.close()
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 3] = bytes(4096)
    path.write_bytes(data)
    with pytest.raises(JournalError, match="move it away"):
        Journal(path)


@pytest.mark.parametrize("key", [False, True])
def test_what_a_timeout_leaves_is_the_answer(key: bool) -> None:
    """Nobody computes it again: the one who asked for a timeout was the server itself."""
    headers = {"Idempotency-Key": "k"} if key else {"Prefer": "respond-async"}
    journal = Journal(":memory:")
    with (
        live(journal, timeout=1e-4) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        got = client.post("/v1/completions", json=BODY, headers=headers)
        if not key:
            got = fetched(client, got.headers["location"])
        assert got.status_code == 200
        assert got.json()["choices"][0]["stop_reason"] == "timeout"
        assert journal.open_requests() == []


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_keeps_no_key(stream: bool) -> None:
    engine = ScriptedEngine(faults={1: RuntimeError("boom")})
    journal = Journal(":memory:")
    with (
        live(journal, engine=_served(engine)) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        body = BODY | {"stream": stream}
        got = client.post("/v1/completions", json=body, headers={"Idempotency-Key": "k"})
        assert (got.status_code, '"error"' in got.text) == (200 if stream else 503, True)
        assert journal.open_requests() == []
        assert (
            client.post(  # the key is free, also for another body
                "/v1/completions", json=body | {"max_tokens": 9}, headers={"Idempotency-Key": "k"}
            ).status_code
            == 503
        )


def _served(engine: Any) -> Any:
    real = tiny_engine()
    for name in ("tokenizer", "max_model_len", "config"):
        setattr(engine, name, getattr(real, name))
    return engine


def test_answers_outlive_a_killed_server(tmp_path: Path) -> None:
    """Accepted, the server killed at once, another started: every answer is there, once."""
    options = ["--journal", str(tmp_path / "journal"), "--enforce-eager"]
    body = {"model": "target", "prompt": "Once upon a time", "max_tokens": 60, "temperature": 0.8,
            "ignore_eos": True}  # fmt: skip
    with own_server(options) as (url, pid), httpx.Client(base_url=url) as client:
        asked = [
            client.post("/v1/completions", json=body, headers={"Prefer": "respond-async"})
            for _ in range(5)
        ]
        os.kill(pid, signal.SIGKILL)
    with own_server(options) as (url, _), httpx.Client(base_url=url) as client:
        for one in asked:
            answer = fetched(client, one.headers["location"])
            assert answer.json()["usage"]["completion_tokens"] == 60
            assert answer.json() == client.get(one.headers["location"]).json()

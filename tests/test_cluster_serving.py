"""Lab 11 over HTTP: prefill, decode and router in front; texts are those of one engine."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient

from grader.sandbox.memory_use import descendants
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.bench.serve_process import server_process
from nanovllm.cluster.connected_store import ConnectedStore
from nanovllm.cluster.disaggregated import DisaggregatedServer
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.header import fingerprint
from nanovllm.cluster.role import RoleConfig
from nanovllm.cluster.router import Router, RouterConfig
from nanovllm.resilience.careful_router import CarefulRouter
from nanovllm.serving.config import ServeConfig
from tests.processes import run
from tests.serving_tools import (
    CONFIG,
    MODEL,
    TEMPLATE,
    TOKENIZER,
    Live,
    offline,
    server_of_command,
    tiny_engine,
)  # fmt: skip


class WithRole(Live):
    """A live server with a role; its port is known before it starts."""

    def __init__(
        self, role: str, peers: tuple[str, ...] = (), mark: str = "", connector: str = "tcp"
    ) -> None:
        store = ConnectedStore(CONFIG, 200, 4 if peers else 8, model=mark or fingerprint(MODEL))
        engine = Engine(MODEL, EngineConfig(max_num_seqs=8), tokenizer=TOKENIZER, store=store)
        super().__init__(engine)
        config = RoleConfig(role, connector, port=self.port, peers=peers)
        self.server = DisaggregatedServer(config, engine, ServeConfig(model_name="tiny"), TEMPLATE)
        self._run(self.server.app)

    def _run(self, app: Any) -> None:
        settings = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=1
        )
        self.uvicorn = uvicorn.Server(settings)

    @property
    def store(self) -> ConnectedStore:
        return self.server.engine.engine.store


class LiveRouter(Live):
    """A live router."""

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(tiny_engine())
        self.router = Router(config)
        WithRole._run(self, self.router.app)


@pytest.fixture(scope="module")
def three() -> Iterator[tuple[WithRole, WithRole, LiveRouter]]:
    with (
        WithRole("prefill") as p,
        WithRole("decode", (f"127.0.0.1:{p.port}",)) as d,
        LiveRouter(RouterConfig(prefill=(p.url,), decode=(d.url,))) as router,
    ):
        yield p, d, router


def ask(url: str, body: dict[str, Any], path: str = "/v1/completions") -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=30, trust_env=False)


def body(number: int, temperature: float) -> dict[str, Any]:
    text = "Mia has a code and a red house. " * (number % 3 + 1) + str(number)
    return {
        "prompt": TOKENIZER.encode(text),
        "temperature": temperature,
        "seed": number,
        "max_tokens": 9,
    }


def at_rest(live: WithRole) -> bool:
    return live.store.free_tokens == live.store.total_tokens and not live.store.parking.parked


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_one_engine(three: Any, temperature: float) -> None:
    p, d, router = three
    loaded, asked = d.store.loaded, [body(n, temperature) for n in range(5)]
    got = [ask(router.url, each).json()["choices"][0]["text"] for each in asked]
    assert [[text] for text in got] == offline(asked)
    assert d.store.loaded > loaded and at_rest(p) and at_rest(d)
    assert not d.server.handlers.fallbacks


def test_streams_and_chats_pass_through(three: Any) -> None:
    _, _, router = three
    given = body(3, 0.0) | {"stream": True}
    events = [line[6:] for line in ask(router.url, given).text.split("\n") if line[:6] == "data: "]
    assert events[-1] == "[DONE]"
    text = "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])
    assert [[text]] == offline([body(3, 0.0)])
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    answer = ask(router.url, chat, "/v1/chat/completions")
    assert answer.json()["usage"]["completion_tokens"] <= 3
    assert httpx.get(router.url + "/v1/models", trust_env=False).json()["data"][0]["id"] == "tiny"
    page = httpx.get(router.url + "/metrics", trust_env=False).text
    assert 'status="200"' in page and "router_open" in page


def test_what_a_transfer_may_not_be_is_refused(three: Any) -> None:
    p, d, _ = three
    here = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": p.port}
    name = {"remote_request_id": "0" * 32}
    cases = [
        (d, {"do_remote_decode": True}),
        (p, here | name),
        (d, here | {"remote_request_id": "../metrics"}),
        (d, here | name | {"remote_port": 1}),
        (d, here | name | {"do_remote_decode": True}),
    ]
    for live, params in cases:
        answer = ask(live.url, body(1, 0.0) | {"kv_transfer_params": params})
        assert answer.status_code == 400, (params, answer.text)
        assert answer.json()["error"]["param"] == "kv_transfer_params"
    assert at_rest(p) and at_rest(d)


def test_a_transfer_that_is_late_or_doubled_costs_time_only(three: Any) -> None:
    p, d, _ = three
    given = body(7, 0.0)
    first = ask(p.url, given | {"kv_transfer_params": {"do_remote_decode": True}}).json()
    assert first["usage"]["completion_tokens"] == 1
    both = given | {"kv_transfer_params": first["kv_transfer_params"]}
    before = d.server.handlers.fallbacks
    texts = [ask(d.url, both).json()["choices"][0]["text"] for _ in range(2)]
    assert [texts[:1], texts[1:]] == offline([given, given])
    assert d.server.handlers.fallbacks == before + 1  # the second found nothing, and computed
    assert at_rest(p) and at_rest(d)


def test_a_key_without_a_word_is_not_sent_on(three: Any) -> None:
    """As vllm-router sends it where it has no key."""
    p, d, _ = three
    given, before = body(5, 0.0), (d.server.handlers.fallbacks, d.store.loaded)
    first = ask(p.url, given | {"kv_transfer_params": {"do_remote_decode": True}}).json()
    both = given | {"kv_transfer_params": first["kv_transfer_params"]}
    with socket.create_connection(("127.0.0.1", d.port)) as raw:  # httpx refuses such a header
        data = json.dumps(both).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: d\r\nAuthorization: Bearer \r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        raw.sendall(f"{head}Connection: close\r\n\r\n".encode() + data)
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert d.server.handlers.fallbacks == before[0] and d.store.loaded > before[1]
    assert at_rest(p) and at_rest(d)


def test_a_transfer_that_is_cut_costs_time_only(three: Any, monkeypatch: Any) -> None:
    p, d, router = three
    handlers = d.server.handlers
    whole, before = handlers.transport.receive, handlers.fallbacks

    async def cut(*args: Any) -> bytes:
        return (await whole(*args))[:-7]

    monkeypatch.setattr(handlers.transport, "receive", cut)
    given = body(11, 1.0)
    assert [[ask(router.url, given).json()["choices"][0]["text"]]] == offline([given])
    assert handlers.fallbacks == before + 1 and at_rest(d)
    for name in list(p.store.parking.parked):  # nobody acknowledged it: it waits for its time
        httpx.delete(f"{p.url}/kv/{name}", trust_env=False)
    assert at_rest(p)


def test_another_model_is_refused() -> None:
    with WithRole("prefill") as p, WithRole("decode", (f"127.0.0.1:{p.port}",), "other") as d:
        params = ask(p.url, body(1, 0.0) | {"kv_transfer_params": {"do_remote_decode": True}})
        given = body(1, 0.0) | {"kv_transfer_params": params.json()["kv_transfer_params"]}
        answer = ask(d.url, given)
        assert answer.status_code == 400 and "model" in answer.json()["error"]["message"]
        assert at_rest(d)


def test_a_replica_that_is_gone_is_left_alone() -> None:
    with Live(tiny_engine()) as one:
        gone = "http://127.0.0.1:9"
        with LiveRouter(RouterConfig((gone, one.url), policy="round_robin")) as router:
            got = [ask(router.url, body(n, 0.0)).status_code for n in range(4)]
            assert got == [200] * 4
            page = httpx.get(router.url + "/metrics", trust_env=False).text
            assert f'server="{gone}",status="unreachable"}} 1.0' in page
        with LiveRouter(RouterConfig((gone,))) as router:
            answer = ask(router.url, body(1, 0.0))
            assert answer.status_code == 503 and "replica" in answer.json()["error"]["message"]
            assert ask(router.url, [1]).status_code == 400  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ConnectTimeout])
def test_who_cannot_be_reached_rests_and_the_next_is_asked(error: type[Exception]) -> None:
    """Refused at once, or dropped by a firewall until the time is over: nothing was computed."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "a":
            raise error("nobody is there")
        return httpx.Response(200, stream=httpx.ByteStream(b"{}"))

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    router = Router(RouterConfig(("http://a", "http://b"), policy="round_robin"), client)
    with TestClient(router.app) as user:
        got = [user.post("/v1/completions", json={"prompt": "Once"}) for _ in range(4)]
    assert [each.status_code for each in got] == [200] * 4
    assert asked.count("a") == 1 and router.pool.choosable() == ["http://b"]


@pytest.mark.parametrize("role", ["prefill", None])
def test_a_server_has_one_engine_and_says_which(
    role: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--kv-cache-memory-bytes", str(1 << 20), *(["--role", role] if role else [])]
    server, said, made = server_of_command(monkeypatch, *words)
    store = server.engine.engine.store
    assert isinstance(store, ConnectedStore) == (role is not None)
    assert made == (role is None), "a role's engine is made beside the LLM's own"
    assert f"; {store.num_blocks} blocks of {store.block_size} tokens" in said.replace("\n", " ")
    assert 0.9 * (1 << 20) < store.nbytes <= 1 << 20


def test_roles_and_routers_that_cannot_be() -> None:
    for wrong in (
        lambda: RoleConfig("both"),
        lambda: RoleConfig("prefill", "pigeon"),
        lambda: RoleConfig("decode"),
        lambda: RouterConfig(),
        lambda: RouterConfig(prefill=("a",)),
        lambda: RouterConfig(("a", "a")),
        lambda: RouterConfig(("a",), ("b",), ("c",)),
    ):
        with pytest.raises(ClusterError):
            wrong()


def refusing(status: dict[str, int]) -> tuple[Router, list[str]]:
    """A router before servers that answer with these status codes; and who was asked."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        said = json.dumps({"from": request.url.host}).encode()
        return httpx.Response(status[request.url.host], stream=httpx.ByteStream(said))

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    urls = tuple(f"http://{name}" for name in status)
    return Router(RouterConfig(urls, policy="round_robin"), client), asked


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"a": 503, "b": 200}, 200),
        ({"a": 200, "b": 503}, 200),
        ({"a": 503, "b": 503}, 503),
        ({"a": 400, "b": 200}, 400),  # its own answer to this request: nobody else is asked
        ({"a": 503}, 503),
    ],
)
def test_who_refuses_with_a_503_is_passed_over_once(status: dict[str, int], expected: int) -> None:
    router, asked = refusing(status)
    with TestClient(router.app) as client:
        got = client.post("/v1/completions", json={"prompt": "Once"})
        assert got.status_code == expected == status[got.json()["from"]]
        assert len(set(asked)) == len(asked)
        assert client.get("/health").json()["ready"] == [f"http://{name}" for name in status]
        assert not any(router.pool.work.load(url).requests for url in router.pool.urls)


@pytest.mark.parametrize("kind", [Router, CarefulRouter])
def test_a_list_of_models_is_no_work_that_stays(kind: type[Router]) -> None:
    client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, json={}))
    )
    router = kind(RouterConfig(("http://a", "http://b")), client)
    with TestClient(router.app) as user:
        assert [user.get("/v1/models").status_code for _ in range(9)] == [200] * 9
        assert not any(router.pool.work.load(url).requests for url in router.pool.urls)


@pytest.mark.parametrize("kind", [Router, CarefulRouter])
@pytest.mark.parametrize("content", [
    b'{"prompt": "\\ud83d"}', b'{"prompt": "a", "top_p": NaN}', b'{"prompt": "a", "n": 1e999}',
])  # fmt: skip
def test_what_a_server_refuses_reaches_it(kind: type[Router], content: bytes) -> None:
    """The router refuses no value by itself, and passes on what a client is to know."""
    told = {"retry-after": "7", "www-authenticate": "Bearer", "x-request-id": "r", "server": "s"}
    asked = []

    class Piece(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b'{"error": {}}'

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            asked.append(json.loads(request.content))
        return httpx.Response(400, stream=Piece(), headers=told)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    with TestClient(kind(RouterConfig(("http://a",)), client).app) as user:
        headers = {"content-type": "application/json"}
        got = user.post("/v1/completions", content=content, headers=headers)
    assert got.status_code == 400
    assert {name: got.headers.get(name) for name in told} == told | {"server": None}
    [sent] = asked
    assert repr(sent["prompt"]) == repr(json.loads(content)["prompt"])


def test_a_body_that_nests_deeply_is_refused() -> None:
    with TestClient(Router(RouterConfig(("http://a",))).app) as user:
        got = user.post("/v1/completions", content=b'{"a":' + b"[" * 100_000)
    assert got.status_code == 400 and "no JSON" in got.json()["error"]["message"]


@pytest.mark.parametrize("where", ["at once", "before it answers", "in its answer"])
def test_who_prefills_may_die_at_any_moment(where: str) -> None:
    class Cut(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b'{"kv_'
            raise httpx.ReadError("cut")

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "decode":
            assert not json.loads(request.content)["kv_transfer_params"]
            return httpx.Response(200, stream=httpx.ByteStream(b"{}"))
        if where == "in its answer":
            return httpx.Response(200, stream=Cut())
        kind = httpx.ConnectError if where == "at once" else httpx.RemoteProtocolError
        raise kind("gone")

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    config = RouterConfig(prefill=("http://prefill",), decode=("http://decode",))
    router = Router(config, client)
    with TestClient(router.app) as user:
        assert user.post("/v1/completions", json={"prompt": "Once"}).status_code == 200
    assert not router.prefill.work.load("http://prefill").requests


@pytest.mark.proof
def test_one_command_starts_servers_and_router() -> None:
    command = [sys.executable, "-m", "nanovllm.cli", "route", "--port", "0"]
    command += ["--start-prefill", "1", "--start-decode", "1", "--", "--max-num-seqs", "3"]
    found = re.compile(r"router listens at (http://\S+)/v1").search
    with server_process(command, lambda said: (at := found(said)) and at[1]) as (url, pid):
        servers = descendants(pid)
        answer = ask(url, {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 5})
        assert answer.json()["usage"]["completion_tokens"] == 5
        said = httpx.get(url + "/metrics", trust_env=False).text
        assert said.count('status="200"} 1.0') == len(servers) == 2
    assert not any(Path("/proc", str(one)).exists() for one in servers)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--server", "notaurl"], "--server notaurl is no address of a server"),
        (["--server", "http://a", "--server", "ftp://b"], "--server ftp://b is no address"),
        (["--prefill", "http://", "--decode", "http://b"], "--prefill http:// is no address"),
        (["--prefill", "http://a", "--decode", "http://b:x"], "--decode http://b:x is no address"),
        (["--start", "1", "--policy", "x"], "--policy x is not known: use round_robin"),
    ],
)
def test_what_no_router_can_do_is_refused_before_it_listens(words: list[str], says: str) -> None:
    done = run("route", "--port", "0", *words)
    assert done.returncode == 2 and says in done.stderr
    assert done.stderr.count("\n") == 1 and "listens" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--start-prefill", "1"],
        ["--", "--model", "x"],
        ["--start", "1", "--", "--model", "x"],  # which no server can load
    ],
)
@pytest.mark.few(1)
def test_servers_that_cannot_be_started_are_said_in_one_line(words: list[str]) -> None:
    got = subprocess.run(
        [sys.executable, "-m", "nanovllm.cli", "route", *words], capture_output=True, text=True
    )
    assert got.returncode == 2
    assert got.stderr.startswith("nanovllm: ") and got.stderr.count("\n") == 1

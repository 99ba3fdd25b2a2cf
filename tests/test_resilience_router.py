"""The router with lab 12: deadlines, one budget, breakers, and streams that go on elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from nanovllm.cluster.router import RouterConfig
from nanovllm.resilience.breaker import Breaker
from nanovllm.resilience.careful_router import CarefulRouter
from nanovllm.resilience.faults import FaultyEngine
from nanovllm.resilience.journal import Journal
from nanovllm.resilience.kinds import Fault, Kind
from nanovllm.resilience.retry_budget import RetryBudget
from nanovllm.resilience.supervisor import SupervisedEngine
from nanovllm.resilience.take_deadline import TakeDeadline
from tests.flaky_proxy import FlakyProxy, random_cuts
from tests.serving_tools import Live, live, tiny_engine, wait_until
from tests.test_cluster_serving import WithRole
from tests.test_resilience_journal import live as keeping

KINDS: tuple[dict[str, Any], ...] = (  # what a cut could harm
    {"temperature": 0.0},
    {"presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"repetition_penalty": 1.4, "return_token_ids": True},
    {"min_tokens": 20, "logit_bias": {2: 50}, "ignore_eos": False},
    {"stop": ["e", "an", " t"]},
    {"n": 3},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "echo": True},
    {"prompt": [[5, 6], [7, 8]], "stream_options": {"include_usage": True}},
    {"logprobs": 1, "temperature": 0.0},
)


class LiveRouter(Live):
    """A live router, careful."""

    def __init__(self, config: RouterConfig, **more: Any) -> None:
        super().__init__(tiny_engine())
        self.router = CarefulRouter(config, **more)
        WithRole._run(self, self.router.app)


def careful() -> Live:
    """A server that honours deadlines."""
    made = Live(tiny_engine())
    made.server.app.add_middleware(TakeDeadline)
    return made


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Live, Live]]:
    with careful() as one, careful() as other:
        yield one, other
        one.assert_idle()
        other.assert_idle()


def body(number: int) -> dict[str, Any]:
    base = {"prompt": [5 + number % 7, 6, 7], "max_tokens": 40, "ignore_eos": True, "seed": number}
    return base | KINDS[number % len(KINDS)]


class Near(float):
    """A number that equals those that differ from it by less than rounding may."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and abs(float(self) - float(other)) < 1e-3


def chunks(url: str, asked: dict[str, Any], path: str = "/v1/completions") -> list[Any]:
    """What a client gets but for id and time, which differ, and for the last digits of numbers."""
    got = httpx.post(url + path, json=asked | {"stream": True}, timeout=60, trust_env=False)
    events = [line[6:] for line in got.text.split("\n") if line.startswith("data: ")]
    assert events[-1:] == ["[DONE]"], got.text
    found = [json.loads(event, parse_float=Near) for event in events[:-1]]
    assert len({(one.pop("id"), one.pop("created")) for one in found}) == 1
    return found


def test_cut_streams_go_on_at_another_server(two: tuple[Live, Live]) -> None:
    one, other = two
    with (
        FlakyProxy(one.port, random_cuts(1, 0.5, 4000)) as first,
        FlakyProxy(other.port, random_cuts(2, 0.5, 4000), drip=200) as second,
        LiveRouter(RouterConfig((first.url, second.url), policy="round_robin")) as router,
        ThreadPoolExecutor(9) as pool,
    ):
        got = list(pool.map(lambda number: chunks(router.url, body(number)), range(18)))
        cut = first.cuts_made + second.cuts_made
    assert cut >= 8
    for number, told in enumerate(got):
        assert told == chunks(one.url, body(number)), number


def test_chats_and_whole_answers_too(two: tuple[Live, Live]) -> None:
    one, other = two
    asked = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 60, "seed": 3,
             "ignore_eos": True}  # fmt: skip
    with (
        FlakyProxy(one.port, random_cuts(1, 0.5, 900)) as first,
        FlakyProxy(other.port, random_cuts(2, 0.5, 900)) as second,
        LiveRouter(RouterConfig((first.url, second.url), policy="round_robin")) as router,
    ):
        chat = "/v1/chat/completions"
        want = httpx.post(one.url + chat, json=asked).json()["choices"]
        for _ in range(8):
            assert chunks(router.url, asked, chat) == chunks(one.url, asked, chat)
            assert httpx.post(router.url + chat, json=asked).json()["choices"] == want
        page = httpx.get(router.url + "/metrics").text
        assert first.cuts_made + second.cuts_made >= 4
    for kind in ("stream", "whole"):
        assert f'nanovllm:router_retries_total{{kind="{kind}"}}' in page, page


def test_a_server_that_stops_to_answer_is_taken_for_dead(two: tuple[Live, Live]) -> None:
    """As after SIGSTOP: connections are taken, and nothing comes. Then it is well again."""
    one, other = two
    with (
        FlakyProxy(one.port) as proxy,
        LiveRouter(RouterConfig((proxy.url, other.url)), patience=0.5) as router,
        ThreadPoolExecutor(4) as pool,
    ):
        proxy.frozen = True
        for number, told in enumerate(pool.map(lambda n: chunks(router.url, body(n)), range(4))):
            assert told == chunks(one.url, body(number)), number
        wait_until(lambda: router.router.pool.choosable() == [other.url])
        proxy.frozen = False
        wait_until(lambda: len(router.router.pool.choosable()) == 2)


def test_servers_that_stop_cut_their_answers_and_others_go_on(two: tuple[Live, Live]) -> None:
    """A rolling restart: what a draining server gives up is not lost."""
    one, other = two
    long = body(0) | {"max_tokens": 200}
    with (
        live(drain_timeout=0.01) as third,
        LiveRouter(RouterConfig((third.url, other.url), policy="round_robin")) as router,
        ThreadPoolExecutor(4) as pool,
    ):
        told = [pool.submit(chunks, router.url, long) for _ in range(4)]
        whole = pool.submit(httpx.post, router.url + "/v1/completions", json=long)
        wait_until(lambda: third.server.engine.num_open)
        asyncio.run_coroutine_threadsafe(third.server.drain(), third.loop).result()
        want = chunks(one.url, long)
        assert [each.result() == want for each in told] == [True] * 4
        text = "".join(choice["text"] for chunk in want for choice in chunk["choices"])
        assert whole.result().json()["choices"][0]["text"] == text


def test_tokens_of_others_reach_the_engine_through_a_supervisor() -> None:
    """An answer begun by a server, gone on with by another one whose engine dies."""
    asked = body(1)
    with live() as plain:
        want = chunks(plain.url, asked)
        ids = httpx.post(
            plain.url + "/v1/completions", json=asked | {"return_token_ids": True}
        ).json()["choices"][0]["token_ids"]
    steps = count()
    faults = (Fault(6, Kind.CRASH), Fault(17, Kind.LOST))
    engine = SupervisedEngine(lambda: FaultyEngine(tiny_engine(), faults, steps))
    with live(engine) as server:
        rest = chunks(server.url, asked | {"output_token_ids": ids[:11]})
        assert engine.restarts == 2
        for wrong in ([9999], [*ids, 5]):
            given = asked | {"output_token_ids": wrong}
            answer = httpx.post(server.url + "/v1/completions", json=given)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "output_token_ids"
    said = [choice.pop("token_ids") for chunk in rest for choice in chunk["choices"]]
    assert [one for some in said for one in some] == ids[11:]
    assert rest == want[-len(rest) :]


@pytest.mark.parametrize(
    ("milliseconds", "expected"), [("0", 504), ("60000", 200), ("many", 200), (None, 200)]
)
def test_a_server_honours_a_deadline(two: Any, milliseconds: str | None, expected: int) -> None:
    headers = {} if milliseconds is None else {"x-request-timeout-ms": milliseconds}
    got = httpx.post(two[0].url + "/v1/completions", json=body(0), headers=headers)
    assert got.status_code == expected


def test_a_deadline_ends_an_answer_with_its_partial_text(two: tuple[Live, Live]) -> None:
    one, other = two
    asked = body(0) | {"max_tokens": 240}
    headers = {"x-request-timeout-ms": "100"}
    with LiveRouter(RouterConfig((one.url, other.url))) as router:
        got = httpx.post(router.url + "/v1/completions", json=asked, headers=headers).json()
    [choice] = got["choices"]
    assert choice["stop_reason"] == "timeout" and got["usage"]["completion_tokens"] < 240


class Slow(httpx.AsyncBaseTransport):
    """Servers by name: seconds that each takes, and its status (None: no answer)."""

    def __init__(self, servers: dict[str, tuple[float, int | None]]) -> None:
        self.servers = servers
        self.asked: list[tuple[str, int | None]] = []  # who, and the milliseconds it was told

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={})
        told = request.headers.get("x-request-timeout-ms")
        self.asked.append((request.url.host, told and int(told)))
        seconds, status = self.servers[request.url.host]
        await asyncio.sleep(seconds)
        if status is None:
            raise httpx.ReadError("cut")
        return httpx.Response(status, json={"choices": []})


def before(transport: Slow) -> CarefulRouter:
    urls = tuple(f"http://{name}" for name in transport.servers)
    config = RouterConfig(urls, policy="round_robin")
    return CarefulRouter(config, httpx.AsyncClient(transport=transport))


def test_a_deadline_is_not_begun_anew_at_a_hop() -> None:
    transport = Slow({"a": (0.2, 503), "b": (0.2, None), "c": (0.0, 200)})
    with TestClient(before(transport).app) as client:
        headers = {"x-request-timeout-ms": "900"}
        assert client.post("/v1/completions", json={}, headers=headers).status_code == 200
        (_, first), (_, second), (_, third) = transport.asked
        assert first <= 900 and second <= first - 200 and third <= second - 200
        transport.asked.clear()
        late = client.post("/v1/completions", json={}, headers={"x-request-timeout-ms": "250"})
        assert late.status_code == 504 and "time" in late.json()["error"]["message"]
        assert [name for name, _ in transport.asked] == ["a", "b"]


def test_one_budget_pays_all_retries() -> None:
    transport = Slow({"a": (0.0, 500), "b": (0.0, 500)})
    router = before(transport)
    router.budget = RetryBudget(share=0.5, a_second=0.0)
    router.breakers = {url: Breaker(failures=1000) for url in router.breakers}
    with TestClient(router.app) as client:
        for _ in range(8):
            assert client.post("/v1/completions", json={}).status_code == 500
    assert len(transport.asked) == 8 + 4


def test_a_budget_remembers_no_calls_that_count_no_longer() -> None:
    """Also where nothing is ever tried again, so that nobody asks."""
    budget = RetryBudget(share=0.2, a_second=0.0, seconds=10.0)
    for number in range(5000):
        budget.call(number / 8)
        assert len(budget._calls) <= 80
    paid = 0
    while budget.retry(4999 / 8):
        paid += 1
    assert paid == 16


class Cuts(Slow):
    """Cuts the first answer and refuses the next ones with a 503."""

    refused = 30

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        got = await super().handle_async_request(request)
        if request.method == "GET" or len(self.asked) > 1 + self.refused:
            return got
        if len(self.asked) > 1:
            return httpx.Response(503, json={})

        async def cut() -> AsyncIterator[bytes]:
            yield b'{"choices'
            raise httpx.ReadError("cut")

        return httpx.Response(200, content=cut())


@pytest.mark.parametrize("servers", ["a", "ab", "abc"])
def test_every_further_try_of_a_cut_answer_is_paid(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanovllm.resilience.careful_router.PAUSE", 0.0)
    transport = Cuts(dict.fromkeys(servers, (0.0, 200)))
    router = before(transport)
    router.budget = RetryBudget(share=0.0, a_second=0.7)  # 7 retries
    router.breakers = {url: Breaker(failures=1000) for url in router.breakers}
    with TestClient(router.app) as client:
        got = client.post("/v1/completions", json={})
        page = client.get("/metrics").text
    assert got.status_code == 503 and "no retry is left" in got.json()["error"]["message"]
    assert len(transport.asked) == 1 + 7
    told = [line for line in page.split("\n") if line.startswith("nanovllm:router_retries_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in told) == 7


def test_who_looks_for_a_server_pays_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the only server starts anew: nothing is sent to it."""
    monkeypatch.setattr("nanovllm.resilience.careful_router.PAUSE", 0.0)
    transport, looks = Cuts({"a": (0.0, 200)}), count()
    router = before(transport)
    router.budget = RetryBudget(share=0.0, a_second=0.1)  # 1 retry
    choosable = router.pool.choosable

    def away() -> list[str]:
        if len(transport.asked) == 1 and next(looks) < 20:
            return []
        return choosable()

    monkeypatch.setattr(router.pool, "choosable", away)
    monkeypatch.setattr(Cuts, "refused", 0)
    with TestClient(router.app) as client:
        assert client.post("/v1/completions", json={}).status_code == 200
    assert len(transport.asked) == 2


def test_a_breaker_keeps_requests_from_a_server() -> None:
    transport = Slow({"a": (0.0, 500), "b": (0.0, 200)})
    router = before(transport)
    with TestClient(router.app) as client:
        for _ in range(20):
            assert client.post("/v1/completions", json={}).status_code == 200
        assert [name for name, _ in transport.asked].count("a") == Breaker().failures
        assert 'router_breaker_open{server="http://a"} 1.0' in client.get("/metrics").text
        transport.servers["b"] = 0.0, 400  # its sender's fault: nobody else is asked
        assert client.post("/v1/completions", json={}).status_code == 400


def test_streams_of_other_servers_are_passed_on_and_not_resumed() -> None:
    """They do not say their tokens: half an answer is said to be half."""
    parts = [b'data: {"choices": [{"index": 0, "text": "Once"}]}\n\n', None]

    class Half(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for part in parts:
                if part is None:
                    raise httpx.ReadError("cut")
                yield part

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Half())

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    with TestClient(CarefulRouter(RouterConfig(("http://a", "http://b")), client).app) as user:
        said = user.post("/v1/completions", json={"stream": True}).text
    assert "Once" in said and '"code":502' in said and said.endswith("data: [DONE]\n\n")


@pytest.fixture
def journals() -> Iterator[tuple[Live, Live]]:
    """Two servers, each with a journal of its own."""
    with keeping(Journal(":memory:")) as one, keeping(Journal(":memory:")) as other:
        yield one, other


def test_a_key_reaches_one_server_through_the_router(journals: tuple[Live, Live]) -> None:
    """A repeat gets the first answer, and the servers share the keys."""
    urls = tuple(server.url for server in journals)
    asked = {"prompt": [5, 6, 7], "max_tokens": 12, "temperature": 1.0}
    with LiveRouter(RouterConfig(urls, policy="round_robin")) as router:

        def answer(key: str) -> bytes:
            headers = {"Idempotency-Key": key}
            got = httpx.post(router.url + "/v1/completions", json=asked, headers=headers)
            assert got.status_code == 200, got.text
            return got.content

        first = {key: answer(key) for key in map(str, range(12))}
        with ThreadPoolExecutor(4) as pool:
            assert dict(zip(first, pool.map(answer, first), strict=True)) == first
        assert len(set(first.values())) == len(first)
        other = httpx.post(
            router.url + "/v1/completions", json=asked | {"max_tokens": 3},
            headers={"Idempotency-Key": "1"},
        )  # fmt: skip
        assert other.status_code == 400
        page = httpx.get(router.url + "/metrics").text
    for url in urls:
        assert f'nanovllm:router_requests_total{{server="{url}",status="200"}}' in page


def test_an_answer_is_fetched_through_the_router(journals: tuple[Live, Live]) -> None:
    one, other = journals
    asked = {"prompt": [5, 6, 7], "max_tokens": 12}
    with FlakyProxy(one.port) as proxy:
        config = RouterConfig((proxy.url, other.url), policy="round_robin")
        with (
            LiveRouter(config, patience=0.5) as router,
            httpx.Client(base_url=router.url) as client,
        ):
            said = [
                client.post("/v1/completions", json=asked, headers={"Prefer": "respond-async"})
                for _ in range(4)
            ]
            assert [got.status_code for got in said] == [202] * 4
            assert {got.headers["preference-applied"] for got in said} == {"respond-async"}
            for got in said:
                where = got.headers["location"]
                wait_until(lambda where=where: client.get(where).status_code != 202)
                assert client.get(where).json()["usage"]["completion_tokens"] >= 1
            assert client.get("/v1/requests/req-nobody").status_code == 404
            proxy.frozen = True
            wait_until(lambda: router.router.pool.choosable() == [other.url])
            found = sorted(client.get(got.headers["location"]).status_code for got in said)
            assert found == [200, 200, 503, 503]
            assert "may have this request" in client.get("/v1/requests/req-nobody").text


def test_a_key_whose_server_is_away_is_answered_by_another(journals: tuple[Live, Live]) -> None:
    one, other = journals
    asked = {"prompt": [5, 6, 7], "max_tokens": 12, "temperature": 0.0}
    with FlakyProxy(one.port) as proxy:
        config = RouterConfig((proxy.url, other.url))
        with LiveRouter(config, patience=0.5) as router:

            def text(key: int) -> str:
                got = httpx.post(
                    router.url + "/v1/completions", json=asked,
                    headers={"Idempotency-Key": str(key)}, timeout=30,
                )  # fmt: skip
                assert got.status_code == 200, got.text
                return got.json()["choices"][0]["text"]

            proxy.frozen = True
            assert len({text(key) for key in range(6)}) == 1

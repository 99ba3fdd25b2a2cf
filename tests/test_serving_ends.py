"""Nobody waits for an engine that has ended: what its last step did not answer fails."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.events import EngineEvent
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.app import Server
from nanovllm.serving.async_engine import AsyncEngine
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.errors import EngineDeadError
from nanovllm.serving.scripted import ScriptedEngine
from tests.serving_tools import TOKENIZER


class Held(ScriptedEngine):
    """Its first step begins, waits for `go`, and then dies if it was told to."""

    dies = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def step(self) -> list[EngineEvent]:
        self.begun.set()
        self.go.wait(20)
        if self.dies:
            raise RuntimeError("out of memory")
        return super().step()


def held() -> Held:
    return Held(script=lambda prompt, index: ["word "] * 1000)


async def in_step(engine: Held) -> None:
    while not engine.begun.is_set():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("dies", [True, False])
def test_a_call_made_in_the_last_step_ends(dies: bool) -> None:
    engine = held()
    engine.dies = dies
    front = AsyncEngine(engine)

    async def main() -> list[Any]:
        front.start()
        front.submit([[1]], SamplingParams(max_tokens=900))
        await in_step(engine)
        asked = [asyncio.ensure_future(front.call(lambda engine: engine.steps)) for _ in range(2)]
        await asyncio.sleep(0)
        asked[1].cancel()  # its caller has gone
        stopping = asyncio.ensure_future(front.stop())
        await asyncio.sleep(0)
        engine.go.set()
        ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)
        await stopping
        return ends

    first, second = asyncio.run(main())
    assert isinstance(first, EngineDeadError)
    assert ("out of memory" in str(first)) == dies
    assert isinstance(second, asyncio.CancelledError)


def test_a_call_after_the_end_is_refused() -> None:
    front = AsyncEngine(ScriptedEngine())

    async def main() -> None:
        front.start()
        assert await front.call(lambda engine: engine.max_num_seqs) == 4
        await front.stop()
        with pytest.raises(EngineDeadError, match="stopped"):
            await front.call(lambda engine: engine.max_num_seqs)

    asyncio.run(main())


def test_what_a_call_raises_is_its_callers_and_harms_nobody() -> None:
    front = AsyncEngine(ScriptedEngine())

    def throw(error: BaseException) -> None:
        raise error

    async def main() -> None:
        front.start()
        for error in (KeyError("luck"), SystemExit("no room"), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                await front.call(lambda engine, error=error: throw(error))
        assert front.alive and await front.call(lambda engine: engine.max_num_seqs) == 4
        await front.stop()

    asyncio.run(main())


def test_a_stop_returns_when_the_thread_has_ended() -> None:
    class Slow(AsyncEngine):
        def _run(self) -> None:
            super()._run()
            time.sleep(0.2)

    front = Slow(ScriptedEngine())

    async def main() -> None:
        front.start()
        await front.stop()
        assert not front._worker.is_alive()

    asyncio.run(main())


class Stuck(ScriptedEngine):
    """None of its requests can run."""

    def step(self) -> list[EngineEvent]:
        self.steps += 1
        return []


def test_where_nobody_can_run_the_thread_rests_until_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nanovllm.serving.async_engine.REST", 600.0)
    engine, seen = Stuck(), []
    front = AsyncEngine(engine, [lambda events, usage: seen.append(events)])

    async def main() -> None:
        front.start()
        for number in range(3):
            front.submit([[1]], SamplingParams(max_tokens=9))
            while engine.steps <= number:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        await front.call(lambda engine: None)  # it wakes, too
        await front.stop()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert 3 <= engine.steps <= 8  # a submit in a step may be worth two
    assert len(seen) == engine.steps, "observers hear of every step"


def test_the_dashboard_hears_of_a_death() -> None:
    engine: Any = held()
    engine.dies = True
    engine.tokenizer, engine.max_model_len = TOKENIZER, 2000
    engine.config = EngineConfig(max_num_seqs=4)
    server = Server(engine, ServeConfig(model_name="tiny"))

    async def main() -> list[httpx.Response]:
        transport = httpx.ASGITransport(server.app)
        client = httpx.AsyncClient(transport=transport, base_url="http://lab")
        async with server.app.router.lifespan_context(server.app), client:
            body = {"prompt": "Once", "max_tokens": 900}
            asked = [asyncio.ensure_future(client.post("/v1/completions", json=body))]
            await in_step(engine)
            asked.append(asyncio.ensure_future(client.get("/dashboard/state")))
            await asyncio.sleep(0.1)  # the dashboard waits for the step to end
            engine.go.set()
            return await asyncio.wait_for(asyncio.gather(*asked), 20)

    answers = asyncio.run(main())
    assert [answer.status_code for answer in answers] == [503, 503]
    assert [answer.json()["error"]["type"] for answer in answers] == ["EngineDeadError"] * 2

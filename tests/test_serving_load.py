"""The server under load and under faults, over real sockets."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
import threading
import time

import httpx
import pytest

from nanovllm.generation.sampling import argmax_sampler, sample
from nanovllm.serving.run import allow_open_files
from nanovllm.serving.scripted import ScriptedEngine
from tests.serving_tools import (
    TOKENIZER,
    live,
    offline,
    stream_text,
    text_of,
    tiny_engine,
    wait_until,
)


def request(i: int, tokens: int = 12) -> dict:
    """A request of its own: its prompt, its seed, its length."""
    return {
        "prompt": [65 + i % 60] * (1 + i % 9), "seed": i, "max_tokens": tokens + i % 5,
        "temperature": 1.0, "ignore_eos": True,
    }  # fmt: skip


def scripted(**more) -> ScriptedEngine:
    """An engine that says what it is told, with what a server asks of it."""
    engine = ScriptedEngine(**more)
    engine.tokenizer, engine.max_model_len = TOKENIZER, 10**6
    engine.config = tiny_engine().config
    return engine


def test_200_streams_are_neither_lost_nor_mixed_up() -> None:
    bodies = [request(i) for i in range(200)]
    with live(tiny_engine(64)) as server:

        async def main():
            return await asyncio.gather(*(stream_text(server.port, body) for body in bodies))

        answers = asyncio.run(main())
        assert [status for status, _ in answers] == [200] * 200
        assert [[text_of(events)] for _, events in answers] == offline(bodies)
        server.assert_idle()
        assert server.metric("request_success_total", finished_reason="length") == 200


def test_1000_clients_over_the_limit_get_503_and_the_others_their_answer() -> None:
    allow_open_files()  # the clients are in this process, too
    with live(tiny_engine(8), max_queue=32) as server:

        async def main():
            asks = (stream_text(server.port, request(i, 20)) for i in range(1000))
            return await asyncio.gather(*asks)

        answers = asyncio.run(main())
        told = [status for status, _ in answers]
        assert set(told) == {200, 503} and told.count(200) >= 40
        assert all(e[0]["error"]["code"] == 503 for status, e in answers if status == 503)
        served = [i for i, status in enumerate(told) if status == 200]
        texts = [[text_of(answers[i][1])] for i in served]
        assert texts == offline([request(i, 20) for i in served])
        server.assert_idle()
        again = httpx.post(server.url + "/v1/completions", json=request(1))
        assert again.status_code == 200


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    program = (
        "import resource as r; from nanovllm.serving.run import allow_open_files as allow;"
        "r.setrlimit(r.RLIMIT_NOFILE, (256, 4000)); allow(); print(*r.getrlimit(r.RLIMIT_NOFILE));"
        "allow(100); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["4000", "4000"] * 2, done.stderr


def test_clients_that_leave_at_random_leave_nothing_behind() -> None:
    draws = random.Random(5)
    with live(tiny_engine(16), max_queue=400) as server:
        leaving = [draws.choice((0, 1, 4)) if draws.random() < 0.3 else None for _ in range(150)]

        async def main():
            return await asyncio.gather(
                *(stream_text(server.port, request(i, 40), leaving[i]) for i in range(150))
            )

        answers = asyncio.run(main())
        stayed = [i for i in range(150) if leaving[i] is None]
        texts = [[text_of(answers[i][1])] for i in stayed]
        assert texts == offline([request(i, 40) for i in stayed])
        server.assert_idle()
        ended = {
            reason: server.metric("request_success_total", finished_reason=reason)
            for reason in ("stop", "length", "abort", "error")
        }
        assert ended["length"] >= leaving.count(None) and ended["error"] == 0
        assert ended["abort"] > 0


def test_a_client_that_leaves_stops_the_work_also_without_a_stream() -> None:
    with live(scripted(script=lambda prompt, index: ["x "] * 10**5, pause=0.002)) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                server.url + "/v1/completions",
                json={"prompt": "a", "max_tokens": 50_000},
                timeout=0.5,
            )
        server.assert_idle()
        assert server.metric("request_success_total", finished_reason="abort") == 1


def test_a_slow_reader_holds_nobody_up() -> None:
    script = ["word " * 200] * 3000  # far more than any buffer on the way
    engine = scripted(script=lambda prompt, index: script if prompt[0] == 65 else ["a ", "b"])
    with live(engine) as server:

        async def main():
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
            body = b'{"prompt": [65], "max_tokens": 3000, "stream": true}'
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            await reader.readline()  # and never again
            quick = [await stream_text(server.port, {"prompt": [66]}) for _ in range(20)]
            writer.transport.abort()
            return quick

        answers = asyncio.run(main())
        assert [text_of(events) for _, events in answers] == ["a b"] * 20
        server.assert_idle()


def test_a_dead_engine_is_reported_to_everybody() -> None:
    engine = scripted(
        script=lambda prompt, index: ["x "] * 10**5, max_num_seqs=4,
        faults={300: MemoryError("no memory")},
    )  # fmt: skip
    with live(engine) as server:
        assert httpx.get(server.url + "/health").status_code == 200

        async def main():
            asks = (stream_text(server.port, {"prompt": [65], "max_tokens": 10**4})
                    for _ in range(8))  # fmt: skip
            return await asyncio.gather(*asks)

        for status, events in asyncio.run(main()):
            assert (status, events[-1]) == (200, "[DONE]")
            assert events[-2]["error"]["type"] == "EngineDeadError"
        answer = httpx.get(server.url + "/health")
        assert answer.status_code == 503 and "no memory" in answer.json()["error"]["message"]
        for stream in (True, False):
            body = {"prompt": "a", "stream": stream}
            refused = httpx.post(server.url + "/v1/completions", json=body)
            assert refused.status_code == 503
        assert httpx.get(server.url + "/dashboard/state").status_code == 503
        assert httpx.get(server.url + "/metrics").status_code == 200
        wait_until(lambda: not server.tasks())


def test_one_failing_request_fails_alone() -> None:
    def touchy(logits, rows):
        if any(row.params.min_tokens == 3 and len(row.output_token_ids) == 2 for row in rows):
            raise ValueError("not this one")
        return sample(logits, rows)

    with live(tiny_engine(8, sampler=touchy)) as server:
        bad = request(3) | {"min_tokens": 3}

        async def main():
            asks = [stream_text(server.port, request(i)) for i in range(6)]
            return await asyncio.gather(*asks, stream_text(server.port, bad))

        *good, failed = asyncio.run(main())
        texts = [[text_of(events)] for _, events in good]
        assert texts == offline([request(i) for i in range(6)])
        assert failed[1][-1] == "[DONE]" and failed[1][-2]["error"]["code"] == 500
        whole = httpx.post(server.url + "/v1/completions", json=bad)
        assert whole.status_code == 500 and whole.json()["error"]["type"] == "InternalServerError"
        assert re.fullmatch(r"[\w.-]+", whole.headers["x-request-id"])
        server.assert_idle()
        assert server.metric("request_success_total", finished_reason="error") == 2


def test_a_timeout_returns_what_there_is() -> None:
    engine = scripted(script=lambda prompt, index: ["x "] * 10**5, pause=0.002)
    with live(engine, timeout=1.5) as server:
        body = {"prompt": "a", "max_tokens": 10**4}
        choice = httpx.post(server.url + "/v1/completions", json=body).json()["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
        assert choice["text"].startswith("x x ")


def test_the_dashboard_shows_what_runs_and_cancels_it() -> None:
    def slow(logits, rows):
        time.sleep(0.01)
        return argmax_sampler(logits, rows)

    body = {"prompt": "a", "max_tokens": 250, "ignore_eos": True}
    with live(tiny_engine(2, sampler=slow)) as server:
        found = []
        headers = {"X-Request-Id": "mine"}
        ask = threading.Thread(
            target=lambda: found.append(
                httpx.post(server.url + "/v1/completions", json=body, headers=headers, timeout=60)
            )
        )
        ask.start()
        wait_until(lambda: server.metric("num_requests_running") == 1)
        state = httpx.get(server.url + "/dashboard/state", timeout=60).json()
        (row,) = state["running"]
        assert (row["id"], row["state"], len(row["blocks"])) == ("cmpl-mine", "running", 1)
        assert 0 < state["kv"]["usage"] < 1 and state["batch"]["running"] == 1
        cancel = httpx.post(server.url + "/dashboard/cancel", json={"id": "cmpl-mine"}, timeout=60)
        assert cancel.json() == {"cancelled": "cmpl-mine"}
        ask.join()
        (choice,) = found[0].json()["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("abort", "cancelled")
        assert found[0].json()["usage"]["completion_tokens"] < 250
        assert found[0].headers["X-Request-Id"] == "mine"
        gone = httpx.post(server.url + "/dashboard/cancel", json={"id": "cmpl-mine"})
        assert gone.status_code == 404
        server.assert_idle()


def test_tokens_a_minute_for_each_key() -> None:
    with live(api_keys=("one", "two"), rate_limit=60) as server:
        body = {"prompt": [65] * 40, "max_tokens": 30, "ignore_eos": True}

        def ask(key: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}"}
            return httpx.post(server.url + "/v1/completions", json=body, headers=headers)

        assert [ask(key).status_code for key in ("one", "one", "two", "three")] == [
            200, 429, 200, 401
        ]  # fmt: skip
        assert 1 <= int(ask("one").headers["Retry-After"]) <= 11
        assert httpx.get(server.url + "/v1/models").status_code == 401
        assert httpx.get(server.url + "/health").status_code == 200

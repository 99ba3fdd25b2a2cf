"""Whatever a client sends, it gets a clear answer: never a 422, a 5xx, or silence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from tests.serving_tools import live, tiny_engine, wait_until

# `SCHEMATHESIS_CASES=2000 pytest tests/test_serving_inputs.py -k schema` runs the long version.
CASES = int(os.environ.get("SCHEMATHESIS_CASES", "200"))
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server():
    with live(tiny_engine(8), max_body_bytes=300_000, timeout=5.0) as running:
        yield running


def post(server, path: str, content: bytes, **headers: str) -> httpx.Response:
    with httpx.Client(timeout=60) as client:
        return client.post(server.url + path, content=content, headers=JSON | headers)


def assert_told(answer: httpx.Response, status: int = 400) -> None:
    """The answer has this status and says why in OpenAI's form."""
    assert answer.status_code == status, answer.text[:300]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == status
    assert error["message"] and len(answer.content) < 2000


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"7", b'"text"', b"\xff\xfe{}", b'{"prompt": "\xff"}',
        b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "top_p": Infinity}',
        b'{"prompt": "a", "presence_penalty": -Infinity}', b'{"prompt": "a", "min_p": 1e400}',
        b'{"prompt": "a", "logit_bias": {"5": NaN}}', b'{"prompt": "a", "logit_bias": [1]}',
        b'{"prompt": "a", "seed": 1e30}', b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "max_tokens": -5}', b'{"prompt": "a", "max_tokens": 0}',
        b'{"prompt": "a", "n": 0}', b'{"prompt": "a", "stop": ""}', b'{"prompt": "a", "stop": [1]}',
        b'{"prompt": "a", "stop_token_ids": [99999]}', b'{"prompt": {"a": 1}}', b'{"prompt": 5}',
        b'{"prompt": [1.5]}', b'{"prompt": [[]]}', b'{"prompt": ["a", [1]], "n": "x"}',
        b'{"prompt": [true]}', b'{"prompt": [-1]}', b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "stream": "perhaps"}', b'{"prompt": "a", "stream_options": 3}',
        b'{"prompt": "a", "logprobs": 500}', b'{"prompt": "a", "min_tokens": 99}',
        b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        json.dumps({"prompt": "a", "stop": ["x"] * 10_000}).encode(),
        json.dumps({"prompt": "a", "stop": "x" * 50_000}).encode(),
        json.dumps({"prompt": "word " * 50_000}).encode(),
        json.dumps({"prompt": ["a"] * 5000}).encode(),
        json.dumps({"prompt": "a", "logit_bias": {str(i): 1 for i in range(5000)}}).encode(),
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)  # fmt: skip
def test_bad_completions(server, body: bytes) -> None:
    assert_told(post(server, COMPLETIONS, body))


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []}, {"messages": "hello"}, {"messages": [{}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": 5, "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        {"messages": [{"role": "user", "content": "word " * 20_000}]},
        {"messages": [{"role": "user", "content": "a"}] * 3000},
        {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3},
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]},
        {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json"}},
        {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 9999},
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": 1}},
    ],
    ids=lambda body: str(body)[:60],
)  # fmt: skip
def test_bad_chats(server, body: dict) -> None:
    assert_told(post(server, CHAT, json.dumps(body).encode()))


def test_null_means_the_default(server) -> None:
    names = ("n", "temperature", "top_p", "seed", "stop", "max_tokens", "logit_bias", "stream",
             "stream_options", "echo", "logprobs", "user", "model")  # fmt: skip
    body = {"prompt": "a"} | dict.fromkeys(names)
    assert post(server, COMPLETIONS, json.dumps(body).encode()).status_code == 200


def test_bodies_too_large_are_refused_before_they_are_read(server) -> None:
    assert_told(post(server, COMPLETIONS, b"x" * 400_000), 413)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n"
        sock.sendall(head)
        assert sock.recv(100).startswith(b"HTTP/1.1 413")

    async def endless():
        async def pieces():
            while True:
                yield b"x" * 10_000

        async with httpx.AsyncClient(timeout=60) as client:
            return await client.post(server.url + COMPLETIONS, content=pieces())

    with contextlib.suppress(httpx.TransportError):  # the server has answered and closed
        assert asyncio.run(endless()).status_code == 413


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/", "/v1/completions/", "/v1/models/../../etc/passwd", "/v1//completions",
     "/%2e%2e/%2e%2e/etc/passwd", "/v1/models/%00", "/METRICS", "/v1/models/a%2Fb",
     "/.env", "/%ff%fe", "/v1/completions;a=b", "/metrics/"],
)  # fmt: skip
def test_paths(server, path: str) -> None:
    for method in (b"GET", b"POST"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
            sock.sendall(
                method + b" " + path.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
                b"Content-Type: application/json\r\nConnection: close\r\n\r\n{}"
            )
            answer = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))
        status = int(answer.split()[1])
        assert status in (404, 405), (path, answer[:200])
        assert b'{"error":{"message"' in answer


def test_what_is_not_http_is_refused(server) -> None:
    for nonsense in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"POST / HTTP/1.1\r\nA\x00: b\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
            sock.sendall(nonsense + b"\r\n\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 400")


def test_ids_of_requests_are_kept_if_harmless(server) -> None:
    given = {"abc-1.2_3": True, "x" * 65: False, "a b": False, 'a"}': False, "": False}
    for name, kept in given.items():
        answer = httpx.get(server.url + "/version", headers={"X-Request-Id": name})
        assert (answer.headers["X-Request-Id"] == name) is kept


def test_every_request_leaves_one_line_in_the_log(server, caplog) -> None:
    with caplog.at_level(logging.INFO, "nanovllm.serving.access"):
        answer = post(server, COMPLETIONS, b'{"prompt": "a", "max_tokens": 2}')
        wait_until(lambda: caplog.records)  # the line is written after the answer was sent
    (record,) = [r for r in caplog.records if r.name == "nanovllm.serving.access"]
    fields = record.fields
    assert fields["request_id"] == answer.headers["X-Request-Id"]
    assert (fields["status"], fields["path"], fields["id"]) == (
        200,
        COMPLETIONS,
        answer.json()["id"],
    )
    assert fields["completion_tokens"] == answer.json()["usage"]["completion_tokens"]


def test_the_document_says_what_the_server_does(server) -> None:
    document = httpx.get(server.url + "/openapi.json").json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert {"400", "503"} <= set(operation["responses"]) and "422" not in operation[
                "responses"
            ], path
    assert "ValidationError" not in json.dumps(document)
    assert httpx.get(server.url + "/docs").status_code == 200


def test_schemathesis_finds_no_5xx(server) -> None:
    """Requests made up from our own OpenAPI document, valid and not."""
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    served = {f"{operation.method.upper()} {operation.path}" for operation in operations}
    assert served >= {
        "GET /v1/models", "GET /v1/models/{model}", "POST /v1/completions",
        "POST /v1/chat/completions", "POST /tokenize", "POST /detokenize", "GET /metrics",
    }  # fmt: skip
    seen: dict[int, int] = {}

    for operation in operations:
        weight = 3 if "completions" in operation.path else 1
        count = CASES * weight // (len(operations) + 4)

        @settings(
            max_examples=max(count, 3), deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        )  # fmt: skip
        def ask(case) -> None:
            answer = case.call()
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)
            assert answer.status_code != 422
            if answer.status_code >= 400:
                assert answer.json()["error"]["message"]

        operation_strategy(operation, ask)
    print(f"{sum(seen.values())} cases, by status: {dict(sorted(seen.items()))}")
    assert sum(seen.values()) >= CASES, seen
    server.assert_idle()


def operation_strategy(operation, test) -> None:
    """Run `test` on generated cases of an operation, right ones and wrong ones.

    Where an operation takes nothing there is no wrong way to ask for it.
    """
    given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))(test)()
    with contextlib.suppress(Unsatisfiable):
        given(case=operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))(test)()

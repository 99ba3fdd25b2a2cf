"""Structured output over HTTP: OpenAI's field and vLLM's, bad requests, and the openai package."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from typing import Any, Literal

import httpx
import openai
import pytest
import regex
from pydantic import BaseModel, Field

from nanovllm.generation.params import SamplingParams
from nanovllm.serving.errors import BadRequestError
from nanovllm.serving.protocol import CompletionRequest
from nanovllm.serving.scripted import ScriptedEngine
from nanovllm.serving.structured import with_structure
from tests.serving_tools import Live, tiny_engine
from tests.test_structured_output import KINDS, PERSON, WRONG

# `FUZZ_CASES=2000 pytest tests/test_structured_serving.py -k fuzz` runs the long version.
CASES = int(os.environ.get("FUZZ_CASES", "80"))
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PATHS = {COMPLETIONS: {"prompt": "Hi"}, CHAT: {"messages": [{"role": "user", "content": "Hi"}]}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


@pytest.fixture(scope="module")
def server():
    with Live(tiny_engine(8)) as running:
        yield running
        running.assert_idle()


@pytest.fixture
def ask(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        json_type = {"Content-Type": "application/json"}
        yield lambda path, **body: client.post(
            path, content=json.dumps(PATHS[path] | body), headers=json_type
        )


def resident_bytes() -> int:
    """Of this process."""
    with open("/proc/self/statm") as counts:
        return int(counts.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def text_of(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_vllms_field(ask, server, path: str, kind: str) -> None:
    given, whole, begins = KINDS[kind]
    body = {"structured_outputs": given, "n": 3, "seed": 2, "max_tokens": 60}
    answer = ask(path, **body)
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        done = choice["finish_reason"] == "stop"
        assert (whole if done else begins)(text_of(choice)), choice
    texts = [""] * 3
    for choice in streamed(server, path, **body):
        delta = choice.get("text") or choice.get("delta", {}).get("content")
        texts[choice["index"]] += delta or ""
    assert texts == [text_of(choice) for choice in answer.json()["choices"]]


def streamed(server, path: str, **body: Any) -> list[dict[str, Any]]:
    body = PATHS[path] | body | {"stream": True}
    with httpx.stream("POST", server.url + path, json=body, timeout=60) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [choice for line in lines[:-1] for choice in json.loads(line).get("choices", ())]


@pytest.mark.parametrize("path", PATHS)
def test_openais_field(ask, path: str) -> None:
    spaces = {"structured_outputs": {"whitespace_pattern": " ?"}}
    body = {"seed": 4, "n": 4, "max_tokens": 80}
    for more in ({"response_format": SCHEMA}, {"response_format": SCHEMA} | spaces):
        for choice in ask(path, **body, **more).json()["choices"]:
            if choice["finish_reason"] == "stop":
                KINDS["json"][1](text_of(choice))
    whole = ask(path, **body, response_format=SCHEMA, **spaces).json()["choices"]
    assert [choice["finish_reason"] for choice in whole].count("stop") > 1
    assert all("  " not in text_of(choice).split('"age"')[-1] for choice in whole)
    for choice in ask(path, **body, response_format={"type": "json_object"}).json()["choices"]:
        assert text_of(choice).startswith("{")
    free = ask(path, **body).json()["choices"]
    for nothing in (None, {"type": "text"}):
        same = ask(path, **body, response_format=nothing, structured_outputs={}).json()["choices"]
        assert [text_of(a) for a in same] == [text_of(a) for a in free]


@pytest.mark.parametrize(
    ("field", "given", "says"),
    [
        *(("structured_outputs", given, says) for given, says in WRONG
          if given and json.dumps(given).isascii() and "NaN" not in json.dumps(given)),
        ("structured_outputs", {"structural_tag": "x"}, "structural_tag"),
        ("structured_outputs", {"disable_additional_properties": True}, "disable_additional"),
        ("structured_outputs", {"disable_any_whitespace": True}, "asks for nothing"),
        ("structured_outputs", "json", "object"), ("structured_outputs", [], "object"),
        ("response_format", {"type": "wat"}, "json_object"), ("response_format", {}, "required"),
        ("response_format", {"type": "json_schema"}, "schema is missing"),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a"}}, "is missing"),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}, "required"),
        ("response_format", {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "wat"}}}, "response_format.json cannot be followed"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_bad_requests_name_the_field(ask, field: str, given: Any, says: str) -> None:
    for path in PATHS:
        answer = ask(path, **{field: given})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == field and error["message"].endswith("."), error
        if "must be" not in says:  # types are pydantic's
            assert regex.search(says, error["message"]), error


def test_two_askers_are_refused(ask) -> None:
    both = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    error = ask(COMPLETIONS, **both).json()["error"]
    assert error["param"] == "response_format" and "leave one out" in error["message"]


def test_what_fails_later_is_a_bad_request_too(ask, server) -> None:
    """Its first token is told before anybody knows; then the stream says so."""
    wide = {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}}
    asked = {"structured_outputs": {"json": wide}, "max_tokens": 30}
    answer = ask(COMPLETIONS, **asked)
    assert answer.status_code == 400
    assert "cannot be followed any further" in answer.json()["error"]["message"]
    body = PATHS[COMPLETIONS] | asked | {"stream": True}
    with httpx.stream("POST", server.url + COMPLETIONS, json=body) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert lines[-1] == "[DONE]" and json.loads(lines[-2])["error"]["code"] == 400
    narrow = {"structured_outputs": {"choice": ["a"]}, "allowed_token_ids": [70]}
    assert "leaves no token" in ask(COMPLETIONS, **narrow).json()["error"]["message"]


def test_an_engine_that_cannot_says_so() -> None:
    body = CompletionRequest(prompt="a", structured_outputs={"regex": "a"})
    with pytest.raises(BadRequestError, match="is not followed by this engine") as caught:
        asyncio.run(with_structure(SamplingParams(), body, ScriptedEngine()))
    assert caught.value.param == "structured_outputs"


def test_others_are_answered_while_a_grammar_is_compiled(server) -> None:
    """The event loop goes on: an answer comes before one with many large schemas."""
    schemas = [
        {"type": "object", "properties": {f"p{i}": {"type": "integer", "minimum": k}
                                          for i in range(900)}}
        for k in range(4)
    ]  # fmt: skip

    async def main() -> list[str]:
        done: list[str] = []
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:

            async def ask(name: str, **body: Any) -> None:
                answer = await client.post(COMPLETIONS, json=PATHS[COMPLETIONS] | body)
                assert answer.status_code == 200, answer.text
                done.append(name)

            large = [
                asyncio.create_task(ask("large", structured_outputs={"json": schema}, max_tokens=1))
                for schema in schemas
            ]
            await asyncio.sleep(0.02)
            await ask("small", max_tokens=1)
            await asyncio.gather(*large)
        return done

    assert asyncio.run(main())[-1] == "large"


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    legs: int = Field(ge=0, le=8)
    tame: bool | None


class Home(BaseModel):
    pets: list[Pet] = Field(max_length=2)
    city: Literal["Rome", "Oslo"]


def test_the_openai_package_parses(server) -> None:
    spaces = {"structured_outputs": {"disable_any_whitespace": True}}
    with openai.OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0) as client:
        for seed in range(3):
            answer = client.chat.completions.parse(
                model="tiny", messages=PATHS[CHAT]["messages"], response_format=Home,
                max_tokens=200, seed=seed, n=2, extra_body=spaces,
            )  # fmt: skip
            for choice in answer.choices:
                assert isinstance(choice.message.parsed, Home)
                assert choice.message.parsed == Home.model_validate_json(choice.message.content)
        with client.chat.completions.stream(
            model="tiny", messages=PATHS[CHAT]["messages"], response_format=Home, max_tokens=200,
            seed=1, extra_body=spaces,
        ) as events:  # fmt: skip
            final = events.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, Home)
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(
                model="tiny", prompt="a", extra_body={"structured_outputs": {"regex": "("}}
            )
        assert caught.value.param == "structured_outputs"


# Fuzzing

PARTS = [
         None, True, 0, -1, 2**70, 0.5, "", "a", "(", "(a|b)*", "a{1,99999}", ".*" * 60, "\x00",
         "é😀", "x" * 3000, [], ["a"], ["", "b"], [1], ["y" * 40] * 300, {}, [{}], "start: x",
         'start: "a" start', 'root ::= "a" root | "b"', "start: /(a|b)+/ %json {}", "%import x",
         {"type": "string"}, {"type": ["integer", "null"]}, {"$ref": "#"}, {"enum": [1, "a", None]},
         {"type": "array", "items": {"$ref": "#"}}, {"const": {"a": [1, {}]}}, {"format": "date"},
         {"type": "string", "pattern": "^(a+)+$"}, {"allOf": [{"type": "object"}, {"minItems": 3}]},
         {"type": "number", "minimum": 5, "maximum": 4}, {"properties": {"a": {"$ref": "#/x"}}},
         {"oneOf": [{"type": "string"}, {"type": "integer"}]}, {"multipleOf": 7}, {"type": "wat"},
         '{"type": "object"}', "{", {"maxItems": 10**9, "type": "array"}, {"minLength": 10**9},
]  # fmt: skip


def part(rng: random.Random, depth: int = 0) -> Any:
    """A value that is sometimes a schema of schemas."""
    if depth < 4 and rng.random() < 0.4:
        inner = [part(rng, depth + 1) for _ in range(rng.randint(1, 3))]
        return rng.choice([
            {"anyOf": inner}, {"allOf": inner}, {"type": "array", "items": inner[0]},
            {"type": "object", "properties": {f"k{i}": each for i, each in enumerate(inner)},
             "required": [f"k{i}" for i in range(rng.randint(0, 3))]},
        ])  # fmt: skip
    return rng.choice(PARTS)


def fitting(rng: random.Random, name: str) -> Any:
    """Mostly a value of the kind that the field takes."""
    kinds = {
        "json": (dict, bool),
        "choice": list,
        "json_object": bool,
        "disable_any_whitespace": bool,
    }
    for _ in range(rng.choice([0, 40, 40, 40])):
        value = part(rng)
        if isinstance(value, kinds.get(name, str)):
            return value
    return part(rng)


def fuzzed(rng: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"max_tokens": rng.choice([1, 4, 12]), "seed": rng.randint(0, 9)}
    if rng.random() < 0.6:
        names = ["json", "regex", "choice", "grammar", "json_object", "whitespace_pattern",
                 "disable_any_whitespace", "structural_tag"]  # fmt: skip
        chosen = rng.sample(names, rng.choice([1, 1, 1, 1, 2]))
        body["structured_outputs"] = {name: fitting(rng, name) for name in chosen}
    else:
        schema = {
            "name": rng.choice(["a", None, ""]),
            "schema": part(rng),
            "strict": rng.choice([True, None]),
        }
        form = {
            "type": rng.choice(["json_schema", "json_schema", "json_object", "text", "x"]),
            "json_schema": schema,
        }
        body["response_format"] = rng.choice([form, form, part(rng)])
    beside = {"n": 2, "min_tokens": 3, "stop": ["a"], "logprobs": 1, "ignore_eos": True,
              "stream": True, "bad_words": ["a"], "allowed_token_ids": [0, 70, 80],
              "temperature": 0.5, "echo": True}  # fmt: skip
    return body | {
        name: beside[name] for name in rng.sample(list(beside), rng.choice([0, 0, 1, 2]))
    }


def test_fuzzed_structure_ends_in_an_answer_or_a_refusal(server) -> None:
    rng, seen, sizes = random.Random(7), {}, []
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.post(COMPLETIONS, json={"prompt": "a", "structured_outputs": {"regex": "a"}})
        before = threading.active_count()
        for case in range(CASES):
            path = rng.choice(list(PATHS))
            body = PATHS[path] | fuzzed(rng)
            if path == CHAT and "logprobs" in body:
                body["logprobs"] = True
            answer = client.post(path, json=body, timeout=30)
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            assert answer.status_code in (200, 400), (path, body, answer.text)
            if answer.status_code == 400:
                assert answer.json()["error"]["message"].endswith("."), (body, answer.text)
            if case % max(CASES // 10, 1) == 0:
                sizes.append(resident_bytes() >> 20)
    print(f"{CASES} cases, by status: {seen}; MiB of memory on the way: {sizes}")
    assert min(seen[200], seen[400]) > CASES // 10
    server.assert_idle()
    # besides, asyncio.to_thread keeps its threads for the next call
    workers = min(32, (os.cpu_count() or 1) + 4)
    assert threading.active_count() <= before + workers
    assert sizes[-1] - sizes[len(sizes) // 2] < 100

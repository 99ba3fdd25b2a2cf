"""Task 2: OpenAI's protocol."""

import asyncio
import re

import httpx
import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from grader import expect
from grader.course.paths import ROOT
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.generation.errors import PromptTooLongError
from nanovllm.generation.params import ParamsError, SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.errors import ApiError, BadRequestError, NotFoundError, RateLimitError
from nanovllm.serving.failures import api_error, check_model
from nanovllm.serving.protocol import ChatCompletionRequest, CompletionRequest
from nanovllm.serving.sampling import sampling_params
from nanovllm.tokenization.errors import ChatTemplateError, TokenizerError
from nanovllm.tokenization.tokenizer import Tokenizer

CONFIG = ModelConfig("qwen3", 2048, 32, 2, 4, 2, 8, 48, 64, qk_norm=True, eos_token_ids=(2,))


def ask(requests):
    """Status and body of each request (method, path, keyword arguments) to a tiny server."""
    tokenizer = Tokenizer.from_pretrained(ROOT / "models" / "target")
    engine = Engine(dummy_model(CONFIG), EngineConfig(max_num_seqs=2), tokenizer=tokenizer)
    app = Server(engine, ServeConfig(model_name="tiny")).app

    async def main():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://lab") as client:
            return [await client.request(*args, **more) for *args, more in requests]

    answers = asyncio.run(main())
    return [(answer.status_code, answer.json()) for answer in answers]


def chat(**more):
    return ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], **more)


@pytest.mark.check(task=2, points=4, title="Every error becomes one of a few answers")
def test_errors():
    limited = RateLimitError("slow down", retry_after=7)
    place = {"type": "x", "loc": ("body", "messages", 0, "role"), "msg": "Field required"}
    broken = {"type": "json_invalid", "loc": ("body", 17), "msg": "JSON decode error"}
    cases = {
        "an ApiError": limited,
        "a field that is wrong": RequestValidationError([place]),
        "broken JSON": RequestValidationError([broken]),
        "the engine refuses": PromptTooLongError("too long"),
        "a bad parameter": ParamsError("n must be at least 1, got 0."),
        "a bad conversation": ChatTemplateError("no roles"),
        "a bad text": TokenizerError("half a surrogate"),
        "no such path": HTTPException(404, headers={"X-Way": "out"}),
        "another method": HTTPException(405, headers={"Allow": "GET"}),
    }
    answers = {name: api_error(error) for name, error in cases.items()}
    bad = "BadRequestError"
    expect(
        {name: [a.status, a.type, a.param, a.headers] for name, a in answers.items()},
        {
            "an ApiError": [429, "RateLimitError", None, {"Retry-After": "7"}],
            "a field that is wrong": [400, bad, "messages", {}],
            "broken JSON": [400, bad, None, {}],
            "the engine refuses": [400, bad, None, {}],
            "a bad parameter": [400, bad, None, {}],
            "a bad conversation": [400, bad, None, {}],
            "a bad text": [400, bad, None, {}],
            "no such path": [404, "NotFoundError", None, {"X-Way": "out"}],
            "another method": [405, bad, None, {"Allow": "GET"}],
        },
        call="api_error(...): status, type, param, headers",
        cause="clients act upon the status; the docstring's list says which it is",
    )
    parts = {
        "an ApiError": ["slow down"],
        "a field that is wrong": ["messages", "role", "Field required"],
        "broken JSON": ["JSON decode error"],
        "the engine refuses": ["too long"],
        "a bad parameter": ["n must be at least 1, got 0."],
        "a bad conversation": ["no roles"],
        "a bad text": ["half a surrogate"],
        "no such path": ["Not Found"],
        "another method": ["Method Not Allowed"],
    }
    expect(
        {name: [w for w in words if w in answers[name].message] for name, words in parts.items()},
        parts,
        call="what the messages of the same answers hold",
        cause="people act upon the message: it names the field and says what is wrong",
    )
    two = api_error(RequestValidationError([place, place | {"loc": ("body", "seed")}]))
    bug = api_error(ZeroDivisionError("secret 123"))
    shown = [word for word in ("secret", "123", "ZeroDivision") if word in bug.message]
    expect(
        [two.status, two.param in ("messages", "seed"), bug.status, bug.type, shown],
        [400, True, 500, "InternalServerError", []],
        call="two wrong fields: status, whether param is one of them; a bug that raises "
        "ZeroDivisionError('secret 123'): status, type, what the message shows of it",
        cause="what nobody expected stays in the log",
    )


@pytest.mark.check(task=2, points=2, title="Bad requests get 400 in OpenAI's form, never 422")
def test_bad_requests():
    api_error(ValueError())
    post = "POST", "/v1/completions"
    json_type = {"content-type": "application/json"}
    answers = ask(
        [
            (*post, {"content": b'{"prompt": "a', "headers": json_type}),
            (*post, {"json": {"max_tokens": 4}}),
            (*post, {"json": {"prompt": "a", "temperature": "hot"}}),
            (*post, {"content": b'{"prompt":"a","top_p":NaN}', "headers": json_type}),
            ("POST", "/v1/chat/completions", {"json": {"messages": [{"content": "a"}]}}),
            ("POST", "/v1/chat/completions", {"json": []}),
            ("GET", "/v1/nothing", {}),
            ("GET", "/v1/completions", {}),
        ]
    )
    expect(
        [
            [status, sorted(body), sorted(body["error"]), body["error"].get("param")]
            for status, body in [(status, {"error": {}} | body) for status, body in answers]
        ],
        [
            [status, ["error"], ["code", "message", "param", "type"], param]
            for status, param in [
                (400, None), (400, "prompt"), (400, "temperature"), (400, "top_p"),
                (400, "messages"), (400, None), (404, None), (405, None),
            ]
        ],
        call="broken JSON, no prompt, temperature 'hot', top_p NaN, a message without a role, a "
        "list, an unknown path, GET of completions: status, keys, keys of the error, param",
        cause="the body is {'error': {message, type, param, code}} for every error",
    )  # fmt: skip


@pytest.mark.check(task=2, points=2, title="An unknown model is a 404")
def test_model():
    error = expect.raises(
        NotFoundError, lambda: check_model("gpt-9", "tiny"), call="check_model('gpt-9', 'tiny')"
    )
    found = [error.status, error.param, "gpt-9" in error.message]
    found += [check_model(None, "tiny"), check_model("tiny", "tiny")]
    expect(
        found,
        [404, "model", True, None, None],
        call="check_model of an unknown name (status, param, names it), of None, of its own name",
    )
    error = expect.raises(
        NotFoundError, lambda: check_model("", "tiny"), call="check_model('', 'tiny')"
    )
    expect.raises(
        NotFoundError, lambda: check_model("Tiny", "tiny"), call="check_model('Tiny', 'tiny')"
    )
    answers = ask(
        [
            ("GET", "/v1/models", {}),
            ("GET", "/v1/models/other", {}),
            ("POST", "/detokenize", {"json": {"tokens": [65], "model": "other"}}),
        ]
    )
    expect(
        [answers[0][1]["data"][0]["id"], *(status for status, _ in answers)],
        ["tiny", 200, 404, 404],
        call="the model's id; status of /v1/models, of an unknown one, of a request to one",
    )


@pytest.mark.check(
    task=2, points=3, title="Fields become sampling parameters; null means the default"
)
def test_params():
    given = {
        "n": 3, "temperature": 0.0625, "top_p": 0.5, "top_k": 7, "min_p": 0.25, "seed": 11,
        "presence_penalty": 0.5, "frequency_penalty": -1.0, "repetition_penalty": 1.5,
        "logit_bias": {"5": 2.0}, "stop": ["a", "b"], "stop_token_ids": [9], "ignore_eos": True,
        "min_tokens": 2, "max_tokens": 8, "skip_special_tokens": False,
        "include_stop_str_in_output": True, "allowed_token_ids": [3, 5], "bad_words": ["bad"],
        "prompt_logprobs": 2, "cache_salt": "mine",
    }  # fmt: skip
    wanted = SamplingParams(**{**given, "logprobs": 4})
    expect(
        sampling_params(CompletionRequest(prompt="a", logprobs=4, **given), 5, 64),
        wanted,
        call="sampling_params of a completion that sets every field",
    )
    nulls = dict.fromkeys(given)
    expect(
        sampling_params(CompletionRequest(prompt="a", logprobs=None, **nulls), 5, 64),
        SamplingParams(max_tokens=16),
        call="sampling_params of a completion in which every field is null",
        cause="clients send null for 'not set'",
    )
    cases = [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3}, {"logprobs": False},
             {"top_logprobs": 0}]  # fmt: skip
    expect(
        [sampling_params(chat(**case), 5, 64).logprobs for case in cases],
        [None, 0, 3, None, None],
        call="logprobs of a chat: not set; true; true with top_logprobs 3; false; not set, with "
        "top_logprobs 0",
    )
    for off in ({}, {"logprobs": False}):
        error = expect.raises(
            BadRequestError,
            lambda off=off: sampling_params(chat(top_logprobs=2, **off), 5, 64),
            call=f"sampling_params of a chat with top_logprobs=2 and {off or 'no logprobs'}",
        )
    zero = sampling_params(CompletionRequest(prompt="a", temperature=0, seed=0, logprobs=0), 5, 64)
    expect(
        [error.param, zero.temperature, zero.seed, zero.logprobs],
        ["top_logprobs", 0.0, 0, 0],
        call="the error's param; temperature 0, seed 0 and logprobs 0 of a completion as they "
        "arrive",
        cause="0 is a value, only null is none",
    )
    refused = []
    for request in (
        CompletionRequest(prompt="a", max_tokens=0),
        chat(max_tokens=0),
        chat(max_completion_tokens=0),
    ):
        try:
            refused.append(f"{sampling_params(request, 5, 64).max_tokens} tokens")
        except (BadRequestError, ParamsError) as wrong:
            refused.append(api_error(wrong).status)
    expect(
        refused,
        [400] * 3,
        call="the status for max_tokens=0 of a completion and of a chat, and for "
        "max_completion_tokens=0",
        cause="nobody gets an answer of another length than was asked for",
    )


@pytest.mark.check(task=2, points=3, title="What does not fit into the context is refused, not cut")
def test_context(rng):
    room = int(rng.integers(20, 30))
    context, prompt = 64, 64 - room
    completion = [{}, {"max_tokens": room}, {"max_tokens": 1}]
    chats = [
        {},
        {"max_tokens": 5},
        {"max_tokens": 5, "max_completion_tokens": 9},
        {"max_tokens": 9, "max_completion_tokens": 5},
        {"max_completion_tokens": room},
    ]
    ask_one = [CompletionRequest(prompt="a", **more) for more in completion]
    ask_one += [chat(**more) for more in chats]
    expect(
        [sampling_params(request, prompt, context).max_tokens for request in ask_one],
        [16, room, 1, room, 5, 9, 5, room],
        call=f"max_tokens with a context of {context} and a prompt of {prompt}: a completion with "
        "nothing, all the room, 1; a chat with nothing, 5, 5 and max_completion_tokens 9, 9 and "
        "max_completion_tokens 5, all by that name",
        given={"room": room},
    )
    expect(
        sampling_params(CompletionRequest(prompt="a"), context - 3, context).max_tokens,
        3,
        call="max_tokens of a completion that gives none, with room for 3",
        cause="the default of 16 is nobody's wish",
    )
    found = {}
    for name, request, tokens, asked in [
        ("max_tokens", CompletionRequest(prompt="a", max_tokens=room + 1), prompt, room + 1),
        ("max_completion_tokens", chat(max_completion_tokens=room + 1), prompt, room + 1),
        ("prompt", CompletionRequest(prompt="a"), context, 1),
        ("messages", chat(), context + 5, 1),
        ("max_tokens, of a long prompt", CompletionRequest(prompt="a", max_tokens=5), context, 5),
    ]:
        try:
            found[name] = f"{sampling_params(request, tokens, context).max_tokens} tokens"
        except ApiError as error:
            numbers = (context, tokens + asked, tokens, asked)
            missing = [str(n) for n in numbers if not re.search(rf"\b{n}\b", error.message)]
            found[name] = [error.status, error.param, " and ".join(missing) or "none"]
    expect(
        found,
        {name: [400, name.partition(",")[0], "none"] for name in found},
        call="one token too many (max_tokens of a completion, max_completion_tokens of a chat); a "
        "prompt as long as the context; a longer conversation; max_tokens=5 and a prompt as long "
        "as the context: status, param, and which of these numbers are missing in the message: "
        "the context, asked in all, in the prompt, in the answer",
    )

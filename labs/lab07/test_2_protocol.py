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
from nanovllm.serving.deltas import Delta
from nanovllm.serving.errors import ApiError, BadRequestError, NotFoundError, RateLimitError
from nanovllm.serving.failures import api_error, check_model
from nanovllm.serving.protocol import ChatCompletionRequest, CompletionRequest
from nanovllm.serving.sampling import sampling_params
from nanovllm.serving.writers import ChatWriter, CompletionWriter
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


@pytest.mark.check(
    task=2,
    points=4,
    title="Every error becomes one of a few answers",
    hints=(
        "Which errors can the client mend? Those are its own: 400.",
        "isinstance from the most special to the most general; what nobody expected is a 500 that "
        "does not show its text.",
        "RequestValidationError: first = error.errors()[0]; the place is first['loc'][1:]",
    ),
)
def test_errors():
    limited = RateLimitError("slow down", retry_after=7)
    place = {"type": "x", "loc": ("body", "messages", 0, "role"), "msg": "Field required"}
    broken = {"type": "json_invalid", "loc": ("body", 17), "msg": "JSON decode error"}
    cases = {
        "an ApiError": limited,
        "a field that is wrong": RequestValidationError([place]),
        "two that are": RequestValidationError([place, broken]),
        "broken JSON": RequestValidationError([broken]),
        "the engine refuses": PromptTooLongError("too long"),
        "a bad parameter": ParamsError("n must be at least 1, got 0."),
        "a bad conversation": ChatTemplateError("no roles"),
        "a bad text": TokenizerError("half a surrogate"),
        "no such path": HTTPException(404),
        "another method": HTTPException(405, headers={"Allow": "GET"}),
        "a bug": ZeroDivisionError("secret 123"),
    }
    found = {}
    for name, error in cases.items():
        answer = api_error(error)
        says = answer.message
        if name == "a bug":
            shown = [word for word in ("secret", "ZeroDivision") if word in says]
            says = f"shows {shown}"
        found[name] = [answer.status, answer.type, answer.param, says, answer.headers]
    bad = "BadRequestError"
    expect(
        found,
        {
            "an ApiError": [429, "RateLimitError", None, "slow down", {"Retry-After": "7"}],
            "a field that is wrong": [400, bad, "messages", "messages.role: Field required.", {}],
            "two that are": [400, bad, "messages", "messages.role: Field required.", {}],
            "broken JSON": [400, bad, None, "JSON decode error.", {}],
            "the engine refuses": [400, bad, None, "too long", {}],
            "a bad parameter": [400, bad, None, "n must be at least 1, got 0.", {}],
            "a bad conversation": [400, bad, None, "no roles", {}],
            "a bad text": [400, bad, None, "half a surrogate", {}],
            "no such path": [404, "NotFoundError", None, "Not Found", {}],
            "another method": [405, bad, None, "Method Not Allowed", {"Allow": "GET"}],
            "a bug": [500, "InternalServerError", None, "shows []", {}],
        },
        call="api_error(...): status, type, param, message (of a bug what it shows: its text, "
        "its type), headers",
        cause="clients act upon the status and show the message",
    )


@pytest.mark.check(
    task=2,
    points=3,
    title="Bad requests get 400 in OpenAI's form, never 422",
    hints=(
        "FastAPI's own answer to a wrong body is 422 with a list; no OpenAI client knows it.",
        "api_error makes a BadRequestError of a RequestValidationError.",
        "return BadRequestError(f'{where}{first[\"msg\"]}.', param=...)",
    ),
)
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


@pytest.mark.check(
    task=2,
    points=2,
    title="An unknown model is a 404",
    hints=(
        "A client that asks for another model must not get this one's answer.",
        "Compare with the served name; None means that the client has no wish.",
        "if asked is not None and asked != served: raise NotFoundError(..., param='model')",
    ),
)
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
    task=2,
    points=4,
    title="Fields become sampling parameters; null means the default",
    hints=(
        "Which fields have the same name and meaning on both sides? Which two have not?",
        "Leave out what is None, so that SamplingParams' own defaults apply; logprobs of a chat is "
        "a bool, and its number is top_logprobs.",
        "given['logprobs'] = (request.top_logprobs or 0) if request.logprobs else None",
    ),
)
def test_params():
    given = {
        "n": 3, "temperature": 0.0625, "top_p": 0.5, "top_k": 7, "min_p": 0.25, "seed": 11,
        "presence_penalty": 0.5, "frequency_penalty": -1.0, "repetition_penalty": 1.5,
        "logit_bias": {"5": 2.0}, "stop": ["a", "b"], "stop_token_ids": [9], "ignore_eos": True,
        "min_tokens": 2, "max_tokens": 8, "skip_special_tokens": False,
        "include_stop_str_in_output": True,
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
    cases = [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3}, {"logprobs": False}]
    expect(
        [sampling_params(chat(**case), 5, 64).logprobs for case in cases],
        [None, 0, 3, None],
        call="logprobs of a chat: not set; true; true with top_logprobs 3; false",
        cause="true alone asks for the chosen token's",
    )
    error = expect.raises(
        BadRequestError,
        lambda: sampling_params(chat(top_logprobs=2), 5, 64),
        call="sampling_params of a chat with top_logprobs=2 without logprobs",
    )
    zero = sampling_params(CompletionRequest(prompt="a", temperature=0, seed=0, logprobs=0), 5, 64)
    refused = []
    for request in (
        chat(top_logprobs=0),
        CompletionRequest(prompt="a", max_tokens=0),
        chat(max_tokens=0),
        chat(max_completion_tokens=0),
    ):
        try:
            refused.append(f"{sampling_params(request, 5, 64).max_tokens} tokens")
        except (BadRequestError, ParamsError) as wrong:
            refused.append(type(wrong).__name__)
    expect(
        [error.param, zero.temperature, zero.seed, zero.logprobs, refused],
        ["top_logprobs", 0.0, 0, 0, ["BadRequestError"] + ["ParamsError"] * 3],
        call="the error's param; temperature 0, seed 0 and logprobs 0 of a completion as they "
        "arrive; top_logprobs=0 without logprobs; max_tokens=0 of a completion and of a chat, "
        "max_completion_tokens=0",
        cause="0 is a value, only null is none",
    )


@pytest.mark.check(
    task=2,
    points=3,
    title="What does not fit into the context is refused, not cut",
    hints=(
        "Room is the context less the prompt. Who asked for more than that?",
        "A number that the client gave is kept or refused; one that it did not give fits by "
        "itself.",
        "needed = 1 if asked is None else asked; if needed > room: raise BadRequestError",
    ),
)
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
    found = []
    for request, tokens in [
        (CompletionRequest(prompt="a", max_tokens=room + 1), prompt),
        (chat(max_completion_tokens=room + 1), prompt),
        (CompletionRequest(prompt="a"), context),
        (chat(), context + 5),
    ]:
        try:
            found.append(["accepted", sampling_params(request, tokens, context).max_tokens])
        except ApiError as error:
            numbers = [int(number) for number in re.findall(r"\d+", error.message)]
            found.append([error.status, error.param, numbers])
    expect(
        found,
        [
            [400, "max_tokens", [context, context + 1, prompt, room + 1]],
            [400, "max_completion_tokens", [context, context + 1, prompt, room + 1]],
            [400, "prompt", [context, context + 1, context, 1]],
            [400, "messages", [context, context + 6, context + 5, 1]],
        ],
        call="one token too many (max_tokens of a completion, max_completion_tokens of a chat); a "
        "prompt as long as the context; a longer conversation: status, param, the numbers of the "
        "message: context, asked in all, in the prompt, in the answer",
        cause="an answer that is shorter than asked for looks like one that ended",
    )


@pytest.mark.check(
    task=2,
    points=2,
    title="Usage counts each prompt once and every token of every sample",
    hints=(
        "Two prompts, three samples each: how often was each prompt read?",
        "Prompt tokens do not depend on n; a token whose text was held back or cut is one too.",
        "prompt_tokens = sum(map(len, self.prompts)); count adds len(delta.token_ids)",
    ),
)
def test_usage(rng):
    tokenizer = Tokenizer.from_pretrained(ROOT / "models" / "target")
    lengths = [int(n) for n in rng.integers(2, 9, size=2)]
    prompts = [[65] * n for n in lengths]
    writer = CompletionWriter("id", "tiny", 0, tokenizer, prompts, n=3)
    deltas = [Delta(i, "one two" if i else "", [70 + i] * (i + 1)) for i in range(6)]
    deltas.append(Delta(2, "", [2], finish_reason="stop"))
    for delta in deltas:
        writer.count(delta)
    expect(
        writer.numbers(),
        {
            "prompt_tokens": sum(lengths),
            "completion_tokens": 22,
            "total_tokens": sum(lengths) + 22,
        },
        call=f"usage of prompts of {lengths} tokens, n=3, after samples of 1, 2, 4, 4, 5 and 6 "
        "tokens, some without text",
    )
    streamed = ChatWriter("id", "tiny", 0, tokenizer, prompts, n=1, include_usage=True)
    usage = streamed.usage()
    expect(
        [usage["choices"], usage["usage"]["total_tokens"]],
        [[], sum(lengths)],
        call="the usage chunk of a stream without tokens: choices, total",
    )

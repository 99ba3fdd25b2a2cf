"""The server as software meets it that nobody here wrote: the openai package, and vLLM's habits."""

from __future__ import annotations

import asyncio
import threading

import httpx
import openai
import pytest

from nanovllm.generation.sampling import sample
from tests.serving_tools import TEMPLATE, TOKENIZER, live, offline, tiny_engine


@pytest.fixture(scope="module")
def server():
    with live(tiny_engine(16)) as running:
        yield running


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0) as made:
        yield made


def text(**body) -> str:
    return offline([body])[0][0]


MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def test_models(client) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny" and model.owned_by == "nanovllm" and model.max_model_len == 256
    assert client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.param == "model"


def test_completion_is_the_offline_text(client) -> None:
    body = {"prompt": [70, 80, 90], "max_tokens": 12, "temperature": 0.0}
    answer = client.completions.create(model="tiny", **body)
    (choice,) = answer.choices
    assert choice.text == text(**body)
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens <= 12
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"


def test_texts_and_ids_are_the_same_prompt(client) -> None:
    ids = TOKENIZER.encode("Once upon a time", allowed_special="all", add_special_tokens=True)
    answers = client.completions.create(
        model="tiny", prompt=["Once upon a time", "Mia"], seed=4, max_tokens=8, echo=True
    )
    by_ids = client.completions.create(model="tiny", prompt=[ids], seed=4, max_tokens=8)
    first, second = answers.choices
    assert first.text == "Once upon a time" + by_ids.choices[0].text
    assert second.text.startswith("Mia") and [first.index, second.index] == [0, 1]


def test_n_choices_are_distinct_and_reproducible(client) -> None:
    body = {"prompt": [70], "n": 5, "seed": 11, "max_tokens": 10}
    again = [client.completions.create(model="tiny", **body) for _ in range(2)]
    texts = [[choice.text for choice in answer.choices] for answer in again]
    assert texts[0] == texts[1] == offline([body])[0] and len(set(texts[0])) == 5
    assert [choice.index for choice in again[0].choices] == list(range(5))
    assert again[0].usage.prompt_tokens == 1


def test_streams_of_n_choices(client) -> None:
    body = {"prompt": [70], "n": 3, "seed": 2, "max_tokens": 10, "ignore_eos": True}
    extra = {"ignore_eos": body.pop("ignore_eos")}
    texts, ends, usage = [""] * 3, [0] * 3, []
    chunks = client.completions.create(
        model="tiny", stream=True, stream_options={"include_usage": True}, extra_body=extra, **body
    )
    for chunk in chunks:
        if chunk.usage:
            usage.append((chunk.usage.completion_tokens, len(chunk.choices)))
        for choice in chunk.choices:
            assert not usage, "usage comes last"
            assert not ends[choice.index], "nothing comes after a choice's end"
            texts[choice.index] += choice.text
            ends[choice.index] += choice.finish_reason == "length"
    assert texts == offline([body | extra])[0] and ends == [1, 1, 1] and usage == [(30, 0)]


def test_chat_streamed_and_whole(client) -> None:
    prompt = TEMPLATE.encode(TOKENIZER, MESSAGES)
    body = {"seed": 8, "max_tokens": 20}
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, **body)
    (choice,) = whole.choices
    assert choice.message.role == "assistant" and whole.object == "chat.completion"
    assert choice.message.content == text(prompt=prompt, **body)
    assert whole.usage.prompt_tokens == len(prompt)
    chunks = list(
        client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, **body)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    joined = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert joined == choice.message.content
    ends = [c.choices[0].finish_reason for c in chunks]
    assert ends[:-1] == [None] * (len(ends) - 1) and ends[-1] == choice.finish_reason
    parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
    in_parts = client.chat.completions.create(model="tiny", messages=parts, **body)
    assert in_parts.choices[0].message.content == choice.message.content


def test_async_client(server) -> None:
    async def main():
        made = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0)
        async with made as client:

            async def one(i: int) -> str:
                chunks = await client.completions.create(
                    model="tiny", prompt=[70 + i], seed=i, max_tokens=9, stream=True
                )
                return "".join([c.choices[0].text async for c in chunks])

            return await asyncio.gather(*(one(i) for i in range(12)))

    bodies = [{"prompt": [70 + i], "seed": i, "max_tokens": 9} for i in range(12)]
    assert [[answer] for answer in asyncio.run(main())] == offline(bodies)


def test_seeds_do_not_depend_on_the_load(client, server) -> None:
    body = {"prompt": [70, 71], "seed": 3, "max_tokens": 16}
    quiet = client.completions.create(model="tiny", **body).choices[0].text

    async def main():
        async with httpx.AsyncClient(timeout=60) as crowd:
            others = [{"prompt": [80 + i], "max_tokens": 30} for i in range(20)]
            asks = [crowd.post(server.url + "/v1/completions", json=o) for o in [*others, body]]
            return (await asyncio.gather(*asks))[-1].json()["choices"][0]["text"]

    assert asyncio.run(main()) == quiet


def test_stop_strings_never_show(client) -> None:
    body = {"prompt": [70, 75], "seed": 1, "max_tokens": 40}
    whole = text(**body)
    stop = whole[10:14]
    answer = client.completions.create(model="tiny", stop=[stop], **body).choices[0]
    assert (answer.text, answer.finish_reason) == (whole[: whole.index(stop)], "stop")
    assert answer.stop_reason == stop
    chunks = client.completions.create(model="tiny", stop=stop, stream=True, **body)
    pieces = [chunk.choices[0].text for chunk in chunks]
    assert "".join(pieces) == answer.text


def test_logprobs(client) -> None:
    body = {"model": "tiny", "temperature": 0, "max_tokens": 6}
    choice = client.completions.create(prompt=[70], logprobs=3, **body).choices[0]
    told = choice.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.text_offset) == 6
    best = [max(top.values()) for top in told.top_logprobs]
    assert told.token_logprobs == best and all(len(top) <= 3 for top in told.top_logprobs)
    assert told.text_offset == [sum(map(len, told.tokens[:i])) for i in range(6)]
    chat = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, **body)
    entries = chat.choices[0].logprobs.content
    assert len(entries) == 6 and all(len(entry.top_logprobs) == 2 for entry in entries)
    assert [entry.logprob for entry in entries] == [e.top_logprobs[0].logprob for e in entries]
    streamed = client.chat.completions.create(
        messages=MESSAGES, logprobs=True, top_logprobs=2, stream=True, **body
    )
    found = [e for c in streamed if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [entry.token for entry in found] == [entry.token for entry in entries]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": [70], "max_tokens": 10_000}, "max_tokens"),
        ({"prompt": [70] * 256}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [5000]}, "prompt"),
        ({"prompt": [70], "temperature": 7.0}, "temperature"),
        ({"prompt": [70], "n": 2, "temperature": 0.0}, "n"),
        ({"prompt": [70], "n": 1000}, "n"),
        ({"prompt": [70], "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": [70], "suffix": "end"}, "suffix"),
    ],
)
def test_bad_requests(client, body: dict, param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", **body)
    assert caught.value.param == param and caught.value.type == "BadRequestError"
    assert caught.value.body["message"].endswith(".")


def test_unknown_model_and_unknown_fields(client) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    extra = {"best_friend": True, "top_k": 5}
    answer = client.completions.create(model="tiny", prompt="a", max_tokens=2, extra_body=extra)
    assert answer.usage.completion_tokens <= 2


def test_client_timeout_frees_the_room() -> None:
    """The step after the first token takes as long as it has to until both clients have gone."""
    gone = threading.Event()

    def stuck(logits, rows):
        if any(row.output_token_ids for row in rows):
            gone.wait(60)
        return sample(logits, rows)

    body = {"model": "tiny", "prompt": [70], "max_tokens": 9, "extra_body": {"ignore_eos": True}}
    with live(tiny_engine(16, sampler=stuck)) as server:
        with openai.OpenAI(
            base_url=server.url + "/v1", api_key="-", max_retries=0, timeout=1.0
        ) as hasty:
            with pytest.raises((openai.APITimeoutError, httpx.ReadTimeout)):
                list(hasty.completions.create(**body, stream=True))
            with pytest.raises(openai.APITimeoutError):
                hasty.completions.create(**body)
        gone.set()
        server.assert_idle()
        assert server.metric("request_success_total", finished_reason="abort") == 2


def test_keys() -> None:
    with live(tiny_engine(2), api_keys=("secret",)) as server:
        for key, error in (("secret", None), ("wrong", openai.AuthenticationError)):
            with openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) as client:
                if error is None:
                    assert client.models.list().data[0].id == "tiny"
                else:
                    with pytest.raises(error):
                        client.models.list()
        for path in ("/health", "/metrics", "/version", "/docs", "/openapi.json"):
            assert httpx.get(server.url + path, follow_redirects=False).status_code == 200
        assert httpx.post(server.url + "/tokenize", json={"prompt": "a"}).status_code == 401


def test_tokenize_and_back(server) -> None:
    said = "Mia 🙂 <|im_end|> é"
    answer = httpx.post(server.url + "/tokenize", json={"prompt": said}).json()
    assert answer["tokens"] == TOKENIZER.encode(said, allowed_special="all")
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 256
    back = httpx.post(server.url + "/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": said}
    chat = httpx.post(server.url + "/tokenize", json={"messages": MESSAGES}).json()
    assert chat["tokens"] == TEMPLATE.encode(TOKENIZER, MESSAGES)
    wrong = [{"tokens": [99_999]}, {"tokens": [-1]}, {"tokens": "a"}, {}]
    for body in wrong:
        assert httpx.post(server.url + "/detokenize", json=body).status_code == 400


def test_metrics_are_prometheus_text_with_vllms_names(server) -> None:
    httpx.post(server.url + "/v1/completions", json={"prompt": [70], "max_tokens": 3})
    answer = httpx.get(server.url + "/metrics", follow_redirects=False)
    assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/plain")
    for name in (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
        "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total",
        "prompt_tokens_total", "generation_tokens_total", "request_success_total",
        "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
        "request_time_per_output_token_seconds_bucket", "e2e_request_latency_seconds_bucket",
        "request_queue_time_seconds_bucket", "request_prefill_time_seconds_bucket",
        "request_decode_time_seconds_bucket", "iteration_tokens_total_bucket",
    ):  # fmt: skip
        assert f"\nnanovllm:{name}{{" in answer.text, name
    assert 'finished_reason="stop"' in answer.text and 'model_name="tiny"' in answer.text
    buckets = [
        float(line.rsplit(" ", 1)[1])
        for line in answer.text.splitlines()
        if line.startswith("nanovllm:time_to_first_token_seconds_bucket")
    ]
    assert buckets == sorted(buckets) and buckets[-1] >= 1

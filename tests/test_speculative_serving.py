"""A server that guesses, for its users: a real process, the openai package, metrics, a browser."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from nanovllm import LLM, SamplingParams
from nanovllm.bench.serve_process import own_server
from nanovllm.llm.read_options import BUNDLED
from tests.serving_tools import live, wait_until

pytestmark = pytest.mark.xdist_group("server that guesses")  # one for all
GUESSES = {"method": "ngram_then_draft", "model": str(BUNDLED.parent / "draft"),
           "num_speculative_tokens": 5}  # fmt: skip
PROMPT = "Once upon a time there was a little"
LENGTH = 40


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    options = ["--enforce-eager", "--speculative-config", json.dumps(GUESSES)]
    with own_server(options, NANOVLLM_CODE="reference") as (address, _):
        yield address


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="-", max_retries=0) as made:
        yield made


@cache
def plain() -> LLM:
    """The same engine without guesses."""
    return LLM(enforce_eager=True)


def pieces(**params: object) -> list[str]:
    """What each token adds to the text, without guesses."""
    asked = SamplingParams(max_tokens=LENGTH, **params)
    return [piece.text for piece in plain().stream(PROMPT, asked) if piece.text]


def streamed(client: openai.OpenAI, **body: object) -> Iterator:
    return client.completions.create(
        model="target", prompt=PROMPT, max_tokens=LENGTH, stream=True, **body
    )


def counts(text: str) -> dict[str, float]:
    """Every sample of a page of metrics; those of a place by `name/place`."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            place = sample.labels.get("position")
            found[sample.name.removeprefix("nanovllm:") + (f"/{place}" if place else "")] = (
                sample.value
            )
    return found


def idle(url: str) -> bool:
    found = counts(httpx.get(url + "/metrics").text)
    return found["num_requests_running"] == found["kv_cache_usage_perc"] == 0


@pytest.mark.parametrize("how", [{"temperature": 0}, {"temperature": 1.0, "seed": 7}],
                         ids=["greedy", "sampled"])  # fmt: skip
def test_every_token_is_an_event_of_its_own(client, how: dict) -> None:
    chunks = list(streamed(client, **how))
    assert [c.choices[0].text for c in chunks if c.choices[0].text] == pieces(**how)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_stop_strings_inside_a_guessed_run(client) -> None:
    whole = "".join(pieces(temperature=0))
    for start in range(8, 80, 7):
        stop = whole[start : start + 3]
        choices = [c.choices[0] for c in streamed(client, temperature=0, stop=[stop])]
        assert [c.text for c in choices if c.text] == pieces(temperature=0, stop=[stop])
        assert "".join(c.text for c in choices) == whole[: whole.index(stop)]
        assert (choices[-1].finish_reason, choices[-1].stop_reason) == ("stop", stop)


def test_samples_and_their_logprobs_token_by_token(client) -> None:
    how = {"temperature": 0.9, "seed": 3, "n": 3, "logprobs": 2}
    [wanted] = plain().generate(PROMPT, SamplingParams(max_tokens=LENGTH, **how), use_tqdm=False)
    told: list[list] = [[], [], []]
    for chunk in streamed(client, **how):
        [choice] = chunk.choices
        [logprob] = choice.logprobs.token_logprobs  # of one token
        told[choice.index].append(logprob)
    for answer, heard in zip(wanted.outputs, told, strict=True):
        ours = [p[i].logprob for p, i in zip(answer.logprobs, answer.token_ids, strict=True)]
        assert heard == pytest.approx(ours, abs=1e-3)


def test_a_chat_streams_its_tokens_one_by_one(client) -> None:
    asked = [{"role": "user", "content": "Tell me a story about a cat."}]
    params = SamplingParams(temperature=0, max_tokens=LENGTH)
    [wanted] = plain().chat(asked, params, use_tqdm=False)
    chunks = client.chat.completions.create(
        model="target", messages=asked, max_tokens=LENGTH, temperature=0, stream=True,
        logprobs=True, top_logprobs=1,
    )  # fmt: skip
    first, *rest = [chunk.choices[0] for chunk in chunks]
    assert first.delta.role == "assistant"
    assert [len(choice.logprobs.content) for choice in rest] == [1] * len(rest)
    assert len(rest) == len(wanted.outputs[0].token_ids)
    assert "".join(choice.delta.content or "" for choice in rest) == wanted.outputs[0].text


def test_who_is_cancelled_gets_what_there_is(client, url: str) -> None:
    whole = "".join(pieces(temperature=0))
    for after in (1, 4, 9):
        text, reason = "", None
        with streamed(client, temperature=0) as stream:
            for number, chunk in enumerate(stream, 1):
                if number == after:
                    httpx.post(url + "/dashboard/cancel", json={"id": chunk.id}, timeout=60)
                text += chunk.choices[0].text
                reason = chunk.choices[0].finish_reason
        assert whole.startswith(text) and reason in ("abort", "length")
    wait_until(lambda: idle(url))


def test_clients_leave_at_any_moment(client, url: str) -> None:
    rng = random.Random(5)
    for leave_after in range(1, 16):
        with streamed(client, temperature=0.8, n=rng.choice([1, 2])) as stream:
            for _ in range(leave_after):
                next(stream)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).completions.create(
            model="target", prompt=PROMPT, max_tokens=400, extra_body={"ignore_eos": True}
        )
    wait_until(lambda: idle(url))
    chunks = list(streamed(client, temperature=0))
    assert "".join(c.choices[0].text for c in chunks) == "".join(pieces(temperature=0))


def test_counters_have_vllms_names_and_add_up(client, url: str) -> None:
    wait_until(lambda: idle(url))
    before = counts(httpx.get(url + "/metrics").text)
    for prompt in (PROMPT, "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,"):  # one after another
        client.completions.create(model="target", prompt=prompt, max_tokens=LENGTH, temperature=0,
                                  extra_body={"ignore_eos": True})  # fmt: skip
    wait_until(lambda: idle(url))
    after = counts(httpx.get(url + "/metrics").text)
    new = {name: value - before[name] for name, value in after.items()}
    drafts, guesses, accepted = (
        new[f"spec_decode_num_{name}_total"] for name in ("drafts", "draft_tokens",
                                                          "accepted_tokens"))  # fmt: skip
    places = [new[f"spec_decode_num_accepted_tokens_per_pos_total/{i}"] for i in range(5)]
    assert sum(places) == accepted > 0 and places == sorted(places, reverse=True)
    assert places[0] <= drafts and accepted <= guesses <= 5 * drafts
    steps = new["iteration_tokens_total_count"]
    assert new["generation_tokens_total"] == 2 * LENGTH == steps + accepted
    read = new["prompt_tokens_total"] - new["prefix_cache_hits_total"]
    assert new["iteration_tokens_total_sum"] == read + (steps - 2) + guesses
    assert "spec_decode_num_accepted_tokens_per_pos_total/5" not in after


def test_without_guesses_there_are_no_counters_of_them() -> None:
    with live() as server:
        found = counts(httpx.get(server.url + "/metrics").text)
        assert not [name for name in found if "spec_decode" in name]
        assert httpx.get(server.url + "/dashboard/state").json()["most_guesses"] == 0

"""Fields beyond OpenAI's first ones: what is asked is done, or refused by name, never ignored."""

from __future__ import annotations

import ast
import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.llm.scoring import salt_of, scoring
from nanovllm.model.attend import RecomputeAttend
from nanovllm.paging.store import PagedStore
from nanovllm.serving.protocol import CompletionRequest
from nanovllm.serving.unsupported import NOTHING
from nanovllm.tokenization.chat import ChatTemplate
from nanovllm.tokenization.open_ended import open_ended
from nanovllm.tokenization.template_tools import read_named_tokens, read_templates
from tests import server_fields
from tests.serving_tools import FOLDER, MODEL, TOKENIZER, Live, tiny_engine

# `FUZZ_CASES=2000 pytest tests/test_server_fields.py -k fuzz` runs the long version.
CASES = int(os.environ.get("FUZZ_CASES", "60"))
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]
BEGUN = [*USER, {"role": "assistant", "content": "It is "}]
GOES_ON = {"continue_final_message": True, "add_generation_prompt": False}


def paged_engine() -> Engine:
    store = PagedStore(MODEL.config, 100, 8, salt_of=salt_of)
    config = EngineConfig(max_num_seqs=8)
    return scoring(Engine)(MODEL, config, tokenizer=TOKENIZER, store=store)


@pytest.fixture(scope="module")
def server():
    made = Live(paged_engine())
    templates = open_ended(read_templates(FOLDER))
    made.server.reader.open_template = ChatTemplate(templates, read_named_tokens(FOLDER))
    with made as running:
        yield running
        running.assert_idle()


@pytest.fixture
def ask(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield lambda path, **body: client.post(path, json=body)


def done(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return answer.json()


def told(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def events(server, path: str, **body: Any) -> list[dict[str, Any]]:
    with httpx.stream("POST", server.url + path, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_the_table_of_fields_is_up_to_date() -> None:
    assert server_fields.TABLE.read_text() == server_fields.table(), "python -m tests.server_fields"
    for kind, names in server_fields.vllm_fields().items():
        ignored = {name for name in names if server_fields.outcome(kind, name) == "ignored"}
        assert ignored <= set(server_fields.IGNORED), kind
    assert not set(NOTHING) & set(CompletionRequest.model_fields)


def test_the_kept_names_are_those_of_vllms_request_classes() -> None:
    source = os.environ.get("VLLM_SOURCE")
    if not source:
        pytest.skip("VLLM_SOURCE names no folder with vLLM 0.32; `pip download --no-deps vllm`")
    places = {
        "completion": ["openai/completion", "CompletionRequest"],
        "chat": ["openai/chat_completion", "ChatCompletionRequest"],
        "tokenize": ["serve/tokenize", "TokenizeCompletionRequest", "TokenizeChatRequest"],
    }
    for kind, (folder, *classes) in places.items():
        file = Path(source) / "vllm" / "entrypoints" / folder / "protocol.py"
        found = {
            field.target.id
            for node in ast.parse(file.read_text()).body
            if isinstance(node, ast.ClassDef) and node.name in classes
            for field in node.body
            if isinstance(field, ast.AnnAssign) and not field.target.id.startswith("_")
        }
        assert sorted(found) == server_fields.vllm_fields()[kind]


@pytest.mark.parametrize("name", sorted(NOTHING))
def test_what_is_not_supported_is_refused_by_name(ask, name: str) -> None:
    for path, body in ((COMPLETIONS, {"prompt": [70]}), (CHAT, {"messages": USER})):
        for value in (None, *NOTHING[name]):
            done(ask(path, max_tokens=1, **body, **{name: value}))
        assert told(ask(path, **body, **{name: {"something": "else"}}))["param"] == name


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        "{% for m in messages %}\n  [{{ m.role }}]{{ m.content | trim }}\n{% endfor %}\n",
        "{%- macro show(m) %}{{ m.content }}{% endmacro %}{% set ns = namespace(n=0) %}"
        "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ show(m) }}!{% endfor %}",
    ],
    ids=["bundled", "marks", "trimmed", "macro"],
)
@pytest.mark.parametrize("begun", ["It is ", "It is", "", "\n Hi <|im_end|>", "user", "!"])
def test_a_last_message_goes_on_as_in_transformers(template: str | None, begun: str) -> None:
    peer = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    templates = read_templates(FOLDER) if template is None else {"default": template}
    ours = ChatTemplate(open_ended(templates), read_named_tokens(FOLDER))
    messages = [*USER, {"role": "assistant", "content": begun}]
    settings = {"chat_template": template, "tokenize": False, "add_generation_prompt": False}
    theirs = peer.apply_chat_template(messages, continue_final_message=True, **settings)
    assert ours.render(messages, False) == theirs


def test_a_last_message_goes_on_over_http(server, ask) -> None:
    whole = done(ask("/tokenize", messages=USER))["tokens"]
    tokens = done(ask("/tokenize", messages=BEGUN, **GOES_ON))["tokens"]
    assert tokens == whole + TOKENIZER.encode("It is ")
    body = {"messages": BEGUN, "max_tokens": 4, "temperature": 0, "return_token_ids": True}
    answer = done(ask(CHAT, **body, **GOES_ON))
    assert answer["prompt_token_ids"] == tokens
    said = answer["choices"][0]["message"]["content"]
    echoed = done(ask(CHAT, echo=True, **body, **GOES_ON))["choices"][0]["message"]["content"]
    assert echoed == "It is " + said
    chunks = events(server, CHAT, echo=True, **body, **GOES_ON)
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == echoed
    for wrong in ({"continue_final_message": True}, GOES_ON | {"add_generation_prompt": True}):
        for path in (CHAT, "/tokenize"):
            assert told(ask(path, messages=BEGUN, **wrong))["param"] == "continue_final_message"


def reference(ids: list[int]) -> torch.Tensor:
    """Log-probabilities behind each token by the model alone, without a cache."""
    with torch.inference_mode():
        positions = torch.arange(len(ids))
        hidden = MODEL(torch.tensor(ids), positions, RecomputeAttend(MODEL.config))
        return MODEL.logits(hidden).log_softmax(-1)


def test_echo_with_logprobs_scores_the_prompt(server, ask) -> None:
    prompts = [TOKENIZER.encode("Once upon a time there was a dog."), [70], list(range(300, 340))]
    body = {"prompt": prompts, "echo": True, "logprobs": 2, "temperature": 0}
    for tokens in (0, 1, 3):
        answer = done(ask(COMPLETIONS, max_tokens=tokens, **body))
        assert answer["usage"]["completion_tokens"] == tokens * len(prompts)
        for prompt, choice in zip(prompts, answer["choices"], strict=True):
            logprobs = choice["logprobs"]
            assert [len(logprobs[name]) for name in logprobs] == [len(prompt) + tokens] * 4
            assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
            assert choice["text"].startswith(TOKENIZER.decode(prompt))
            assert choice["finish_reason"] == "length"
            rows = reference(prompt)
            expected = [float(rows[i, token]) for i, token in enumerate(prompt[1:])]
            found = logprobs["token_logprobs"][1 : len(prompt)]
            assert found == pytest.approx(expected, abs=1e-4)
            best = [max(top.values()) for top in logprobs["top_logprobs"][1 : len(prompt)]]
            assert best == pytest.approx(rows[:-1].amax(-1).tolist(), abs=1e-4)
        chunks = events(server, COMPLETIONS, max_tokens=tokens, **body)
        for index, choice in enumerate(answer["choices"]):
            parts = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
            assert "".join(part["text"] for part in parts) == choice["text"]
            joined = [part["logprobs"] or {} for part in parts]
            for name, values in choice["logprobs"].items():
                assert [v for each in joined for v in each.get(name, [])] == values


def test_prompt_logprobs(server, ask) -> None:
    prompt = TOKENIZER.encode("The dog ran home.")
    rows = reference(prompt)
    for path, body in ((COMPLETIONS, {"prompt": prompt}), (CHAT, {"messages": USER})):
        answer = done(ask(path, prompt_logprobs=1, max_tokens=1, n=2, **body))
        holders = answer["choices"] if path == COMPLETIONS else [answer]
        for holder in holders:
            first, *others = holder["prompt_logprobs"]
            assert first is None and all(set(e[next(iter(e))]) for e in others)
            if path == COMPLETIONS:
                for row, token, entries in zip(rows, prompt[1:], others, strict=False):
                    value, rank = float(row[token]), int((row >= row[token]).sum())
                    assert entries[str(token)]["logprob"] == pytest.approx(value, abs=1e-4)
                    assert entries[str(token)]["rank"] == rank
                    assert str(int(row.argmax())) in entries and len(entries) <= 2
    assert told(ask(COMPLETIONS, prompt=prompt, prompt_logprobs=1, stream=True))["param"] == (
        "prompt_logprobs"
    )
    with Live(tiny_engine(2)) as slots:  # an engine that cannot do it says so
        body = {"prompt": prompt, "prompt_logprobs": 1}
        assert told(httpx.post(slots.url + COMPLETIONS, json=body))["param"] == "prompt_logprobs"


def test_masks(ask) -> None:
    body = {"prompt": [70, 71], "max_tokens": 24, "return_token_ids": True, "logprobs": 0}
    for more in ({"temperature": 0}, {"seed": 3}, {"seed": 3, "top_k": 5, "top_p": 0.5}):
        allowed = [90, 500, 1200]
        answer = done(ask(COMPLETIONS, allowed_token_ids=allowed, **body, **more))["choices"][0]
        assert set(answer["token_ids"]) <= set(allowed)
        rows = reference([70, 71, *answer["token_ids"]])[1:]
        raw = [float(row[t]) for row, t in zip(rows, answer["token_ids"], strict=False)]
        assert answer["logprobs"]["token_logprobs"] == pytest.approx(raw, abs=1e-4)
        if "temperature" in more:
            best = [allowed[int(row[allowed].argmax())] for row in rows[:-1]]
            assert answer["token_ids"] == best
        free = done(ask(COMPLETIONS, **body, **more))["choices"][0]
        for word in ("".join(free["text"].split()[:1]), free["text"][:9].strip()):
            got = done(ask(COMPLETIONS, bad_words=[word], **body, **more))["choices"][0]
            runs = [TOKENIZER.encode(word), TOKENIZER.encode(" " + word)]
            for run in (run for run in runs if len(run) == len(runs[0])):
                places = range(len(got["token_ids"]))
                assert all(got["token_ids"][i : i + len(run)] != run for i in places)
    for wrong in ([], [5000], [-1]):
        assert told(ask(COMPLETIONS, prompt="a", allowed_token_ids=wrong))["param"] == (
            "allowed_token_ids"
        )
    nothing = {"allowed_token_ids": [0], "min_tokens": 2}  # 0 ends the text
    assert told(ask(COMPLETIONS, prompt="a", **nothing))["param"] == "allowed_token_ids"
    assert told(ask(COMPLETIONS, prompt="a", bad_words=[""]))["param"] == "bad_words"


def test_salts_keep_users_apart_in_the_prefix_cache(ask) -> None:
    prompt = random.Random(5).sample(range(300, 2000), 41)

    def cached(**more: Any) -> int:
        usage = done(ask(COMPLETIONS, prompt=prompt, max_tokens=1, **more))["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    asked = [{}, {"cache_salt": "a"}, {}, {"cache_salt": "b"}, {"cache_salt": "a"}]
    assert [cached(**more) for more in asked] == [0, 0, 40, 0, 40]
    assert cached(prompt_logprobs=0) == 0  # what is cached has no logits
    assert told(ask(COMPLETIONS, prompt=prompt, cache_salt=""))["param"] == "cache_salt"


def test_exact_ids(server, ask) -> None:
    for n, path in ((2, COMPLETIONS), (1, CHAT)):
        prompt = {"prompt": "a dog"} if path == COMPLETIONS else {"messages": USER}
        body = prompt | {"n": n, "seed": 1, "max_tokens": 30, "stop": "zzzzz", "top_k": 400}
        ids = {"return_token_ids": True}
        whole = done(ask(path, **body, **ids))
        chunks = events(
            server, path, **body, **ids,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )  # fmt: skip
        for choice in whole["choices"]:
            mine = [
                c for c in chunks if c["choices"] and c["choices"][0]["index"] == choice["index"]
            ]
            parts = [c["choices"][0].get("token_ids", []) for c in mine]
            assert [i for part in parts for i in part] == choice["token_ids"] and len(
                choice["token_ids"]
            ) > 1
            holder = choice if path == COMPLETIONS else whole
            first = mine[0]["choices"][0] if path == COMPLETIONS else mine[0]
            assert first["prompt_token_ids"] == holder["prompt_token_ids"]
            sizes = [sum(map(len, parts[: i + 1])) for i in range(len(parts))]
            assert [c["usage"]["completion_tokens"] for c in mine] == sizes
        assert chunks[-1]["usage"] == whole["usage"] | {
            "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]
        }
    named = done(ask(COMPLETIONS, prompt=[70], logprobs=1, return_tokens_as_token_ids=True, **ids))[
        "choices"
    ][0]
    assert named["logprobs"]["tokens"] == [f"token_id:{i}" for i in named["token_ids"]]
    strings = done(ask("/tokenize", prompt="é dog<|im_end|>", return_token_strs=True))
    peer = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    assert strings["token_strs"] == peer.convert_ids_to_tokens(strings["tokens"])


def test_prompts_are_truncated_where_asked(ask) -> None:
    ids = list(range(300, 400))
    body = {"prompt": ids, "max_tokens": 2, "return_token_ids": True}
    for more, kept in (
        ({"truncate_prompt_tokens": 7}, ids[-7:]),
        ({"truncate_prompt_tokens": 7, "truncation_side": "left"}, ids[-7:]),
        ({"truncate_prompt_tokens": 7, "truncation_side": "right"}, ids[:7]),
        ({"truncate_prompt_tokens": 500}, ids),
        ({"truncate_prompt_tokens": -1}, ids),
        ({"truncation_side": "right"}, ids),
    ):
        assert done(ask(COMPLETIONS, **body, **more))["choices"][0]["prompt_token_ids"] == kept
    long = body | {"prompt": "word " * 50_000, "truncate_prompt_tokens": -1}
    assert len(done(ask(COMPLETIONS, **long))["choices"][0]["prompt_token_ids"]) == 254
    for count, kept in ((200, 200), (50_000, 240)):  # tokens of many letters, none of them lost
        words = body | {"prompt": " grandmother" * count, "truncate_prompt_tokens": 240}
        for side in ("left", "right"):
            found = done(ask(COMPLETIONS, **words, truncation_side=side))["choices"][0]
            assert len(found["prompt_token_ids"]) == kept
    chat = {"messages": [{"role": "user", "content": " grandmother" * 3000}], "max_tokens": 2}
    assert done(ask(CHAT, **chat, truncate_prompt_tokens=-1))["usage"]["prompt_tokens"] == 254
    assert told(ask(CHAT, **chat))["param"] == "messages"
    begun = {"prompt": "a", "prompt_logprobs": 1, "output_token_ids": [70]}
    assert "prompt_logprobs" in told(ask(COMPLETIONS, **begun))["message"]


def test_half_a_surrogate_as_the_name_of_a_model(server) -> None:
    body = b'{"model": "\\ud800", "prompt": "a"}'
    headers = {"Content-Type": "application/json"}
    found = httpx.post(server.url + COMPLETIONS, content=body, headers=headers)
    assert found.status_code == 404 and found.json()["error"]["param"] == "model", found.text


def test_other_fields(ask) -> None:
    answer = done(ask(COMPLETIONS, prompt=[70], max_tokens=1, request_id="mine-7"))
    assert answer["id"] == "cmpl-mine-7"
    for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": USER})):
        error = told(ask(path, stream_options={"include_usage": True}, **body))
        assert error["param"] == "stream_options"
    kwargs = {"chat_template_kwargs": {"continue_final_message": True}}
    assert told(ask(CHAT, messages=USER, **kwargs))["param"] == "chat_template_kwargs"
    done(ask(CHAT, messages=USER, max_tokens=1, reasoning_effort="low", documents=[{"a": "b"}]))


@pytest.mark.parametrize(
    ("path", "body", "place", "says"),
    [
        (CHAT, {"messages": [*USER, {"content": "x"}]}, "messages.1.role", "required"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages.0.content", "only text"),
        (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages.0", "content"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages.0", "content"),
        (COMPLETIONS, {"prompt": "a", "stop": ["a", 1]}, "stop.1", "string"),
        (COMPLETIONS, {"prompt": "a", "stop": 5}, "stop", "string"),
        (COMPLETIONS, {"prompt": "a", "temperature": 9}, "temperature", "2"),
        (COMPLETIONS, {"prompt": "a", "top_k": 2**63}, "top_k", "from 1"),
        (COMPLETIONS, {"prompt": "a", "min_tokens": 99}, "min_tokens", "max_tokens"),
    ],
)  # fmt: skip
def test_refusals_name_the_place(ask, path: str, body: dict, place: str, says: str) -> None:
    error = told(ask(path, **body))
    assert error["param"] == place.split(".")[0]
    assert error["message"].startswith(place) and says in error["message"]


def test_a_body_without_its_header_is_told_so(server) -> None:
    curl = {"Content-Type": "application/x-www-form-urlencoded"}
    for headers in (curl, {}):
        answer = httpx.post(server.url + COMPLETIONS, content=b'{"prompt": "a"}', headers=headers)
        assert "Content-Type: application/json" in told(answer)["message"]


def test_sizes_of_requests_are_counted(server, ask) -> None:
    names = ("request_prompt_tokens", "request_generation_tokens", "request_params_n",
             "request_params_max_tokens", "request_inference_time_seconds")  # fmt: skip
    before = {name: server.metric(f"{name}_sum") for name in names}
    done(ask(COMPLETIONS, prompt=[70, 71, 72], max_tokens=5, n=2, ignore_eos=True))
    grown = {name: server.metric(f"{name}_sum") - before[name] for name in names}
    assert grown.pop("request_inference_time_seconds") > 0
    assert list(grown.values()) == [3, 10, 2, 5]
    page = httpx.get(server.url + "/metrics").text
    for name in ("num_preemptions_total", "cache_config_info"):
        assert f"nanovllm:{name}{{" in page


def test_pages_of_other_origins_may_ask_only_if_allowed(server) -> None:
    from nanovllm.serving.config import ServeConfig

    page = {"Origin": "https://chat.example.com"}
    preflight = page | {"Access-Control-Request-Method": "POST"}
    assert (
        "access-control-allow-origin"
        not in httpx.get(server.url + "/health/", headers=page).headers
    )
    config = ServeConfig(api_keys=("k",), allowed_origins=("https://chat.example.com",))
    with Live(tiny_engine(2), config) as allowing:
        answer = httpx.options(allowing.url + COMPLETIONS, headers=preflight)
        assert answer.status_code == 200
        for reply in (answer, httpx.get(allowing.url + "/v1/models", headers=page)):
            assert reply.headers["access-control-allow-origin"] == page["Origin"]
        other = httpx.get(allowing.url + "/health", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


VALUES = [
    None, True, False, 0, 1, -1, 2, 7, 10**6, 2**63, -(2**70), 0.5, -3.5, 1e308, "", "a", "left",
    "right", "\x00", "x" * 3000, [], [0], [70, 71], [-1], [5000], [None], ["a"], ["", "b"],
    [[70], [71, 72]], [{"a": []}], {}, {"type": "text"}, {"a": {"b": [1]}}, {"include_usage": True},
    {"include_usage": True, "continuous_usage_stats": True}, {"70": 5},
]  # fmt: skip


def test_fuzzed_fields_end_in_an_answer_or_a_refusal(server) -> None:
    rng, seen = random.Random(11), {}
    fields = server_fields.vllm_fields()
    names = {
        COMPLETIONS: [*fields["completion"], "best_of", "functions"],
        CHAT: fields["chat"],
        "/tokenize": fields["tokenize"],
    }
    before = threading.active_count()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(CASES):
            path = rng.choice(list(names))
            body = {"prompt": [70, 71]} if path == COMPLETIONS else {"messages": BEGUN}
            body |= {"max_tokens": 3} if path != "/tokenize" else {}
            chosen = rng.sample(names[path], rng.choice([1, 1, 1, 3]))
            body |= {name: rng.choice(VALUES) for name in chosen if name != "model"}
            answer = client.post(path, json=body, timeout=30)
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            assert answer.status_code in (200, 400), (path, body, answer.text)
            if answer.status_code == 400:
                assert answer.json()["error"]["message"].endswith("."), (body, answer.text)
            elif path != "/tokenize" and body.get("stream") is not True:
                assert answer.json()["choices"], body
    print(f"{CASES} cases, by status: {seen}")
    assert min(seen[200], seen[400]) > CASES // 20
    server.assert_idle()
    assert threading.active_count() <= before + 2


def test_openai_package_passes_the_extras_through(server) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="tiny",
            messages=BEGUN,
            max_tokens=4,
            extra_body=GOES_ON | {"return_token_ids": True},
        )
        assert len(answer.choices[0].token_ids) == answer.usage.completion_tokens
        assert answer.usage.prompt_tokens_details.cached_tokens >= 0
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="tiny", messages=USER, functions=[{"name": "f"}])
        assert caught.value.param == "functions"

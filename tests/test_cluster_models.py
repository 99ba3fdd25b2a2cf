"""Lab 11: several models at one address, loaded and unloaded under one budget."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from nanovllm import LLM
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.cluster.model_specs import ModelSpec
from nanovllm.cluster.models_server import ModelsServer
from nanovllm.llm.read_options import OptionError
from nanovllm.llm.several_models import model_specs, read_models
from nanovllm.model.loader import dummy_model
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig
from tests.processes import run
from tests.serving_tools import CONFIG, TEMPLATE, TOKENIZER, Live, offline, wait_until
from tests.test_cluster_serving import WithRole
from tests.tiny_checkpoint import SMALL, save_random

NAMES = ("a", "b", "c")


class Several(Live):
    """A live server of three tiny models, of which two fit."""

    def __init__(self, config: ServeConfig | None = None) -> None:
        super().__init__()
        self.made: list[str] = []
        specs = [ModelSpec(name, 10) for name in NAMES]
        self.several = ModelsServer(specs, 20, self.make, config or ServeConfig())
        WithRole._run(self, self.several.app)

    def make(self, spec: ModelSpec) -> Server:
        self.made.append(spec.name)
        model = dummy_model(CONFIG, seed=3 + NAMES.index(spec.name))
        engine = Engine(model, EngineConfig(max_num_seqs=4), tokenizer=TOKENIZER)
        return Server(engine, ServeConfig(model_name=spec.name), TEMPLATE)

    def ask(self, model: str | None, **more: Any) -> httpx.Response:
        body = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0} | more
        if model is not None:
            body["model"] = model
        return httpx.post(self.url + "/v1/completions", json=body, timeout=60, trust_env=False)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, trust_env=False)


@pytest.fixture
def three() -> Iterator[Several]:
    with Several() as live:
        yield live


def test_each_answers_with_its_own_weights(three: Several) -> None:
    texts = {name: three.ask(name).json()["choices"][0]["text"] for name in NAMES}
    assert len(set(texts.values())) == 3
    assert [[texts["a"]]] == offline([{"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}])
    assert three.ask(None).json()["model"] == "a"
    assert [card["id"] for card in three.get("/v1/models").json()["data"]] == list(NAMES)


def test_the_longest_unused_leaves(three: Several) -> None:
    for name in ("a", "b", "a", "c", "a", "b"):
        answer = three.ask(name)
        assert answer.status_code == 200 and answer.json()["model"] == name
    assert three.made == ["a", "b", "c", "b"]
    assert three.get("/health").json()["loaded"] == ["a", "b"]
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("engine") == 2, "the threads of unloaded engines have ended"


def test_a_model_in_use_stays(three: Several) -> None:
    long = {"max_tokens": 200, "ignore_eos": True, "stream": True}
    body = {"prompt": [5, 6, 7], "model": "a"} | long
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", three.url + "/v1/completions", json=body) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        assert [three.ask(name).status_code for name in ("b", "c")] == [200, 200]
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert three.made == ["a", "b", "c"] and "b" not in three.several.servers


def test_no_room_is_a_503_and_then_there_is(three: Several) -> None:
    async def holds() -> None:
        for name in ("a", "b"):
            await three.several._acquire(three.several.pool.resolve(name))

    asyncio.run_coroutine_threadsafe(holds(), three.loop).result(60)
    answer = three.ask("c")
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert "'c'" in answer.json()["error"]["message"] and three.made == ["a", "b"]
    release = three.several._release(three.several.pool.resolve("a"))
    asyncio.run_coroutine_threadsafe(release, three.loop).result(60)
    assert three.ask("c").status_code == 200


def test_models_that_are_there_answer_while_another_is_loaded(three: Several) -> None:
    make, goes_on = three.make, threading.Event()

    def slow(spec: ModelSpec) -> Server:
        assert spec.name != "b" or goes_on.wait(60)
        return make(spec)

    three.several.make = slow
    assert three.ask("a").status_code == 200
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(three.ask, "b")
        while not three.several.loading:
            time.sleep(0.01)
        assert [three.ask("a").status_code for _ in range(3)] == [200] * 3
        assert not waits.done()
        goes_on.set()
        assert waits.result().status_code == 200
    assert [three.ask(name).status_code for name in ("c", "a", "b")] == [200] * 3
    # What is left of an answer after its last byte may take a moment.
    wait_until(lambda: not any(held.users for held in three.several.pool._held.values()))


def test_no_model_is_loaded_for_a_path_that_is_none_of_its(three: Several) -> None:
    found = [three.get(path).status_code for path in ("/health/live", "/favicon.ico", "/v1/tokens")]
    assert found == [200, 404, 404]
    assert three.get("/v1/completions").status_code == 405
    assert three.made == []


def test_an_unknown_model_is_a_404(three: Several) -> None:
    answer = three.ask("d")
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "model" and "'d'" in answer.json()["error"]["message"]
    assert three.get("/v1/models/d").status_code == 404
    assert three.get("/v1/models/b").json()["id"] == "b"
    assert three.made == []


def test_a_model_that_cannot_be_loaded_leaves_the_others(three: Several) -> None:
    make = three.make
    three.several.make = lambda spec: make(spec) if spec.name != "b" else 1 / 0
    assert [three.ask(name).status_code for name in ("a", "b", "a", "c")] == [200, 500, 200, 200]
    assert three.several.pool.used == 20


def test_metrics_of_all_models(three: Several) -> None:
    for name in ("a", "b", "a"):
        three.ask(name)
    families = list(text_string_to_metric_families(three.get("/metrics").text))
    assert len({family.name for family in families}) == len(families)
    found = {(s.name, s.labels.get("model_name")): s.value for f in families for s in f.samples}
    assert found["nanovllm:generation_tokens_total", "a"] == 8
    assert found["nanovllm:generation_tokens_total", "b"] == 4
    assert found["nanovllm:model_loads_total", "a"] == 1
    assert found["nanovllm:models_bytes", None] == 20


def test_bad_bodies_and_keys() -> None:
    with Several(ServeConfig(api_keys=("k",))) as live:
        assert live.ask("a").status_code == 401
        head = {"Authorization": "Bearer k"}
        url = live.url + "/v1/completions"
        answer = httpx.post(url, content=b"{", headers=head, timeout=60, trust_env=False)
        assert answer.status_code == 400 and len(answer.headers.get_list("x-request-id")) == 1
        answer = httpx.post(url, json=[1], headers=head, timeout=60, trust_env=False)
        assert answer.status_code == 400
        assert live.get("/dashboard").status_code == 200


def test_draining_refuses_and_finishes(three: Several) -> None:
    assert three.ask("a").status_code == 200
    asyncio.run_coroutine_threadsafe(three.several.drain(), three.loop).result(60)
    assert three.ask("a").status_code == 503 and three.get("/health").status_code == 503


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, layers in (("small", 2), ("large", 4)):
        found[name] = tmp_path_factory.mktemp(name)
        save_random(found[name], **SMALL | {"num_hidden_layers": layers})
    return found


def test_bytes_are_those_of_weights_and_cache(folders: dict[str, Path]) -> None:
    how = {"dtype": None, "device": None, "max_model_len": None}
    options = {"num_gpu_blocks_override": 10, "block_size": 4}
    small, large = model_specs(folders, **how, options=options)
    llm = LLM(folders["large"], **options)
    weights = sum(w.nbytes for w in {id(w): w for w in llm.model.parameters()}.values())
    cache = llm.runner.engine.store.total_tokens * llm.kv_bytes_per_token
    norms = sum(w.nbytes for n, w in llm.model.named_parameters() if "norm" in n)
    assert large.nbytes == weights - norms + cache and small.nbytes < large.nbytes


@pytest.mark.parametrize("text", ["a", "a=", "=x", "", "a=F,a=F"])
def test_what_is_no_list_of_models_is_refused(text: str, folders: dict[str, Path]) -> None:
    with pytest.raises(OptionError):
        read_models(text.replace("F", str(folders["small"])))


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--models-memory-bytes", "1000000"), "budget"),
        (("--model", "x"), "--model"),
        (("--role", "decode"), "--role"),
        (("--tensor-parallel-size", "2"), "ranks"),
    ],
)
def test_the_command_refuses_in_one_sentence(more: tuple[str, ...], word: str, folders) -> None:
    models = ",".join(f"{name}={folder}" for name, folder in folders.items())
    done = run("serve", "--port", "0", "--models", models, *more)
    assert done.returncode == 2 and word in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_budget_without_models_is_refused() -> None:
    done = run("serve", "--models-memory-bytes", "5")
    assert done.returncode == 2 and "--models " in done.stderr

"""K and V in codes: texts do not depend on the layout; `kv_cache_dtype` beside other options."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from nanovllm import LLM, SamplingParams
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Aborted, Preempted
from nanovllm.fast import available
from nanovllm.generation.events import Finished
from nanovllm.llm import OptionError, kv_codes
from nanovllm.llm.guessing import Guessing
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.quantization.kv_store import QuantizedStore
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.snapshot import kv_facts
from nanovllm.speculative.config import SpeculativeConfig
from tests.processes import ROOT, run
from tests.readme_tables import options_beside

KINDS = ("int8", "int4", "fp8")
CONFIG = ModelConfig(
    "qwen3", 50, 32, 2, 4, 2, 8, 48, 64, qk_norm=True, eos_token_ids=(2,), windows=(None, 7)
)
MODEL = dummy_model(CONFIG)
BYTES = {"auto": 4096, "int8": 1152, "int4": 640, "fp8": 1152}
PROMPTS = ["Once upon a time there was a little", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "12 + 30 ="]
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, seed=4, max_tokens=14)


class Case:
    """Requests, and one of many ways to compute them."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.kind = draw.choice(KINDS)
        trunk = [draw.randrange(3, 50) for _ in range(14)]
        self.prompts = [
            trunk[: draw.choice([0, 6, 14])] + [draw.randrange(3, 50) for _ in range(length)]
            for length in (draw.randint(1, 9) for _ in range(draw.randint(2, 6)))
        ]
        self.params = [
            SamplingParams(temperature=0.8 * (n > 0), n=max(n, 1), seed=i,
                           max_tokens=draw.randint(2, 16), ignore_eos=draw.random() < 0.5)
            for i, n in enumerate(draw.choices([0, 1, 3], k=len(self.prompts)))  # 0: greedy
        ]  # fmt: skip
        self.block_size = draw.choice([1, 2, 4, 16])
        longest = max(map(len, self.prompts)) + 16
        least = -(-longest // self.block_size)
        self.num_blocks = least + draw.choice([0, 1, least, 6 * least])
        self.caching = draw.random() < 0.6
        self.preemption = draw.choice(["recompute", "swap"])
        self.host_blocks = draw.choice([0, 3, 200]) if self.preemption == "swap" else 0
        self.seats = draw.randint(1, 5)
        self.budget = self.seats + draw.choice([0, 3, 20, 60])
        self.guesses = draw.random() < 0.3
        # A step after which a request is given up; most have ended by then.
        self.aborts = {draw.randrange(40): draw.randrange(len(self.prompts)) for _ in range(2)}

    def texts(self) -> dict:
        store = QuantizedStore(
            CONFIG, self.num_blocks, self.block_size, kind=self.kind,
            enable_prefix_caching=self.caching, preemption=self.preemption,
            num_host_blocks=self.host_blocks,
        )  # fmt: skip
        ngram = Guessing(SpeculativeConfig(method="ngram"), None)
        kind = ngram.on(Engine) if self.guesses else Engine
        config = EngineConfig(max_num_seqs=self.seats, max_num_batched_tokens=self.budget)
        return self.run(kind(MODEL, config, store=store), self.aborts)

    def plainly(self) -> dict:
        """One request after another, each prompt in one chunk, in blocks that hold it all."""
        store = QuantizedStore(CONFIG, 8, 64, kind=self.kind, enable_prefix_caching=False)
        config = EngineConfig(max_num_seqs=1, max_num_batched_tokens=64)
        return self.run(Engine(MODEL, config, store=store), {})

    def run(self, engine: Engine, aborts: dict[int, int]) -> dict:
        for i, (prompt, params) in enumerate(zip(self.prompts, self.params, strict=True)):
            engine.add_request(prompt, params, seed=i, request_id=i)
        found, step = {}, 0
        while engine.has_unfinished:
            for event in engine.step():
                if isinstance(event, Finished):
                    found[event.request_id, event.index] = event.completion.token_ids
                elif isinstance(event, Preempted | Aborted):
                    found.setdefault(type(event), []).append(event)
            if step in aborts:
                engine.abort(aborts[step])
            engine.check()
            step += 1
        return found


@pytest.mark.parametrize("histories", [12, pytest.param(600, marks=pytest.mark.proof)])
def test_texts_do_not_depend_on_how_they_are_computed(histories: int) -> None:
    seen = {Preempted: 0, "aborted": 0, "texts": 0}
    for seed in range(histories):
        case = Case(seed)
        found, wanted = case.texts(), case.plainly()
        seen[Preempted] += bool(found.pop(Preempted, None))
        found.pop(Aborted, None)
        seen["aborted"] += len(wanted) - len(found)
        seen["texts"] += len(found)
        assert found == {key: wanted[key] for key in found}, vars(case)
    assert seen[Preempted] > histories / 10 and seen["aborted"] and seen["texts"] > histories


def llm_in(kind: str, **options: object) -> LLM:
    return LLM(**{"enforce_eager": True, **options}, kv_cache_dtype=kind)


@cache
def plain(kind: str) -> LLM:
    return llm_in(kind)


def answers(llm: LLM, params: SamplingParams) -> list:
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    llm.runner.engine.check()
    return [[(a.text, a.token_ids, a.finish_reason) for a in o.outputs] for o in outputs]


def same(
    params: SamplingParams = SAMPLED, kinds: tuple = ("int8", "int4"), **options: object
) -> None:
    """Each kind gives the texts that it gives without these options."""
    for kind in kinds:
        assert answers(llm_in(kind, **options), params) == answers(plain(kind), params)


def caching() -> None:
    same(enable_prefix_caching=False, kinds=KINDS)


def chunked() -> None:
    same(max_num_batched_tokens=4, max_num_seqs=3)
    same(max_num_seqs=1)


def sizes() -> None:
    same(block_size=48, kinds=("int4",))
    same(GREEDY, num_gpu_blocks_override=5)
    for kind, size in BYTES.items():
        llm = llm_in(kind, kv_cache_memory_bytes=1 << 20)
        store = llm.runner.engine.store
        assert llm.kv_bytes_per_token == llm.rung.kv_bytes_per_token == size
        assert store.num_blocks == (1 << 20) // (16 * size) and store.nbytes <= 1 << 20
        assert kv_facts(store)["bytes_per_token"] == size
    with pytest.raises(OptionError, match="one block of 16 tokens takes 18432"):
        llm_in("int8", kv_cache_memory_bytes=16_000)


def swapped() -> None:
    case = next(case for case in map(Case, range(99)) if case.host_blocks and not case.guesses)
    found = case.texts()
    assert found.items() <= (case.plainly() | {k: found[k] for k in found if isinstance(k, type)}
                             ).items()  # fmt: skip


def policies() -> None:
    for policy in (
        "sjf",
        "deadline",
        "round-robin",
        "priority",
        "priority-with-ageing",
        "size-queues",
    ):
        same(GREEDY, scheduling_policy=policy, max_num_seqs=2, kinds=("int4",))


def bfloat16() -> None:
    llm = llm_in("int8", dtype="bfloat16")
    cache = llm.runner.engine.store.cache
    assert llm.kv_bytes_per_token == 1152  # scales stay float32
    assert {x.dtype for x in cache.read(0, torch.tensor([0]))} == {torch.bfloat16}
    assert all(text for [(text, _, _)] in answers(llm, GREEDY))


def eager() -> None:
    for kind in ("int4", "fp8"):
        llm = llm_in(kind, enforce_eager=False)
        assert llm.rung.step == f"plain: K and V are kept in {kind}"
        assert f"blocks of 16 tokens in {kind}, prefixes" in llm.rung.describe(llm.runner.engine)
        assert answers(llm, SAMPLED) == answers(plain(kind), SAMPLED)
    if available() is None:
        llm = llm_in("int8", enforce_eager=False)
        assert llm.rung.step == "compiled" and llm.runner.engine.wait()
        assert all(text for [(text, _, _)] in answers(llm, GREEDY))


def kernels() -> None:
    from nanovllm.llm.paged_store import paged_store

    made = [paged_store(CONFIG, 20, 4, attention=name, kv_cache_dtype="int4")
            for name in ("torch", "triton")]  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    found = []
    for store in made:
        engine = Engine(MODEL, EngineConfig(max_num_seqs=4), store=store)
        for prompt in ([5, 6, 7, 8, 9], [11, 12]):
            engine.add_request(prompt, params)
        ends = []
        while engine.has_unfinished:
            ends += [e for e in engine.step() if isinstance(e, Finished)]
        found.append({e.request_id: e.completion.token_ids for e in ends})
    assert found[0] == found[1] and made[0].attention is not made[1].attention


def samples() -> None:
    for llm in (plain("int8"), plain("int4")):
        alone = [answers(llm, SamplingParams(temperature=0.9, seed=4, n=n, max_tokens=12))
                 for n in (1, 3)]  # fmt: skip
        assert [each[:1] for each in alone[1]] == alone[0]
        (output,) = llm.generate(PROMPTS[:1], SamplingParams(logprobs=2), use_tqdm=False)
        assert output.outputs[0].logprobs


def beams() -> None:
    def found(kind: str, **options: object) -> list:
        llm = llm_in(kind, **options)
        return llm.beam_search(PROMPTS[0], beam_width=3, max_tokens=8)[0].outputs

    exact, codes = found("auto"), found("int4")
    assert codes == found("int4", block_size=4)
    assert [a.cumulative_logprob for a in codes] != [a.cumulative_logprob for a in exact]


def guesses() -> None:
    config = {"method": "ngram_then_draft", "model": str(ROOT / "models" / "draft")}
    same(speculative_config=config)
    same(GREEDY, speculative_config=config, num_gpu_blocks_override=6, kinds=("int4",))


def scored(llm: LLM) -> list:
    """Greedy answers, with the two best log-probabilities of each token."""
    outputs = llm.generate(PROMPTS, replace(GREEDY, logprobs=2), use_tqdm=False)
    return [
        [(a.text, a.token_ids, a.finish_reason, a.logprobs) for a in o.outputs] for o in outputs
    ]


def weights() -> None:
    for name in ("int8", "int4"):
        found = [scored(llm_in("int8", quantization=name, **options))
                 for options in ({}, {"max_num_batched_tokens": 4, "max_num_seqs": 3})]  # fmt: skip
        alike(*found)


def alike(one: list, other: list) -> None:
    """Equal, but where the two best tokens are as good: rounded codes carry the last digits on."""
    for [(_, ids, _, scores)], [(_, others, _, _)] in zip(one, other, strict=True):
        apart = next(
            (i for i, pair in enumerate(zip(ids, others, strict=True)) if len(set(pair)) > 1), None
        )
        if apart is not None:
            best = {token: logprob.logprob for token, logprob in scores[apart].items()}
            assert abs(best[ids[apart]] - best[others[apart]]) < 0.05


def slots() -> None:
    for engine in ("continuous", "static"):
        with pytest.raises(OptionError, match="kv_cache_dtype needs lab05"):
            llm_in("int8", engine=engine)
        llm_in("auto", engine=engine)


def unknown() -> None:
    for kind in ("int2", "fp8_e5m2", None, 8):
        with pytest.raises(OptionError, match="kv_cache_dtype must be auto, int8, int4 or fp8"):
            llm_in(kind)


ROWS: dict[str, Callable[[], None]] = {
    "`enable_prefix_caching`, on or off": caching,
    "`max_num_batched_tokens`, `max_num_seqs`": chunked,
    "`block_size`, `num_gpu_blocks_override`, `kv_cache_memory_bytes`": sizes,
    "preemption by swap (`PagedStore`)": swapped,
    "`scheduling_policy`, each of them": policies,
    '`dtype="bfloat16"`': bfloat16,
    "`enforce_eager`, on or off": eager,
    "lab 06's attention kernels": kernels,
    "`n`, `logprobs`, `seed`": samples,
    "`beam_search`": beams,
    "`speculative_config`": guesses,
    "`quantization`: weights in codes, too": weights,
    '`engine="continuous"` or `"static"` (slots)': slots,
    "another `kv_cache_dtype`": unknown,
}


@pytest.mark.parametrize("check", ROWS.values(), ids=ROWS)
@pytest.mark.few(4)
def test_option(check: Callable[[], None]) -> None:
    check()


def test_the_table_in_the_readme_has_these_rows() -> None:
    assert options_beside("with K and V in codes") == (list(ROWS), list(ROWS)[-2:])


def test_without_lab_09_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_codes, "why_missing", {"lab09": "lab09 is not here."}.get)
    with pytest.raises(OptionError, match=r"needs lab09 .* lab09 is not here"):
        llm_in("int8")
    llm_in("auto")


@pytest.mark.parametrize("command", [["generate", "a"], ["chat"], ["serve"], ["describe"]],
                         ids=" ".join)  # fmt: skip
def test_on_every_command_another_kind_is_one_sentence(command: list[str]) -> None:
    done = run(*command, "--kv-cache-dtype", "int2")
    assert done.returncode == 2 and "auto, int8, int4 or fp8; got 'int2'" in done.stderr
    assert done.stderr.strip().count("\n") == 0 and "Traceback" not in done.stderr


def test_a_server_tells_how_k_and_v_are_kept() -> None:
    for kind, told in (("int4", "int4"), ("auto", "auto")):
        engine = plain(kind).rung.make_engine()
        text = Server(engine, ServeConfig(model_name="m")).metrics.registry.text().decode()
        (found,) = (f for f in text_string_to_metric_families(text)
                    if f.name == "nanovllm:cache_config_info")  # fmt: skip
        (sample,) = found.samples
        blocks = str(engine.store.num_blocks)
        assert sample.value == 1 and sample.labels == {
            "block_size": "16", "bytes_per_token": str(BYTES[kind]), "cache_dtype": told,
            "enable_prefix_caching": "True", "engine": "0", "num_gpu_blocks": blocks,
        }  # fmt: skip

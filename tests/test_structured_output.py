"""Structured output: texts follow what was asked for, on every kind of step, beside the rest."""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import regex
import torch

from labs.lab01 import test_3_decode as decoding
from nanovllm import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Failed, Preempted, Stepped
from nanovllm.generation.compile_grammar import compile_grammar
from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import Completion, Finished, Sampled
from nanovllm.generation.masks import Ahead, apply_masks
from nanovllm.generation.params import ParamsError
from nanovllm.generation.rows import SamplingRow
from nanovllm.paging.store import PagedStore
from nanovllm.tokenization.tokenizer import Tokenizer
from tests.serving_tools import CONFIG, MODEL, TOKENIZER, tiny_engine
from tests.tiny_checkpoint import TARGET

SIZE, ENDS = CONFIG.vocab_size, CONFIG.eos_token_ids
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "é": {"type": ["boolean", "null"]},
    },
    "required": ["name", "age", "é"],
    "additionalProperties": False,
}
CHOICES = ["yes", "no", 'per "haps"\\', "né 😀\n", "yes, but"]
PATTERNS = [r"(ab|cd)+x?", r"[0-9]{2,4}-(the|dog|a)*", r"\+?[a-z ]{0,12}\.", r"é{3}|ö", r"(a|b)*c"]
PARENS = 'root ::= item+\nitem ::= "a" | "(" item* ")"'


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


def balanced(text: str, whole: bool = True) -> bool:
    depth = 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter not in "a()" or depth < 0:
            return False
    return not whole or (depth == 0 and text != "")


KINDS: dict[str, tuple[dict[str, Any], Callable[[str], object], Callable[[str], object]]] = {
    "json": ({"json": PERSON, "disable_any_whitespace": True}, is_person, lambda text: True),
    "json, spaces": ({"json": PERSON, "whitespace_pattern": " ?"}, is_person, lambda text: True),
    "json_object": ({"json_object": True}, lambda text: isinstance(json.loads(text), dict),
                    lambda text: text[:1] in ("", "{")),
    "choice": ({"choice": CHOICES}, CHOICES.__contains__,
               lambda text: any(c.startswith(text.rstrip("\ufffd")) for c in CHOICES)),
    "grammar": ({"grammar": PARENS}, balanced, lambda text: balanced(text, whole=False)),
    **{
        pattern: (
            {"regex": pattern}, partial(regex.fullmatch, pattern),
            lambda text, p=pattern: regex.fullmatch(p, text.rstrip("\ufffd"), partial=True),
        )
        for pattern in PATTERNS
    },
}  # fmt: skip


def asking(kind: str, **more: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputsParams(**KINDS[kind][0]), **more)


def finished(engine: Any) -> list[Completion]:
    found = []
    while engine.has_unfinished:
        found += [e.completion for e in engine.step() if isinstance(e, Finished)]
        engine.check()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_random_weights_obey(kind: str) -> None:
    _, whole, begins = KINDS[kind]
    engine = tiny_engine(12)
    for seed in range(5):
        engine.add_request([70 + seed], asking(kind, n=5, seed=seed, max_tokens=80, top_k=seed * 7))
    reasons = set()
    for each in finished(engine):
        assert (whole if each.finish_reason == "stop" else begins)(each.text), each
        reasons.add(each.finish_reason)
    assert "stop" in reasons


def steps(text: str, pattern: str) -> set[int]:
    """The tokens that may follow, by the package regex: its partial matches."""
    found = set(ENDS) if regex.fullmatch(pattern, text) else set()
    for token in range(SIZE):
        piece = TOKENIZER.token_bytes(token)
        if token in TOKENIZER.special_ids or not piece:
            continue
        grown = (text + piece.decode("utf-8", "ignore")).encode()
        if grown == text.encode() + piece and regex.fullmatch(
            pattern, grown.decode(), partial=True
        ):
            found.add(token)
    return found


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p.isascii()])
def test_masks_are_those_of_another_library(pattern: str) -> None:
    grammar = compile_grammar(StructuredOutputsParams(regex=pattern), TOKENIZER, SIZE, ENDS)
    rng, forced = random.Random(5), 0
    for _ in range(6):
        tokens: list[int] = []
        while len(tokens) < 8 and not set(tokens) & set(ENDS):
            mask = grammar.allowed(tokens)
            assert mask is not None and mask.dtype == torch.bool and mask.shape == (SIZE,)
            allowed, wanted = set(mask.nonzero().flatten().tolist()), steps(
                TOKENIZER.decode(tokens), pattern
            )  # fmt: skip
            if allowed != wanted:  # where the text is forced, it is written as the tokenizer would
                assert len(allowed) == 1 and allowed < wanted
                forced += 1
            tokens.append(rng.choice(sorted(allowed)))
    assert forced < 12


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_depends_on_the_tokens_alone(kind: str) -> None:
    """Whatever was asked before: tokens taken back, guesses that break the grammar, other texts."""
    wanted = StructuredOutputsParams(**KINDS[kind][0])
    grammar = compile_grammar(wanted, TOKENIZER, SIZE, ENDS)
    rng = random.Random(2)
    paths = []
    for _ in range(4):
        path: list[int] = []
        while len(path) < 12 and not set(path) & set(ENDS):
            mask = grammar.fresh().allowed(path)
            path.append(rng.choice(mask.nonzero().flatten().tolist()))
        paths.append(path)
    one = grammar.fresh()
    for _ in range(60):
        path = rng.choice(paths)
        tokens = path[: rng.randint(0, len(path))]
        before = grammar.fresh().allowed(tokens)
        if rng.random() < 0.3 and not set(tokens) & set(ENDS):
            refused = (~before).nonzero().flatten().tolist()
            wrong = rng.choice([t for t in refused if t not in ENDS])
            broken = one.allowed([*tokens, wrong])  # perhaps another way to write what is forced
            assert broken is None or int(before.sum()) == 1
        assert torch.equal(one.allowed(tokens), before)


def test_behind_an_end_only_ends_follow() -> None:
    grammar = compile_grammar(StructuredOutputsParams(choice=["a"]), TOKENIZER, SIZE, ENDS)
    a = TOKENIZER.encode("a")
    for tokens in (a, [*a, 0], [*a, 2, 0, 2]):
        assert grammar.allowed(tokens).nonzero().flatten().tolist() == sorted(ENDS)
    engine = tiny_engine()
    params = asking("choice", ignore_eos=True, max_tokens=30, seed=1)
    engine.add_request([70], params)
    [found] = finished(engine)
    assert found.text in CHOICES and found.finish_reason == "length" and len(found.token_ids) == 30


# Every kind of step

GUESSES = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
DRAFT = {"method": "draft_model", "model": str(TARGET.parent / "draft"),
         "num_speculative_tokens": 3}  # fmt: skip
STEPS = {
    "compiled": {},
    "compiled, guesses": {"speculative_config": GUESSES},
    "compiled, drafts": {"speculative_config": DRAFT},
    "plain, drawn drafts": {"enforce_eager": True,
                            "speculative_config": DRAFT | {"draft_sample_method": "gumbel"}},
    "plain, chunks": {"enforce_eager": True, "max_num_batched_tokens": 16, "max_num_seqs": 5},
    "preempted": {"num_gpu_blocks_override": 8, "max_num_batched_tokens": 32, "max_num_seqs": 5,
                  "max_model_len": 96, "block_size": 16},
    "swapped, guesses": {"num_gpu_blocks_override": 8, "swap_space": 0.01, "max_model_len": 96,
                         "speculative_config": GUESSES, "max_num_seqs": 5},
    "continuous": {"engine": "continuous"},
    "static": {"engine": "static"},
    "quantized": {"kv_cache_dtype": "int8", "enforce_eager": True},
}  # fmt: skip
PROMPTS = ["Mia's code is 7342. Mia's code is 7342. What", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "The"]
LIST = {"type": "array", "items": {"enum": [1, 2, 3, 4, "Mia's code"]}, "minItems": 12}
ASKED = [
    {"structured_outputs": StructuredOutputsParams(json=LIST), "temperature": 0},
    {"structured_outputs": StructuredOutputsParams(regex=r"( [1-4],)*( [5-9]|\.)"), "n": 3,
     "seed": 5},
    {"structured_outputs": StructuredOutputsParams(json=PERSON), "seed": 2, "logprobs": 1},
    {},
]  # fmt: skip


def answers(kind: str, events: list | None = None) -> list:
    llm = LLM(**STEPS[kind])
    if hasattr(llm.runner.engine, "wait"):
        llm.runner.engine.wait()
    if events is not None:
        llm.runner.on_event = events.append
    params = [SamplingParams(max_tokens=40, **each) for each in ASKED]
    found = llm.generate(PROMPTS + PROMPTS[:1], params, use_tqdm=False)
    if kind != "static":
        llm.runner.engine.check()
    return [[(a.text, a.token_ids, a.finish_reason) for a in o.outputs] for o in found]


@cache
def plain() -> list:
    llm_texts = answers("plain, chunks")
    (listed, *_), odd, *_ = llm_texts
    assert listed[0].startswith("[") and all(
        regex.fullmatch(r"( \d,)*( \d|\.)?,?", a[0]) for a in odd
    )
    return llm_texts


@pytest.mark.parametrize("kind", [k for k in STEPS if k not in ("plain, chunks", "quantized")])
def test_the_same_texts_on_every_kind_of_step(kind: str) -> None:
    events: list = []
    assert answers(kind, events) == plain()
    accepted = [run.accepted for e in events if isinstance(e, Stepped) for run in e.chunks]
    assert any(accepted) == ("guesses" in kind or "drafts" in kind)
    assert any(isinstance(e, Preempted) for e in events) == kind.startswith(("pre", "swapped"))


@pytest.mark.parametrize("kind", ["quantized", "judged"])
def test_where_numbers_differ_texts_obey(kind: str) -> None:
    """K and V as codes; and rejection sampling, whose guesses a grammar refuses."""
    judged = {**DRAFT, "rejection_sample_method": "standard", "draft_sample_method": "gumbel"}
    options = STEPS.get(kind, {"enforce_eager": True, "speculative_config": judged})
    llm = LLM(**options)
    params = [asking(kind, seed=seed, max_tokens=60) for kind in KINDS for seed in range(2)]
    found = llm.generate([PROMPTS[i % 3] for i in range(len(params))], params, use_tqdm=False)
    kinds = [kind for kind in KINDS for _ in range(2)]
    for kind, each in zip(kinds, found, strict=True):
        [answer] = each.outputs
        assert KINDS[kind][1 if answer.finish_reason == "stop" else 2](answer.text), answer


def test_on_the_gpu_engine(monkeypatch) -> None:
    from nanovllm.gpu.decoder import FusedDecoder
    from nanovllm.gpu.engine import GpuEngine
    from tests.test_gpu_engine import in_torch, uncaptured

    monkeypatch.setattr(FusedDecoder, "forward", in_torch)
    found = []
    for kind in (Engine, partial(GpuEngine, capture=uncaptured)):
        store = PagedStore(CONFIG, 60, 4)
        engine = kind(MODEL, EngineConfig(max_num_seqs=8), tokenizer=TOKENIZER, store=store)
        for i, name in enumerate(("choice", "json", "grammar")):
            engine.add_request([70, 71 + i], asking(name, max_tokens=24, seed=i), request_id=i)
        engine.add_request([90], SamplingParams(max_tokens=24, seed=9), request_id=9)
        done = finished(engine)
        found.append(sorted((c.text, c.token_ids) for c in done))
        assert len(done) == 4
    assert found[0] == found[1]


def guessed_engine(kind: str, guess: list[int], judge: Any, **more: Any) -> Engine:
    """An engine whose first guesses are always the same."""
    from nanovllm.gpu.engine import GpuEngine
    from nanovllm.speculative.guess_policy import FixedPolicy
    from nanovllm.speculative.verify import SpeculativeEngine
    from tests.test_gpu_engine import uncaptured
    from tests.test_speculative_engine import Scripted

    if kind == "gpu":
        more["capture"] = uncaptured
    proposer = Scripted(lambda request, _: guess if not request.sequence.output_token_ids else [])
    return type("Guessing", (SpeculativeEngine, GpuEngine if kind == "gpu" else Engine), {})(
        MODEL, EngineConfig(max_num_seqs=8), tokenizer=TOKENIZER, store=PagedStore(CONFIG, 60, 4),
        proposer=proposer, guess_policy=FixedPolicy(3), judge=judge, **more,
    )  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize("kind", ["plain", "gpu"])
def test_a_mask_of_nothing_counts_where_it_is_reached(
    kind: str, judged: bool, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the guess a nothing is allowed. One request may never say a, one must; one is free."""
    from nanovllm.gpu.decoder import FusedDecoder
    from nanovllm.speculative.judge import judge
    from tests.test_gpu_engine import in_torch

    monkeypatch.setattr(FusedDecoder, "forward", in_torch)
    a, c, d = (TOKENIZER.encode(letter)[0] for letter in "acd")
    said: list[str] = []
    more = {"notify": said.append} if kind == "gpu" else {}
    engine = guessed_engine(kind, [a], judge if judged else None, **more)
    choice = StructuredOutputsParams(choice=["ab", "cd"])
    common = {"temperature": temperature, "structured_outputs": choice, "max_tokens": 9}
    wishes = [
        SamplingParams(**common, allowed_token_ids=[c, d, *ENDS]),
        SamplingParams(**common, allowed_token_ids=[a, *ENDS]),
        SamplingParams(temperature=temperature, max_tokens=9, ignore_eos=True),
    ]
    for number, params in enumerate(wishes):
        engine.add_request([70, 71], params, seed=number, request_id=number)
    texts, errors, drafts = {}, {}, 0
    while engine.has_unfinished:
        for event in engine.step():
            if isinstance(event, Finished):
                texts[event.request_id] = event.completion.text
            elif isinstance(event, Failed):
                errors[event.request_id] = event.error
            elif isinstance(event, Stepped):
                drafts += sum(run.drafts for run in event.chunks)
        engine.check()
    assert drafts == len(wishes)
    assert texts[0] == "cd" and texts.keys() == {0, 2}
    assert errors.keys() == {1} and isinstance(errors[1], RequestError)
    assert said == [] and not getattr(engine, "went_plain", False)


def test_ranks_share_the_work_and_the_texts() -> None:
    """Ranks compute logits; the mask is the engine's."""
    folder = TARGET.parent / "draft"
    params = [asking(kind, temperature=0, max_tokens=24) for kind in ("choice", "json")]
    alone, shared = LLM(folder), LLM(folder, tensor_parallel_size=2)
    texts = [
        [o.outputs[0].text for o in llm.generate(PROMPTS[:2], params, use_tqdm=False)]
        for llm in (alone, shared)
    ]
    shared.runner.engine.executor.close()
    assert texts[0] == texts[1]


# Beside other parameters


def one(params: SamplingParams, prompt: str = "The") -> Any:
    found = llm().generate(prompt, params, use_tqdm=False)
    return found[0].outputs[0]


@cache
def llm() -> LLM:
    return LLM(enforce_eager=True)


def test_beside_other_parameters() -> None:
    assert one(asking("choice", min_tokens=9, max_tokens=20)).text in CHOICES  # ends wait
    assert len(one(asking("choice", min_tokens=9, max_tokens=20)).token_ids) == 10
    long = one(asking("grammar", min_tokens=9, max_tokens=40, seed=1))
    assert balanced(long.text, long.finish_reason == "stop") and len(long.token_ids) >= 9
    for seed in range(4):
        never = one(asking("choice", bad_words=["yes", "no"], seed=seed, max_tokens=30)).token_ids
        for word in ("yes", "no"):  # by its tokens: the same letters in other tokens pass
            ids = llm().tokenizer.encode(word)
            assert never[: len(ids)] != ids
    ids = [*llm().tokenizer.encode("aaa(()))"), *ENDS]
    found = one(asking("grammar", allowed_token_ids=ids, seed=3, max_tokens=60))
    assert set(found.token_ids) <= set(ids) and balanced(found.text, found.finish_reason == "stop")
    assert one(asking("choice", stop=["e"], logit_bias={}, temperature=0)).text in (
        "y",
        "p",
        "n",
        "no",
    )
    scored = one(asking("json", logprobs=2, temperature=0, max_tokens=12))
    prompt = llm().tokenizer.encode("The", allowed_special="all", add_special_tokens=True)
    raw = reference([*prompt, *scored.token_ids])[len(prompt) - 1 :]
    for row, token, entries in zip(raw, scored.token_ids, scored.logprobs, strict=False):
        assert entries[token].logprob == pytest.approx(
            float(row[token]), abs=1e-4
        )  # not the mask's


def reference(ids: list[int]) -> torch.Tensor:
    from nanovllm.model.attend import RecomputeAttend

    model = llm().model
    with torch.inference_mode():
        hidden = model(torch.tensor(ids), torch.arange(len(ids)), RecomputeAttend(model.config))
        return model.logits(hidden).log_softmax(-1)


def test_nothing_left_to_draw_is_told() -> None:
    with pytest.raises(RequestError, match="leaves no token that allowed_token_ids allows"):
        one(asking("choice", allowed_token_ids=llm().tokenizer.encode("zebra")))
    assert one(SamplingParams(max_tokens=2)).token_ids  # the engine goes on


def test_what_goes_wrong_ahead_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(behind: object) -> None:
        raise ValueError("out of luck")

    monkeypatch.setattr("nanovllm.generation.masks._compute", broken)
    ahead = Ahead()
    row: Any = SimpleNamespace(params=SimpleNamespace(grammar=object()), output_token_ids=[])
    ahead.start([row], [Sampled(5)])
    with pytest.raises(ValueError, match="luck"):
        ahead.wait()
    ahead.wait()  # the requests of later steps have nothing to do with it
    assert ahead._thread is not None
    ahead._thread.shutdown()  # other tests count threads


def test_an_answer_goes_on_where_it_stopped() -> None:
    params = asking("json", seed=4, max_tokens=60)
    first, second = tiny_engine(), tiny_engine()
    first.add_request([5, 6], params)
    [whole] = finished(first)
    second.add_request([5, 6], params, output_token_ids=whole.token_ids[:5])
    assert finished(second) == [whole]
    with pytest.raises(RequestError, match="break what structured_outputs asks"):
        second.add_request([5, 6], params, output_token_ids=TOKENIZER.encode("dog"))


async def collect(model: AsyncLLM, params: SamplingParams) -> str:
    return [output async for output in model.generate("The", params)][-1].outputs[0].text


def test_in_an_event_loop() -> None:
    import asyncio

    async def main() -> str:
        async with AsyncLLM() as model:
            return await collect(model, asking("choice", seed=1))

    assert asyncio.run(main()) in CHOICES


# What cannot be

LONG = "x" * 70_000
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "asks for nothing"), ({"json_object": False}, "asks for nothing"),
    ({"regex": "a", "choice": ["b"]}, "asks for regex and choice"),
    ({"choice": []}, "must be a list of texts"), ({"choice": "yes"}, "must be a list of texts"),
    ({"choice": [1]}, "must be made of text"), ({"regex": 5}, "must be made of text"),
    ({"regex": LONG}, "characters; use 65536 at most"), ({"choice": [LONG]}, "characters"),
    ({"json": {"enum": [LONG]}}, "characters"), ({"json": {"a": float("nan")}}, "no JSON schema"),
    ({"json": "{"}, "cannot be followed"), ({"json": "3"}, "must be an object"),
    ({"json": {"type": "wat"}}, "cannot be followed"), ({"json": False}, "schema is false"),
    ({"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "Unsatisfiable"),
    ({"json": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "Unsatisfiable"),
    ({"json": {"not": {"type": "string"}}}, "not"), ({"json": {"$ref": "#"}}, "no text is of that"),
    ({"json": {"$ref": "http://example.com/x"}}, "cannot be followed"),
    ({"json": '{"items":' * 3000 + "{}" + "}" * 3000}, "recursion limit"),
    ({"regex": "("}, "invalid regex"), ({"regex": "(?!a)b"}, "look-around"),
    ({"regex": "(" * 3000 + ")" * 3000}, "invalid regex"), ({"regex": "\ud800"}, "surrogates"),
    ({"regex": ".*" * 2000 + "a{2000}"}, "cannot be followed"),
    ({"grammar": "start: ("}, "Expected"), ({"grammar": ""}, "cannot be followed"),
    ({"grammar": 'start: nobody "a"'}, "cannot be followed"),
    ({"json": {}, "whitespace_pattern": "["}, "cannot be followed"),
    ({"choice": ["\ud800"]}, "cannot be followed"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "says"), WRONG, ids=lambda value: str(value)[:40])
def test_what_cannot_be_followed_is_refused(given: dict[str, Any], says: str) -> None:
    started = time.process_time()
    with pytest.raises((ParamsError, RequestError), match=says) as caught:
        compile_grammar(StructuredOutputsParams(**given), TOKENIZER, SIZE, ENDS)
    message = str(caught.value)
    assert message.startswith("structured_outputs") and "\n" not in message
    assert message.endswith(".") and len(message) < 500
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    "given",
    [
        {"grammar": 'start: "a" start'},  # never ends
        {"json": {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}}},
        {"grammar": "start: " + " | ".join(f"r{i}" for i in range(1500)) + "\n" + "\n".join(
            f'r{i}: "a" r{(i + 1) % 1500} | "b"' for i in range(1500))},
        {"regex": "(x+x+)+y"}, {"regex": "(a|b)*a(a|b){200}"}, {"regex": "((a{0,99}){0,99}){0,99}"},
        {"json": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_explodes_ends_in_a_text_or_a_sentence(given: dict[str, Any]) -> None:
    engine = tiny_engine()
    others = [SamplingParams(max_tokens=20, seed=1), asking("choice", seed=1)]
    try:
        wanted = StructuredOutputsParams(**given)
        engine.add_request([70], SamplingParams(structured_outputs=wanted, max_tokens=30, seed=1))
    except RequestError as error:
        assert str(error).endswith(".")
    for params in others:
        engine.add_request([71], params)
    kinds: list[str] = []
    while engine.has_unfinished:
        for event in engine.step():
            kinds.append(type(event).__name__)
            if kinds[-1] == "Failed":
                assert str(event.error).startswith("structured_outputs cannot be followed any furt")
    assert kinds.count("Finished") >= 2


def test_parameters_are_checked() -> None:
    with pytest.raises(ParamsError, match="must be a StructuredOutputsParams"):
        SamplingParams(structured_outputs={"regex": "a"})
    with pytest.raises(ParamsError, match="grammar is what an engine compiles"):
        SamplingParams(grammar="start: x")
    with pytest.raises(RequestError, match="needs a tokenizer"):
        Engine(MODEL, EngineConfig()).add_request([70], asking("choice"))
    with pytest.raises(RequestError, match="needs a model with a token that ends"):
        compile_grammar(StructuredOutputsParams(regex="a"), TOKENIZER, SIZE, ())


def test_without_the_package_one_sentence_says_so(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match="pip install llguidance"):
        compile_grammar(
            StructuredOutputsParams(regex="a"), Tokenizer.from_pretrained(TARGET), SIZE, ENDS
        )
    engine = tiny_engine()
    engine.add_request([70], SamplingParams(max_tokens=2))
    assert finished(engine)


# Vocabularies


def test_columns_without_a_token_are_never_allowed() -> None:
    grammar = compile_grammar(StructuredOutputsParams(regex="(.|\n)*"), TOKENIZER, SIZE + 64, ENDS)
    mask = grammar.allowed([])
    assert mask.shape == (SIZE + 64,) and not mask[SIZE:].any() and mask[:SIZE].sum() > 1000
    row = SamplingRow(SamplingParams(grammar=grammar), [5], [], seed=0)
    masked = apply_masks(torch.zeros(1, SIZE + 64), [row])
    assert torch.equal(masked[0].isfinite(), mask)


@pytest.mark.parametrize("kind", ["Llama 2", "Mistral", "digits one by one"])
def test_other_tokenizers(kind: str, tmp_path: Path) -> None:
    """SentencePiece's, whose ids of a text begin with a space; and byte-level with digits split."""
    make = decoding._sentencepiece if kind in decoding.CHARACTERS else decoding._byte_level
    library = make(kind)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json")
    size = tokenizer.vocab_size
    end = next(i for i in range(size) if tokenizer.token_bytes(i) == b"<|end|>")
    rng = random.Random(1)
    for name, (given, whole, _) in KINDS.items():
        grammar = compile_grammar(StructuredOutputsParams(**given), tokenizer, size, (end,))
        done = 0
        for _ in range(6):
            tokens: list[int] = []
            while end not in tokens and len(tokens) < 150:
                tokens.append(rng.choice(grammar.allowed(tokens).nonzero().flatten().tolist()))
            if tokens[-1] == end:
                text = tokenizer.decode_bytes(tokens[:-1]).decode()
                assert whole(text), (name, text)
                done += 1
        assert done or name in ("json_object", "(a|b)*c")


def test_nothing_stays_behind() -> None:
    """Neither a thread of an engine that has gone, nor the tokens of a tokenizer that has."""
    before = set(threading.enumerate())  # others' may end meanwhile
    engine, tokenizer = tiny_engine(), Tokenizer.from_pretrained(TARGET)
    engine.add_request([70], asking("choice"))
    finished(engine)
    own = set(threading.enumerate()) - before
    assert len(own) == 1  # its masks'
    compile_grammar(StructuredOutputsParams(regex="a"), tokenizer, SIZE, ENDS)
    gone = weakref.ref(tokenizer)
    del engine, tokenizer
    gc.collect()
    end = time.monotonic() + 30
    while own & set(threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.01)
    assert not own & set(threading.enumerate()) and gone() is None

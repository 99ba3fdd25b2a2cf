"""Guesses change no text: random histories of every engine, against the same engine without."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import NonFiniteLogitsError
from nanovllm.batching.events import Aborted, Admitted, Failed, Preempted, Stepped
from nanovllm.batching.request import Request
from nanovllm.fast import available
from nanovllm.fast.engine import FastEngine, fast_engine
from nanovllm.fast.speculative import FastDraft, FastSpeculativeEngine
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence
from nanovllm.gpu.decoder import FusedDecoder
from nanovllm.gpu.engine import GpuEngine
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.store import PagedStore
from nanovllm.performance.runner import Launch
from nanovllm.speculative.adaptive import AdaptivePolicy
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.credit import Credit
from nanovllm.speculative.draft_model import DraftModel
from nanovllm.speculative.guess_policy import FixedPolicy
from nanovllm.speculative.lookup import PromptLookup
from nanovllm.speculative.proposer import Ask, Guesses, NgramThenDraft, Proposer
from nanovllm.speculative.two_policies import SOURCES, TwoPolicies, WantedOfEach
from nanovllm.speculative.verify import SpeculativeEngine
from tests.test_gpu_engine import in_torch, uncaptured

VOCAB, BLOCK, LENGTH = 23, 16, 120
CONFIG = ModelConfig("qwen3", VOCAB, 32, 2, 4, 2, 8, 48, 160, qk_norm=True, eos_token_ids=(2,))
SMALL = ModelConfig("qwen3", VOCAB, 16, 1, 2, 1, 8, 24, 160, qk_norm=True, eos_token_ids=(2,))
# compiled: lab 08's own classes on the compiled step; fast: those that are given for it
COMPILED = ["compiled", "fast"] if available() is None else []
KINDS = ["plain", "gpu", *COMPILED]


def spread_out(config: ModelConfig, seed: int) -> torch.nn.Module:
    """Random weights so far apart that text varies, and depends on what was read."""
    model, generator = dummy_model(config, seed), torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(std=0.4, generator=generator)
    return model


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return spread_out(CONFIG, 3)


@dataclass
class Scripted:
    """Guesses by a rule; counts whom it was told to forget."""

    rule: Callable[[Request, int], Seq[int]]

    def propose(self, asks: Seq[Ask]) -> list[Guesses]:
        return [Guesses(tuple(self.rule(ask.request, ask.most)), "script") for ask in asks]

    def forget(self, request: Request) -> None:
        pass


def raises(request: Request, most: int) -> Seq[int]:
    raise RuntimeError("no guess")


def proposer_of(
    name: str, rng: random.Random, texts: dict[int, tuple[int, ...]], kind: str = "plain"
) -> Proposer:
    """texts: what each request will say, for the one who is always right, or always wrong."""

    def coming(request: Request, most: int) -> list[int]:
        said = len(request.sequence.output_token_ids)
        key = request.sequence.request_id, request.sequence.index
        return list(texts.get(key, ())[said : said + most])

    def wrong(request: Request, most: int) -> list[int]:
        return [(token + 1) % VOCAB for token in coming(request, most)]

    def at_random(request: Request, most: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(rng.randint(0, most))]

    rules = {
        "right": coming,
        "wrong": wrong,
        "random": at_random,
        "mixed": lambda r, n: [t if rng.random() < 0.7 else 5 for t in coming(r, n)],
        "too long": lambda r, n: [*coming(r, n), *[7] * 50],
        "outside": lambda r, n: [*coming(r, n)[:1], VOCAB, -1],
        "raises": raises,
    }
    if name in rules:
        return Scripted(rules[name])
    if name == "lookup":
        return PromptLookup(1, 3)
    small = spread_out(SMALL, 3) if rng.random() < 0.5 else spread_out(CONFIG, 3)  # or the target
    config, blocks = EngineConfig(max_model_len=rng.choice([60, LENGTH])), rng.choice([5, 40])
    sampled = rng.random() < 0.5
    if kind == "fast":
        engine = fast_engine(small, config, num_blocks=blocks)
        assert engine.wait()
        draft = FastDraft(engine, sampled=sampled)
    else:
        store = PagedStore(small.config, blocks, BLOCK)
        draft = DraftModel(Engine(small, config, store=store), sampled=sampled)
    return draft if name == "draft" else NgramThenDraft(PromptLookup(1, 3), draft)


PROPOSERS = ["right", "wrong", "random", "mixed", "too long", "outside", "raises", "lookup",
             "draft", "lookup, then draft"]  # fmt: skip


@dataclass
class History:
    """Who arrives when with which parameters, who is given up, and the engine's settings."""

    seed: int

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.num_blocks = rng.choice([8, 9, 12, 40])
        self.config = EngineConfig(
            max_num_seqs=rng.randint(1, 6),
            max_num_batched_tokens=rng.randint(6, 60),
            max_chunk=rng.choice([None, None, 3, 17]),
            max_model_len=LENGTH,
            policy=rng.choice(["fcfs", "sjf", "round-robin", "priority-with-ageing"]),
        )
        self.caching = rng.random() < 0.7
        shared = [rng.randrange(3, VOCAB) for _ in range(40)]
        self.jobs = []
        for _ in range(rng.randint(2, 6)):
            own = [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 30))]
            prompt = [*shared[: rng.choice([0, 0, 16, 33])], *own]
            self.jobs.append((rng.randrange(10), prompt, self.params(rng)))
        self.aborts = {rng.randrange(len(self.jobs)): rng.randrange(4, 25)
                       for _ in range(rng.choice([0, 0, 1, 2]))}  # fmt: skip
        self.guesses = rng.randint(1, 7)
        self.adaptive = rng.random() < 0.3
        self.proposer = PROPOSERS[self.seed % len(PROPOSERS)]

    @staticmethod
    def params(rng: random.Random) -> SamplingParams:
        common = {"max_tokens": rng.randint(1, 40), "ignore_eos": rng.random() < 0.5}
        if rng.random() < 0.4:
            return SamplingParams(temperature=0, **common)
        return SamplingParams(
            temperature=rng.choice([0, 0.7, 1.0, 1.5]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            min_tokens=rng.randint(0, common["max_tokens"]),
            logit_bias=rng.choice([None, {4: 2.0}]),
            top_k=rng.choice([0, 5]),
            stop_token_ids=[rng.randrange(VOCAB)],
            logprobs=rng.choice([None, 2]),
            **common,
        )

    def engine(self, kind: str, model: torch.nn.Module, guesses: dict | None) -> Engine:
        options = {"clock": ManualClock(), **(guesses or {})}
        manager = BlockManager(self.num_blocks, BLOCK, enable_prefix_caching=self.caching)

        def of(base: type[Engine]) -> type[Engine]:
            verifies = FastSpeculativeEngine if kind == "fast" else SpeculativeEngine
            return base if guesses is None else type("Guessing", (verifies, base), {})

        if kind in COMPILED:
            fast = of(FastEngine)(model, self.config, num_blocks=0, manager=manager, **options)
            assert fast.wait()
            return fast
        store = PagedStore(model.config, manager=manager)
        if kind == "gpu":
            return of(GpuEngine)(model, self.config, store=store, capture=uncaptured, **options)
        return of(Engine)(model, self.config, store=store, **options)

    def run(self, engine: Engine, aborts: dict[int, int]) -> tuple[dict, list[Stepped], set[type]]:
        """The tokens of each sample (of one given up, those so far), steps, and kinds of events."""
        texts, steps, kinds, said = {}, [], set(), {}
        self.moves: list[tuple[int, type, int, int]] = []  # who came in and who had to leave, when
        for step in range(2000):
            for number, (arrival, prompt, params) in enumerate(self.jobs):
                if arrival == step:
                    engine.add_request(prompt, params, seed=number, request_id=number)
                if aborts.get(number) == step:
                    engine.abort(number)
            for event in engine.step():
                kinds.add(type(event))
                if isinstance(event, Admitted | Preempted):
                    self.moves.append((step, type(event), event.request_id, event.index))
                if isinstance(event, Stepped):
                    steps.append(event)
                elif isinstance(event, TokenGenerated):
                    said.setdefault((event.request_id, event.index), []).append(event.token_id)
                elif isinstance(event, Finished):
                    key = event.request_id, event.index
                    texts[key] = event.completion.token_ids
                    assert tuple(said[key]) == texts[key]
                elif isinstance(event, Aborted):
                    texts[event.request_id, event.index] = event.token_ids
            engine.check()
            if step > 25 and not engine.has_unfinished:
                return texts, steps, kinds
        raise AssertionError("still running after 2,000 steps")


@pytest.mark.parametrize("histories", [12, pytest.param(340, marks=pytest.mark.proof)])
@pytest.mark.parametrize("kind", KINDS)
def test_random_histories_have_the_texts_of_the_engine_without_guesses(
    model: torch.nn.Module, kind: str, histories: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FusedDecoder, "forward", in_torch)
    preempted = accepted = 0
    for seed in range(histories):
        history, said = History(seed), []
        plain = history.engine(kind, model, None)
        wanted, _, _ = history.run(plain, {})
        policy: Any = (AdaptivePolicy if history.adaptive else FixedPolicy)(history.guesses)
        proposer = proposer_of(history.proposer, random.Random(seed), wanted, kind)
        credit = Credit() if history.adaptive else None
        if history.adaptive and isinstance(proposer, NgramThenDraft):
            credit = Credit(sources=SOURCES)
            policy = TwoPolicies(partial(AdaptivePolicy, history.guesses), Costs(), credit)
            proposer = WantedOfEach(proposer.lookup, proposer.draft, policy)
        guesses = {"proposer": proposer, "guess_policy": policy, "credit": credit,
                   "warn": said.append}  # fmt: skip
        engine = history.engine(kind, model, guesses)
        found, steps, kinds = history.run(engine, history.aborts)
        assert found.keys() == wanted.keys(), seed
        for key, tokens in found.items():
            assert tokens == wanted[key][: len(tokens)], (seed, key, history.proposer)
            assert tokens == wanted[key] or key[0] in history.aborts, (seed, key)
        assert Failed not in kinds
        assert engine.store.free_tokens == engine.store.total_tokens
        assert engine.store.manager.owners() == {}
        if isinstance(proposer, DraftModel):
            assert proposer.store.free_tokens == proposer.store.total_tokens
            proposer.store.check(())
        assert len(said) <= (history.proposer in ("outside", "raises"))
        preempted += Preempted in kinds
        runs = [run for step in steps for run in step.chunks]
        accepted += sum(run.accepted for run in runs)
        assert all(0 <= run.accepted <= run.drafts < run.length for run in runs if run.drafts)
    assert preempted
    assert accepted > 5 * histories


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_always_right_saves_the_steps(model, kind, monkeypatch) -> None:
    """41 tokens: one of the prompt's step, then 40 at 5 a step."""
    monkeypatch.setattr(FusedDecoder, "forward", in_torch)
    history = History(0)
    history.num_blocks, history.config = 40, EngineConfig(max_model_len=LENGTH)
    history.jobs = [(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=41, ignore_eos=True))]
    wanted, alone, _ = history.run(history.engine(kind, model, None), {})
    right = proposer_of("right", random.Random(0), wanted)
    guesses = {"proposer": right, "guess_policy": FixedPolicy(4)}
    found, steps, _ = history.run(history.engine(kind, model, guesses), {})
    assert found == wanted
    assert (len(alone), len(steps)) == (41, 9)
    assert sum(run.accepted for step in steps for run in step.chunks) == 32


def test_guesses_that_fall_cost_nobody_a_block(model) -> None:
    """Always wrong, so every step brings a token each, as without: the same come in and leave."""
    preempted = 0
    for seed in range(24, 54):
        history, rng = History(seed), random.Random(seed)
        history.num_blocks = rng.choice([8, 9, 10, 12])
        history.config = replace(history.config, max_num_batched_tokens=200, max_chunk=None)
        wanted, _, _ = history.run(history.engine("plain", model, None), {})
        moves = history.moves

        def wrong(request: Request, most: int, wanted: dict = wanted) -> list[int]:
            key = request.sequence.request_id, request.sequence.index
            return [(wanted[key][len(request.sequence.output_token_ids)] + 1) % VOCAB] * most

        policy = FixedPolicy(rng.choice([3, 7, 20, 40]))
        engine = history.engine("plain", model, {"proposer": Scripted(wrong),
                                                 "guess_policy": policy})  # fmt: skip
        found, steps, _ = history.run(engine, {})
        assert found == wanted
        assert history.moves == moves, seed
        assert not any(run.accepted for step in steps for run in step.chunks)
        preempted += any(kind is Preempted for _, kind, _, _ in moves)
    assert preempted


def test_an_error_at_a_place_that_is_not_reached_harms_nobody(model) -> None:
    history = History(0)
    history.num_blocks, history.config = 40, EngineConfig(max_model_len=LENGTH)
    history.jobs = [(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))]
    wanted, _, _ = history.run(history.engine("plain", model, None), {})
    wrong = proposer_of("wrong", random.Random(0), wanted)
    guesses = {"proposer": wrong, "guess_policy": FixedPolicy(3)}
    engine = history.engine("plain", model, guesses)
    plain = engine.sampler

    def fails_behind_a_guess(logits, rows):
        if any(tuple(row.output_token_ids) != wanted[0, 0][: len(row.output_token_ids)]
               for row in rows):  # fmt: skip
            raise RuntimeError("a row that nobody needs")
        return plain(logits, rows)

    engine.sampler = fails_behind_a_guess
    found, _, kinds = history.run(engine, {})
    assert found == wanted
    assert Failed not in kinds


def test_a_row_of_nan_in_a_step_with_guesses_fails_alone(monkeypatch) -> None:
    """One request comes to a token whose row is NaN; the other, and the GPU path, go on."""
    monkeypatch.setattr(FusedDecoder, "forward", in_torch)
    model, history, said = spread_out(CONFIG, 3), History(0), []
    history.num_blocks, history.config = 40, EngineConfig(max_model_len=LENGTH)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    history.jobs = [(0, [5, 6, 7], params), (0, [8, 9, 4], params)]
    wanted, _, _ = history.run(history.engine("plain", model, None), {})
    bad = next(token for token in wanted[0, 0] if token not in {5, 6, 7, 8, 9, 4, *wanted[1, 0]})
    model.embed_tokens.weight.data[bad] = torch.nan
    right = proposer_of("right", random.Random(0), wanted)
    guesses = {"proposer": right, "guess_policy": FixedPolicy(4), "notify": said.append}
    engine = history.engine("gpu", model, guesses)
    failed: list[Failed] = []
    step = engine.step

    def told() -> list:
        events = step()
        failed.extend(event for event in events if isinstance(event, Failed))
        return events

    engine.step = told
    found, _, _ = history.run(engine, {})
    assert found == {(1, 0): wanted[1, 0]}
    assert [(e.request_id, type(e.error)) for e in failed] == [(0, NonFiniteLogitsError)]
    assert not engine.went_plain and said == []


@pytest.mark.parametrize("call", range(4))
def test_a_read_that_fails_in_a_step_with_guesses_is_made_good(model, monkeypatch, call) -> None:
    monkeypatch.setattr(FusedDecoder, "forward", in_torch)
    history, said = History(0), []
    history.num_blocks, history.config = 40, EngineConfig(max_model_len=LENGTH)
    history.jobs = [(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))]
    wanted, _, _ = history.run(history.engine("plain", model, None), {})
    read, calls = Launch.read, iter(range(99))

    def failing(self: Launch) -> list[int]:
        if next(calls) == call:
            raise ZeroDivisionError("the device is gone")
        return read(self)

    monkeypatch.setattr(Launch, "read", failing)
    right = proposer_of("right", random.Random(0), wanted)
    guesses = {"proposer": right, "guess_policy": FixedPolicy(4), "notify": said.append}
    engine = history.engine("gpu", model, guesses)
    found, _, kinds = history.run(engine, {})
    assert found == wanted and Failed not in kinds
    assert engine.went_plain and len(said) == 1 and "the device is gone" in said[0]


def test_the_draft_takes_as_many_forwards_for_many_requests_as_for_one(model) -> None:
    for count in (1, 5):
        draft = DraftModel(Engine(model, store=PagedStore(CONFIG, 40, BLOCK)))
        history = History(0)
        history.num_blocks, history.config = 40, EngineConfig(max_model_len=LENGTH)
        params = SamplingParams(temperature=0, max_tokens=21, ignore_eos=True)
        history.jobs = [(0, [5 + i, 6, 7], params) for i in range(count)]
        guesses = {"proposer": draft, "guess_policy": FixedPolicy(4)}
        _, steps, _ = history.run(history.engine("plain", model, guesses), {})
        assert len(steps) == 5  # a draft that is the target is always right
        assert draft.num_forwards == 4 * 4


def test_a_draft_without_room_keeps_nothing_of_those_who_ask(model) -> None:
    draft = DraftModel(Engine(model, store=PagedStore(CONFIG, 2, BLOCK)))
    params = SamplingParams(temperature=0, max_tokens=9)
    sequence = Sequence([5] * 3 * BLOCK, params, max_model_len=LENGTH, seed=0)
    request = Request(0, sequence, 0.0, LENGTH)
    for _ in range(3):
        assert draft.propose([Ask(request, 2)])[0].token_ids == ()
        draft.forget(request)
    assert not draft.store.manager.prefix._contents


@pytest.mark.skipif(not COMPILED, reason=f"no compiled step here: {available()}")
@pytest.mark.parametrize("seed", range(6))
def test_the_given_draft_guesses_what_the_labs_own_does(model, seed: int) -> None:
    """Requests come, some of the guesses come true, other tokens too; some are forgotten."""
    rng, small = random.Random(seed), spread_out(SMALL, 3)
    drafts = []
    for kind in (DraftModel, FastDraft):
        engine = fast_engine(small, EngineConfig(max_model_len=70), num_blocks=60)
        assert engine.wait()
        drafts.append(kind(engine))
    params = SamplingParams(temperature=0, max_tokens=100)
    requests: list[Request] = []
    for step in range(60):
        if step % 12 == 0 or rng.random() < 0.1:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))]
            sequence = Sequence(prompt, params, max_model_len=LENGTH, seed=0, request_id=step)
            requests.append(Request(step, sequence, 0.0, LENGTH))
        asked = rng.sample(requests, rng.randint(1, len(requests)))
        asks = [Ask(request, rng.randint(1, 6)) for request in asked]
        expected, found = (draft.propose(asks) for draft in drafts)
        assert [g.token_ids for g in found] == [g.token_ids for g in expected]
        assert {g.source for g in found} == {"draft"}
        for request, guesses in zip(asked, found, strict=True):
            accepted = rng.randint(0, len(guesses.token_ids))
            request.sequence.output_token_ids += guesses.token_ids[:accepted]
            request.sequence.output_token_ids.append(rng.randrange(VOCAB))
            if rng.random() < 0.05:
                for draft in drafts:
                    draft.forget(request)
                    draft.store.check(draft._copy_of.values())
    assert drafts[0].num_forwards == drafts[1].num_forwards
    assert max(request.num_tokens for request in requests) > 70  # beyond the draft's context
    for request in requests:
        drafts[1].forget(request)
    assert drafts[1].store.free_tokens == drafts[1].store.total_tokens

"""Lab 08's parts by independent oracles: enumeration, recompute, transformers, naive search."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from scipy import stats

from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request, Status
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import CountingStore, SimulatedSequence
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.rows import SamplingRow
from nanovllm.generation.sampling import sample
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.speculative.adaptive import AdaptivePolicy
from nanovllm.speculative.config import read_speculative_config
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.credit import Credit
from nanovllm.speculative.errors import SpeculationError
from nanovllm.speculative.gain import best_guesses, expected_tokens, speed_up
from nanovllm.speculative.guess_policy import FixedPolicy
from nanovllm.speculative.guessed_plan import GuessedChunk
from nanovllm.speculative.guessing_scheduler import SpeculativeScheduler
from nanovllm.speculative.judge import judge
from nanovllm.speculative.lookup import NgramIndex, PromptLookup
from nanovllm.speculative.proposer import Ask, Guesses
from nanovllm.speculative.rejection import distribution, rejection_sample
from nanovllm.speculative.tree import ROOT, TokenTree, best_tree, verify_tree
from nanovllm.speculative.two_policies import SOURCES, TwoPolicies, WantedOfEach
from tests.test_speculative_engine import CONFIG, spread_out


def naive_lookup(tokens: Sequence[int], shortest: int, longest: int, most: int) -> list[int]:
    """By trying every place, the longest first, the earliest first."""
    for n in range(longest, shortest - 1, -1):
        for end in range(n, len(tokens)):
            if tokens[end - n : end] == tokens[len(tokens) - n :]:
                return tokens[end : end + most]
    return []


class Tokens(SimulatedSequence):
    """A sequence with tokens of its own; counts those that are read."""

    def __init__(self, prompt: list[int]) -> None:
        super().__init__(0, len(prompt), 999)
        self.prompt = prompt

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.prompt


def test_lookup_finds_what_a_naive_search_finds() -> None:
    rng = random.Random(1)
    for _ in range(60):
        shortest = rng.randint(1, 2)
        longest, most = rng.randint(shortest, 4), rng.randint(1, 6)
        lookup = PromptLookup(shortest, longest)
        sequence = Tokens([rng.randrange(4) for _ in range(rng.randint(1, 12))])
        request = Request(0, sequence, 0.0, 999)
        for _ in range(rng.randint(1, 15)):
            sequence.output_token_ids += [rng.randrange(4) for _ in range(rng.randint(1, 4))]
            if rng.random() < 0.1:
                lookup.forget(request)  # as after a preemption
            [found] = lookup.propose([Ask(request, most)])
            tokens = [*sequence.prompt, *sequence.output_token_ids]
            assert list(found.token_ids) == naive_lookup(tokens, shortest, longest, most)


def test_the_index_costs_a_token_the_same_in_any_context() -> None:
    class Counted(dict):
        asked = 0

        def setdefault(self, key, value):
            Counted.asked += 1
            return super().setdefault(key, value)

        def get(self, key, default=None):
            Counted.asked += 1
            return super().get(key, default)

    costs = []
    for length in (100, 10_000):
        index = NgramIndex(1, 3)
        index._end = Counted()
        index.extend(range(length))
        Counted.asked = 0
        index.extend([length])
        index.find()
        costs.append(Counted.asked)
    assert costs == [6, 6]


def chi_square(counts: dict, wanted: dict, draws: int) -> float:
    keys = [key for key, share in wanted.items() if share * draws >= 1]
    seen = [counts.get(key, 0) for key in keys]
    expected = [wanted[key] * draws for key in keys]
    scale = sum(seen) / sum(expected)
    return stats.chisquare(seen, [e * scale for e in expected]).pvalue


@pytest.mark.parametrize("certain", [True, False])
def test_two_tokens_are_as_if_drawn_from_the_target(certain: bool) -> None:
    """Against enumeration; the second place depends on the first token."""
    vocab, draws = 5, 2000
    generator = torch.Generator().manual_seed(4)
    shape = (vocab + 1, vocab)
    p = torch.randn(shape, generator=generator, dtype=torch.float64).mul(1.5).softmax(dim=-1)
    q = torch.randn(shape, generator=generator, dtype=torch.float64).mul(1.5).softmax(dim=-1)
    counts: dict[tuple[int, int], int] = {}
    for _ in range(draws):
        guesses: list[int] = []
        for _ in range(2):
            row = q[guesses[-1] + 1 if guesses else 0]
            one = torch.multinomial(row, 1, generator=generator) if not certain else row.argmax()
            guesses.append(int(one))
        at = [0, guesses[0] + 1, guesses[1] + 1]
        uniforms = torch.rand(3, 2, generator=generator, dtype=torch.float64)
        tokens = list(rejection_sample(p[at], None if certain else q[at[:2]], guesses, uniforms))
        if len(tokens) == 1:  # the next step draws the second token
            row = p[tokens[0] + 1]
            tokens.append(int(torch.multinomial(row, 1, generator=generator)))
        key = tokens[0], tokens[1]
        counts[key] = counts.get(key, 0) + 1
    wanted = {(a, b): float(p[0, a] * p[a + 1, b]) for a in range(vocab) for b in range(vocab)}
    assert chi_square(counts, wanted, draws) > 1e-4


def test_the_distribution_is_that_of_the_sampler() -> None:
    """By counting lab 03's draws over many seeds, with every parameter."""
    logits = torch.randn(1, 7, generator=torch.Generator().manual_seed(2)) * 2
    params = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.02, logit_bias={3: 1.0},
                            repetition_penalty=1.3, presence_penalty=0.2)  # fmt: skip

    def row(seed: int) -> SamplingRow:
        return SamplingRow(params, [1, 2], [3, 3], seed)

    shares = distribution(logits, [row(0)])[0]
    drawn = sample(logits.expand(2000, 7), [row(seed) for seed in range(2000)])
    counts = torch.bincount(torch.tensor([s.token_id for s in drawn]), minlength=7)
    assert torch.equal(counts > 0, shares > 0)
    kept = shares > 0
    assert stats.chisquare(counts[kept].numpy(), (shares[kept] * 2000).numpy()).pvalue > 1e-4


def test_judged_tokens_have_the_targets_distribution_and_depend_on_seed_alone() -> None:
    logits = torch.randn(2, 6, generator=torch.Generator().manual_seed(5))
    params, counts = SamplingParams(temperature=1.0), torch.zeros(6)
    q = torch.full((1, 6), 1 / 6)
    for seed in range(2000):
        rows = [SamplingRow(params, [1], list(range(n)), seed) for n in (0, 1)]
        guess = random.Random(seed).randrange(6)
        drawn = judge(logits, rows, Guesses((guess,), "draft", 0, q))
        assert drawn == judge(logits, rows, Guesses((guess,), "draft", 0, q))
        counts[drawn[0].token_id] += 1
    wanted = logits[0].double().softmax(dim=-1) * 2000
    assert stats.chisquare(counts.numpy(), wanted.numpy()).pvalue > 1e-4


def random_tree(rng: random.Random, count: int) -> TokenTree:
    parents = tuple(rng.choice([ROOT, *range(i)]) for i in range(count))
    return TokenTree(tuple(rng.randrange(3, CONFIG.vocab_size) for _ in range(count)), parents)


@pytest.mark.parametrize("windows", [(None, None), (5, None)])
def test_every_node_of_a_tree_has_the_logits_of_its_path_alone(windows) -> None:
    config = ModelConfig("mistral", CONFIG.vocab_size, 32, 2, 4, 2, 8, 48, 160, windows=windows)
    model, rng = spread_out(config, 1), random.Random(3)
    prompt = [rng.randrange(3, 23) for _ in range(9)]
    with torch.inference_mode():
        for _ in range(6):
            tree = random_tree(rng, 8)
            cache = ContiguousCache(config, 60)
            forward_cached(model, cache, torch.tensor(prompt[:-1]))
            seen = {}

            def spy(hidden, seen=seen, real=model.logits):
                seen["logits"] = real(hidden)
                return seen["logits"]

            object.__setattr__(model, "logits", spy)
            verify_tree(model, cache, prompt[-1], tree)
            object.__delattr__(model, "logits")
            for node in range(8):
                path, at = [], node
                while at != ROOT:
                    path.insert(0, tree.token_ids[at])
                    at = tree.parents[at]
                alone = ContiguousCache(config, 60)
                hidden = forward_cached(model, alone, torch.tensor([*prompt, *path]))
                assert torch.allclose(
                    seen["logits"][node + 1], model.logits(hidden[-1:])[0], atol=1e-4
                )


def test_a_text_by_trees_is_the_greedy_text() -> None:
    model, draft = spread_out(CONFIG, 1), spread_out(CONFIG, 1)
    for weight in draft.parameters():  # a draft that is often right
        weight.data += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    prompt = [5, 6, 7, 8]
    with torch.inference_mode():
        cache, wanted = ContiguousCache(CONFIG, 100), list(prompt)
        hidden = forward_cached(model, cache, torch.tensor(prompt))
        for _ in range(40):
            wanted.append(int(model.logits(hidden[-1:]).argmax()))
            hidden = forward_cached(model, cache, torch.tensor(wanted[-1:]))
        cache, text, forwards = ContiguousCache(CONFIG, 100), list(prompt), 0
        forward_cached(model, cache, torch.tensor(prompt[:-1]))
        while len(text) < len(wanted):

            def behind(path, text=text):
                alone = ContiguousCache(CONFIG, 100)
                hidden = forward_cached(draft, alone, torch.tensor([*text, *path]))
                return draft.logits(hidden[-1:])[0]

            tree = best_tree(behind, nodes=8)
            assert len(tree.token_ids) == 8
            text += verify_tree(model, cache, text[-1], tree)
            forwards += 1
            assert cache.length == len(text) - 1
    assert text[: len(wanted)] == wanted
    assert forwards < 30


def test_gain_by_hand_and_by_chance() -> None:
    rng = random.Random(0)
    for rate, guesses in ((0.8, 4), (0.3, 2)):
        tokens = 0
        for _ in range(20_000):
            tokens += 1
            for _ in range(guesses):
                if rng.random() >= rate:
                    break
                tokens += 1
        assert tokens / 20_000 == pytest.approx(expected_tokens(rate, guesses), rel=0.02)
    assert speed_up(0.8, 0, 1.0, 0.3) == 1.0
    assert best_guesses(0.8, 4, [1, 2, 3, 4, 5], 0.1) == 0
    assert best_guesses(1.0, 4, [1.0] * 5, 0.1) == 4


def replay(policy: AdaptivePolicy, rates: list[float], costs: Costs, steps: int, requests: int):
    """Tokens a second of a batch whose guesses stand at these rates, one after another."""
    rng = random.Random(1)
    batch = [Request(n, SimulatedSequence(n, 5, 9), 0.0, 99) for n in range(requests)]
    tokens = seconds = 0.0
    for step in range(steps):
        rate = rates[step * len(rates) // steps]
        counts = policy.lengths(batch, [8] * requests, requests)
        for request, count in zip(batch, counts, strict=True):
            stood = next((i for i in range(count) if rng.random() >= rate), count)
            tokens += 1 + stood
            if count:
                policy.judged(request, Guesses((7,) * count), stood)
        seconds += costs.base + costs.token * (requests + sum(counts)) + costs.draft * sum(counts)
    return tokens / seconds


@pytest.mark.parametrize(
    ("rate", "requests", "base", "token"),
    [(0.9, 1, 1.0, 0.02), (0.6, 8, 1.0, 0.05), (0.2, 32, 0.1, 1.0), (0.5, 4, 0.2, 0.5)],
)
def test_the_policy_is_near_the_best_fixed_number(rate, requests, base, token) -> None:
    costs = Costs(base, token, 0.03)
    policy = AdaptivePolicy(8, costs)
    reached = replay(policy, [rate], costs, 600, requests)
    bound = max(
        requests * expected_tokens(rate, k)
        / (base + requests * ((1 + k) * token + k * costs.draft))
        for k in range(9)
    )  # fmt: skip
    assert reached > 0.9 * bound


def test_the_policy_stops_and_comes_back() -> None:
    costs = Costs(0.3, 0.3, 0.1)
    policy = AdaptivePolicy(6, costs)
    request = Request(0, SimulatedSequence(0, 5, 9), 0.0, 99)
    counts = []
    for step in range(900):
        [count] = policy.lengths([request], [6], 1)
        counts.append(count)
        if count:
            policy.judged(request, Guesses((7,) * count), 0 if step < 300 else count)
    assert sum(counts[50:300]) <= 12  # trials only
    assert sum(counts[-100:]) >= 300


def test_costs_are_learnt_from_steps() -> None:
    costs, rng = Costs(), random.Random(0)
    for _ in range(300):
        tokens = rng.randint(1, 40)
        costs.step(tokens, 0.004 + 0.0002 * tokens)
    assert (costs.base, costs.token) == (pytest.approx(0.004), pytest.approx(0.0002))


def test_all_costs_are_brought_to_the_pace_of_a_step() -> None:
    """Everything takes half as long now: what is learnt after that does not bend the line."""
    costs, rng = Costs(), random.Random(0)
    for pace in (2.0, 1.0):
        if pace == 1.0:
            costs.paced(8, 0.004 + 0.0002 * 8)
        for _ in range(5 if pace == 1.0 else 300):
            tokens, counts = rng.randint(1, 40), [rng.randint(0, 4) for _ in range(3)]
            costs.step(tokens, pace * (0.004 + 0.0002 * tokens))
            costs.guessing(counts, pace * (0.07 * max(counts) + 0.01 * sum(counts)))
    assert (costs.base, costs.token) == (pytest.approx(0.004), pytest.approx(0.0002))
    assert (costs.forward, costs.draft) == (pytest.approx(0.07), pytest.approx(0.01))
    costs.paced(8, 0.0)
    assert costs.base == pytest.approx(0.004), "a clock that stands still says nothing"


def test_costs_of_guesses_are_learnt_by_forward_and_by_guess() -> None:
    costs, rng = Costs(), random.Random(0)
    for _ in range(200):
        counts = [rng.randint(0, 4) for _ in range(rng.randint(1, 8))]
        costs.guessing(counts, 0.07 * max(counts) + 0.01 * sum(counts))
    assert (costs.forward, costs.draft) == (pytest.approx(0.07), pytest.approx(0.01))
    assert costs.drafting([3, 0, 1]) == pytest.approx(3 * 0.07 + 4 * 0.01)
    assert costs.drafting([]) == 0.0
    alone = Costs()
    for _ in range(50):
        alone.guessing([4], 0.3)
    assert (alone.forward, alone.draft) == (pytest.approx(0.075), pytest.approx(0.0))


def test_costs_of_small_steps_are_not_those_of_long_prompts() -> None:
    """A prompt's token is cheaper than a decode's; a clock that stands still teaches nothing."""
    costs, rng = Costs(), random.Random(0)
    for step in range(400):
        tokens = 300 if step % 40 == 0 else rng.choice([1, 3, 5])
        costs.step(tokens, 0.5 + 0.02 * tokens if tokens == 300 else 0.24 + 0.048 * tokens)
    assert [costs.base + n * costs.token for n in (1, 5)] == pytest.approx([0.288, 0.48], rel=0.25)
    before = costs.base, costs.token
    costs.step(3, 0.0)
    costs.guessing([2], 0.0)
    assert (costs.base, costs.token) == before
    for _ in range(300):  # steps of one size: only the scale is known
        costs.step(1, 0.576)
    assert costs.base + costs.token == pytest.approx(0.576, rel=0.02)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "needs a method: ngram, draft_model, ngram_then_draft"),
        ({"method": "eagle"}, "'eagle' is not known; use ngram"),
        ({"method": "ngram", "modle": "x"}, "'modle'; did you mean model"),
        ({"method": "ngram", "model": "x"}, "has no draft model"),
        ({"method": "draft_model"}, "needs a draft model"),
        ({"method": "ngram", "num_speculative_tokens": True}, "whole number"),
        ({"method": "ngram", "prompt_lookup_min": 4}, "at most prompt_lookup_max=3"),
        ({"method": "ngram", "rejection_sample_method": "x"}, "use match, standard"),
        ({"method": "ngram", "adaptive": 1}, "true or false"),
        ("ngram", "must be a dict"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(given, says) -> None:
    with pytest.raises(SpeculationError, match=says.replace("(", r"\(")):
        read_speculative_config(given)


def run_on_credit(credit: Credit, steps: int, gained: int, seconds: float, batch: int = 1) -> float:
    """Seconds a token over so many steps, each of 1 s a request alone; with guesses, of which
    `gained` stand, it takes so many seconds a request."""
    spent = tokens = 0.0
    for _ in range(steps):
        requests = [Request(i, SimulatedSequence(i, 4, 99), 0.0, 99) for i in range(batch)]
        plan = Plan(tuple(Chunk(request, 3, 1, 4) for request in requests))
        due = credit.due(batch)
        tried = credit.allows(batch) and not due
        if tried:
            guesses = Guesses((7,) * 4)
            plan = Plan(tuple(GuessedChunk.of(chunk, guesses) for chunk in plan.chunks))
        for request in requests:
            for _ in range(1 + tried * gained):
                request.sequence.append()
        if tried:
            credit.tried(plan, seconds * batch, 0.1, 0.1)
        elif due:
            credit.plain(batch, 1.0 * batch)
        else:
            credit.slept(batch, 1)
        spent += (seconds if tried else 1.0) * batch
        tokens += batch * (1 + tried * gained)
    return spent / tokens


@pytest.mark.parametrize("batch", [1, 7])
def test_guesses_that_cost_more_than_they_save_are_stopped(batch: int) -> None:
    credit = Credit()
    assert run_on_credit(credit, 500, gained=2, seconds=2.0, batch=batch) < 0.7
    assert credit.allows(batch) and not credit.allows(64)
    assert run_on_credit(credit, 200, gained=0, seconds=1.5, batch=batch) < 1.3
    assert not credit.allows(batch)
    assert run_on_credit(credit, 20_000, gained=0, seconds=1.5, batch=batch) < 1.02
    assert run_on_credit(credit, 5_000, gained=2, seconds=2.0, batch=batch) < 0.85  # tried again


@pytest.mark.parametrize(("seconds", "most"), [(1.6, 0.83), (2.6, 1.015)])
def test_a_machine_that_changes_its_pace_says_nothing_about_guesses(seconds, most) -> None:
    """Two tokens a step with guesses; every 700 steps all of it takes twice as long, or half."""
    credit, pace, steps, spent, made, times = Credit(), 1.0, 0, 0.0, 0, [0.0]
    scheduler = SpeculativeScheduler(
        Scheduler(CountingStore(40_000), clock=lambda: times[0]), Sixes(), FixedPolicy(1), 10,
        credit=credit,
    )  # fmt: skip
    scheduler.add(Request(0, SimulatedSequence(0, 5, 30_000), arrival=0.0, limit=30_004))
    while steps < 12_000:
        pace = 3.0 - pace if steps % 700 == 0 else pace
        guessed = plain_step(scheduler)
        if guessed:  # the guess stood
            (request,) = scheduler.inner.running
            request.sequence.append()
            request.num_computed_tokens += 1
        took = pace * (seconds if guessed else 1.0)
        times[0] += took
        spent, made, steps = spent + took / pace, made + 1 + guessed, steps + 1
        scheduler.observe(took)
    assert spent / made < most


def test_guesses_that_stand_again_come_back_though_the_pace_has_changed() -> None:
    """The machine is twice as quick from step 3,000 on; of steps 2,500 to 3,500 guesses fall."""
    rng, now, costs, credit = random.Random(0), [0.0], Costs(), Credit()
    policy = AdaptivePolicy(4, costs)
    scheduler = SpeculativeScheduler(
        Scheduler(CountingStore(400_000), clock=lambda: now[0]), Sixes(), policy, 10,
        costs=costs, credit=credit,
    )  # fmt: skip
    scheduler.add(Request(0, SimulatedSequence(0, 5, 90_000), arrival=0.0, limit=90_004))
    (request,) = scheduler.inner.waiting
    guessed = []
    for step in range(9000):
        (chunk,) = (plan := scheduler.schedule()).chunks
        count, stood = len(getattr(chunk, "guesses", Guesses()).token_ids), 0
        while stood < count and rng.random() < (0.05 if 2500 < step < 3500 else 0.8):
            stood += 1
        if count:
            policy.judged(request, chunk.guesses, stood)  # pyright: ignore[reportAttributeAccessIssue]
        for _ in range(1 + stood):
            request.sequence.append()
        request.num_computed_tokens = chunk.end - count + stood
        scheduler.inner.store.commit(plan)
        guessed.append(count > 0)
        now[0] += (2.0 if step < 3000 else 1.0) * (1.0 + 0.3 * plan.num_tokens)
        scheduler.observe(1.0)
    assert sum(guessed[1000:2000]) > 900 > 200 > sum(guessed[3600:4000])
    assert sum(guessed[8000:]) > 900
    assert costs.token == pytest.approx(0.3, rel=0.2)


def test_a_step_in_which_nothing_is_found_is_no_reason_to_rest() -> None:
    class Seldom(Sixes):
        def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
            asked.append(len(asks))
            return [Guesses((6,) * (len(asked) % 3 == 0)) for _ in asks]

    asked: list[int] = []
    scheduler = SpeculativeScheduler(
        Scheduler(CountingStore(10_000)), Seldom(), AdaptivePolicy(4), vocab_size=10
    )
    scheduler.add(Request(0, SimulatedSequence(0, 5, 5000), arrival=0.0, limit=5004))
    for _ in range(30):
        plain_step(scheduler)
        scheduler.observe(1.0)
    assert len(asked) > 25


def step_of(source: str, stood: int) -> Plan:
    """A step of one request, with four guesses of a source, of which so many stood."""
    request = Request(0, SimulatedSequence(0, 4, 99), 0.0, 99)
    chunk = GuessedChunk.of(Chunk(request, 3, 1, 4), Guesses((7,) * 4, source))
    for _ in range(1 + stood):
        request.sequence.append()
    return Plan((chunk,))


@pytest.mark.parametrize(
    ("tokens", "seconds", "best"),
    [
        ({"ngram": 3, "draft": 1, "both": 2}, {"ngram": 2.0, "draft": 3.0, "both": 2.5}, ["ngram"]),
        ({"ngram": 1, "draft": 4, "both": 4}, {"ngram": 2.0, "draft": 3.0, "both": 3.5}, ["draft"]),
        ({"ngram": 2, "draft": 2, "both": 4}, {"ngram": 1.8, "draft": 1.9, "both": 3.0}, SOURCES),
        ({"ngram": 1, "draft": 2, "both": 2}, {"ngram": 1.5, "draft": 3.0, "both": 4.0}, []),
    ],
)
def test_whoever_brings_the_most_tokens_a_second_guesses(tokens, seconds, best) -> None:
    """Of a step without guesses: a token, a second. What trials lose is bounded, too."""
    credit, spent, made, steps = Credit(sources=SOURCES), 0.0, 0, []
    credit.plain(1, 1.0)
    for _ in range(4000):
        arm = set(SOURCES) - credit.silent(1)
        steps.append(arm)
        if not arm:
            credit.slept(1, 1)
            spent, made = spent + 1.0, made + 1
            continue
        name = "both" if len(arm) == 2 else next(iter(arm))
        credit.tried(step_of(name, stood=tokens[name] - 1), seconds[name], 0.0, 0.1)
        spent, made = spent + seconds[name], made + tokens[name]
    assert steps[2000:].count(set(best)) > 0.9 * 2000
    name = "both" if len(best) == 2 else "".join(best)
    ideal = seconds[name] / tokens[name] if best else 1.0
    assert spent / made < 1.04 * ideal


def test_who_was_the_best_makes_way_when_texts_change() -> None:
    credit, steps = Credit(sources=SOURCES), 0
    credit.plain(1, 1.0)
    while "ngram" in credit.silent(1) or steps < 300:
        credit.tried(step_of("ngram", stood=3), 2.0, 0.0, 0.1)
        steps += 1
    while not credit.silent(1):  # a trial of both
        credit.tried(step_of("both", stood=0), 2.0, 0.0, 0.1)
    changed = 0
    while "ngram" not in credit.silent(1):
        credit.tried(step_of("ngram", stood=0), 2.0, 0.0, 0.1)
        changed += 1
    assert changed < 16


class Wants:
    """A policy that always wants as many, and notes what it hears."""

    def __init__(self, count: int, costs: Costs) -> None:
        self.count, self.costs = count, costs
        self.heard: list[int] = []

    def lengths(self, requests, most, tokens):
        return [self.count] * len(requests)

    def judged(self, request, guesses, accepted):
        self.heard.append(accepted)

    def forget(self, request):
        self.heard.append(-1)


class Says:
    """A proposer with the same guesses for all; `match` where it looked them up."""

    def __init__(self, match: int, source: str) -> None:
        self.match, self.source = match, source
        self.asked: list[list[int]] = []

    def propose(self, asks):
        self.asked.append([ask.most for ask in asks])
        return [Guesses((7,) * ask.most, self.source, self.match) for ask in asks]

    def forget(self, request):
        pass


def test_lookup_and_draft_have_a_policy_each() -> None:
    costs, silent = Costs(forward=0.5, draft=0.25), set()
    credit = cast(Credit, SimpleNamespace(silent=lambda requests: silent))
    counts = iter([1, 3])
    policy = TwoPolicies(lambda costs: Wants(next(counts), costs), costs, credit)
    request = Request(0, SimulatedSequence(0, 4, 99), 0.0, 99)
    for match, said, asked in ((1, "draft", [[2]]), (2, "ngram", [])):
        lookup, draft = Says(match, "ngram"), Says(0, "draft")
        proposer = WantedOfEach(lookup, draft, policy)
        assert policy.lengths([request], [5], 1) == [3]
        [guesses] = proposer.propose([Ask(request, 2)])
        assert guesses.source == said and lookup.asked == [[1]] and draft.asked == asked
        policy.judged(request, guesses, 1)
    lookups, drafts = policy.policies.values()
    assert (lookups.heard, drafts.heard) == ([1], [1])
    costs.base, costs.token = 4.0, 2.0
    silent.add("draft")
    assert policy.lengths([request], [5], 1) == [1], "a source that may not guess is not asked"
    assert lookups.costs.drafting([5]) == 0.0 and lookups.costs.token == 2.0
    [guesses] = WantedOfEach(Says(0, "ngram"), draft, policy).propose([Ask(request, 2)])
    assert guesses.source == "ngram", "unsure, but there is nothing else"
    policy.forget(request)
    assert (lookups.heard, drafts.heard) == ([1, -1], [1, -1])


def test_who_wants_nothing_rests_while_the_other_guesses() -> None:
    """Lookup wants two, the draft nothing: asked again after seven steps, or for others at once."""

    class Rests(Wants):
        asked = 0

        def lengths(self, requests, most, tokens):
            self.asked += 1
            return super().lengths(requests, most, tokens)

        def rest(self, steps):
            return min(steps, 7)

    counts = iter([2, 0])
    policy = TwoPolicies(lambda costs: Rests(next(counts), costs), Costs())
    one, other = (Request(i, SimulatedSequence(i, 4, 99), 0.0, 99) for i in range(2))
    lookups, drafts = policy.policies.values()
    for _ in range(16):
        assert policy.lengths([one], [5], 1) == [2]
    assert (lookups.asked, drafts.asked) == (5, 2), "who wants the same again is asked every fourth"
    assert policy.rest(16) == 7, "lookup's own, where it found nothing"
    assert policy.lengths([one, other], [5, 5], 2) == [2, 2]
    assert drafts.asked == 3


def plain_step(scheduler: SpeculativeScheduler) -> int:
    """A step of which no guess stands; how many requests had guesses."""
    plan = scheduler.schedule()
    for chunk in plan.chunks:
        chunk.request.num_computed_tokens = min(chunk.end, chunk.request.num_tokens)
        if chunk.completes:
            chunk.request.sequence.append()
    scheduler.inner.store.commit(plan)
    return sum(isinstance(chunk, GuessedChunk) for chunk in plan.chunks)


def test_who_may_not_guess_is_not_even_asked() -> None:
    """Guesses that never stand, and cost: asked now and then, and again when there are others."""
    credit, now, asked = Credit(), [0.0], []
    scheduler = SpeculativeScheduler(
        Scheduler(CountingStore(10_000), clock=lambda: now[0]), Sixes(), FixedPolicy(4), 10,
        credit=credit,
    )  # fmt: skip
    lengthen = scheduler.lengthen
    scheduler.lengthen = lambda plan: asked.append(len(plan.chunks)) or lengthen(plan)
    timed = credit.plain
    plain: list[int] = []
    credit.plain = lambda requests, *rest: plain.append(requests) or timed(requests, *rest)

    def steps(count: int) -> None:
        for _ in range(count):
            guessed = plain_step(scheduler)
            now[0] += 1.0 + guessed
            scheduler.observe(1.0)

    scheduler.add(Request(0, SimulatedSequence(0, 5, 5000), arrival=0.0, limit=5004))
    steps(200)
    assert credit.stopped(1) and len(asked) < 40
    asked.clear()
    plain.clear()
    steps(1400)
    assert not asked and 1 <= len(plain) <= 5, "now and then one is timed"
    steps(2600)
    assert 1 <= len(asked) < 40, "when the debt is paid they are tried again"
    asked.clear()
    for number in (1, 2, 3):
        scheduler.add(Request(number, SimulatedSequence(number, 5, 500), now[0], limit=504))
    steps(30)
    assert 4 in asked, "four have an account of their own"


def test_guesses_come_too_where_requests_come_and_go() -> None:
    """Somebody ends every third step: no nap is whole."""
    credit, now, guessed = Credit(), [0.0], 0
    scheduler = SpeculativeScheduler(
        Scheduler(CountingStore(10_000), clock=lambda: now[0]), Sixes(), FixedPolicy(4), 10,
        credit=credit,
    )  # fmt: skip
    for number in range(40):
        scheduler.add(Request(number, SimulatedSequence(number, 5, 50), now[0], limit=54))
        for _ in range(3):
            guessed += plain_step(scheduler)
            now[0] += 1.0
            scheduler.observe(1.0)
        if number > 3:
            scheduler.end(next(iter(scheduler.running)), Status.FINISHED)
    assert guessed > 50


def test_a_last_token_is_no_reason_to_rest() -> None:
    """A request's last token has no guesses, whoever wants some: the next request has its own."""

    class Rests(FixedPolicy):
        def rest(self, steps: int) -> int:
            return steps

    class NoDoubt(Credit):
        def due(self, requests: int) -> bool:
            return False

        def stopped(self, requests: int) -> bool:
            return False

    scheduler = SpeculativeScheduler(
        Scheduler(CountingStore(10_000)), Sixes(), Rests(4), 10, credit=NoDoubt()
    )
    for number in range(9):
        request = Request(number, SimulatedSequence(number, 5, 4), arrival=0.0, limit=8)
        scheduler.add(request)
        guessed = []
        for _ in range(4):
            guessed.append(plain_step(scheduler))
            scheduler.observe(1.0)
        scheduler.end(request, Status.FINISHED)
        assert guessed == [1, 1, 1, 0]


def test_steps_that_pass_are_timed_once_they_are_alike() -> None:
    """A first step of 9 s, five of 3 s, then all of 1 s: it is the second that counts."""
    credit, now = Credit(), [0.0]
    scheduler = SpeculativeScheduler(
        Scheduler(CountingStore(10_000), clock=lambda: now[0]), Sixes(), FixedPolicy(0), 10,
        credit=credit,
    )  # fmt: skip
    scheduler.add(Request(0, SimulatedSequence(0, 5, 5000), arrival=0.0, limit=5004))
    for seconds in (9.0, *(3.0,) * 5, *(1.0,) * 60):
        plain_step(scheduler)
        now[0] += seconds
        scheduler.observe(seconds)
    assert credit._account(1).alone == 1.0


def test_the_first_step_in_a_row_with_guesses_teaches_no_costs() -> None:
    """It takes 9 s, of them 4 s for guesses, as caches are cold; those after it 2 s, with 1 s."""
    costs, now = Costs(), [0.0]

    class Slow(Sixes):
        def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
            now[0] += 4.0 if cold else 1.0
            return [Guesses((6,) * ask.most, "draft") for ask in asks]

    scheduler = SpeculativeScheduler(
        Scheduler(CountingStore(10_000), clock=lambda: now[0]),
        Slow(),
        FixedPolicy(0),
        10,
        costs=costs,
    )
    scheduler.add(Request(0, SimulatedSequence(0, 1, 5000), arrival=0.0, limit=5000))
    for step in range(120):
        scheduler.guessing = FixedPolicy(4 if step % 6 else 0)
        cold = step % 6 == 1
        guessed = plain_step(scheduler)
        now[0] += 5.0 if cold else 1.0
        scheduler.observe(1.0)
        assert guessed == (step % 6 > 0)
    assert costs.base + 5 * costs.token == pytest.approx(1.0, rel=0.01)
    assert costs.drafting([4]) == pytest.approx(1.0, rel=0.01)


def test_a_draft_that_reads_a_prompt_first_teaches_no_costs() -> None:
    """One request after another: for the first guesses of each it takes 9 s, else 1 s."""
    costs, now, known = Costs(), [0.0], set()

    class Reads(Sixes):
        def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
            now[0] += 1.0 if {ask.request for ask in asks} <= known else 9.0
            known.update(ask.request for ask in asks)
            return [Guesses((6,) * ask.most, "draft") for ask in asks]

    scheduler = SpeculativeScheduler(
        Scheduler(CountingStore(10_000), clock=lambda: now[0]),
        Reads(),
        FixedPolicy(4),
        10,
        costs=costs,
    )
    for number in range(20):
        request = Request(number, SimulatedSequence(number, 40, 99), arrival=0.0, limit=139)
        scheduler.add(request)
        for _ in range(10):
            plain_step(scheduler)
            now[0] += 1.0
            scheduler.observe(1.0)
        scheduler.end(request, Status.FINISHED)
    assert len(known) == 20
    assert costs.drafting([4]) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("most", [1, 3, 16])
def test_a_policy_that_rests_tries_when_it_would_have_tried(most: int) -> None:
    def trials(rests: bool) -> list[int]:
        policy = AdaptivePolicy(4, Costs(base=1.0, token=0.1))
        requests = [Request(i, SimulatedSequence(i, 4, 99), 0.0, 99) for i in range(3)]
        for request in requests:
            for _ in range(9):
                policy.judged(request, Guesses((1, 2)), 0)
        found, step = [], 0
        while len(found) < 3:
            if any(policy.lengths(requests, [4] * 3, 3)):
                found.append(step)
            elif rests:
                step += policy.rest(most)
            step += 1
        return found

    assert trials(rests=True) == trials(rests=False)


def test_a_trial_that_would_not_pay_keeps_nobody_awake() -> None:
    policy = AdaptivePolicy(4, Costs(base=1.0, token=1.0, draft=1.0))
    requests = [Request(i, SimulatedSequence(i, 4, 99), 0.0, 99) for i in range(3)]
    assert policy.rest(16) == 16, "nobody is known"
    for _ in range(100):
        assert not any(policy.lengths(requests, [4] * 3, 3))
    assert policy.rest(16) == 16


class Sixes:
    """Guesses that nobody looks at."""

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        return [Guesses((6,) * ask.most) for ask in asks]

    def forget(self, request: Request) -> None:
        pass


def test_reading_prompts_counts_as_what_guessing_took() -> None:
    credit = Credit()
    run_on_credit(credit, 3, gained=0, seconds=1.0)
    request = Request(0, SimulatedSequence(0, 50, 99), 0.0, 149)
    plan = Plan((GuessedChunk.of(Chunk(request, 0, 50, 50), Guesses((7, 7))),))
    for _ in range(2):
        request.sequence.append()
    for _ in range(100):
        credit.tried(plan, 70.0, 0.0, 0.0)
        assert credit.allows(1), "reading is not what guesses cost"
    for _ in range(16):
        credit.tried(plan, 70.0, 12.0, 0.5)  # 13 s for guesses
    assert not credit.allows(1)

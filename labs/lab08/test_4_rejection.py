"""Task 4: rejection sampling."""

import math
from collections import Counter

import pytest
import torch

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.request import Request
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.rows import SamplingRow
from nanovllm.generation.sampling import sample
from nanovllm.generation.sequence import Sequence
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.store import PagedStore
from nanovllm.speculative.draft_model import DraftModel
from nanovllm.speculative.draft_sequence import DraftSequence
from nanovllm.speculative.proposer import Ask
from nanovllm.speculative.rejection import accepts, distribution, pick, rejection_sample, residual

CONFIG = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 64, qk_norm=True, eos_token_ids=(2,))
EVERY = [  # parameters, prompt, output
    ({"temperature": 0.7}, [0, 1], []),
    ({"temperature": 1.3, "min_tokens": 3, "stop_token_ids": [4]}, [0], [5, 5]),
    ({"temperature": 1.0, "min_tokens": 2, "stop_token_ids": [4]}, [0], [5, 5]),
    ({"temperature": 1.0, "logit_bias": {3: 4.0, 5: -3.0}}, [2], []),
    ({"temperature": 1.0, "repetition_penalty": 1.8}, [0, 1, 1], [2, 2]),
    ({"temperature": 1.0, "frequency_penalty": 0.6, "presence_penalty": 0.7}, [0, 1], [2, 2, 6]),
    ({"temperature": 1.2, "min_p": 0.2}, [1], [3]),
    ({"temperature": 0.8, "top_k": 3}, [1], [3]),
    ({"temperature": 1.5, "top_p": 0.6}, [1], [3]),
    ({"temperature": 1.4, "top_p": 0.8, "top_k": 6, "min_p": 0.05, "min_tokens": 4,
      "repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": -0.4,
      "logit_bias": {7: 1.5}, "stop_token_ids": [6]}, [7, 1], [3, 6, 6]),
    ({"temperature": 0}, [0, 1], []),
    ({"temperature": 0, "repetition_penalty": 2.0, "presence_penalty": 1.0}, [4, 0], [8]),
]  # fmt: skip
ROWS = [SamplingRow(SamplingParams(**params), prompt, output, 0, (2,))
        for params, prompt, output in EVERY]  # fmt: skip


def some_logits():
    logits = torch.randn(len(ROWS), 9, generator=torch.Generator().manual_seed(7)) * 1.5
    logits[0, 3] = -math.inf
    logits[10, [2, 5]] = 6.0  # greedy: equals
    return logits


def shares(logits, row):
    """What a row's tokens are drawn with, by lab 03's chain, one number at a time."""
    params, values = row.params, logits.double().tolist()
    said, seen = Counter(row.output_token_ids), {*row.prompt_token_ids, *row.output_token_ids}
    for token in range(len(values)):
        if len(row.output_token_ids) < params.min_tokens and token in row.stop_token_ids:
            values[token] = -math.inf
        values[token] += (params.logit_bias or {}).get(token, 0.0)
        if token in seen:
            up = values[token] <= 0
            values[token] *= params.repetition_penalty ** (1 if up else -1)
        values[token] -= params.frequency_penalty * said[token]
        values[token] -= params.presence_penalty * (said[token] > 0)
    if params.greedy:
        return [float(i == values.index(max(values))) for i in range(len(values))]
    top = max(values)
    weights = [math.exp((v - top) / params.temperature) for v in values]
    weights = [w if w >= params.min_p else 0.0 for w in weights]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    if params.top_k:
        order = order[: params.top_k]
    total, before, kept = sum(weights[i] for i in order), 0.0, {}
    for i in order:
        if before < params.top_p * total:
            kept[i] = weights[i]
        before += weights[i]
    return [kept.get(i, 0.0) / sum(kept.values()) for i in range(len(weights))]


@pytest.mark.check(task=4, points=2, title="The distribution that the sampler draws from")
def test_distribution():
    given = some_logits()
    before = given.clone()
    found = distribution(given, ROWS)
    for i, (params, prompt, output) in enumerate(EVERY):
        expect(
            found[i].tolist(),
            shares(given[i], ROWS[i]),
            call=f"row {i} of distribution(logits, rows) for {len(EVERY)} rows",
            given={"parameters": params, "prompt": prompt, "output": output,
                   "end-of-sequence id": 2, "logits": before[i].tolist()},
            cause="lab 03's chain in its order: min_tokens, bias, penalties; a greedy row takes "
            "the largest there; else temperature, min-p, top-k, top-p",
            atol=1e-6,
        )  # fmt: skip
    expect(given, before, call="the logits given", cause="they must not be changed")
    expect(
        [(found.sum(dim=-1) - 1).abs().max().item() < 1e-12, found.dtype == torch.float64],
        [True, True],
        call="whether the rows add up to 1 to twelve digits, and are float64",
    )


@pytest.mark.check(task=4, points=1, title="It is what lab 03's sampler does, counted")
def test_counted():
    draws, rows = 1500, (9, 5)
    for i in rows:
        params, prompt, output = EVERY[i]
        logits = some_logits()[i : i + 1]
        found = distribution(logits, [ROWS[i]])[0]
        drawn = sample(
            logits.expand(draws, -1),
            [SamplingRow(ROWS[i].params, prompt, output, seed, (2,)) for seed in range(draws)],
        )
        counts = Counter(one.token_id for one in drawn)
        expect(
            sorted(counts),
            found.nonzero().flatten().tolist(),
            call=f"the tokens that {draws} draws of the sampler gave, and those of a probability",
            given={"parameters": params},
            cause="what the chain masks has probability 0",
        )
        far = sum((counts[t] - draws * float(found[t])) ** 2 / (draws * float(found[t]))
                  for t in counts)  # fmt: skip
        expect.that(
            far < 32,
            "the counts are near the probabilities: a chi-square below 32",
            observed=far,
            call=f"distribution beside {draws} draws of `sample`",
            given={"parameters": params},
        )


@pytest.mark.check(task=4, points=1, title="A guess stands with probability min(1, p / q)")
def test_accepts():
    pairs = [(0.3, 0.6), (0.6, 0.3), (0.2, 0.2), (0.0, 0.5), (0.01, 1.0), (1.0, 1.0), (0.45, 0.5)]
    us = [(i + 0.5) / 1000 for i in range(1000)]
    expect(
        [round(sum(bool(accepts(p, q, u)) for u in us) / 1000, 3) for p, q in pairs],
        [0.5, 1.0, 1.0, 0.0, 0.01, 1.0, 0.9],
        call="the share of 1,000 values of u, evenly from 0 to 1, at which accepts(p, q, u)",
        given={"(p, q)": pairs},
        cause="guesses that the draft makes too often have to fall as often; those that it makes "
        "too rarely always stand",
    )
    expect(
        [bool(accepts(0.0, 0.3, 0.0)), bool(accepts(1e-12, 1e-9, 5e-4))],
        [False, True],
        call="accepts(0, 0.3, u=0) and accepts(1e-12, 1e-9, u=0.0005)",
        cause="p = 0 never stands; small numbers are numbers",
    )


@pytest.mark.check(
    task=4, points=1, title="In a fallen guess's place: what the draft makes too rarely"
)
def test_residual():
    cases = [
        ([0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [1.0, 0.0, 0.0]),
        ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.0, 0.0, 0.25, 0.75]),
        ([0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [5 / 7, 0.0, 2 / 7]),
        ([0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]),
        ([0.25, 0.25, 0.5], [0.25, 0.25, 0.5], [0.25, 0.25, 0.5]),
        ([0.25, 0.25 - 2**-40, 0.5], [0.25, 0.25, 0.5], [0.25, 0.25, 0.5]),
        ([1.0, 0.0], [1.0, 0.0], [1.0, 0.0]),
    ]
    for p, q, want in cases:
        given = torch.tensor([p, q], dtype=torch.float64)
        expect(
            residual(given[0], given[1]).tolist(),
            want,
            call=f"residual(p={p}, q={q})",
            cause="p - q where that is more than 0, in parts of its sum; p itself where p is "
            "nowhere the larger",
            atol=1e-9,
        )
        expect(given.tolist(), [p, q], call="p and q afterwards", cause="they must not change")


@pytest.mark.check(task=4, points=1, title="A token for a number between 0 and 1")
def test_pick(generator):
    us = [(i + 0.5) / 1000 for i in range(1000)]
    for probs in ([0.25, 0.0, 0.75], [0.0, 0.5, 0.0, 0.5, 0.0], [0.3, 0.6], [0.22, 0.88], [1.0]):
        drawn = [int(pick(torch.tensor(probs), u)) for u in us]
        expect(
            [drawn.count(token) / 1000 for token in range(len(probs))],
            [part / sum(probs) for part in probs],
            call=f"the share of each token of {probs} among 1,000 values of u, evenly from 0 to 1",
            cause="each has a stretch of [0, 1) as long as its part of the sum",
            atol=1.1e-3,
        )
        expect(
            drawn, sorted(drawn), call=f"the tokens of {probs} as u grows", cause="token 0 first"
        )
    probs = torch.rand(3000, generator=generator).mul(20).softmax(dim=0)
    probs[:50] = probs[-700:] = 0.0
    ends = [int(pick(probs, u)) for u in (0.0, 1 - 2**-53)]
    expect(
        ends,
        [50, 2299],
        call="pick at u = 0 and just below 1, of 3,000 float32 probabilities that add up to a "
        "little less than 1; the first 50 and the last 700 are 0",
        cause="a token of probability 0 is never picked",
    )


def judged(p, q, guesses, uniforms):
    """The rule, one number at a time; `uniforms` are pairs."""
    tokens = []
    for i, guess in enumerate(guesses):
        by = [float(t == guess) for t in range(len(p[i]))] if q is None else q[i]
        if by[guess] > 0 and uniforms[i][0] * by[guess] < p[i][guess]:
            tokens.append(guess)
            continue
        left = [max(a - b, 0.0) for a, b in zip(p[i], by, strict=True)]
        return [*tokens, stretch(left if sum(left) else p[i], uniforms[i][1])]
    return [*tokens, stretch(p[len(guesses)], uniforms[len(guesses)][1])]


def stretch(parts, u):
    end, aim = 0.0, u * sum(parts)
    for token, part in enumerate(parts):
        end += part
        if aim < end:
            return token
    return max(t for t, part in enumerate(parts) if part)


@pytest.mark.check(task=4, points=2, title="Guess by guess, and one token more")
def test_rejection_sample(rng):
    p = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.1, 0.8], [0.2, 0.3, 0.5]]).double()
    q = torch.tensor([[0.2, 0.8, 0.0], [0.1, 0.4, 0.5]]).double()
    cases = [
        ("both stand", [1, 1], [[0.6, 0.0], [0.2, 0.0], [0.0, 0.6]], [1, 1, 2]),
        ("the second falls", [1, 1], [[0.6, 0.0], [0.3, 0.1], [0.0, 0.6]], [1, 2]),
        ("the first falls", [1, 1], [[0.7, 0.9], [0.0, 0.1], [0.0, 0.6]], [0]),
        ("p is larger: it stands", [0, 2], [[0.99, 0.0], [0.99, 0.0], [0.0, 0.1]], [0, 2, 0]),
    ]
    for says, guesses, uniforms, want in cases:
        expect(
            list(rejection_sample(p, q, guesses, torch.tensor(uniforms).double())),
            want,
            call=f"rejection_sample of guesses {guesses}: {says}",
            given={"p": p.tolist(), "q": q.tolist(), "uniforms": uniforms},
            cause="row i has the uniforms of guess i: one decides, the other draws in its place; "
            "behind all guesses the second of the last row draws from the last row of p",
        )
    found, wanted = [], []
    for number in range(120):
        k, vocab = number % 5, 6
        p, q = rng.random((k + 1, vocab)) ** 3, rng.random((k, vocab)) ** 3
        p[rng.random(p.shape) < 0.2] = 0.0
        p[:, 0] += 0.1
        q[:, 0] += 0.01
        p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
        guesses = [int(rng.choice(vocab, p=row)) for row in q]
        uniforms, certain = rng.random((k + 1, 2)), number % 2 == 0
        wanted.append(judged(p, None if certain else q, guesses, uniforms))
        drawn = rejection_sample(
            torch.from_numpy(p),
            None if certain else torch.from_numpy(q),
            tuple(guesses),
            torch.from_numpy(uniforms),
        )
        found.append([int(token) for token in drawn])
    expect(
        found,
        wanted,
        call="120 calls with 0 to 4 guesses over 6 tokens, every other one with q None",
        cause="q None: each guess was certain, its q is 1 on the guess and 0 elsewhere",
    )


@pytest.mark.check(task=4, points=1, title="Two tokens, as if the target had drawn them")
def test_chi_square():
    vocab, draws = 5, 500
    for certain in (False, True):
        generator = torch.Generator().manual_seed(1)
        p, q = (
            torch.randn(vocab + 1, vocab, generator=generator, dtype=torch.float64)
            .mul(1.5)
            .softmax(dim=-1)
            for _ in "pq"
        )
        counts: Counter = Counter()
        for _ in range(draws):
            guesses: list[int] = []  # of the draft, by its distribution or its likeliest
            for _ in range(2):
                row = q[guesses[-1] + 1 if guesses else 0]
                drawn = torch.multinomial(row, 1, generator=generator)
                guesses.append(int(row.argmax() if certain else drawn))
            at = [0, guesses[0] + 1, guesses[1] + 1]
            uniforms = torch.rand(3, 2, generator=generator, dtype=torch.float64)
            tokens = rejection_sample(p[at], None if certain else q[at[:2]], guesses, uniforms)
            second = torch.multinomial(p[int(tokens[0]) + 1], 1, generator=generator)
            counts[int(tokens[0]), int(tokens[1] if len(tokens) > 1 else second)] += 1
        far = 0.0
        for a in range(vocab):
            for b in range(vocab):
                wanted = draws * float(p[0, a] * p[a + 1, b])
                far += (counts[a, b] - wanted) ** 2 / wanted
        expect.that(
            far < 51,
            "the 25 pairs come as often as the target would draw them: a chi-square below 51",
            observed=round(far, 1),
            call=f"{draws} pairs of tokens over a vocabulary of 5, guesses "
            + ("by the draft's likeliest" if certain else "drawn from the draft"),
            cause="right code stays below 51 in 999 of 1,000 trials; some pair comes too often",
        )


@pytest.mark.check(task=4, points=1, title="A draft that says what it drew from")
def test_draft_probs():
    expect(distribution(torch.zeros(1, 9), ROWS[:1]).shape[1], 9, call="columns of distribution")
    torch.set_num_threads(1)
    model = dummy_model(CONFIG, seed=3)
    engine = Engine(model, EngineConfig(), store=PagedStore(CONFIG, 40, 4))
    draft = DraftModel(engine, sampled=True, with_probs=True)
    params = SamplingParams(temperature=1.2, top_k=12, repetition_penalty=1.4, max_tokens=40)
    requests = []
    for number, prompt in enumerate(([5, 9, 13, 7], [40, 3, 40])):
        sequence = Sequence(prompt, params, max_model_len=64, seed=number, request_id=number)
        requests.append(Request(number, sequence, 0.0, 64))
    most = [4, 2]
    for call in range(2):
        found = draft.propose([Ask(r, m) for r, m in zip(requests, most, strict=True)])
        for request, count, guesses in zip(requests, most, found, strict=True):
            own, probs = DraftSequence(request, sampled=True, salt=True), []
            own.output_token_ids += request.sequence.output_token_ids
            for _ in range(count):
                ids = torch.tensor([*own.prompt_token_ids, *own.output_token_ids])
                hidden = model(ids, torch.arange(len(ids)), RecomputeAttend(CONFIG))
                logits = model.logits(hidden[-1:])
                probs.append(shares(logits[0], own.row))
                own.output_token_ids.append(sample(logits, [own.row])[0].token_id)
            expect(
                list(guesses.token_ids),
                own.output_token_ids[request.num_output_tokens :],
                call=f"guesses with sampled=True and with_probs=True, call {call + 1}",
                given={"tokens": request.token_ids(0, request.num_tokens)},
                cause="drawn by the target's parameters with noise of their own, which is that of "
                "a DraftSequence with salt=True",
            )
            expect(
                [list(guesses.probs.shape), guesses.probs.double().tolist()],
                [[count, 50], probs],
                call="the shape of their probs, and probs",
                cause="row i is what guess i was drawn from: the draft's `distribution` at its "
                "place, with the guesses before it said",
                atol=1e-5,
            )
        for request, guesses in zip(requests, found, strict=True):
            request.sequence.output_token_ids += [guesses.token_ids[0], 17]
    plain = DraftModel(engine, sampled=True)
    [guesses] = plain.propose([Ask(requests[0], 2)])
    expect(guesses.probs, None, call="probs without with_probs")

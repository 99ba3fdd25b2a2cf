"""Task 2: from logits to a token."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from grader import expect
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sampling import (
    SamplingRow,
    apply_logit_bias,
    apply_min_p,
    apply_min_tokens,
    apply_penalties,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    draw,
    gather_logprobs,
    sample,
)

INF = math.inf


def _row(prompt=(0,), output=(), seed=0, eos=(), **params) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), list(prompt), list(output), seed, eos)


def _kept(logits) -> list[list[int]]:
    """The token ids of each row that can still be drawn."""
    return [torch.isfinite(row).nonzero().flatten().tolist() for row in logits]


@pytest.mark.check(task=2, points=2, title="min_tokens masks every way to end")
def test_min_tokens():
    rows = [
        _row(eos=(2, 9), min_tokens=2, stop_token_ids=[4], output=[5]),
        _row(eos=(2, 9), min_tokens=2, stop_token_ids=[4], output=[5, 5]),
        _row(eos=(2, 9), prompt=[1, 1, 1], min_tokens=1),
        _row(eos=(2, 9)),
    ]
    given = torch.zeros(4, 6)
    expect(
        _kept(apply_min_tokens(given, rows)),
        [[0, 1, 3, 5], [0, 1, 2, 3, 4, 5], [0, 1, 3, 4, 5], [0, 1, 2, 3, 4, 5]],
        call="the ids that apply_min_tokens leaves, of 6, for rows with eos ids (2, 9)",
        given={"rows": "min_tokens=2, stop 4, 1 token out | same, 2 out | min_tokens=1 | none"},
        cause="all end-of-sequence ids and stop_token_ids are masked while the output, not the "
        "whole sequence, is shorter than min_tokens",
    )
    expect(given, torch.zeros(4, 6), call="the logits given", cause="they must not be changed")


@pytest.mark.check(task=2, points=2, title="Logit bias is added to logits")
def test_logit_bias():
    rows = [_row(logit_bias={1: 2.0, 3: -1.5}), _row(), _row(logit_bias={0: 100.0})]
    given = torch.tensor([[0.5, 1.0, 2.0, 3.0]]).repeat(3, 1)
    expect(
        apply_logit_bias(given, rows),
        torch.tensor([[0.5, 3.0, 2.0, 1.5], [0.5, 1.0, 2.0, 3.0], [100.5, 1.0, 2.0, 3.0]]),
        call="apply_logit_bias(logits, rows)",
        given={"logits": given[0].tolist(), "logit_bias": "{1: 2, 3: -1.5} | None | {0: 100}"},
        cause="a bias is added to the logit of its token, in its own row",
    )
    expect(given[0, 1].item(), 1.0, call="the logits given", cause="they must not be changed")


@pytest.mark.check(task=2, points=4, title="Penalties: what each of the three looks at")
def test_penalties(rng):
    prompt, output = [0, 1, 1], [1, 2, 2, 2]
    base = [4.0, -3.0, 2.0, -1.0, 0.5]
    settings = [
        {"repetition_penalty": 2.0},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.75},
        {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": 0.25},
        {},
    ]
    rows = [_row(prompt, output, **params) for params in settings]
    given = torch.tensor(base).repeat(5, 1)
    names = ["repetition 2", "frequency 0.5", "presence 0.75", "2, 0.5 and 0.25", "none"]
    expect(
        apply_penalties(given, rows),
        torch.tensor(
            [
                [2.0, -6.0, 1.0, -1.0, 0.5],
                [4.0, -3.5, 0.5, -1.0, 0.5],
                [4.0, -3.75, 1.25, -1.0, 0.5],
                [2.0, -6.75, -0.75, -1.0, 0.5],
                base,
            ]
        ),
        call="apply_penalties(logits, rows)",
        given={"logits": base, "prompt": prompt, "output": output, "rows": names},
        cause="presence and frequency count the output only, repetition also the prompt",
    )
    expect(given[0].tolist(), base, call="the logits given", cause="they must not be changed")

    from transformers import RepetitionPenaltyLogitsProcessor

    history = rng.integers(0, 50, size=12).tolist()
    logits = torch.from_numpy(rng.normal(0, 3, size=(1, 50))).float()
    wanted = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([history]), logits.clone())
    expect(
        apply_penalties(logits, [_row(history[:7], history[7:], repetition_penalty=1.3)]),
        wanted,
        call="apply_penalties with repetition_penalty=1.3, against transformers",
        given={"prompt": history[:7], "output": history[7:]},
        cause="each token is penalised once, however often it occurs",
    )


@pytest.mark.check(task=2, points=2, title="Temperature scales rows, and spares greedy ones")
def test_temperature():
    given = torch.tensor([[2.0, 0.0, -1.0], [2.0, 0.0, -1.0], [2.0, 0.0, -1.0]])
    expect(
        apply_temperature(given, torch.tensor([0.5, 0.0, 2.0])),
        torch.tensor([[4.0, 0.0, -2.0], [2.0, 0.0, -1.0], [1.0, 0.0, -0.5]]),
        call="apply_temperature(logits, [0.5, 0, 2])",
        given={"each row of logits": [2.0, 0.0, -1.0]},
        cause="a low temperature spreads the logits apart; 0 leaves them as they are",
    )


@pytest.mark.check(task=2, points=3, title="min-p is relative to the likeliest token")
def test_min_p(rng):
    probs = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
    kept = _kept(apply_min_p(probs.log().repeat(4, 1), torch.tensor([0.0, 0.3, 0.7, 1.0])))
    expect(
        kept,
        [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1], [0]],
        call="the ids that apply_min_p leaves for min_p = 0, 0.3, 0.7, 1",
        given={"probabilities": probs.tolist()},
        cause="the floor is min_p times the largest probability, not min_p itself",
    )
    from transformers import MinPLogitsWarper

    logits = torch.from_numpy(rng.normal(0, 2, size=(3, 40))).float()
    expect(
        apply_min_p(logits, torch.full((3,), 0.07)),
        MinPLogitsWarper(0.07)(None, logits.clone()),
        call="apply_min_p(logits, 0.07), against transformers",
    )


@pytest.mark.check(task=2, points=3, title="top-k keeps ties at the k-th value")
def test_top_k():
    row = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0, 2.0])
    given = row.repeat(6, 1)
    expect(
        _kept(apply_top_k(given, torch.tensor([1, 2, 4, 0, 6, 50]))),
        [[1], [1, 2, 3, 5], [1, 2, 3, 5], [0, 1, 2, 3, 4, 5], list(range(6)), list(range(6))],
        call="the ids that apply_top_k leaves for k = 1, 2, 4, 0, 6, 50",
        given={"logits": row.tolist()},
        cause="all tokens at the k-th value stay; 0 and a k above the vocabulary keep all",
    )
    masked = torch.tensor([[-INF, 3.0, -INF, 2.0, 1.0, -INF]])
    out = apply_top_k(masked, torch.tensor([2]))
    expect(
        out,
        torch.tensor([[-INF, 3.0, -INF, 2.0, -INF, -INF]]),
        call="apply_top_k(logits, [2]) where three ids are masked already",
        cause="kept logits keep their values, masked ones stay masked",
    )


@pytest.mark.check(task=2, points=4, title="top-p keeps the token that crosses p")
def test_top_p(rng):
    # Eighths, so that the sums are exact: reached means reached.
    probs = torch.tensor([0.125, 0.5, 0.25, 0.0625, 0.0625])
    given = probs.log().repeat(6, 1)
    expect(
        _kept(apply_top_p(given, torch.tensor([0.6, 0.4, 0.001, 0.76, 0.9, 1.0]))),
        [[1, 2], [1], [1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]],
        call="the ids that apply_top_p leaves for p = 0.6, 0.4, 0.001, 0.76, 0.9, 1",
        given={"probabilities": probs.tolist()},
        cause="the token that crosses p is kept; one token always remains; of two equal ones the "
        "lower id counts as likelier",
    )
    tiny = torch.tensor([[0.0, -40.0, -41.0]])
    expect(
        _kept(apply_top_p(tiny, torch.tensor([1.0]))),
        [[0, 1, 2]],
        call="the ids that apply_top_p leaves for p = 1, logits [0, -40, -41]",
        cause="1 means all, also the tokens whose probability is lost in rounding",
    )
    logits = rng.normal(0, 2, size=(4, 30))
    ps = rng.uniform(0.2, 0.95, size=4)
    wanted = []
    for row, p in zip(logits, ps, strict=True):
        weights = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        keep, mass = [], 0.0
        for token in np.argsort(-row):
            if mass < p:
                keep.append(int(token))
            mass += weights[token]
        wanted.append(sorted(keep))
    expect(
        _kept(apply_top_p(torch.from_numpy(logits).float(), torch.from_numpy(ps).float())),
        wanted,
        call="the ids that apply_top_p leaves in four random rows, each with a p of its own",
        given={"p": ps.round(3).tolist()},
    )


@pytest.mark.check(task=2, points=3, title="The draw has the right distribution")
def test_draw_distribution(rng):
    probs = np.array([0.35, 0.25, 0.15, 0.1, 0.06, 0.05, 0.04])
    count = 4000
    logits = torch.tensor([*np.log(probs).tolist(), -INF]).float().repeat(count, 1) + 3.0
    first = int(rng.integers(0, 2**40))
    observed = {}
    for name, seeds, positions in (
        ("one seed, many positions", torch.full((count,), first), torch.arange(count)),
        ("many seeds, one position", first + torch.arange(count), torch.full((count,), 17)),
    ):
        tokens = draw(logits, seeds, positions)
        counts = torch.bincount(tokens, minlength=8).tolist()
        observed[name] = counts
        p_value = stats.chisquare(counts[:7], probs * sum(counts[:7])).pvalue
        expect.that(
            counts[7] == 0 and p_value > 1e-4,
            f"{count} draws ({name}) fit the probabilities: chi-square p {p_value:.2g} > 1e-4",
            observed=[round(c / count, 2) for c in counts],
            call="draw(logits, seeds, positions), the share of each id",
            given={"probabilities": [*probs.tolist(), 0.0]},
            cause="the noise is not Gumbel noise, or not one number for each id",
        )


@pytest.mark.check(task=2, points=2, title="A draw depends on its key alone")
def test_draw_key(generator):
    logits = torch.zeros(64, 1000)
    seeds = torch.randint(0, 2**40, (64,), generator=generator)
    positions = torch.arange(64)
    together = draw(logits, seeds, positions)
    order = torch.randperm(64, generator=generator)
    expect(
        {
            "again": int((draw(logits, seeds, positions) == together).sum()),
            "reordered": int(
                (draw(logits, seeds[order], positions[order]) == together[order]).sum()
            ),
            "alone": sum(
                int(draw(logits[:1], seeds[i : i + 1], positions[i : i + 1])[0] == together[i])
                for i in range(64)
            ),
        },
        {"again": 64, "reordered": 64, "alone": 64},
        call="of 64 draws, how many come out the same: again, in another order, one at a time",
        cause="the draw depends on something other than (seed, position)",
    )
    one = torch.full((64,), 5)
    expect.that(
        len(set(draw(logits, one, positions).tolist())) > 50
        and len(set(draw(logits, seeds, one).tolist())) > 50,
        "64 keys over 1000 equally likely ids give over 50 different ids, when only the position "
        "differs and when only the seed does",
        observed=[
            len(set(draw(logits, one, positions).tolist())) > 50,
            len(set(draw(logits, seeds, one).tolist())) > 50,
        ],
        call="draw with equal seeds, then with equal positions",
    )


@pytest.mark.check(task=2, points=3, title="Log-probabilities are the model's own")
def test_logprobs(rng):
    probs = np.array([0.1, 0.4, 0.2, 0.25, 0.05])
    logits = torch.from_numpy(np.log(probs) + 2.0).float()

    def shown(found):
        return [[token, float(v.logprob), v.rank] for token, v in found.items()]

    expect(
        shown(gather_logprobs(logits, 4, 2)),
        [[4, math.log(0.05), 5], [1, math.log(0.4), 1], [3, math.log(0.25), 2]],
        call="gather_logprobs(logits, token_id=4, num_logprobs=2): id, logprob, rank",
        given={"probabilities": probs.tolist()},
        rtol=1e-4,
        cause="the chosen token first, then the likeliest; ranks count from 1",
    )
    expect(
        [len(gather_logprobs(logits, 1, n)) for n in (0, 1, 3, -1, 99)],
        [1, 1, 3, 5, 5],
        call="how many entries gather_logprobs(logits, 1, n) has for n = 0, 1, 3, -1, 99",
        cause="a chosen token that is among the likeliest is listed once; -1 means all",
    )
    row = _row(temperature=0, logprobs=0, logit_bias={0: 50.0}, frequency_penalty=1.0, output=[1])
    (drawn,) = sample(logits[None], [row])
    expect(
        [drawn.token_id, float(drawn.logprobs[0].logprob) if drawn.logprobs else None],
        [0, math.log(0.1)],
        call="sample with a bias of 50 on id 0 and logprobs=0: the token, its log-probability",
        given={"probabilities": probs.tolist()},
        rtol=1e-4,
        cause="log-probabilities are of the raw distribution, not of the one that was drawn from",
    )
    (drawn,) = sample(logits[None], [_row(temperature=0)])
    expect.that(
        drawn.logprobs is None, "no log-probabilities are reported where none were asked for"
    )


MIXED = [
    {"temperature": 0},
    {"temperature": 1.5},
    {"temperature": 0, "repetition_penalty": 3.0},
    {"temperature": 0.7, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 2.0, "min_p": 0.2},
    {"temperature": 0, "logit_bias": {11: 60.0}},
    {"temperature": 1.0, "min_tokens": 5},
    {"temperature": 0.9, "presence_penalty": 1.5, "frequency_penalty": 0.5},
]


@pytest.mark.check(task=2, points=3, title="A row's token does not depend on its batch mates")
def test_mixed_batch(generator, rng):
    rows = [
        _row([3, 4], [8, 9, 10], seed=100 + i, eos=(0, 1), **params)
        for i, params in enumerate(MIXED)
    ]
    tokens = {"alone": [], "together": [], "reversed": []}
    greedy = []
    for _ in range(20):
        logits = 2.0 * torch.randn(len(rows), 24, generator=generator)
        given = logits.clone()
        greedy.append(int(logits[0].argmax()))
        tokens["together"] += [drawn.token_id for drawn in sample(logits, rows)]
        tokens["alone"] += [
            sample(logits[i : i + 1], rows[i : i + 1])[0].token_id for i in range(len(rows))
        ]
        backwards = [drawn.token_id for drawn in sample(logits.flip(0), rows[::-1])]
        tokens["reversed"] += backwards[::-1]
        expect(logits, given, call="the logits given to sample", cause="they must not be changed")
    expect(
        tokens["together"][:: len(rows)],
        greedy,
        call="sample(logits, rows): the tokens of the greedy row, in 20 mixed batches",
        cause="temperature 0 takes the largest logit, whatever the other rows do",
    )
    expect(
        {
            name: sum(a == b for a, b in zip(found, tokens["alone"], strict=True))
            for name, found in tokens.items()
        },
        {"alone": 180, "together": 180, "reversed": 180},
        call="of 180 tokens, how many equal the token that the row draws alone",
        cause="a row's draw depends on the batch: its seed and position belong to the row",
    )


@pytest.mark.check(task=2, points=1, title="The key is the row's own seed and position")
def test_sample_key():
    logits = torch.zeros(1, 50)

    def tokens(rows):
        return [sample(logits, [row])[0].token_id for row in rows]

    by_seed = tokens(_row([1, 2], seed=s) for s in range(40))
    by_output = tokens(_row([1, 2], [3] * n) for n in range(40))
    same = tokens([_row([1, 2], [3], 7), _row([1], [2, 3], 7), _row([9, 9, 9], [], 7)])
    expect.that(
        len(set(by_seed)) > 15 and len(set(by_output)) > 15 and len(set(same)) == 1,
        "40 seeds, and 40 positions, over 50 equally likely ids give over 15 different ids; the "
        "same seed at the same position gives the same id",
        observed=[len(set(by_seed)) > 15, len(set(by_output)) > 15, same],
        call="sample(zeros, [row]): many ids by seed? by position? the ids at one key",
        cause="the key must be (row.seed, row.position) and nothing else: a request that is "
        "resumed in another batch then draws the same token",
    )

"""Task 2: from logits to a token."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from grader import expect
from nanovllm.generation.keys import uniform
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.rows import SamplingRow
from nanovllm.generation.sampling import sample

INF = math.inf


def _row(prompt=(0,), output=(), seed=0, eos=(), **params) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), list(prompt), list(output), seed, eos)


def _kept(logits) -> list[list[int]]:
    """The token ids of each row that can still be drawn."""
    return [torch.isfinite(row).nonzero().flatten().tolist() for row in logits]


def _apply(link, logits, values):
    """What a link of the chain returns; the logits given must stay as they are."""
    before = logits.clone()
    result = link(logits, values)
    expect(logits, before, call="the logits given", cause="they must not be changed")
    return result


@pytest.mark.check(task=2, points=2, title="min_tokens masks every way to end")
def test_min_tokens():
    from nanovllm.generation.chain import apply_min_tokens

    rows = [
        _row(eos=(2, 6, 9), min_tokens=2, stop_token_ids=[4], output=[5]),
        _row(eos=(2, 6, 9), min_tokens=2, stop_token_ids=[4], output=[5, 5]),
        _row(eos=(2, 6, -1), prompt=[1, 1, 1], min_tokens=1),
        _row(eos=(2, 6, 9)),
    ]
    expect(
        _kept(_apply(apply_min_tokens, torch.zeros(4, 6), rows)),
        [[0, 1, 3, 5], [0, 1, 2, 3, 4, 5], [0, 1, 3, 4, 5], [0, 1, 2, 3, 4, 5]],
        call="the ids that apply_min_tokens leaves, of 6, for rows with eos ids (2, 6, 9), in the "
        "third (2, 6, -1)",
        given={"rows": "min_tokens=2, stop 4, 1 token out | same, 2 out | min_tokens=1 | none"},
        cause="all end-of-sequence ids and stop_token_ids are masked while the output, not the "
        "whole sequence, is shorter than min_tokens; ids outside the vocabulary do not matter",
    )


@pytest.mark.check(task=2, points=1, title="Logit bias is added to logits")
def test_logit_bias():
    from nanovllm.generation.chain import apply_logit_bias

    rows = [_row(logit_bias={1: 2.0, 3: -1.5}), _row(), _row(logit_bias={0: 100.0})]
    given = torch.tensor([[0.5, 1.0, 2.0, 3.0]]).repeat(3, 1)
    expect(
        _apply(apply_logit_bias, given, rows),
        torch.tensor([[0.5, 3.0, 2.0, 1.5], [0.5, 1.0, 2.0, 3.0], [100.5, 1.0, 2.0, 3.0]]),
        call="apply_logit_bias(logits, rows)",
        given={"logits": given[0].tolist(), "logit_bias": "{1: 2, 3: -1.5} | None | {0: 100}"},
        cause="a bias is added to the logit of its token, in its own row",
    )


@pytest.mark.check(task=2, points=4, title="Penalties: what each of the three looks at")
def test_penalties(rng):
    from nanovllm.generation.chain import apply_penalties

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
        _apply(apply_penalties, given, rows),
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
    from nanovllm.generation.chain import apply_temperature

    given = torch.tensor([[2.0, 0.0, -1.0], [2.0, 0.0, -1.0], [2.0, 0.0, -1.0]])
    expect(
        _apply(apply_temperature, given, torch.tensor([0.5, 0.0, 2.0])),
        torch.tensor([[4.0, 0.0, -2.0], [2.0, 0.0, -1.0], [1.0, 0.0, -0.5]]),
        call="apply_temperature(logits, [0.5, 0, 2])",
        given={"each row of logits": [2.0, 0.0, -1.0]},
        cause="a low temperature spreads the logits apart; 0 leaves them as they are",
    )


@pytest.mark.check(task=2, points=3, title="min-p is relative to the likeliest token")
def test_min_p(rng):
    from nanovllm.generation.chain import apply_min_p

    probs = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
    logits = probs.log().repeat(4, 1)
    kept = _kept(_apply(apply_min_p, logits, torch.tensor([0.0, 0.3, 0.7, 1.0])))
    expect(
        kept,
        [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1], [0]],
        call="the ids that apply_min_p leaves for min_p = 0, 0.3, 0.7, 1",
        given={"probabilities": probs.tolist()},
        cause="the floor is min_p times the largest probability, not min_p itself",
    )
    expect(
        _kept(apply_min_p(torch.tensor([[1.0, 0.0, 1.0]]), torch.tensor([1.0]))),
        [[0, 2]],
        call="the ids that apply_min_p leaves of logits [1, 0, 1] for min_p = 1",
        cause="a token exactly on the floor stays",
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
    from nanovllm.generation.chain import apply_top_k

    row = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0, 2.0])
    given = row.repeat(6, 1)
    expect(
        _kept(_apply(apply_top_k, given, torch.tensor([1, 2, 4, 0, 6, 50]))),
        [[1], [1, 2, 3, 5], [1, 2, 3, 5], [0, 1, 2, 3, 4, 5], list(range(6)), list(range(6))],
        call="the ids that apply_top_k leaves for k = 1, 2, 4, 0, 6, 50",
        given={"logits": row.tolist()},
        cause="all tokens at the k-th value stay; 0 and a k above the vocabulary keep all",
    )
    masked = torch.tensor([[-INF, 3.0, -INF, 2.0, 1.0, -INF]])
    expect(
        apply_top_k(masked, torch.tensor([2])),
        torch.tensor([[-INF, 3.0, -INF, 2.0, -INF, -INF]]),
        call="apply_top_k(logits, [2]) where three ids are masked already",
        cause="kept logits keep their values, masked ones stay masked",
    )


@pytest.mark.check(task=2, points=4, title="top-p keeps the token that crosses p")
def test_top_p(rng):
    from nanovllm.generation.chain import apply_top_p

    probs = torch.tensor([0.125, 0.5, 0.25, 0.0625, 0.0625])
    given = probs.log().repeat(6, 1)
    expect(
        _kept(_apply(apply_top_p, given, torch.tensor([0.6, 0.4, 0.001, 0.76, 0.9, 1.0]))),
        [[1, 2], [1], [1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]],
        call="the ids that apply_top_p leaves for p = 0.6, 0.4, 0.001, 0.76, 0.9, 1",
        given={"probabilities": probs.tolist()},
        cause="the token that crosses p is kept; one token always remains; of two equal ones the "
        "lower id counts as likelier",
    )
    # Four equal logits: every probability and every sum of them is exact, so p is met exactly.
    quarters = torch.tensor([[-INF, 1.0, 1.0, -INF, 1.0, 1.0]]).repeat(3, 1)
    expect(
        _kept(apply_top_p(quarters, torch.tensor([0.25, 0.5, 0.75]))),
        [[1], [1, 2], [1, 2, 4]],
        call="the ids that apply_top_p leaves of four ids of 1/4 each, for p = 0.25, 0.5, 0.75",
        given={"logits": quarters[0].tolist()},
        cause="a sum that equals p has reached it: nothing more is needed",
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
    from nanovllm.generation.chain import draw

    probs = np.array([0.35, 0.25, 0.15, 0.1, 0.06, 0.05, 0.04])
    count = 4000
    logits = torch.tensor([*np.log(probs).tolist(), -INF]).float().repeat(count, 1) + 3.0
    first = int(rng.integers(0, 2**40))
    for name, seeds, positions in (
        ("one seed, many positions", torch.full((count,), first), torch.arange(count)),
        ("many seeds, one position", first + torch.arange(count), torch.full((count,), 17)),
    ):
        tokens = draw(logits, seeds, positions)
        counts = torch.bincount(tokens, minlength=8).tolist()
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
    from nanovllm.generation.chain import draw

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
    wanted = uniform(seeds, positions, 1000).argmax(dim=-1)  # equal logits: the largest u wins
    expect(
        together.tolist(),
        wanted.tolist(),
        call="64 draws from equal logits, against the place of the largest of uniform(...)",
        cause="the noise grows with u, and u is uniform(seeds, positions, V)",
    )
    expect(
        draw(logits + 2.0**20, seeds, positions).tolist(),
        wanted.tolist(),
        call="the same 64 draws with 2**20 added to every logit",
        cause="draw works in float64: beside large logits float32 loses the noise",
    )


@pytest.mark.check(task=2, points=2, title="Log-probabilities are the model's own")
def test_logprobs():
    from nanovllm.generation.chain import gather_logprobs

    probs = np.array([0.1, 0.4, 0.2, 0.25, 0.05])
    logits = torch.from_numpy(np.log(probs) + 2.0).float()

    def shown(found):
        return {str(token): [float(v.logprob), v.rank] for token, v in sorted(found.items())}

    expect(
        shown(gather_logprobs(logits, 4, 2)),
        {"1": [math.log(0.4), 1], "3": [math.log(0.25), 2], "4": [math.log(0.05), 5]},
        call="gather_logprobs(logits, token_id=4, num_logprobs=2): logprob and rank by id",
        given={"probabilities": probs.tolist()},
        rtol=1e-4,
        cause="the chosen token and the likeliest; ranks count from 1",
    )
    expect(
        [len(gather_logprobs(logits, 1, n)) for n in (0, 1, 3, -1, 99)],
        [1, 1, 3, 5, 5],
        call="how many entries gather_logprobs(logits, 1, n) has for n = 0, 1, 3, -1, 99",
        cause="a chosen token that is among the likeliest is listed once; -1 means all",
    )
    tied = torch.tensor([2.0, 1.0, 2.0, 1.0, 0.0])
    expect(
        [gather_logprobs(tied, token, 0)[token].rank for token in range(5)]
        + [gather_logprobs(tied, 2, 3)[2].rank],
        [2, 4, 2, 4, 5, 2],
        call="rank of the chosen token, of logits [2, 1, 2, 1, 0], for each of the five and once "
        "more for id 2 beside the three likeliest",
        cause="the chosen token's rank is the number of tokens at least as likely as it",
    )
    half = logits.bfloat16()
    expect(
        float(gather_logprobs(half, 4, 0)[4].logprob),
        float(half.double().log_softmax(-1)[4]),
        call="gather_logprobs of the same logits in bfloat16: logprob of id 4",
        rtol=1e-4,
        cause="it works in float32, whatever the type of the logits",
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


@pytest.mark.check(task=2, points=2, title="A row's token does not depend on its batch mates")
def test_mixed_batch(generator):
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
    half = torch.ones(1, 2, dtype=torch.bfloat16)
    (drawn,) = sample(half, [_row(temperature=0, logit_bias={1: 0.001})])
    expect(
        drawn.token_id,
        1,
        call="sample of bfloat16 logits [1, 1], greedy, with a bias of 0.001 on id 1",
        cause="the chain works in float32: in bfloat16 1 + 0.001 is 1",
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


VOCAB, EOS = 12, (0, 3)


def _softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / sum(weights) for w in weights]


def _slow(row: SamplingRow, logits: list[float]) -> tuple[int, list[int]] | None:
    """A slow sampler for one row: the token and the ids that could be drawn.

    None where rounding could decide, so that another order of the same sums may differ.
    """
    p, out, close = row.params, list(row.output_token_ids), []
    x = list(logits)
    for i in range(VOCAB):
        if len(out) < p.min_tokens and i in {*row.eos_token_ids, *p.stop_token_ids}:
            x[i] = -INF
        x[i] += (p.logit_bias or {}).get(i, 0.0)
        if i in out or i in row.prompt_token_ids:
            x[i] = x[i] / p.repetition_penalty if x[i] > 0 else x[i] * p.repetition_penalty
        x[i] -= p.frequency_penalty * out.count(i) + p.presence_penalty * (i in out)
    if p.temperature == 0:
        left = [i for i in range(VOCAB) if x[i] > -INF]
        best = sorted(x, reverse=True)
        return None if best[0] - best[1] < 1e-3 else (x.index(best[0]), left)
    x = [value / p.temperature for value in x]
    probs = _softmax(x)
    floor = p.min_p * max(probs)
    close += [abs(q - floor) < 1e-4 * floor and x[i] != max(x) for i, q in enumerate(probs)]
    x = [v if q >= floor or v == max(x) else -INF for v, q in zip(x, probs, strict=True)]
    if p.top_k:
        kth = sorted(x, reverse=True)[min(p.top_k, VOCAB) - 1]
        close += [0 < abs(v - kth) < 1e-4 for v in x if v > -INF]
        x = [v if v >= kth else -INF for v in x]
    if p.top_p < 1:
        probs, mass = _softmax(x), 0.0
        for i in sorted(range(VOCAB), key=lambda i: (-x[i], i)):
            close.append(mass > 0 and abs(mass - p.top_p) < 1e-4)
            if mass >= p.top_p:
                x[i] = -INF
            mass += probs[i]
    u = uniform(torch.tensor([row.seed]), torch.tensor([row.position]), VOCAB)[0].tolist()
    noisy = [v - math.log(-math.log(w)) for v, w in zip(x, u, strict=True)]
    best = sorted(noisy, reverse=True)
    if any(close) or best[0] - best[1] < 1e-3:
        return None
    return noisy.index(best[0]), [i for i in range(VOCAB) if x[i] > -INF]


def _random_params(rng) -> dict:
    """A few of the sampler's parameters, in steps that both float32 and float64 hold exactly."""
    ids = [int(i) for i in rng.integers(0, VOCAB, size=3)]
    choices = {
        "temperature": [0.0, 0.5, 1.0, 2.0],
        "min_tokens": [2, 4],
        "stop_token_ids": [ids[:2]],
        "logit_bias": [{ids[0]: 2.0, ids[1]: -1.5}, {ids[2]: -100.0}],
        "repetition_penalty": [0.5, 2.0, 4.0],
        "frequency_penalty": [0.5, -0.25],
        "presence_penalty": [0.75, -0.5],
        "min_p": [0.05, 0.25, 1.0],
        "top_k": [1, 2, 5, 40],
        "top_p": [0.125, 0.5, 0.8, 0.95],
    }
    return {
        name: values[int(rng.integers(len(values)))]
        for name, values in choices.items()
        if rng.random() < 0.45
    }


def _wrong(case) -> bool:
    params, prompt, output, seed, logits = case
    row = _row(prompt, output, seed, EOS, **params)
    wanted = _slow(row, logits)
    return wanted is not None and sample(torch.tensor([logits]), [row])[0].token_id != wanted[0]


@pytest.mark.check(task=2, points=3, title="Random requests, against a slow sampler", stress=True)
def test_random_requests(rng):
    for _ in range(25):
        params = [_random_params(rng) for _ in range(4)]
        prompts = [rng.integers(0, VOCAB, size=int(rng.integers(1, 5))).tolist() for _ in params]
        outputs: list[list[int]] = [[] for _ in params]
        seeds = [int(seed) for seed in rng.integers(0, 2**40, size=4)]
        for _ in range(5):
            logits = (rng.integers(-24, 24, size=(4, VOCAB)) / 8).tolist()
            rows = [
                _row(prompts[i], outputs[i], seeds[i], EOS, **params[i], logprobs=i)
                for i in range(4)
            ]
            drawn = sample(torch.tensor(logits), rows)
            for i, row in enumerate(rows):
                wanted = _slow(row, logits[i])
                got = drawn[i]
                if wanted is not None and got.token_id != wanted[0]:
                    _tell((params[i], prompts[i], list(outputs[i]), seeds[i], logits[i]), got)
                own = torch.tensor(logits[i]).log_softmax(-1)
                least = own[got.token_id]
                chosen = (got.logprobs or {}).get(got.token_id)
                expect(
                    [chosen.rank, float(chosen.logprob)] if chosen else None,
                    [int((own >= least).sum()), float(least)],
                    call="sample(logits, rows): rank and log-probability of the chosen token",
                    given={"logits": logits[i], "token": got.token_id, "logprobs": i},
                    rtol=1e-4,
                    cause="both are of the logits as given; the rank counts the tokens at least "
                    "as likely",
                )
                outputs[i].append(got.token_id)


def _tell(case, got) -> None:
    """Fail with the smallest case: without each parameter and each past token it can spare."""
    if not _wrong(case):
        expect.that(
            False,
            "a row gets the token that it gets alone",
            observed=got.token_id,
            call="sample of four random rows: the token of one of them",
            given={"its parameters": case[0]},
            cause="alone this row gets the right token: something of its batch mates got in",
        )
    params, prompt, output, seed, logits = case
    for name in list(params):
        less = {key: value for key, value in params.items() if key != name}
        if _wrong((less, prompt, output, seed, logits)):
            params = less
    while output and _wrong((params, prompt, output[1:], seed, logits)):
        output = output[1:]
    row = _row(prompt, output, seed, EOS, **params)
    token, left = _slow(row, logits)
    expect(
        sample(torch.tensor([logits]), [row])[0].token_id,
        token,
        call="sample(logits [1, 12], [row]): the token",
        given={
            "parameters": params or "all at their defaults",
            "prompt": prompt,
            "output": output,
            "eos ids": EOS,
            "logits": logits,
            "ids that may be drawn": left,
        },
        cause="a slow sampler with the same noise takes another token; this is the smallest set "
        "of parameters and past tokens with which it still happens",
    )

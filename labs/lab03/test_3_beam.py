"""Task 3: beam search."""

import itertools
import math
import tempfile
from functools import cache

import pytest
import torch

from grader import expect
from grader.course.paths import ROOT
from nanovllm.generation.batch_cache import BatchCache
from nanovllm.generation.beam import (
    BeamSearch,
    BeamSearchParams,
    Hypothesis,
    beam_search,
    best_candidates,
    length_normalized,
    search_is_over,
)
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import load_model


@pytest.mark.check(
    task=3,
    points=2,
    title="The best continuations of all beams together",
    hints=(
        "Add each beam's log-probability to its row, then look at all W * V sums as one list.",
        "topk over the flattened sums; place // V is the beam, place % V the token.",
        "Candidate(value, *divmod(place, vocab_size))",
    ),
)
def test_best_candidates(generator):
    scores = torch.tensor([-1.0, -3.5, -2.0])
    step = torch.randn(3, 11, generator=generator).log_softmax(-1)
    everything = sorted(
        ((float(scores[b] + step[b, t]), b, t) for b in range(3) for t in range(11)), reverse=True
    )
    found = best_candidates(scores, step, 8)
    expect(
        [[candidate.beam, candidate.token_id] for candidate in found],
        [[b, t] for _, b, t in everything[:8]],
        call="best_candidates(beam_logprobs [3], logprobs [3, 11], 8): beam and token of each",
        cause="candidates of all beams compete, by the sum over the whole beam, best first",
    )
    expect(
        [candidate.logprob for candidate in found],
        [score for score, _, _ in everything[:8]],
        call="their log-probabilities",
        rtol=1e-4,
    )
    expect(
        len(best_candidates(scores[:1], step[:1], 30)),
        11,
        call="how many candidates there are of one beam with 11 tokens, 30 asked for",
        cause="there may be fewer continuations than asked for",
    )


@pytest.mark.check(
    task=3,
    points=1,
    title="The score divides by length to the power of the penalty",
    hints=(
        "Log-probabilities are negative: dividing by a longer length brings the score up.",
        "penalty 0 leaves the sum as it is; 1 gives the mean.",
        "logprob / length**length_penalty",
    ),
)
def test_length_normalized():
    expect(
        [length_normalized(-6.0, 4, p) for p in (0.0, 1.0, 2.0, 0.5, -1.0)],
        [-6.0, -1.5, -0.375, -3.0, -24.0],
        call="length_normalized(-6, 4, p) for p = 0, 1, 2, 0.5, -1",
        cause="the penalty is an exponent of the length",
    )


@pytest.mark.check(
    task=3,
    points=2,
    title="When the search may stop",
    hints=(
        "Never before beam_width hypotheses have ended.",
        "Can the best open beam still beat the worst finished one? At which length is it scored?",
        'length is max_tokens for "never" with a positive penalty, else the present length; over '
        "when that score is not above the worst finished score",
    ),
)
def test_search_is_over():
    def answers(best_open, penalty, worst=-0.5, count=2):
        ended = [Hypothesis((1,), -0.4, -0.4, "stop"), Hypothesis((1, 2), -1.0, worst, "stop")]
        return [
            search_is_over(
                BeamSearchParams(
                    beam_width=2, max_tokens=10, length_penalty=penalty, early_stopping=early
                ),
                ended[:count],
                best_open,
                4,
            )
            for early in (True, False, "never")
        ]

    expect(
        {
            "one has ended": answers(-9.0, 1.0, count=1),
            "open -1.6, penalty 1": answers(-1.6, 1.0),
            "open -2.4, penalty 1": answers(-2.4, 1.0),
            "open -6.0, penalty 1": answers(-6.0, 1.0),
            "open -0.3, penalty 1": answers(-0.3, 1.0),
            "open -1.0, penalty 0": answers(-1.0, 0.0),
            "open -0.3, penalty 0": answers(-0.3, 0.0),
            "open -0.1, penalty -1": answers(-0.1, -1.0),
            "open -0.13, penalty -1": answers(-0.13, -1.0),
        },
        {
            "one has ended": [False, False, False],
            "open -1.6, penalty 1": [True, False, False],
            "open -2.4, penalty 1": [True, True, False],
            "open -6.0, penalty 1": [True, True, True],
            "open -0.3, penalty 1": [True, False, False],
            "open -1.0, penalty 0": [True, True, True],
            "open -0.3, penalty 0": [True, False, False],
            "open -0.1, penalty -1": [True, False, False],
            "open -0.13, penalty -1": [True, True, True],
        },
        call='search_is_over for early_stopping = True, False, "never"; width 2, 4 tokens so far, '
        "max_tokens 10, the worst finished score is -0.5",
        cause="the open beam is compared with the worst finished one, at the length that "
        "early_stopping supposes",
    )


def _logprobs(rows):
    """Rows of log-probabilities from weights; what is not named shares a little."""
    table = torch.full((len(rows), 8), 0.001)
    for row, weights in enumerate(rows):
        for token, weight in weights.items():
            table[row, token] = weight
    return (table / table.sum(-1, keepdim=True)).log()


@pytest.mark.check(
    task=3,
    points=3,
    title="One step: who ends, who goes on",
    hints=(
        "Look at 2 * width candidates (more with several end-of-sequence ids), best first.",
        "Ended candidates count only among the first `width`; open ones fill up to `width` beams.",
        "for rank, candidate in enumerate(best_candidates(...)): not ended and len(opened) < width "
        "-> a beam; ended and rank < width -> a Hypothesis",
    ),
)
def test_update():
    def state(search):
        return (
            [list(beam.token_ids) for beam in search.beams],
            [list(h.token_ids) for h in search.finished],
            search.over,
        )

    search = BeamSearch(BeamSearchParams(beam_width=2, max_tokens=5), eos_token_ids=(0,))
    parents = search.update(_logprobs([{0: 0.5, 3: 0.3, 4: 0.15}]))
    expect(
        (parents, *state(search)),
        ([0, 0], [[3], [4]], [[0]], False),
        call="update with p(eos) = 0.5, p(3) = 0.3, p(4) = 0.15: parents, beams, finished, over",
        cause="the end of sequence takes one of the best two places, so the third candidate is "
        "needed to keep two beams open",
    )
    parents = search.update(_logprobs([{5: 0.4, 0: 0.3, 6: 0.2, 2: 0.1}, {7: 0.9, 0: 0.1}]))
    expect(
        (parents, *state(search)),
        ([1, 0], [[4, 7], [3, 5]], [[0]], False),
        call="update: the second beam goes on with 7, the first with 5; an end is only third",
        cause="an end of sequence outside the best `width` candidates is no hypothesis, and the "
        "parents name the old beam of each new one",
    )
    search = BeamSearch(BeamSearchParams(beam_width=2, max_tokens=5), eos_token_ids=(0, 1))
    parents = search.update(_logprobs([{0: 0.31, 1: 0.29, 2: 0.2, 3: 0.15}]))
    expect(
        (parents, *state(search)[:2], search.finished[0].finish_reason),
        ([0, 0], [[2], [3]], [[0], [1]], "stop"),
        call="update with two end-of-sequence ids (0.31, 0.29): parents, beams, finished, reason",
        cause="every end-of-sequence id ends a beam",
    )
    search = BeamSearch(BeamSearchParams(beam_width=2, max_tokens=1), eos_token_ids=(0,))
    search.update(_logprobs([{3: 0.5, 0: 0.3, 4: 0.15}]))
    expect(
        ([[*h.token_ids, h.finish_reason] for h in search.finished], search.over),
        ([[3, "length"], [0, "stop"]], True),
        call="update with max_tokens=1: the finished hypotheses and their reasons",
        cause="at max_tokens every candidate ends, with reason length unless it is the end of "
        "sequence",
    )
    search = BeamSearch(
        BeamSearchParams(beam_width=2, max_tokens=3, length_penalty=2.0), eos_token_ids=(0,)
    )
    search.update(_logprobs([{3: 0.6, 0: 0.39}]))
    search.update(_logprobs([{0: 0.6, 4: 0.4}, {5: 0.5, 6: 0.4}]))
    one = math.log(0.39 / 0.996)
    two = math.log(0.6 / 0.996) + math.log(0.6 / 1.006)
    expect(
        [[float(h.logprob), float(h.score)] for h in search.finished],
        [[two, two / 4], [one, one]],
        call="logprob and score of hypotheses of 2 and 1 tokens, with length_penalty=2",
        rtol=1e-4,
        cause="the score divides by (generated tokens) ** length_penalty, once, at the end; the "
        "sum that beams carry on is not divided",
    )


@pytest.mark.check(
    task=3,
    points=1,
    title="Cache rows follow their beams",
    hints=(
        "Row i becomes a copy of the old row parents[i]: K and V, every layer.",
        "A parent may have two children and another none; the number of rows may grow.",
        "self.k, self.v = self.k.index_select(1, rows), self.v.index_select(1, rows)",
    ),
)
def test_reorder(generator):
    config = ModelConfig("llama", 9, 4, 2, 2, 1, 2, 4, 16)
    cache = BatchCache(config, num_rows=3, capacity=4)
    cache.k = torch.randn(cache.k.shape, generator=generator)
    cache.v = torch.randn(cache.v.shape, generator=generator)
    k, v = cache.k.clone(), cache.v.clone()
    cache.reorder([2, 0, 2, 2])
    expect(
        [cache.k, cache.v],
        [torch.stack([old[:, i] for i in (2, 0, 2, 2)], 1) for old in (k, v)],
        call="cache.k and cache.v after cache.reorder([2, 0, 2, 2])",
        cause="all rows are taken from the old cache, in every layer, K and V alike",
    )
    cache.k[:, 0] += 1.0
    expect(
        cache.k[:, 2],
        k[:, 2],
        call="another child's row after row 0 was written",
        cause="two children of one parent must not share memory: both will write",
    )


@cache
def _tiny(eos: tuple[int, ...], seed: int):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=24, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=48, max_position_embeddings=64,
        eos_token_id=list(eos), pad_token_id=0, bos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).eval()
    for weight in theirs.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 0.35)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, load_model(folder)


def _their_beams(model, prompt, params, eos):
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=params.max_tokens,
            num_beams=params.beam_width,
            num_return_sequences=params.beam_width,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
    found = []
    for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
        row = row[len(prompt) :]
        ends = [i for i, token in enumerate(row) if token in eos]
        found.append([row[: ends[0] + 1] if ends else row, score])
    return found


@pytest.mark.check(
    task=3,
    points=3,
    title="Tokens and scores equal transformers'",
    hints=(
        "Width 1 is greedy search: does that work? Then try width 2 and max_tokens=2.",
        "After update: reorder the cache by the parents it returned, then feed each beam's newest "
        "token at position cache.length.",
        "Loop: forward all rows, advance, update(log_softmax(logits of each row's last column)), "
        "stop if over, cache.reorder(parents), newest = [beam.token_ids[-1:] for beam in beams]",
    ),
)
def test_equals_transformers(rng):
    models = {eos: _tiny(eos, seed=int(rng.integers(1000))) for eos in ((3,), (3, 5, 7))}
    settings = list(
        itertools.product(models, (2, 4), (0.0, 1.0, 1.7, -0.5), (True, False, "never"))
    )
    for i in rng.permutation(len(settings))[:16]:
        eos, width, penalty, early = settings[i]
        theirs, ours = models[eos]
        params = BeamSearchParams(
            beam_width=width,
            max_tokens=int(rng.integers(3, 14)),
            length_penalty=penalty,
            early_stopping=early,
        )
        prompt = rng.integers(8, 24, size=int(rng.integers(1, 6))).tolist()
        found = beam_search(ours, prompt, params)
        expect(
            [[list(h.token_ids), float(h.score)] for h in found],
            _their_beams(theirs, prompt, params, eos),
            call="beam_search: token_ids and score of each hypothesis, best first",
            given={"prompt": prompt, "params": params, "eos_token_ids": eos},
            rtol=1e-3,
            atol=1e-4,
            cause="compare a run with max_tokens=1 and 2 first: candidates, then cache rows",
        )


@pytest.mark.check(
    task=3,
    points=1,
    title="Beams stay within the context, and beat greedy",
    hints=(
        "A continuation may use the whole context, and no more.",
        "beam_search is given max_tokens already cut to the room; the cache holds just enough.",
        "The newest token of a finished search is never fed.",
    ),
)
def test_context_and_counts():
    _, ours = _tiny((3,), seed=7)
    params = BeamSearchParams(beam_width=3, max_tokens=50, ignore_eos=True)
    computed = []
    forward = ours.forward

    def counting(token_ids, positions, attend):
        computed.append((len(token_ids), int(positions.max())))
        return forward(token_ids, positions, attend)

    ours.forward = counting
    try:
        found = beam_search(ours, [9, 10, 11], params, max_model_len=8)
    finally:
        ours.forward = forward
    expect(
        ([len(h.token_ids) for h in found], computed),
        ([5, 5, 5], [(3, 2), (3, 3), (3, 4), (3, 5), (3, 6)]),
        call="lengths of the hypotheses, and (tokens, last position) of each pass, for a prompt "
        "of 3 in a context of 8, width 3",
        cause="the prompt is read once, not once a beam; then one token a beam and step",
    )
    expect.that(
        all(math.isfinite(h.score) for h in found)
        and [h.score for h in found] == sorted((h.score for h in found), reverse=True),
        "the hypotheses come best first",
        observed=[h.score for h in found],
    )


@pytest.mark.check(
    task=3,
    points=1,
    title="The bundled model's beams equal transformers'",
    hints=(
        "If random models pass and this does not: what does a real end of sequence change?",
        "The bundled model has two end-of-sequence ids, so 3 * beam_width candidates are taken.",
        "self.num_candidates is given: use it.",
    ),
)
def test_bundled_beams():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ROOT / "models" / "target"
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = AutoTokenizer.from_pretrained(folder)("The capital").input_ids
    params = BeamSearchParams(beam_width=3, max_tokens=24)
    ours = load_model(folder)
    expect(
        [[list(h.token_ids), float(h.score)] for h in beam_search(ours, prompt, params)],
        _their_beams(theirs, prompt, params, ours.config.eos_token_ids),
        call="beam_search on models/target, width 3: token_ids and score, best first",
        rtol=1e-3,
        atol=1e-4,
    )

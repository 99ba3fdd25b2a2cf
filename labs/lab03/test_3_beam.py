"""Task 3: beam search."""

import math
import tempfile
from dataclasses import replace

import pytest
import torch

from grader import expect
from grader.course.paths import ROOT
from nanovllm.generation.batch_cache import BatchCache
from nanovllm.generation.beam import BeamSearchParams, beam_search
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model, load_model


def _search(width: int, eos=(0,), **more):
    from nanovllm.generation.beam_state import BeamSearch

    return BeamSearch(BeamSearchParams(beam_width=width, **more), eos_token_ids=eos)


def _logprobs(rows):
    """Rows of log-probabilities from weights; what is not named shares a little."""
    table = torch.full((len(rows), 8), 0.001)
    for row, weights in enumerate(rows):
        for token, weight in weights.items():
            table[row, token] = weight
    return (table / table.sum(-1, keepdim=True)).log()


def _state(search):
    return (
        [list(beam.token_ids) for beam in search.beams],
        [list(h.token_ids) for h in search.finished],
        search.over,
    )


@pytest.mark.check(task=3, points=2, title="Continuations of all beams compete, by their sums")
def test_best_continuations(generator):
    search = _search(3, eos=(), max_tokens=9)
    steps = [torch.randn(rows, 11, generator=generator).log_softmax(-1) for rows in (1, 3, 3)]
    beams = [((), 0.0)]
    for number, step in enumerate(steps):
        parents = search.update(step)
        everything = sorted(
            (
                (total + float(step[b, t]), b, (*tokens, t))
                for b, (tokens, total) in enumerate(beams)
                for t in range(11)
            ),
            reverse=True,
        )[:3]
        beams = [(tokens, total) for total, _, tokens in everything]
        expect(
            [parents, [list(beam.token_ids) for beam in search.beams]],
            [[b for _, b, _ in everything], [list(tokens) for tokens, _ in beams]],
            call=f"update number {number + 1} of a search of width 3 over 11 tokens: parents, and "
            "tokens of the open beams",
            cause="all continuations of all beams are ranked together, by the sum over the whole "
            "beam; parents name the old beam of each new one, best first",
        )
        expect(
            [beam.logprob for beam in search.beams],
            [total for _, total in beams],
            call="logprob of the open beams",
            rtol=1e-4,
            cause="a beam carries the plain sum of its log-probabilities",
        )


@pytest.mark.check(task=3, points=3, title="One step: who ends, who goes on")
def test_update():
    search = _search(2, max_tokens=5)
    expect(
        (*_state(search), [beam.logprob for beam in search.beams]),
        ([[]], [], False, [0.0]),
        call="beams, finished, over and the beams' logprob before the first update",
        cause="at first one beam without tokens is open, and nothing is over",
    )
    parents = search.update(_logprobs([{0: 0.5, 3: 0.3, 4: 0.15}]))
    expect(
        (parents, *_state(search)),
        ([0, 0], [[3], [4]], [[0]], False),
        call="update with p(eos) = 0.5, p(3) = 0.3, p(4) = 0.15: parents, beams, finished, over",
        cause="the end of sequence takes one of the best two places, so the third candidate is "
        "needed to keep two beams open",
    )
    parents = search.update(_logprobs([{5: 0.4, 0: 0.3, 6: 0.2, 2: 0.1}, {7: 0.9, 0: 0.1}]))
    expect(
        (parents, *_state(search)),
        ([1, 0], [[4, 7], [3, 5]], [[0]], False),
        call="update: the second beam goes on with 7, the first with 5; an end is only third",
        cause="an end of sequence outside the best `width` candidates is no hypothesis, and the "
        "parents name the old beam of each new one",
    )
    search = _search(2, eos=(0, 1), max_tokens=5)
    parents = search.update(_logprobs([{0: 0.31, 1: 0.29, 2: 0.2, 3: 0.15}]))
    expect(
        (parents, *_state(search)[:2], search.finished[0].finish_reason),
        ([0, 0], [[2], [3]], [[0], [1]], "stop"),
        call="update with two end-of-sequence ids (0.31, 0.29): parents, beams, finished, reason",
        cause="every end-of-sequence id ends a beam, and two beams stay open all the same",
    )
    search = _search(2, eos=(0, 1), max_tokens=5, ignore_eos=True)
    search.update(_logprobs([{0: 0.5, 3: 0.3, 4: 0.15}]))
    expect(
        _state(search),
        ([[0], [3]], [], False),
        call="the first step with ignore_eos: beams, finished, over",
        cause="with ignore_eos an end of sequence is a token like any other",
    )
    for ignore_eos, reason in ((False, "stop"), (True, "length")):
        search = _search(2, max_tokens=1, ignore_eos=ignore_eos)
        search.update(_logprobs([{3: 0.5, 0: 0.3, 4: 0.15}]))
        expect(
            ([[*h.token_ids, h.finish_reason] for h in search.finished], search.over),
            ([[3, "length"], [0, reason]], True),
            call=f"update with max_tokens=1, ignore_eos={ignore_eos}: the finished hypotheses and "
            "their reasons, over",
            cause="at max_tokens every candidate ends, with reason length unless it is an end of "
            "sequence that is not ignored",
        )
    search = _search(5, max_tokens=5)
    parents = search.update(torch.tensor([[0.5, 0.3, 0.2]]).log())
    expect(
        (parents, *_state(search)),
        ([0, 0], [[1], [2]], [[0]], False),
        call="the first update with width 5 over 3 tokens: parents, beams, finished, over",
        cause="where there are fewer continuations than beam_width, all are taken",
    )


@pytest.mark.check(
    task=3, points=1, title="The score divides by length to the power of the penalty"
)
def test_scores():
    one = math.log(0.39 / 0.996)
    two = math.log(0.6 / 0.996) + math.log(0.6 / 1.006)
    for penalty, order in ((2.0, "two first"), (0.0, "one first"), (-1.0, "one first")):
        search = _search(2, max_tokens=3, length_penalty=penalty)
        search.update(_logprobs([{3: 0.6, 0: 0.39}]))
        search.update(_logprobs([{0: 0.6, 4: 0.4}, {5: 0.5, 6: 0.4}]))
        wanted = [[two, two / 2**penalty], [one, one]]
        expect(
            [[float(h.logprob), float(h.score)] for h in search.finished],
            wanted if order == "two first" else wanted[::-1],
            call="logprob and score of hypotheses of 2 and 1 tokens, best first",
            given={"length_penalty": penalty},
            rtol=1e-4,
            cause="the score divides by (generated tokens) ** length_penalty, once, at the end; "
            "the end of sequence counts as a token",
        )
        expect(
            [h.finish_reason for h in search.finished],
            ["stop", "stop"],
            call="finish_reason of both",
            cause="the last token tells: here it is the end of sequence",
        )
    # Three have ended, two are wanted: the best two by score stay.
    search = _search(2, max_tokens=3, early_stopping="never")
    search.update(_logprobs([{0: 0.3, 3: 0.5, 4: 0.15}]))
    search.update(_logprobs([{0: 0.9, 5: 0.05}, {0: 0.05, 6: 0.9}]))
    search.update(_logprobs([{0: 0.9, 1: 0.05}, {0: 0.05, 2: 0.9}]))
    expect(
        [list(h.token_ids) for h in search.finished],
        [[3, 0], [4, 6, 0]],
        call="the finished hypotheses after three ends, width 2, length_penalty=1",
        cause="finished holds the beam_width best by score, best first",
    )


@pytest.mark.check(task=3, points=2, title="When the search may stop")
def test_over():
    def answers(worst, best_open, penalty, ended=2):
        """After one step with `ended` ends: over, for early_stopping True, False, "never"."""
        found = []
        for early in (True, False, "never"):
            search = _search(
                2, eos=(0, 1), max_tokens=10, length_penalty=penalty, early_stopping=early
            )
            # Two ends with log-probabilities `worst` or more, then the open beam.
            table = torch.full((1, 8), -30.0)
            table[0, 0], table[0, 1] = worst + 0.01, worst if ended == 2 else -29.0
            table[0, 3], table[0, 4] = best_open, best_open - 0.5
            search.update(table)
            found.append(search.over)
        return found

    expect(
        {
            "one has ended": answers(-0.5, -9.0, 1.0, ended=1),
            "open -1.6, penalty 1": answers(-0.5, -1.6, 1.0),
            "open -6.0, penalty 1": answers(-0.5, -6.0, 1.0),
            "open -1.0, penalty 0": answers(-0.5, -1.0, 0.0),
            "open -1.0, penalty -1": answers(-0.5, -1.0, -1.0),
        },
        {
            "one has ended": [False, False, False],
            "open -1.6, penalty 1": [True, True, False],
            "open -6.0, penalty 1": [True, True, True],
            "open -1.0, penalty 0": [True, True, True],
            "open -1.0, penalty -1": [True, True, True],
        },
        call='search.over for early_stopping = True, False, "never", after one step in which two '
        "ended, the worse with -0.5; width 2, max_tokens 10",
        cause='the best open beam is scored at its present length, with "never" and a penalty '
        "above 0 at max_tokens, and compared with the worst finished one",
    )

    found = []
    for best_open in (-1.0, -0.875):
        search = _search(1, max_tokens=2, early_stopping="never")
        table = torch.full((1, 8), -30.0)
        table[0, 0], table[0, 3] = -0.5, best_open
        search.update(table)
        found.append(search.over)
    expect(
        found,
        [True, False],
        call='search.over with "never", width 1, max_tokens 2: one ended with -0.5, the open beam '
        "has -1, then -0.875",
        cause="an open beam is worth going on with if its score, here a half of its sum, is "
        "larger than the worst: an equal one is not",
    )

    def second(weights, penalty):
        """The same after a second step: one ended with -0.92 in the first, [3] goes on."""
        found = []
        for early in (True, False, "never"):
            search = _search(2, max_tokens=5, length_penalty=penalty, early_stopping=early)
            search.update(_logprobs([{3: 0.5, 0: 0.4, 4: 0.05}]))
            search.update(_logprobs([weights, {6: 0.5}]))
            found.append(search.over)
        return found

    expect(
        {
            "end 0.52, open 0.44, penalty 1": second({0: 0.52, 5: 0.44}, 1.0),
            "end 0.6, open 0.15, penalty 1": second({0: 0.6, 5: 0.15}, 1.0),
            "end 0.52, open 0.44, penalty 0": second({0: 0.52, 5: 0.44}, 0.0),
            "end 0.4, open 0.6, penalty 0": second({0: 0.4, 5: 0.6}, 0.0),
            "end 0.4, open 0.6, penalty -1": second({0: 0.4, 5: 0.6}, -1.0),
        },
        {
            "end 0.52, open 0.44, penalty 1": [True, False, False],
            "end 0.6, open 0.15, penalty 1": [True, True, False],
            "end 0.52, open 0.44, penalty 0": [True, True, True],
            "end 0.4, open 0.6, penalty 0": [True, False, False],
            "end 0.4, open 0.6, penalty -1": [True, False, False],
        },
        call="search.over after a second step in which [3] ends or goes on with these weights; "
        "width 2, max_tokens 5; the end of the first step has -0.92",
        cause="early_stopping=False goes on while the best open beam beats the worst finished one "
        "at its present length",
    )


@pytest.mark.check(task=3, points=1, title="Cache rows follow their beams")
def test_reorder(generator):
    config = ModelConfig("llama", 9, 4, 2, 2, 1, 2, 4, 16)
    cache = BatchCache(config, num_rows=3, capacity=4)
    cache.k = torch.randn(cache.k.shape, generator=generator)
    cache.v = torch.randn(cache.v.shape, generator=generator)
    cache.length = 4
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


def _model(seed: int, eos: tuple[int, ...]):
    config = ModelConfig("llama", 20, 32, 2, 4, 2, 8, 48, 40, eos_token_ids=eos)
    return dummy_model(config, seed=seed % 1000)


def _whole(model, token_ids):
    """The logits of every token of a text, read in one pass."""
    ids = torch.as_tensor(token_ids)
    return model.logits(forward_cached(model, ContiguousCache(model.config, len(ids)), ids))


def _slow_search(model, prompt, params, eos) -> list:
    """Beam search without a cache: every step reads every beam's whole text again."""

    def score(total, length):
        return total / length**params.length_penalty

    beams, finished, width = [((), 0.0)], [], params.beam_width
    for length in range(1, params.max_tokens + 1):
        everything = []
        for tokens, total in beams:
            step = _whole(model, [*prompt, *tokens])[-1].log_softmax(-1).tolist()
            everything += [(total + value, (*tokens, t)) for t, value in enumerate(step)]
        everything.sort(reverse=True)
        ends = [t[-1] in eos or length == params.max_tokens for _, t in everything]
        finished += [
            (score(total, length), tokens)
            for (total, tokens), end in zip(everything[:width], ends, strict=False)
            if end
        ]
        finished = sorted(finished, reverse=True)[:width]
        open_ones = [one for one, end in zip(everything, ends, strict=True) if not end]
        beams = [(tokens, total) for total, tokens in open_ones[:width]]
        if not beams:
            break
        if len(finished) == width:
            lengths = [length, params.max_tokens] if params.early_stopping == "never" else [length]
            best = max(score(beams[0][1], possible) for possible in lengths)
            if params.early_stopping is True or best <= finished[-1][0]:
                break
    return [[list(tokens), value] for value, tokens in finished]


def _found(model, prompt, params, eos) -> tuple[list | str, list]:
    """Tokens and score of each hypothesis, or what was raised; and the same by the slow search."""
    try:
        found = [[list(h.token_ids), float(h.score)] for h in beam_search(model, prompt, params)]
    except NotImplementedError:
        raise
    except Exception as error:
        found = f"raised {error!r}"
    return found, _slow_search(model, prompt, params, eos)


def _differ(found: list | str, wanted: list) -> bool:
    if isinstance(found, str):
        return True
    return [tokens for tokens, _ in found] != [tokens for tokens, _ in wanted] or any(
        not math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-3)
        for (_, a), (_, b) in zip(found, wanted, strict=True)
    )


def _smaller(model, prompt, params, eos):
    """The smallest search that still fails: fewer tokens, a narrower beam, a shorter prompt."""
    for name in ("max_tokens", "beam_width"):
        for value in range(1, getattr(params, name)):
            less = replace(params, **{name: value})
            if _differ(*_found(model, prompt, less, eos)):
                params = less
                break
    while len(prompt) > 1 and _differ(*_found(model, prompt[1:], params, eos)):
        prompt = prompt[1:]
    return prompt, params


@pytest.mark.check(
    task=3, points=2, title="Random searches, against one without a cache", stress=True
)
def test_equals_slow_search(rng):
    for _ in range(8):
        eos = ((3,), (3, 5, 7))[int(rng.integers(2))]
        model = _model(int(rng.integers(1000)), eos)
        params = BeamSearchParams(
            beam_width=int(rng.integers(1, 5)),
            max_tokens=int(rng.integers(1, 8)),
            length_penalty=float(rng.choice([0.0, 1.0, 1.7, -0.5])),
            early_stopping=[True, False, "never"][int(rng.integers(3))],
        )
        prompt = rng.integers(8, 20, size=int(rng.integers(1, 6))).tolist()
        if not _differ(*_found(model, prompt, params, eos)):
            continue
        prompt, params = _smaller(model, prompt, params, eos)
        expect(
            *_found(model, prompt, params, eos),
            call="beam_search: token_ids and score of each hypothesis, best first",
            given={"prompt": prompt, "params": params, "eos_token_ids": eos},
            rtol=1e-3,
            atol=1e-3,
            cause="a search that reads every beam's whole text anew finds something else; this is "
            "the smallest of 8 random searches that shows it",
        )


class NarrowCache:
    """A cache of which nothing but what BeamCache names can be used."""

    def __init__(self, inner: BatchCache) -> None:
        self.bind, self.advance, self.reorder = inner.bind, inner.advance, inner.reorder
        self._inner = inner

    @property
    def length(self) -> int:
        return self._inner.length


@pytest.mark.check(task=3, points=1, title="Beams stay within the context, and read it once")
def test_context_and_counts():
    model = _model(7, (3,))
    params = BeamSearchParams(beam_width=3, max_tokens=50, ignore_eos=True)
    computed = []
    forward = model.forward

    def counting(token_ids, positions, attend):
        computed.append((len(token_ids), int(positions.max())))
        return forward(token_ids, positions, attend)

    model.forward = counting
    found = beam_search(model, [9, 10, 11], params, max_model_len=8)
    expect(
        ([len(h.token_ids) for h in found], computed),
        ([5, 5, 5], [(3, 2), (3, 3), (3, 4), (3, 5), (3, 6)]),
        call="lengths of the hypotheses, and (tokens, last position) of each pass, for a prompt "
        "of 3 in a context of 8, width 3",
        cause="the prompt is read once, not once a beam; then one token a beam and step",
    )
    made = []

    def make_cache(capacity):
        made.append(NarrowCache(BatchCache(model.config, 1, capacity)))
        return made[-1]

    again = beam_search(model, [9, 10, 11], params, max_model_len=8, make_cache=make_cache)
    expect(
        [[[list(h.token_ids), float(h.score)] for h in again], [cache.length for cache in made]],
        [[[list(h.token_ids), float(h.score)] for h in found], [7]],
        call="beam_search of a prompt of 3 in a context of 8, width 3, with a cache from "
        "make_cache: tokens and scores, and the tokens that cache holds",
        rtol=1e-4,
        cause="any cache with length, bind, advance and reorder must do, and that one is used",
    )
    params = replace(params, max_tokens=3)
    expect(
        [len(h.token_ids) for h in beam_search(model.bfloat16(), [9, 10, 11], params)],
        [3, 3, 3],
        call="beam_search of a bfloat16 model with max_tokens=3, width 3: tokens of the hypotheses",
        cause="the cache must have the model's dtype",
    )


@pytest.fixture
def transformers():
    """The library; importing what is used takes seconds, which are not the check's own."""
    import transformers

    for name in ("AutoModelForCausalLM", "AutoTokenizer", "LlamaConfig", "LlamaForCausalLM"):
        getattr(transformers, name)
    return transformers


@pytest.mark.check(task=3, points=2, title="Tokens and scores equal transformers'")
def test_equals_transformers(rng, transformers):
    def theirs_of(model, prompt, params, eos):
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

    torch.manual_seed(int(rng.integers(1000)))
    config = transformers.LlamaConfig(
        vocab_size=24, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=48, max_position_embeddings=64,
        eos_token_id=[3, 5], pad_token_id=0, bos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    small = transformers.LlamaForCausalLM(config).eval()
    for weight in small.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 0.35)
    with tempfile.TemporaryDirectory() as folder:
        small.save_pretrained(folder)
        ours = load_model(folder)
    early = [True, False, "never"][int(rng.integers(3))]
    params = BeamSearchParams(beam_width=3, max_tokens=8, length_penalty=1.4, early_stopping=early)
    prompt = rng.integers(8, 24, size=4).tolist()
    folder = ROOT / "models" / "target"
    bundled = load_model(folder)
    text = transformers.AutoTokenizer.from_pretrained(folder)("The capital").input_ids
    cases = [
        (small, ours, prompt, params),
        (
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            bundled,
            text,
            BeamSearchParams(beam_width=2, max_tokens=12),
        ),
    ]
    for theirs, mine, prompt, params in cases:
        found = beam_search(mine, prompt, params)
        expect(
            [[list(h.token_ids), float(h.score)] for h in found],
            theirs_of(theirs, prompt, params, mine.config.eos_token_ids),
            call="beam_search: token_ids and score of each hypothesis, best first",
            given={"prompt": prompt, "params": params},
            rtol=1e-3,
            atol=1e-4,
            cause="compare a run with max_tokens=1 and 2 first: candidates, then cache rows",
        )

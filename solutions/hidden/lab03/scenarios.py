"""Hidden scenarios of lab 03."""

import contextlib
from itertools import product
from unittest import mock

from grader.checks.scenarios import scenario


def _model(rng, window=None, eos=(2, 5)):
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model

    config = ModelConfig(
        "qwen3", 60, 32, 2, 4, 2, 8, 48, 48, qk_norm=True, eos_token_ids=eos,
        windows=(window, None) if window else (),
    )  # fmt: skip
    return dummy_model(config, seed=int(rng.integers(1_000_000)))


def _prompt(rng, longest=12):
    return rng.integers(6, 60, size=int(rng.integers(1, longest))).tolist()


class _Spelled:
    """A detokenizer with a piece of text for each of 60 ids."""

    def __init__(self, pieces, rest="~"):
        self.pieces, self.rest = pieces, rest

    def push(self, token_id):
        return self.pieces[token_id]

    def flush(self):
        return self.rest


class _Late:
    """A detokenizer that gives a token's text when the next one comes."""

    def __init__(self, pieces):
        self.pieces, self.held = pieces, ""

    def push(self, token_id):
        shown, self.held = self.held, self.pieces[token_id]
        return shown

    def flush(self):
        shown, self.held = self.held, ""
        return shown


@scenario(task=1)
def mixed_requests(nanovllm, rng):
    """Whole requests with their options on: chunks, several samples, stop ids, short contexts."""
    with contextlib.ExitStack() as patches:
        return _mixed_requests(rng, patches)


def _in_pieces(model, cache, token_ids, chunk_size, on_chunk=None):
    from nanovllm.model.cache import forward_cached

    for piece in token_ids[cache.length :].split(chunk_size):
        hidden = forward_cached(model, cache, piece)
    return model.logits(hidden[-1:])


def _mixed_requests(rng, patches):
    from nanovllm.generation import chunked, loop
    from nanovllm.generation.events import Finished, Prefilled, TokenGenerated
    from nanovllm.generation.latency import ManualClock
    from nanovllm.generation.loop import Generation, Phase
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.rows import argmax_sampler

    seen = []
    # A chunked_prefill of task 4 that is right, so that this is about task 1 alone.
    for module in (loop, chunked):
        patches.enter_context(mock.patch.object(module, "chunked_prefill", _in_pieces))
    for number, chunk_size in enumerate(rng.permutation([0, 0, 1, 2, 3, 50]).tolist()):
        model = _model(rng, window=[None, 4][int(rng.integers(2))])
        rows = []

        def recording(logits, batch, rows=rows):
            rows.append(logits.clone())
            return argmax_sampler(logits, batch)

        samples = 1 + number % 3
        params = SamplingParams(
            n=samples,
            max_tokens=[None, 1, 9][int(rng.integers(3))],
            stop_token_ids=rng.integers(6, 60, size=6).tolist(),
            ignore_eos=bool(rng.integers(2)),
            min_tokens=int(rng.integers(2)),
        )
        prompt = _prompt(rng)
        clock = ManualClock(float(rng.integers(1, 1000)))
        generation = Generation(
            model,
            prompt,
            params,
            sampler=recording,
            max_model_len=int(rng.integers(13, 30)),
            seed=3,
            clock=clock,
            chunk_size=chunk_size or None,
            request_id=8,
        )
        events, phases = [], []
        while generation.phase is not Phase.FINISHED and len(phases) < 200:
            events += generation.step()
            phases.append(generation.phase.name)
            clock.advance(1.0)
        kinds = (Prefilled, TokenGenerated, Finished)
        seen.append([sum(isinstance(event, kind) for event in events) for kind in kinds])
        seen.append([event.time for event in events])
        seen.append([phases[0], phases[-1], len(phases)])
        ends = [event.completion for event in events if isinstance(event, Finished)]
        ends.sort(key=lambda end: end.index)
        seen.append([[list(e.token_ids), e.finish_reason, e.stop_reason] for e in ends])
        seen.append(rows[: len(rows) // samples])
    return seen


@scenario(task=1)
def text_and_stop_strings(nanovllm, rng):
    """A long random text through a sequence, with min_tokens and stop strings that overlap."""
    from nanovllm.generation.events import Logprob, Sampled, TokenGenerated
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence

    seen = []
    for _ in range(60):
        pieces = [
            "".join("abc"[int(c)] for c in rng.integers(0, 3, size=int(rng.integers(0, 4))))
            for _ in range(20)
        ]
        pieces[0] = pieces[18] = pieces[19] = (
            "XY"  # the text of a token that ends by its id is no stop string
        )
        stops = [
            "".join("abc"[int(c)] for c in rng.integers(0, 3, size=int(rng.integers(2, 6))))
            for _ in range(int(rng.integers(0, 4)))
        ]
        params = SamplingParams(
            stop=stops,
            stop_token_ids=[[19], [19, 0]][int(rng.integers(2))],
            max_tokens=[12, None][int(rng.integers(2))],
            min_tokens=int(rng.integers(0, 4)),
            ignore_eos=bool(rng.integers(2)),
            logprobs=[None, 0][int(rng.integers(2))],
            include_stop_str_in_output=bool(rng.integers(2)),
        )
        sequence = Sequence(
            [7, 8], params, max_model_len=14, seed=0, eos_token_ids=(0, 18),
            detokenizer=_Spelled(pieces, ["", "~"][int(rng.integers(2))]),
        )  # fmt: skip
        texts = []
        while not sequence.finished:
            token = int(rng.integers(20))
            found = None if params.logprobs is None else {token: Logprob(-float(token), 1)}
            for event in sequence.append(Sampled(token, found), 0.0):
                if isinstance(event, TokenGenerated):
                    texts.append(event.text)
        done = sequence.completion()
        seen.append([texts, done.text, done.finish_reason, done.stop_reason])
        seen.append([list(done.token_ids), done.cumulative_logprob])
    for _ in range(8):  # stop strings that end, or would end, with the last token that has room
        ids = rng.permutation(20)[: int(rng.integers(3, 9))].tolist()
        text = "".join(chr(97 + i) for i in ids)
        params = SamplingParams(
            stop=[text[-2:] + ["", "!"][int(rng.integers(2))]],
            max_tokens=[len(ids), None][int(rng.integers(2))],
        )
        sequence = Sequence(
            [7, 8], params, max_model_len=2 + len(ids), seed=0,
            detokenizer=_Spelled([chr(97 + i) for i in range(20)], ""),
        )  # fmt: skip
        for token in ids:
            sequence.append(Sampled(token), 0.0)
        done = sequence.completion()
        seen.append([done.text, done.finish_reason, done.stop_reason, list(done.token_ids)])
    return seen


@scenario(task=1)
def text_at_the_end(nanovllm, rng):
    """Texts full of stop strings: of a token that ends by its id, and of what is still held."""
    from nanovllm.generation.events import Sampled, TokenGenerated
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence

    seen = []
    for number in range(60):
        by_id = number % 6 == 3  # the first token ends it
        pieces = ["".join(rng.choice(list("abc"), int(rng.integers(1, 4)))) for _ in range(18)]
        pieces += ["abcab", "bcabc"]  # of the stop token, and of the end of sequence
        params = SamplingParams(
            stop=["ab", "bca"],
            stop_token_ids=[18],
            min_tokens=0 if by_id else int(rng.integers(0, 7)),
            include_stop_str_in_output=bool(number % 2),
        )
        sequence = Sequence(
            [7, 8], params, max_model_len=int(rng.integers(3, 10)), seed=0, eos_token_ids=(19,),
            detokenizer=_Late(pieces) if number % 3 else _Spelled(pieces, "cabc"),
        )  # fmt: skip
        texts = []
        while not sequence.finished:
            others = [] if by_id else range(18)
            token = int(rng.choice([*others, 18, 18, 18, 19, 19, 19]))
            for event in sequence.append(Sampled(token), 0.0):
                if isinstance(event, TokenGenerated):
                    texts.append(event.text)
        done = sequence.completion()
        seen.append([texts, done.text, done.finish_reason, done.stop_reason])
    return seen


@scenario(task=2)
def processed_logits(nanovllm, rng):
    """The links one after another on logits with ties, in whatever floats the model has."""
    import torch

    from nanovllm.generation import chain
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.rows import SamplingRow

    outputs = [*rng.integers(1, 9, size=5).tolist(), 0]  # how long they are, some under min_tokens
    rows = [
        SamplingRow(
            SamplingParams(
                repetition_penalty=float(rng.uniform(0.7, 2)),
                presence_penalty=float(rng.uniform(-1, 1)),
                frequency_penalty=float(rng.uniform(-1, 1)),
                logit_bias={int(t): float(rng.normal()) for t in rng.integers(0, 30, size=3)},
                min_tokens=length + number % 3 - 1,
                stop_token_ids=[int(rng.integers(30)), int(rng.integers(30, 40))],
            ),
            rng.integers(0, 30, size=int(rng.integers(1, 9))).tolist(),
            rng.integers(0, 9, size=length).tolist(),
            seed=int(rng.integers(1000)),
            eos_token_ids=(3, 4, -int(rng.integers(8, 25))),
        )
        for number, length in enumerate(outputs)
    ]
    logits = torch.from_numpy(rng.normal(0, 3, size=(6, 30)).round(1)).float()
    uniform = torch.from_numpy(rng.uniform(0.1, 1.0, size=6)).float()
    ended = chain.apply_min_tokens(logits, rows)
    biased = chain.apply_logit_bias(ended, rows)
    pushed = chain.apply_penalties(biased, rows)
    cooled = chain.apply_temperature(pushed, uniform * 2)
    ties = logits.round()
    top_k = torch.tensor([0, *rng.integers(1, 30, size=4), rng.integers(31, 40)])
    equal = torch.zeros(2, 8)
    equal[1, int(rng.integers(8))] = 1.0
    seen = {
        "chain": [ended, biased, pushed, cooled],
        "min_p": chain.apply_min_p(cooled, uniform / 3),
        "min_p of equals": chain.apply_min_p(equal, torch.ones(2)),
        "top_k": chain.apply_top_k(ties, top_k),
        "top_p": chain.apply_top_p(logits, uniform),
        "top_p of equals": chain.apply_top_p(
            torch.zeros(4, 8), torch.tensor([0.125, 0.5, 0.75, 1.0])
        ),
        "given": logits,
        "greedy": chain.apply_temperature(pushed, uniform.floor() + torch.arange(6) % 2),
        "neutral": [
            chain.apply_top_p(logits * 20, torch.ones(6)),
            chain.apply_min_p(logits * 20, torch.zeros(6)),
            chain.apply_top_k(logits, torch.zeros(6, dtype=torch.int64)),
        ],
    }
    found = [chain.gather_logprobs(row, int(rng.integers(30)), 0) for row in ties]
    seen["ranks"] = [[token, value.rank] for entry in found for token, value in entry.items()]
    distinct = torch.from_numpy(rng.permutation(30) / 4)  # in every type the same
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        found = chain.gather_logprobs(distinct.to(dtype), int(rng.integers(30)), 6)
        seen[str(dtype)] = [
            [[token, found[token].rank] for token in sorted(found)],
            torch.tensor([found[token].logprob for token in sorted(found)]),
        ]
    large = (logits + 2.0**24).float()  # far above the noise of the draw
    seeds = torch.from_numpy(rng.integers(-(2**62), 2**62, size=6))
    seen["large"] = [chain.draw(large, seeds, torch.arange(6) + step) for step in range(4)]
    return seen


@scenario(task=2)
def histories(nanovllm, rng):
    """Several requests draw for many steps in a batch whose members and order change."""
    import torch

    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.rows import SamplingRow
    from nanovllm.generation.sampling import sample

    params = [
        SamplingParams(
            temperature=temperature,
            top_k=int(rng.integers(0, 20)),
            top_p=float(rng.uniform(0.3, 1.0)),
            min_p=float(rng.uniform(0, 0.1)),
            logprobs=[None, 0, 3, -1][int(rng.integers(4))],
            repetition_penalty=float(rng.uniform(1, 2)),
            frequency_penalty=float(rng.uniform(0, 0.5)),
            min_tokens=int(rng.integers(0, 9)),
            logit_bias=[None, {5: 3.0}][int(rng.integers(2))],
        )
        for temperature in (0.0, 0.0, 0.0, 0.5, 1.0, 1.7)
    ]
    prompts = [rng.integers(0, 40, size=int(rng.integers(1, 6))).tolist() for _ in params]
    seeds = [int(seed) for seed in rng.integers(-(2**62), 2**62, size=6)]
    outputs: list[list[int]] = [[] for _ in params]
    seen = []
    for _ in range(20):
        members = rng.permutation(6)[: int(rng.integers(1, 7))].tolist()
        logits = torch.from_numpy(rng.normal(0, 2, size=(len(members), 40))).float()
        rows = [
            SamplingRow(params[i], prompts[i], tuple(outputs[i]), seeds[i], (1, 2)) for i in members
        ]
        for i, drawn in zip(members, sample(logits, rows), strict=True):
            outputs[i].append(drawn.token_id)
            chosen = drawn.logprobs or {}
            kept = sorted(chosen)
            seen.append([kept, [chosen[t].rank for t in kept]])
            seen.append(torch.tensor([chosen[t].logprob for t in kept]))
    return [outputs, *seen]


@scenario(task=3)
def beams(nanovllm, rng):
    """Searches with many ends, cut contexts, and a cache that somebody else has made."""
    import torch

    from nanovllm.generation.batch_cache import BatchCache
    from nanovllm.generation.beam import BeamSearchParams, beam_search

    seen = []
    for _ in range(8):
        params = BeamSearchParams(
            beam_width=int(rng.integers(1, 6)),
            max_tokens=int(rng.integers(1, 14)),
            length_penalty=float(rng.choice([0.0, 0.6, 1.0, 2.0, -0.7])),
            early_stopping=[True, False, "never"][int(rng.integers(3))],
            ignore_eos=bool(rng.integers(4) == 0),
        )
        eos = tuple({int(t) for t in rng.integers(0, 60, size=int(rng.integers(1, 9)))})
        model = _model(rng, window=[None, 3][int(rng.integers(2))], eos=eos)
        prompt = _prompt(rng)
        made = []

        def make_cache(capacity, model=model, made=made):
            made.append(BatchCache(model.config, 1, capacity))
            return made[-1]

        found = beam_search(
            model, prompt, params,
            max_model_len=len(prompt) + int(rng.integers(1, 16)),
            make_cache=make_cache if rng.integers(2) else None,
        )  # fmt: skip
        seen.append([[list(h.token_ids), h.finish_reason] for h in found])
        seen.append(torch.tensor([[h.logprob, h.score] for h in found]))
    params = BeamSearchParams(beam_width=3, max_tokens=int(rng.integers(2, 6)), ignore_eos=True)
    found = beam_search(_model(rng).bfloat16(), _prompt(rng), params)
    seen.append([[len(h.token_ids), h.finish_reason] for h in found])
    return seen


@scenario(task=3)
def bookkeeping(nanovllm, rng):
    """A search without a model: scripted log-probabilities, step by step."""
    import torch

    from nanovllm.generation.beam import BeamSearchParams
    from nanovllm.generation.beam_state import BeamSearch

    seen = []
    for early, penalty, sure in product(
        (True, False, "never"), (0.0, 1.0, 2.5, -1.0, -0.6), (0, 1)
    ):
        params = BeamSearchParams(
            beam_width=int(rng.integers(1 + sure, 5)),
            max_tokens=int(rng.integers(1, 7) + 5 * sure),
            length_penalty=penalty,
            early_stopping=early,
        )
        search = BeamSearch(params, tuple(range(int(rng.integers(sure, 4)))))
        while not search.over:
            step = torch.from_numpy(rng.normal(0, 2, size=(len(search.beams), 9))).float()
            if sure:  # one token is much likelier than an end, which is likelier than the others
                step = step / 3 + torch.tensor([3.5, *[0.0] * 7, 5.0])
            parents = search.update(step.log_softmax(-1))
            seen.append([parents, [list(beam.token_ids) for beam in search.beams]])
        seen.append([[list(h.token_ids), h.finish_reason] for h in search.finished])
        seen.append(torch.tensor([[h.logprob, h.score] for h in search.finished]))
    return seen


@scenario(task=4)
def chunks(nanovllm, rng):
    """A prompt that grows between calls, read in chunks of changing size, then decoded."""
    import torch

    from nanovllm.generation.chunked import chunked_prefill, plan_chunks, prefill_cost
    from nanovllm.model.cache import ContiguousCache, forward_cached

    seen = []
    for _ in range(8):
        model = _model(rng, window=[None, 5][int(rng.integers(2))])
        count, size = int(rng.integers(3, 40)), int(rng.integers(1, 20))
        ids = torch.from_numpy(rng.integers(0, 60, size=count))
        cache = ContiguousCache(model.config, capacity=count + 1)
        early = int(rng.integers(1, count - 1))
        seen.append(chunked_prefill(model, cache, ids[:early], size))
        told = []

        def tell(chunk, cache=cache, told=told):
            told.append([chunk.start, chunk.length, cache.length])

        seen.append(chunked_prefill(model, cache, ids, int(rng.integers(1, 9)), tell))
        seen.append(told)
        with torch.inference_mode():
            seen.append(forward_cached(model, cache, ids[:1]))
        cache.truncate(early)
        seen.append(chunked_prefill(model, cache, ids, 99))
        for none in (0, -size):
            try:
                seen.append(len(plan_chunks(count, none)))
            except ValueError:
                seen.append("ValueError")
        plan = plan_chunks(count, size, computed=early)
        seen.append([[chunk.start, chunk.length] for chunk in plan])
        cost = prefill_cost(count, size)
        seen.append([cost.steps, cost.tokens_computed, cost.score_elements])
        seen.append(cost.peak_score_elements)
    return seen


@scenario(task=5)
def padded_batches(nanovllm, rng):
    """Batches of requests of all kinds, several samples each, in contexts that they fill."""
    import torch

    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.rows import argmax_sampler
    from nanovllm.generation.static_batch import generate_static, padded_mask, padded_positions

    seen = []
    for most in (4, 3, int(rng.integers(1, 5)), int(rng.integers(1, 5))):
        model = _model(rng, window=[None, 4][int(rng.integers(2))])
        forward, places = model.forward, []

        def watching(token_ids, positions, attend, forward=forward, places=places):
            places.append(sorted(positions.tolist()))
            return forward(token_ids, positions, attend)

        model.forward = watching
        prompts = [_prompt(rng) for _ in range(int(rng.integers(most // 2 + 1, 6)))]
        params = [
            SamplingParams(
                n=int(rng.integers(1, 3)),
                max_tokens=[None, int(rng.integers(1, 12))][int(rng.integers(2))],
                stop_token_ids=rng.integers(6, 60, size=3).tolist(),
                min_tokens=int(rng.integers(0, 2)),
            )
            for _ in prompts
        ]
        rows = []

        def recording(logits, batch, rows=rows):
            rows.append(logits.clone())
            return argmax_sampler(logits, batch)

        result = generate_static(
            model, prompts, params, max_model_len=16, seeds=range(len(prompts)),
            max_num_seqs=most, sampler=recording,
        )  # fmt: skip
        seen.append([[[list(c.token_ids), c.finish_reason] for c in s] for s in result.completions])
        waste = result.waste
        seen.append([waste.prompt, waste.padding, waste.decode, waste.idle])
        seen.append([waste.kv_reserved, waste.kv_used])
        seen += [rows, places]
        padding = torch.from_numpy(rng.permutation(5))
        seen.append(padded_positions(padding, int(rng.integers(4, 9))))
        for start in (0, int(rng.integers(5, 9))):
            seen.append(padded_mask(padding, start, 6, [None, 3][int(rng.integers(2))]))
    return seen


@scenario(task=6)
def latencies(nanovllm, rng):
    import numpy as np

    from nanovllm.generation.latency import Timeline, percentile, summarize

    seen = []
    for _ in range(10):
        arrival = float(rng.uniform(0, 10))
        gaps = rng.exponential(size=int(rng.integers(1, 9)))
        line = Timeline(arrival, (arrival + np.cumsum(gaps)).tolist())
        seen.append([line.ttft, line.tpot, line.e2e, line.inter_token_latencies])
        values = rng.exponential(size=int(rng.integers(1, 30))).tolist()
        seen.append([percentile(values, float(q)) for q in rng.uniform(0, 100, size=4)])
        lines = [
            Timeline(float(start), (start + np.cumsum(rng.exponential(size=count))).tolist())
            for start, count in ((0.0, 3), *zip(rng.uniform(0, 5, 4), (1, 4, 1, 2), strict=True))
        ]
        report = summarize([lines[i] for i in rng.permutation(5)])
        seen.append([report.ttft_p50, report.ttft_p99, report.tpot_p50, report.tpot_p99])
        seen.append([report.itl_p50, report.itl_p99, report.tokens_per_second])
    return seen


@scenario(task=6)
def rooflines(nanovllm, rng):
    from nanovllm.generation.roofline import (
        Hardware,
        bound_by,
        compute_bound_batch,
        least_seconds,
        step_work,
    )
    from nanovllm.model.config import ModelConfig

    config = ModelConfig("llama", 32000, 2048, 16, 16, 4, 128, 5632, 4096)
    seen = []
    for _ in range(10):
        machine = Hardware(
            "machine", float(rng.uniform(1e13, 1e15)), float(rng.uniform(1e11, 5e12))
        )
        rows, new, cached = (int(rng.integers(*span)) for span in ((1, 99), (1, 500), (0, 3000)))
        work = step_work(config, rows, new, cached, dtype_bytes=int(rng.choice([1, 2, 4])))
        seen.append([work.flops, work.bytes, least_seconds(work, machine), machine.ridge])
        seen.append([bound_by(work, machine), machine.attainable(work.intensity)])
        seen.append(compute_bound_batch(config, machine, cached // 20, largest=500))
        width = int(rng.choice([1, 4]))
        fewest = compute_bound_batch(config, machine, 30, width)
        seen.append(fewest)
        if fewest:
            seen.append(
                [compute_bound_batch(config, machine, 30, width, fewest - n) for n in (0, 1)]
            )
    return seen


@scenario(task=1)
def text_held_back(nanovllm, rng):
    """Letters and longer pieces, armed late or never, and what a flush still holds."""
    from nanovllm.generation.stop import StopStrings

    seen = []
    for _ in range(80):
        stops = ["".join(rng.choice(list("ABC"), int(rng.integers(1, 5)))) for _ in range(3)]
        watcher = StopStrings(stops, bool(rng.integers(2)))
        late, pushed = int(rng.integers(0, 6)), []
        for number in range(9):
            piece = "".join(rng.choice(list("ABCX"), int(rng.integers(0, 4))))
            pushed.append(watcher.push(piece, number >= late))
        seen.append([pushed, watcher.matched, watcher.flush()])
    return seen

"""Hidden scenarios of lab 03."""

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

    def __init__(self, pieces):
        self.pieces = pieces

    def push(self, token_id):
        return self.pieces[token_id]

    def flush(self):
        return "~"


@scenario(task=1)
def greedy_requests(nanovllm, rng):
    from nanovllm.generation.events import Finished
    from nanovllm.generation.loop import generate
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sampling import argmax_sampler

    seen = []
    for _ in range(6):
        model = _model(rng, window=[None, 4][int(rng.integers(2))])
        rows = []

        def recording(logits, batch, rows=rows):
            rows.append(logits[0].clone())
            return argmax_sampler(logits, batch)

        params = SamplingParams(
            temperature=0,
            max_tokens=[None, 1, 9][int(rng.integers(3))],
            stop_token_ids=rng.integers(6, 60, size=6).tolist(),
            ignore_eos=bool(rng.integers(2)),
            min_tokens=int(rng.integers(2)),
        )
        events = list(
            generate(
                model,
                _prompt(rng),
                params,
                sampler=recording,
                max_model_len=int(rng.integers(13, 30)),
                clock=lambda: 0.0,
            )
        )
        ends = [event.completion for event in events if isinstance(event, Finished)]
        seen.append([type(event).__name__ for event in events])
        seen.append([[list(e.token_ids), e.finish_reason, e.stop_reason] for e in ends])
        seen.append(rows)
    return seen


@scenario(task=1)
def text_and_stop_strings(nanovllm, rng):
    from nanovllm.generation.events import Sampled, TokenGenerated
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence

    seen = []
    for _ in range(60):
        pieces = [
            "".join("abc"[int(c)] for c in rng.integers(0, 3, size=int(rng.integers(0, 4))))
            for _ in range(20)
        ]
        stops = [
            "".join("abc"[int(c)] for c in rng.integers(0, 3, size=int(rng.integers(2, 6))))
            for _ in range(int(rng.integers(1, 4)))
        ]
        params = SamplingParams(
            stop=stops,
            stop_token_ids=[19],
            max_tokens=12,
            min_tokens=int(rng.integers(0, 4)),
            include_stop_str_in_output=bool(rng.integers(2)),
        )
        sequence = Sequence(
            [7], params, max_model_len=99, seed=0, eos_token_ids=(0,), detokenizer=_Spelled(pieces)
        )
        texts = []
        while not sequence.finished:
            for event in sequence.append(Sampled(int(rng.integers(20))), 0.0):
                if isinstance(event, TokenGenerated):
                    texts.append(event.text)
        done = sequence.completion()
        seen.append([texts, done.text, done.finish_reason, done.stop_reason])
    return seen


@scenario(task=2)
def processed_logits(nanovllm, rng):
    import torch

    from nanovllm.generation import sampling
    from nanovllm.generation.params import SamplingParams

    rows = [
        sampling.SamplingRow(
            SamplingParams(
                repetition_penalty=float(rng.uniform(0.7, 2)),
                presence_penalty=float(rng.uniform(-1, 1)),
                frequency_penalty=float(rng.uniform(-1, 1)),
                logit_bias={int(t): float(rng.normal()) for t in rng.integers(0, 30, size=3)},
                min_tokens=int(rng.integers(0, 6)),
                stop_token_ids=rng.integers(0, 30, size=2).tolist(),
            ),
            rng.integers(0, 30, size=int(rng.integers(1, 9))).tolist(),
            rng.integers(0, 30, size=int(rng.integers(0, 9))).tolist(),
            seed=int(rng.integers(1000)),
            eos_token_ids=(3, 4),
        )
        for _ in range(6)
    ]
    logits = torch.from_numpy(rng.normal(0, 3, size=(6, 30))).float()
    uniform = torch.from_numpy(rng.uniform(0.1, 1.0, size=6)).float()
    return {
        "min_tokens": sampling.apply_min_tokens(logits, rows),
        "logit_bias": sampling.apply_logit_bias(logits, rows),
        "penalties": sampling.apply_penalties(logits, rows),
        "temperature": sampling.apply_temperature(logits, uniform * 2),
        "min_p": sampling.apply_min_p(logits, uniform / 3),
        "top_k": sampling.apply_top_k(
            logits.round(), torch.from_numpy(rng.integers(0, 40, size=6))
        ),
        "top_p": sampling.apply_top_p(logits, uniform),
    }


@scenario(task=2)
def sampled_tokens(nanovllm, rng):
    import torch

    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sampling import SamplingRow, sample

    seen = []
    for _ in range(10):
        rows = [
            SamplingRow(
                SamplingParams(
                    temperature=float(rng.choice([0.0, 0.5, 1.0, 1.7])),
                    top_k=int(rng.integers(0, 20)),
                    top_p=float(rng.uniform(0.3, 1.0)),
                    min_p=float(rng.uniform(0, 0.1)),
                    logprobs=[None, 0, 3, -1][int(rng.integers(4))],
                    repetition_penalty=float(rng.uniform(1, 2)),
                ),
                rng.integers(0, 40, size=4).tolist(),
                rng.integers(0, 40, size=int(rng.integers(0, 6))).tolist(),
                seed=int(rng.integers(2**62)),
            )
            for _ in range(5)
        ]
        for drawn in sample(torch.from_numpy(rng.normal(0, 2, size=(5, 40))).float(), rows):
            chosen = drawn.logprobs or {}
            seen.append([drawn.token_id, list(chosen), [v.rank for v in chosen.values()]])
            seen.append(torch.tensor([v.logprob for v in chosen.values()]))
    return seen


@scenario(task=3)
def beams(nanovllm, rng):
    import torch

    from nanovllm.generation.beam import BeamSearchParams, beam_search

    seen = []
    for _ in range(10):
        params = BeamSearchParams(
            beam_width=int(rng.integers(1, 6)),
            max_tokens=int(rng.integers(1, 14)),
            length_penalty=float(rng.choice([0.0, 0.6, 1.0, 2.0, -0.7])),
            early_stopping=[True, False, "never"][int(rng.integers(3))],
            ignore_eos=bool(rng.integers(4) == 0),
        )
        eos = tuple(rng.integers(0, 60, size=int(rng.integers(1, 9))).tolist())
        found = beam_search(_model(rng, window=[None, 3][int(rng.integers(2))], eos=eos),
                            _prompt(rng), params)  # fmt: skip
        seen.append([[list(h.token_ids), h.finish_reason] for h in found])
        seen.append(torch.tensor([[h.logprob, h.score] for h in found]))
    return seen


@scenario(task=4)
def chunks(nanovllm, rng):
    import torch

    from nanovllm.generation.chunked import chunked_prefill, plan_chunks, prefill_cost
    from nanovllm.model.cache import ContiguousCache

    seen = []
    for _ in range(8):
        model = _model(rng, window=[None, 5][int(rng.integers(2))])
        count, size = int(rng.integers(2, 40)), int(rng.integers(1, 20))
        ids = torch.from_numpy(rng.integers(0, 60, size=count))
        cache = ContiguousCache(model.config, capacity=count)
        early = int(rng.integers(1, count))
        seen.append(chunked_prefill(model, cache, ids[:early], size))
        told = []
        seen.append(chunked_prefill(model, cache, ids, int(rng.integers(1, 9)), told.append))
        seen.append([[chunk.start, chunk.length] for chunk in told])
        plan = plan_chunks(count, size, computed=early)
        seen.append([[chunk.start, chunk.length] for chunk in plan])
        cost = prefill_cost(count, size)
        seen.append([cost.steps, cost.tokens_computed, cost.score_elements])
        seen.append(cost.peak_score_elements)
    return seen


@scenario(task=5)
def padded_batches(nanovllm, rng):
    import torch

    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sampling import argmax_sampler
    from nanovllm.generation.static_batch import generate_static, padded_mask

    seen = []
    for _ in range(4):
        model = _model(rng, window=[None, 4][int(rng.integers(2))])
        prompts = [_prompt(rng) for _ in range(int(rng.integers(1, 7)))]
        params = [
            SamplingParams(temperature=0, max_tokens=int(rng.integers(1, 12))) for _ in prompts
        ]
        rows = []

        def recording(logits, batch, rows=rows):
            rows.append(logits.clone())
            return argmax_sampler(logits, batch)

        result = generate_static(
            model, prompts, params, max_num_seqs=int(rng.integers(1, 5)), sampler=recording
        )
        seen.append([[list(c.token_ids) for c in samples] for samples in result.completions])
        waste = result.waste
        seen.append([waste.prompt, waste.padding, waste.decode, waste.idle])
        seen.append([waste.kv_reserved, waste.kv_used])
        seen.append(rows)
        padding = torch.from_numpy(rng.integers(0, 5, size=4))
        start = int(rng.integers(5, 9))
        seen.append(padded_mask(padding, start, 3, [None, 3][int(rng.integers(2))]))
    return seen


@scenario(task=6)
def latencies(nanovllm, rng):
    import numpy as np

    from nanovllm.generation.latency import Timeline, percentile

    seen = []
    for _ in range(10):
        arrival = float(rng.uniform(0, 10))
        gaps = rng.exponential(size=int(rng.integers(1, 9)))
        line = Timeline(arrival, (arrival + np.cumsum(gaps)).tolist())
        seen.append([line.ttft, line.tpot, line.e2e, line.inter_token_latencies])
        values = rng.exponential(size=int(rng.integers(1, 30))).tolist()
        seen.append([percentile(values, float(q)) for q in rng.uniform(0, 100, size=4)])
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
    return seen


@scenario(task=1)
def text_held_back(nanovllm, rng):
    from nanovllm.generation.stop import StopStrings, held_back

    seen = []
    for _ in range(40):
        stops = ["".join(rng.choice(list("ABC"), int(rng.integers(1, 5)))) for _ in range(2)]
        text = "".join(rng.choice(list("ABCX"), int(rng.integers(0, 9))))
        watcher = StopStrings(stops, False)
        pushed = []
        for letter in text:
            if watcher.matched is None:  # what a push after the match gives is not specified
                pushed.append(watcher.push(letter))
        seen.append([held_back(text, stops), pushed, watcher.matched])
    return seen

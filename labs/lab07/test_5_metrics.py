"""Task 5: metrics."""

import pytest

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import (
    Aborted,
    Admitted,
    ChunkRun,
    Failed,
    Preempted,
    Queued,
    Stepped,
)
from nanovllm.batching.policies import RoundRobin
from nanovllm.generation.events import Completion, Finished, Prefilled, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.serving.metrics import Metrics

CONFIG = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 40, qk_norm=True, eos_token_ids=(2,))


def value(metrics, name, **labels):
    labels = {"model_name": "tiny", "engine": "0"} | labels
    return metrics.registry.registry.get_sample_value(f"nanovllm:{name}", labels)


def histogram(metrics, name):
    """Count and sum of a histogram."""
    return [value(metrics, f"{name}_count"), round(value(metrics, f"{name}_sum"), 6)]


def token(request_id, time, index=0):
    return TokenGenerated(request_id, index, 7, "x", time)


def finished(request_id, time, reason="stop", index=0):
    return Finished(request_id, index, Completion(index, (7,), "x", reason), time)


def stepped(*chunks):
    runs = tuple(ChunkRun(*chunk) for chunk in chunks)
    return Stepped(runs, len(runs), 0, 64, 100, 0.0, 1.0)


LIFE = [  # arrives at 10, waits 2, first token at 15, preempted from 16 to 20, ends at 21
    [Queued(3, 0, 10.0), Admitted(3, 0, 12.0), stepped((3, 0, 0, 9))],
    [Prefilled(3, 12, 15.0), token(3, 15.0), stepped((3, 0, 9, 3))],
    [token(3, 15.5), stepped((3, 0, 12, 1))],
    [Preempted(3, 0, 16.0)],
    [Admitted(3, 0, 20.0), token(3, 20.5), stepped((3, 0, 0, 14))],
    [token(3, 21.0), finished(3, 21.0), stepped((3, 0, 14, 1))],
]


@pytest.mark.check(task=5, points=2, title="The gauges follow every move, and return to zero")
def test_gauges():
    metrics = Metrics("tiny")
    story = [
        [Queued(1, 0, 0.0), Queued(1, 1, 0.0), Queued(2, 0, 0.0)],
        [Admitted(1, 0, 1.0), Admitted(1, 1, 1.0), token(1, 1.0), stepped((1, 0, 0, 3))],
        [Preempted(1, 1, 2.0), token(1, 2.0)],
        [finished(1, 3.0), Admitted(2, 0, 3.0)],
        [Aborted(1, 1, (), "", 4.0)],
        [Failed(2, 0, ValueError(), 5.0)],
        [],
    ]
    found = []
    for i, events in enumerate(story):
        metrics.observe(events, i / 10)
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        found.append([value(metrics, name) for name in names])
    expect(
        found,
        [[0, 3, 0.0], [2, 1, 0.1], [1, 2, 0.2], [1, 1, 0.3], [1, 0, 0.4], [0, 0, 0.5], [0, 0, 0.6]],
        call="running, waiting and usage after: three samples queued; two admitted; one preempted; "
        "one finished and one admitted; the preempted one aborted; the last one failed; a "
        "call without events",
        cause="after an abort there may be no step, and so no Stepped",
    )
    expect(metrics.num_open, 0, call="num_open after all have ended")


@pytest.mark.check(task=5, points=2, title="Tokens, preemptions, and why samples ended")
def test_counters():
    metrics = Metrics("tiny")
    strangers = [Prefilled(9, 5, 1.0), Admitted(9, 0, 1.0), token(9, 1.0), Preempted(9, 0, 2.0)]
    metrics.observe([*strangers, finished(9, 3.0)], 0.0)  # of a sample that never came
    for events in LIFE:
        metrics.observe(events, 0.0)
    metrics.observe([*strangers, Aborted(3, 0, (), "", 30.0)], 0.0)  # and of one that has gone
    reasons = ("stop", "length", "abort", "error")

    def ended():
        return [value(metrics, "request_success_total", finished_reason=r) for r in reasons]

    names = ("prompt_tokens_total", "prefix_cache_queries_total", "generation_tokens_total",
             "num_preemptions_total")  # fmt: skip
    expect(
        [[value(metrics, name) for name in names], ended()],
        [[12, 12, 4, 1], [1, 0, 0, 0]],
        call="prompt tokens, those looked up in the prefix cache, generated tokens, preemptions, "
        "and ends by stop, length, abort, error, after a request of 12 + 4 tokens that was "
        "preempted once; before and after it come events of samples that are not remembered",
    )
    for request_id, end in enumerate(
        [finished(10, 9.0, "length"), Aborted(11, 0, (7,), "x", 9.0), Aborted(12, 0, (), "", 9.0),
         Failed(13, 0, ValueError(), 9.0)], start=10
    ):  # fmt: skip
        metrics.observe([Queued(request_id, 0, 1.0), Admitted(request_id, 0, 1.0)], 0.0)
        metrics.observe([token(request_id, 2.0), token(request_id, 3.0), end], 0.0)
    times = ("e2e_request_latency_seconds", "request_time_per_output_token_seconds",
             "request_decode_time_seconds", "time_to_first_token_seconds")  # fmt: skip
    expect(
        [ended(), [histogram(metrics, name)[0] for name in times]],
        [[1, 1, 2, 1], [2, 2, 2, 5]],
        call="the ends after one more by length, two aborted, one failed; observations of e2e, "
        "time per output token, decode, time to first token",
        cause="all but the time to first token are observed at a Finished only",
    )


@pytest.mark.check(
    task=5, points=3, title="Latencies from arrival, and between n tokens n - 1 gaps"
)
def test_latencies():
    metrics = Metrics("tiny")
    for events in LIFE:
        metrics.observe(events, 0.0)
    names = ("time_to_first_token_seconds", "inter_token_latency_seconds",
             "request_time_per_output_token_seconds", "e2e_request_latency_seconds")  # fmt: skip
    expect(
        {name: histogram(metrics, name) for name in names},
        {
            "time_to_first_token_seconds": [1, 5.0],
            "inter_token_latency_seconds": [3, 6.0],
            "request_time_per_output_token_seconds": [1, 2.0],
            "e2e_request_latency_seconds": [1, 11.0],
        },
        call="observations and their sum: arrival at 10, admitted at 12, tokens at 15, 15.5, 20.5 "
        "and 21, preempted from 16 to 20",
        cause="the wait after a preemption is the user's wait, too",
    )
    metrics = Metrics("tiny")
    metrics.observe([Queued(1, 0, 0.0), Admitted(1, 0, 1.0), token(1, 2.0), finished(1, 2.0)], 0.0)
    expect(
        {name: histogram(metrics, name) for name in names},
        {
            "time_to_first_token_seconds": [1, 2.0],
            "inter_token_latency_seconds": [0, 0.0],
            "request_time_per_output_token_seconds": [0, 0.0],
            "e2e_request_latency_seconds": [1, 2.0],
        },
        call="observations and their sum of a request of one token: arrival at 0, admitted at 1, "
        "its token at 2",
        cause="one token has no time between tokens",
    )
    expect(
        histogram(metrics, "request_decode_time_seconds"),
        [1, 0.0],
        call="decode time of a request of one token: observations and sum",
        cause="every finished request has the three phases; this one's last took no time",
    )


@pytest.mark.check(task=5, points=2, title="Queue, prefill and decode make up the whole")
def test_phases():
    metrics = Metrics("tiny")
    for events in LIFE:
        metrics.observe(events, 0.0)
    names = ("request_queue_time_seconds", "request_prefill_time_seconds",
             "request_decode_time_seconds")  # fmt: skip
    expect(
        [histogram(metrics, name) for name in names],
        [[1, 2.0], [1, 3.0], [1, 6.0]],
        call="queue, prefill and decode (observations, sum) of the same request",
        cause="together they are the 11 s from arrival to the last token",
    )


@pytest.mark.check(task=5, points=2, title="Tokens a step, and tokens found in the prefix cache")
def test_steps():
    metrics = Metrics("tiny")
    queued = [Queued(1, 0, 0.0), Queued(1, 1, 0.0), Queued(2, 0, 0.0), Queued(3, 0, 0.0)]
    in_batch = [Admitted(1, 0, 0.0), Admitted(1, 1, 0.0), Admitted(3, 0, 0.0)]
    metrics.observe([*queued, *in_batch, stepped((1, 0, 16, 4), (1, 1, 18, 2), (3, 0, 0, 4))], 0.0)
    metrics.observe([Admitted(2, 0, 1.0), stepped((1, 0, 20, 1), (2, 0, 5, 3), (3, 0, 4, 6))], 0.0)
    metrics.observe([Preempted(2, 0, 1.0), stepped((1, 0, 21, 1))], 0.0)
    metrics.observe([Admitted(2, 0, 2.0), stepped((2, 0, 7, 2))], 0.0)
    expect(
        [value(metrics, "prefix_cache_hits_total"), histogram(metrics, "iteration_tokens_total")],
        [21, [4, 23.0]],
        call="tokens found in the prefix cache (first chunks begin at 16, at 5 and at 0, the "
        "second of the last at 4); steps and tokens",
        cause="a later chunk, one after a preemption, or of another sample is no lookup of the "
        "prompt; a first chunk at 0 is one that found nothing",
    )
    metrics = Metrics("tiny")
    metrics.observe([Queued(4, 0, 0.0), Queued(4, 1, 0.0), Queued(5, 0, 0.0), Queued(6, 0, 0.0)], 0)
    metrics.observe([Aborted(4, 1, (), "", 1.0), Aborted(6, 0, (), "", 1.0)], 0)
    ends = [token(5, 3.0), finished(5, 3.0), Failed(4, 0, ValueError(), 3.0)]
    came = [Admitted(4, 0, 2.0), Admitted(5, 0, 2.0)]
    metrics.observe([*came, *ends, stepped((4, 0, 8, 1), (5, 0, 32, 4))], 0)
    metrics.observe([stepped((4, 0, 9, 1), (5, 0, 36, 1), (6, 0, 3, 1), (7, 0, 3, 1))], 0)
    expect(
        [value(metrics, "prefix_cache_hits_total"), histogram(metrics, "iteration_tokens_total")],
        [40, [2, 9.0]],
        call="tokens found in the prefix cache by two samples that end in their first step: one "
        "fails there, whose sample 1 was aborted before; chunks begin at 8 and 32; steps and "
        "tokens, of all chunks: 1 + 4, then 4 of samples that have gone or never came",
        cause="a step tells of its chunks last, after the ends of the samples in it",
    )


def model(events):
    """What the metrics must be after these events, from the whole list at once."""
    lives = {}
    for event in events:
        if isinstance(event, Queued | Admitted | Preempted | TokenGenerated | Finished | Aborted):
            lives.setdefault((event.request_id, event.index), []).append(event)
    found = dict.fromkeys(("ttft", "gaps", "queue", "tpot", "e2e"), 0.0)
    found |= dict.fromkeys(("tokens", "firsts", "running", "waiting", "preempted"), 0)
    for life in lives.values():
        arrival = life[0].time
        times = [e.time for e in life if isinstance(e, TokenGenerated)]
        admitted = [e.time for e in life if isinstance(e, Admitted)]
        found["tokens"] += len(times)
        found["firsts"] += bool(times)
        found["preempted"] += sum(isinstance(e, Preempted) for e in life)
        found["queue"] += admitted[0] - arrival if admitted else 0.0
        if times:
            found["ttft"] += times[0] - arrival
            found["gaps"] += times[-1] - times[0]
        if isinstance(life[-1], Finished):
            found["e2e"] += life[-1].time - arrival
            found["tpot"] += (times[-1] - times[0]) / max(1, len(times) - 1)
        elif not isinstance(life[-1], Aborted):
            moves = [e for e in life if isinstance(e, Admitted | Preempted)]
            found["running" if moves and isinstance(moves[-1], Admitted) else "waiting"] += 1
    return {name: round(number, 6) for name, number in found.items()}


@pytest.mark.check(task=5, points=3, title="Random ending: a real engine, preempted and aborted")
def test_identities(rng, seed):
    metrics, clock = Metrics("tiny"), ManualClock()
    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=9, policy=RoundRobin(2))
    engine = Engine(dummy_model(CONFIG, seed=seed % 1000), config, clock=clock)
    prompts = [rng.integers(3, 47, size=int(n)).tolist() for n in rng.integers(1, 12, size=9)]
    for i, prompt in enumerate(prompts):
        count = int(rng.integers(1, 9))
        params = SamplingParams(max_tokens=count, n=1 + i % 2, ignore_eos=True)
        engine.add_request(prompt, params, seed=i)
    gone = {int(i): int(rng.integers(0, 6)) for i in rng.choice(9, size=4, replace=False)}
    story, steps = [], 0
    while engine.has_unfinished:
        for request_id, when in gone.items():
            if when == steps:
                engine.abort(request_id)
        clock.advance(float(rng.uniform(0.1, 1.0)))
        events = engine.step()
        story += events
        metrics.observe(events, 1 - engine.store.free_tokens / engine.store.total_tokens)
        steps += 1
        expect(
            {
                "ttft": histogram(metrics, "time_to_first_token_seconds")[1],
                "gaps": histogram(metrics, "inter_token_latency_seconds")[1],
                "queue": histogram(metrics, "request_queue_time_seconds")[1],
                "tpot": histogram(metrics, "request_time_per_output_token_seconds")[1],
                "e2e": histogram(metrics, "e2e_request_latency_seconds")[1],
                "tokens": value(metrics, "generation_tokens_total"),
                "firsts": histogram(metrics, "time_to_first_token_seconds")[0],
                "running": value(metrics, "num_requests_running"),
                "waiting": value(metrics, "num_requests_waiting"),
                "preempted": value(metrics, "num_preemptions_total"),
            },
            model(story),
            call=f"sums and counts after step {steps} of an engine that takes turns, with requests "
            "that are aborted",
            given={"the step": [type(e).__name__ for e in events]},
            atol=1e-5,
        )
    reasons = ("stop", "length", "abort", "error")
    ends = sum(value(metrics, "request_success_total", finished_reason=r) for r in reasons)
    gaps = histogram(metrics, "inter_token_latency_seconds")[0]
    done = model(story)
    expect(
        [gaps, ends, value(metrics, "kv_cache_usage_perc"), metrics.num_open],
        [done["tokens"] - done["firsts"], 13, 0.0, 0],
        call="after all: gaps between tokens, ends, share of the KV cache in use, num_open",
        cause="gaps = tokens - first tokens; an idle server holds nothing",
    )

"""Task 6: latency anatomy and the roofline."""

import numpy as np
import pytest

from grader import expect
from nanovllm.generation.events import TokenGenerated
from nanovllm.generation.latency import Timeline, percentile, summarize, timelines
from nanovllm.generation.roofline import (
    Hardware,
    Work,
    bound_by,
    compute_bound_batch,
    least_seconds,
    step_work,
)
from nanovllm.model.config import ModelConfig

LLAMA_8B = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, 131072)
TOY = Hardware("toy", flops_per_second=600.0, bytes_per_second=20.0)


@pytest.mark.check(
    task=6,
    points=3,
    title="TTFT, TPOT, inter-token latency, end to end",
)
def test_timeline():
    line = Timeline(arrival=10.0, token_times=[14.0, 14.5, 15.5, 15.75, 18.0])
    expect(
        line.ttft,
        4.0,
        call="Timeline(10, [14, 14.5, 15.5, 15.75, 18]).ttft",
        cause="time to first token counts from arrival",
    )
    expect(
        line.inter_token_latencies,
        [0.5, 1.0, 0.25, 2.25],
        call=".inter_token_latencies",
        cause="the time before the first token is no gap between tokens",
    )
    expect(
        line.tpot,
        1.0,
        call=".tpot",
        cause="five tokens have four gaps, and the first token's wait is TTFT, not TPOT",
    )
    expect(line.e2e, 8.0, call=".e2e", cause="from arrival to the last token")
    one = Timeline(arrival=1.0, token_times=[3.0])
    expect(
        [one.ttft, one.tpot, one.inter_token_latencies, one.e2e],
        [2.0, None, [], 2.0],
        call="Timeline(1, [3]): ttft, tpot, inter_token_latencies, e2e",
        cause="one token has a TTFT and no gap",
    )


@pytest.mark.check(
    task=6,
    points=2,
    title="Percentiles interpolate",
)
def test_percentile(rng):
    values = [0.4, 0.1, 0.9, 0.2]
    expect(
        [percentile(values, q) for q in (0, 25, 50, 90, 99, 100)],
        [0.1, 0.175, 0.3, 0.75, 0.885, 0.9],
        call="percentile([0.4, 0.1, 0.9, 0.2], q) for q = 0, 25, 50, 90, 99, 100",
        cause="sort, then interpolate linearly at rank (n - 1) * q / 100",
    )
    expect(values, [0.4, 0.1, 0.9, 0.2], call="the values given", cause="they keep their order")
    sample = rng.exponential(size=37).tolist()
    expect(
        [percentile(sample, q) for q in range(0, 101, 7)],
        np.percentile(sample, range(0, 101, 7)).tolist(),
        call="percentile(37 random values, q) for q = 0, 7, ..., 98, against numpy",
    )
    for bad in (([], 50), ([1.0], 101), ([1.0], -1)):
        expect.raises(ValueError, lambda bad=bad: percentile(*bad), call=f"percentile{bad}")


@pytest.mark.check(
    task=6,
    points=1,
    title="A stream of events becomes a report",
)
def test_summary():
    moments = {(0, 0): [2.0, 3.0, 5.0], (1, 0): [6.0], (2, 0): [4.0, 4.5, 5.0, 6.5]}
    events = sorted(
        (
            TokenGenerated(request, index, 7, "", moment)
            for (request, index), times in moments.items()
            for moment in times
        ),
        key=lambda event: event.time,
    )
    report = summarize(list(timelines(events, {0: 1.0, 1: 0.5, 2: 3.0}).values()))
    expect(
        [report.ttft_p50, report.ttft_p99, report.tpot_p50, report.tpot_p99, report.itl_p50,
         report.itl_p99, report.tokens_per_second],
        [1.0, 5.41, 3.5 / 3, 0.99 * 1.5 + 0.01 * 2.5 / 3, 1.0, 1.98, 8 / 6],
        call="summarize(timelines(events, arrivals)): p50 and p99 of ttft, tpot and itl, tokens "
        "per second",
        given={"token times": moments, "arrivals": "1.0, 0.5, 3.0"},
        cause="one TTFT and TPOT a sample, gaps pooled, a sample of one token has no TPOT; the "
        "rate is over the time from the first arrival to the last token of all",
    )  # fmt: skip


@pytest.mark.check(
    task=6,
    points=2,
    title="Weights are moved once for all rows, K and V for each",
)
def test_step_work():
    found = {}
    for name, shape in {
        "prefill of 2048": (1, 2048, 0),
        "prefill, 3 rows of 100 at 28": (3, 100, 28),
        "decode, 1 row at 2048": (1, 1, 2048),
        "decode, 64 rows at 2048": (64, 1, 2048),
    }.items():
        work = step_work(LLAMA_8B, *shape)
        found[name] = [work.flops / 1e9, work.bytes / 1e9]
    # 7.504 G parameters to multiply (6.979 in layers, 0.525 in the head), 131072 bytes of K and V.
    layers, head, kv = 6_979_321_856, 525_336_576, 131_072
    scores = 4 * 32 * 32 * 128
    weights = 2 * (layers + head)
    decode = 2 * (layers + head) + scores * 2049
    expect(
        found,
        {
            "prefill of 2048": [
                (2 * layers * 2048 + scores * 2048 * 2049 // 2 + 2 * head) / 1e9,
                (weights + 2048 * kv) / 1e9,
            ],
            "prefill, 3 rows of 100 at 28": [
                3 * (2 * layers * 100 + scores * (100 * 28 + 100 * 101 // 2) + 2 * head) / 1e9,
                (weights + 3 * 128 * kv) / 1e9,
            ],
            "decode, 1 row at 2048": [decode / 1e9, (weights + 2049 * kv) / 1e9],
            "decode, 64 rows at 2048": [64 * decode / 1e9, (weights + 64 * 2049 * kv) / 1e9],
        },
        call="step_work(Llama-3-8B, rows, new_tokens, cached_tokens): GFLOP and GB",
        rtol=1e-6,
        cause="the weights are moved once for the batch; each row brings its own K and V",
    )
    expect(
        step_work(LLAMA_8B, 2, 1, 10, dtype_bytes=4).bytes,
        2 * (weights + 22 * kv),
        call="step_work(Llama-3-8B, 2, 1, 10, dtype_bytes=4).bytes",
    )


@pytest.mark.check(
    task=6,
    points=1,
    title="The roof, and what a step runs into",
)
def test_roofline():
    works = [Work(1200, 20), Work(1200, 60), Work(600, 20), Work(500, 20)]
    expect(
        [
            TOY.ridge,
            [TOY.attainable(i) for i in (1.0, 30.0, 90.0)],
            [least_seconds(work, TOY) for work in works],
            [bound_by(work, TOY) for work in works],
        ],
        [
            30.0,
            [20.0, 600.0, 600.0],
            [2.0, 3.0, 1.0, 1.0],
            ["compute", "memory", "compute", "memory"],
        ],
        call="ridge, attainable, least_seconds and bound_by of a machine with 600 FLOP/s, 20 B/s",
        cause="a step is as slow as the slower of its two limits",
    )
    machine = Hardware("machine", 1e15, 5e12)
    expect(
        [compute_bound_batch(LLAMA_8B, machine, cached, largest=2000) for cached in (0, 256, 2048)],
        [201, 358, None],
        call="compute_bound_batch(Llama-3-8B, 1e15 FLOP/s and 5e12 B/s, cached) for 0, 256, 2048",
        cause="each row adds its own K and V to read, so a long context never gets there",
    )
    config, toy = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16), Hardware("toy", 600.0, 200.0)
    expect(
        [compute_bound_batch(config, toy, 2, largest=largest) for largest in (3, 4, 5)]
        + [compute_bound_batch(config, toy, 2, dtype_bytes=1)]
        + [compute_bound_batch(config, Hardware("slow", 10.0, 200.0), 2)],
        [None, 4, 4, 2, 1],
        call="compute_bound_batch of the docstring's config with 2 cached: largest = 3, 4, 5; "
        "dtype_bytes=1; and on a machine of 10 FLOP/s and 200 B/s",
        cause="`largest` itself is allowed, a single row may be enough, and dtype_bytes counts",
    )

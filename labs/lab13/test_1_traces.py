"""Task 1: published traces as one schema, and made-up ones of the same shape."""

import math
import random
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest

from grader import expect
from nanovllm.observability.errors import TraceError
from nanovllm.observability.generator import (
    arrival_times,
    at,
    burst_sizes,
    generate,
    parts,
    stratified,
    with_sessions,
)
from nanovllm.observability.readers import (
    in_order,
    read_azure,
    read_burstgpt,
    read_mooncake,
)
from nanovllm.observability.shapes import AZURE_CODE, AZURE_CONVERSATION, MOONCAKE, Shape
from nanovllm.observability.trace import TracedRequest


def rows(found):
    """Requests as plain lists, with times to the microsecond."""
    return [[round(r.time, 6), r.prompt, r.output, r.session, list(r.blocks), r.ok] for r in found]


@pytest.mark.check(task=1, points=1, title="In order of time, from 0")
def test_in_order(seed):
    draw = random.Random(seed)
    given = [TracedRequest(draw.choice([7.0, 9.5, 11.0, 3.25]), i, 1) for i in range(9)]
    first = min(r.time for r in given)
    expected = [
        [t - first, p] for t, p in sorted(((r.time, r.prompt) for r in given), key=lambda x: x[0])
    ]
    before = list(given)
    found = in_order(given)
    expect(
        [[r.time, r.prompt] for r in found],
        expected,
        call="in_order(requests)",
        given={"times": [r.time for r in given]},
        cause="by time, counted from the earliest; of equal times, the order given stays",
    )
    expect.that(given == before, "the requests given stay as they were")
    expect(in_order([]), [], call="in_order([])", cause="a trace may be empty")


@pytest.mark.check(task=1, points=2, title="Azure's form")
def test_azure(seed):
    draw = random.Random(seed)
    start, lines, expected = datetime(2023, 11, 16, 23, 59, 58), [], []
    offsets = [0, *(draw.randrange(1, 10**8) for _ in range(6))]  # in tenths of a microsecond
    for number, offset in enumerate(offsets, 2):
        moment = start + timedelta(microseconds=offset // 10)
        digits = f"{moment.microsecond:06d}{offset % 10}"
        text = f"{moment:%Y-%m-%d %H:%M:%S}.{digits}"
        if number == 2:
            text = text.partition(".")[0]
        prompt, output = draw.randint(1, 7437), draw.randint(0, 99)
        lines.append(
            (
                number,
                {"TIMESTAMP": text, "ContextTokens": str(prompt), "GeneratedTokens": str(output)},
            )
        )
        expected.append([offset / 1e7, prompt, output, "", [], True])
    draw.shuffle(lines)
    expect(
        rows(read_azure(iter(lines))),
        sorted(expected),
        call="read_azure(rows), not in order, over midnight",
        given={"rows": lines[:3]},
        cause="seconds from the earliest request, with all digits behind the second",
        atol=2e-6,
    )


@pytest.mark.check(task=1, points=1, title="BurstGPT's form")
def test_burstgpt(seed):
    draw = random.Random(seed)
    lines, expected = [], []
    for number in range(2, 9):
        time, prompt, output = number * 3.5, draw.randint(1, 900), draw.choice([0, 5, 70])
        session = draw.choice(["", "81", "0"])
        row = {"Timestamp": str(time + 40), "Model": "GPT-4", "Request tokens": str(prompt)}
        row |= {"Response tokens": str(output), "Total tokens": str(prompt + output)}
        lines.append((number, row | ({"Session ID": session} if session else {})))
        expected.append([time - 7.0, prompt, output, session, [], output > 0])
    expect(
        rows(read_burstgpt(iter(lines))),
        expected,
        call="read_burstgpt(rows)",
        given={"rows": lines[:2]},
        cause="Timestamp is in seconds; a request without response tokens has failed, and stays "
        "in the trace",
    )


@pytest.mark.check(task=1, points=1, title="Mooncake's form")
def test_mooncake(seed):
    draw = random.Random(seed)
    lines, expected = [], []
    for number in range(1, 8):
        time, prompt, output = 3000 * number, draw.randint(1, 90000), draw.randint(0, 900)
        ids = [draw.randrange(99) for _ in range(draw.randint(0, 3))]
        row = {"timestamp": time, "input_length": prompt, "output_length": output, "hash_ids": ids}
        session = ("", "s1", 0)[number % 3]
        lines.append((number, row | ({"session_id": session} if session != "" else {})))
        expected.append([3.0 * (number - 1), prompt, output, str(session), ids, True])
    found = read_mooncake(iter(lines))
    expect(
        rows(found),
        expected,
        call="read_mooncake(rows)",
        given={"rows": lines[:2]},
        cause="timestamp is in milliseconds; hash_ids are the blocks of the prompt; a session may "
        "be called 0",
    )
    expect.that(all(isinstance(r.blocks, tuple) for r in found), "blocks are a tuple")


@pytest.mark.check(task=1, points=2, title="Rows that cannot be used")
def test_bad_rows(seed):
    line = seed + 41
    good = {"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": []}
    azure = {"TIMESTAMP": "2023-11-16 18:17:03.9", "ContextTokens": "5", "GeneratedTokens": "5"}
    burst = {"Timestamp": "1", "Request tokens": "5", "Response tokens": "5"}
    for reader, row, wrong in (
        (read_mooncake, good, {"input_length": 0}),
        (read_mooncake, good, {"output_length": -3}),
        (read_mooncake, good, {"timestamp": "soon"}),
        (read_mooncake, good, {"hash_ids": None}),
        (read_mooncake, good, {"hash_ids": 7}),
        (read_mooncake, good, {"hash_ids": ["x"]}),
        (read_mooncake, good, {"hash_ids": "12"}),
        (read_azure, azure, {"TIMESTAMP": "yesterday"}),
        (read_azure, azure, {"ContextTokens": "0"}),
        (read_azure, azure, {"GeneratedTokens": None}),
        (read_burstgpt, burst, {"Timestamp": ""}),
        (read_burstgpt, burst, {"Response tokens": "-5"}),
        (read_burstgpt, burst, {"Request tokens": "0"}),
    ):
        [(column, value)] = wrong.items()
        expect.raises(
            TraceError,
            lambda reader=reader, row=row, wrong=wrong: reader([(1, row), (line, row | wrong)]),
            match=rf"\b{line}\b",
            call=f"{reader.__name__}(rows) with {column}={value!r} in line {line}",
            cause="a wrong row is refused, with the number of its line; it is not left out",
        )


@pytest.mark.check(task=1, points=1, title="Quantiles between marks")
def test_at(seed):
    draw = random.Random(seed)
    marks = [0.0, 0.1, 0.5, 0.9, 0.99, 1.0]
    values = sorted(draw.uniform(1, 9000) for _ in marks)
    for share in (*marks, *(draw.random() for _ in range(30))):
        expect(
            at(values, share, marks),
            float(np.exp(np.interp(share, marks, np.log(values)))),
            call=f"at(values, {share}, marks)",
            given={"values": values, "marks": marks},
            cause="between two marks a quantile grows by equal factors, not by equal steps",
            rtol=1e-9,
        )


@pytest.mark.check(task=1, points=1, title="One draw in each equal part")
def test_stratified(seed):
    for count in (1, 7, 200):
        found = stratified(count, random.Random(seed + count))
        expect(
            sorted(int(u * count) for u in found),
            list(range(count)),
            call=f"stratified({count}, draw)",
            cause="each of the equal parts has one number",
        )
    beside = sum(abs(a - b) < 2 / count for a, b in pairwise(found))
    expect.that(  # about two of 200 in random order; nearly all where they are turned or reversed
        beside < 30, "they come in random order", observed=f"{beside} of {count} beside another"
    )
    shares = [u * count % 1 for u in found]
    expect.that(
        0.35 < sum(shares) / count < 0.65 and max(shares) > 0.9 and min(shares) < 0.1,
        "within its part, a number is anywhere",
        observed=sum(shares) / count,
    )
    total = draw_total = random.Random(seed).uniform(5, 500)
    for count in (1, 6, 40):
        lengths = parts(total, count, random.Random(seed))
        expect(
            [len(lengths), sum(lengths)], [count, draw_total], call=f"parts({total}, {count}, draw)"
        )
    many = np.array(parts(5000.0, 5000, random.Random(seed)))
    expect(
        [float((many > k).mean()) for k in (0.5, 1, 2, 3)],
        [math.exp(-k) for k in (0.5, 1, 2, 3)],
        call="parts(5000.0, 5000, draw): shares longer than 0.5, 1, 2, 3",
        cause="lengths are exponential",
        atol=0.01,
    )


@pytest.mark.check(task=1, points=2, title="Sizes of bursts")
def test_burst_sizes(seed):
    shape = Shape("x", 1.0, (), (), burst_tail=1.5, burst_most=40)
    for count in (1, 2, 30, 20_000):
        sizes = burst_sizes(shape, count, random.Random(seed + count))
        expect(
            sum(sizes),
            count,
            call=f"sum(burst_sizes(shape, {count}, draw))",
            cause="the last burst is cut, so that all add up to the count",
        )
        expect.that(
            min(sizes) >= 1 and max(sizes) <= 40, "a burst has 1 to burst_most requests",
            observed=(min(sizes), max(sizes)),
        )  # fmt: skip
    expect(
        [float(np.mean([size >= k for size in sizes])) for k in (2, 4, 10, 40)],
        [k**-1.5 for k in (2, 4, 10, 40)],
        call="burst_sizes(shape, 20000, draw): shares of bursts of 2, 4, 10, 40 or more",
        cause="k or more with probability k ** -burst_tail; what would be larger than burst_most "
        "counts as burst_most",
        atol=0.03,
    )
    few = burst_sizes(replace(shape, burst_tail=1.0, burst_most=3), 20_000, random.Random(seed))
    expect(
        [float(np.mean([size >= k for size in few])) for k in (2, 3)],
        [1 / 2, 1 / 3],
        call="burst_sizes(shape, 20000, draw): shares of bursts of 2, 3 or more, with a tail of 1 "
        "and a burst_most of 3",
        cause="what would be larger than burst_most counts as burst_most; it is not drawn again",
        atol=0.03,
    )
    expect(
        burst_sizes(AZURE_CONVERSATION, 4, random.Random(seed)),
        [1] * 4,
        call="burst_sizes(AZURE_CONVERSATION, 4, draw)",
        cause="burst_tail 0: each request comes alone",
    )


def figures(times):
    """CV of gaps, peak to mean in 1 s and 60 s, share of gaps below 10 ms."""
    times = np.array(times) - times[0]
    between, mean = np.diff(times), len(times) / times[-1]
    peaks = [np.bincount((times // w).astype(int)).max() / w / mean for w in (1, 60)]
    return [between.std() / between.mean(), *peaks, (between < 0.01).mean()]


@pytest.mark.check(task=1, points=2, title="Arrivals: pauses, bursts, cycles, bundles")
def test_arrivals(seed):
    wide = {"Azure code": (AZURE_CODE, 3392, 8819, (13.2, 26, 4.2, 0.39))}
    wide["Azure conversation"] = (AZURE_CONVERSATION, 3521, 19366, (1.09, 2.9, 1.5, 0.057))
    wide["Mooncake"] = (MOONCAKE, 3539, 12031, (3.0, 8.2, 1.2, 0.9))
    for name, (shape, length, count, real) in wide.items():
        drawn = []
        for number in range(4 if name == "Azure code" else 2):
            times = arrival_times(shape, count, length, random.Random(4 * seed + number))
            expect(len(times), count, call=f"len(arrival_times({name}, {count}, {length}, draw))")
            expect.that(times == sorted(times), "arrivals are in order")
            expect.that(
                times[0] >= 0 and times[-1] < length + 5,
                "all arrive within the seconds asked for",
                observed=times[-1],
            )
            drawn.append(figures(times))
        for what, got, wanted in zip(
            ("CV of gaps", "peak to mean, 1 s", "peak to mean, 60 s", "gaps under 10 ms"),
            np.mean(drawn, axis=0),
            real,
            strict=True,
        ):
            wide_peak = 1.6 if what.startswith("peak") else 1.2
            expect.that(
                wanted / wide_peak <= got <= wanted * wide_peak,
                f"{what} of {name} is about {wanted}",
                observed=float(got),
                call=f"arrival_times({name}, {count}, {length}, draw), mean of {len(drawn)}",
                given={"seed": seed},
                cause="pauses take their share of the time; bursts begin in the rest of it, at "
                "random or with the cycle's rate; bundles cut times down",
            )
    shape = Shape("x", 1.0, (), (), swing=0.8, cycle_seconds=100.0)
    phases = np.array(arrival_times(shape, 4000, 1000.0, random.Random(seed))) % 100 / 100
    expect.that(
        abs(np.mean(phases < 0.5) - (0.5 + 0.8 / math.pi)) < 0.03,
        "with a swing of 0.8, 75 % come in the first half of each cycle",
        observed=float(np.mean(phases < 0.5)),
    )
    still = replace(shape, pause_share=0.5, pause_mean=500.0)  # one pause of 500 s
    times = np.array(arrival_times(still, 5000, 1000.0, random.Random(seed)))
    longest = int(np.diff(times).argmax())
    pause = float(np.diff(times).max())
    expect.that(
        abs(pause - 500) < 5,
        "500 s of pause are one pause of 500 s, between two stretches",
        observed=pause,
        call="arrival_times, 1,000 s with a pause_share of 0.5 and a pause_mean of 500 s",
        cause="there is one stretch more than pauses",
    )
    times[longest + 1 :] -= 500
    phases = times % 100 / 100
    expect.that(
        abs(np.mean(phases < 0.5) - (0.5 + 0.8 / math.pi)) < 0.035,
        "with a swing of 0.8, 75 % come in the first half of each cycle of busy time",
        observed=float(np.mean(phases < 0.5)),
        cause="cycle_seconds are seconds of the time that is no pause",
    )
    two = replace(shape, swing=0.0, pause_share=0.5, pause_mean=300.0)
    draw = random.Random(seed)
    longest = [np.diff(arrival_times(two, 2000, 1000.0, draw)).max() for _ in range(9)]
    expect.that(  # of two random parts of 500 s, one in 30 is longer than 490 s
        np.median(longest) < 490,
        "500 s of pause with a pause_mean of 300 s are two pauses",
        observed=[round(float(one)) for one in longest],
        call="the longest gap in nine draws of arrival_times",
        cause="the number of pauses is rounded, not rounded down",
    )
    slow = Shape("x", 1.0, (), (), burst_tail=0.1, burst_most=50, burst_gap=0.25)
    inside = np.diff(arrival_times(slow, 2000, 1e6, random.Random(seed)))
    inside = inside[inside < 10]  # seconds: gaps within bursts, of which most have 50 requests
    expect(
        [float(inside.mean()), float((inside > 0.5).mean())],
        [0.25, math.exp(-2)],
        call="arrival_times: gaps within bursts, with a burst_gap of 0.25 s: their mean, and the "
        "share of those over 0.5 s",
        cause="gaps within a burst are exponential",
        atol=0.05,
    )
    at_once = np.diff(arrival_times(replace(slow, burst_gap=0.0), 2000, 1e6, random.Random(seed)))
    expect.that(
        np.mean(at_once == 0) > 0.8,
        "with a burst_gap of 0 the requests of a burst come at one moment",
        observed=float(np.mean(at_once == 0)),
    )
    expect(
        arrival_times(Shape("x", 1.0, (), (), bundle=60.0), 50, 60.0, random.Random(seed)),
        [0.0] * 50,
        call="arrival_times of 50 requests in 60 s, with a bundle of 60 s",
        cause="bundles cut a time down, they do not round it",
    )
    cut = arrival_times(MOONCAKE, 50, 60.0, random.Random(seed))
    expect.that(
        all(t % 3 == 0 for t in cut), "a bundle of 3 s cuts times to 0, 3, 6 ...", observed=cut[:9]
    )


@pytest.mark.check(task=1, points=1, title="Sessions and their blocks")
def test_sessions(seed):
    shape = Shape("x", 1.0, (), (), follow_share=0.7, think=20.0, block=16, common=1)
    draw = random.Random(seed)
    lengths = [draw.randint(5, 400) for _ in range(600)]
    given = [TracedRequest(i / 2, prompt, 8) for i, prompt in enumerate(lengths)]
    found = with_sessions(shape, given, random.Random(seed))
    expect(
        [[r.time, r.prompt, r.output] for r in found],
        [[r.time, r.prompt, r.output] for r in given],
        call="with_sessions(shape, requests, draw)",
        cause="times and lengths are those of the requests",
    )
    last, seen = {}, set()
    for number, request in enumerate(found):
        size = -(-request.prompt // 16)
        expect(len(request.blocks), size, call=f"blocks of request {number}",
               given={"prompt": request.prompt, "block": 16})  # fmt: skip
        before = last.get(request.session)
        kept = before.blocks[:-1] if before and len(before.blocks) > 1 else (0,)
        if before is not None:
            expect.that(
                before.prompt + before.output <= request.prompt,
                "the last prompt and answer fit into the next prompt of a session",
                observed=(before.prompt, before.output, request.prompt),
            )
        expect(list(request.blocks[: len(kept)]), list(kept), call=f"known blocks of {number}",
               cause="the blocks of the last prompt but its last, or the common ones")  # fmt: skip
        new = request.blocks[len(kept) :]
        expect.that(
            not seen.intersection(new) and len(set(new)) == len(new),
            "all further blocks are new",
            observed=new,
        )
        seen.update(request.blocks)
        last[request.session] = request
    for follow, later, wanted in ((0.7, 1e9, 0.7), (1.0, 10, 1 - 0.5**0.5), (1.0, 60, 7 / 8)):
        pair = [TracedRequest(0.0, 5, 8), TracedRequest(later, 400, 8)]
        again = replace(shape, follow_share=follow, think=20 / math.log(2))
        made = [with_sessions(again, pair, draw) for _ in range(2000)]
        share = float(np.mean([one.session == other.session for one, other in made]))
        expect.that(
            abs(share - wanted) < 0.055,
            f"of 2,000 pairs, {later:g} s apart, {wanted:.0%} are one session",
            observed=share,
            given={"follow_share": follow, "think": again.think},
            cause="with probability follow_share a request goes on with a session that has waited "
            "for the time drawn, exponential of mean `think`",
        )
    wide = replace(shape, follow_share=1.0, common=3)
    for one, other in ((5, 900), (900, 5)):
        three = [TracedRequest(0.0, one, 8), TracedRequest(0.0, other, 8)]
        found = with_sessions(wide, [*three, TracedRequest(1e9, 50, 8)], draw)
        expect(
            found[2].session,
            found[one > other].session,
            call=f"with_sessions, prompts of {one} and {other}, much later one of 50: its session",
            cause="only the session of the prompt of 5 fits, and it has waited for long",
        )
    pair = [TracedRequest(0.0, 20, 8), TracedRequest(1e9, 100, 8)]
    [first, second] = with_sessions(wide, pair, draw)
    expect(
        [list(first.blocks), list(second.blocks[:3]), len(set(second.blocks))],
        [[0, 1], [0, 1, 2], 7],
        call="with_sessions, three common blocks of 16, prompts of 20 and 100 tokens: the blocks "
        "of the first, the first three of the second, how many it has",
        cause="the common blocks stay, also where the prompt before had not all of them",
    )
    trace = generate(MOONCAKE, 60.0, seed)
    expect.that(all(r.session and r.blocks for r in trace), "each request has a session and blocks")

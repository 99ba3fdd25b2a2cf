"""Hidden scenarios of lab 13: other paths than those of the visible checks."""

from grader.checks.scenarios import scenario

# task 1


@scenario(task=1)
def files_of_three_forms(nanovllm, rng):
    """Whole files through `load`, written in another order, compressed or not; and broken ones.

    Some requests failed, and some belong to a session, of which one is called 0.
    """
    import gzip
    import json
    import re
    import tempfile
    from pathlib import Path

    from nanovllm.observability.errors import TraceError
    from nanovllm.observability.files import load, write_jsonl

    count = int(rng.integers(3, 9))
    prompts, outputs = rng.integers(1, 999, count).tolist(), rng.integers(0, 99, count).tolist()
    outputs[int(rng.integers(count))] = 0
    stamps = rng.permutation(rng.integers(0, 60, count)).tolist()
    names = rng.permutation(["", "0", "7", *["s1"] * (count - 3)]).tolist()
    tail = f"{int(rng.integers(1000)):03d}"  # so that no time is between two of four digits
    azure = ["TIMESTAMP,ContextTokens,GeneratedTokens"] + [
        f"2023-11-16 18:17:{s:02d}.{int(rng.integers(10**4)):04d}{tail},{p},{o}"
        for s, p, o in zip(stamps, prompts, outputs, strict=True)
    ]
    burst = ["Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens"] + [
        f"{s},{name},GPT-4,{p},{o},{p + o}"
        for s, p, o, name in zip(stamps, prompts, outputs, names, strict=True)
    ]
    moon = [
        {"timestamp": 1000 * s, "input_length": p, "output_length": o, "hash_ids": [s]}
        | ({"session_id": int(name) if name.isdigit() else name} if name else {})
        for s, p, o, name in zip(stamps, prompts, outputs, names, strict=True)
    ]
    place = int(rng.integers(count))
    worse = [row | ({"hash_ids": None} if i == place else {}) for i, row in enumerate(moon)]
    bad = list(burst)
    bad[place + 1] = "7,,GPT-4,-777,3,8"
    wrong = {"d.csv": place + 2, "e.jsonl": place + 1}  # the lines
    story = []
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in {
            "a.csv": azure,
            "b.csv.gz": burst,
            "c.jsonl": [json.dumps(row) for row in moon],
            "d.csv": bad,
            "e.jsonl": [json.dumps(row) for row in worse],
        }.items():
            path, text = Path(folder) / name, "\n".join(lines) + "\n"
            path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
            try:
                found = load(path)
            except TraceError as error:
                named = re.search(rf"\b{wrong.get(name)}\b", str(error)) is not None
                story.append([name, "refused", named])
                continue
            rows = [[round(r.time, 4), r.prompt, r.output, r.session, r.ok] for r in found]
            story.append([name, rows])
            write_jsonl(found, Path(folder) / "again.jsonl")
            again = load(Path(folder) / "again.jsonl")
            story.append([[round(r.time, 4), r.prompt, r.session, list(r.blocks)] for r in again])
    return {"story": story}


@scenario(task=1)
def made_up_traces(nanovllm, rng):
    """A shape of one's own: exact quantiles, and which bounds a generated trace keeps."""
    from dataclasses import replace

    import numpy as np

    from nanovllm.observability.generator import at, generate
    from nanovllm.observability.shapes import AZURE_CODE, MARKS

    prompts = tuple(np.sort(rng.uniform(1, 9000, len(MARKS))).tolist())
    shape = replace(AZURE_CODE, prompts=prompts, pause_share=0.5, pause_mean=20.0, burst_most=30)
    shares = rng.random(40).tolist()
    trace = generate(shape, 900.0, int(rng.integers(1000)), rate=4.0)
    lengths = sorted(r.prompt for r in trace)
    near = [
        bool(abs(lengths[int(share * (len(lengths) - 1))] / at(prompts, share) - 1) < 0.05)
        for share in (0.1, 0.3, 0.5, 0.8, 0.95)
    ]
    times = np.array([r.time for r in trace])
    gaps = np.diff(times)
    return {
        "quantiles": [at(prompts, share) for share in shares],
        "requests": len(trace),
        "lengths near": near,
        "in order": bool((gaps >= 0).all()),
        "first": trace[0].time,
        "silent": bool(0.3 < gaps[gaps > 2.5].sum() / 900 < 0.7),
        "same again": generate(shape, 900.0, 5, 4.0) == generate(shape, 900.0, 5, 4.0),
    }


@scenario(task=1)
def draws_in_equal_parts(nanovllm, rng):
    """One draw in each part, in no order; and bursts whose sizes say what their tail is."""
    import random
    from itertools import pairwise

    from nanovllm.observability.generator import burst_sizes, parts, stratified
    from nanovllm.observability.shapes import Shape

    draw = random.Random(int(rng.integers(2**30)))
    count, most = int(rng.integers(300, 600)), int(rng.integers(3, 7))
    total = float(rng.uniform(9, 99))
    shares = stratified(count, draw)
    rising = sum(a < b for a, b in pairwise(shares)) / count
    tail = float(rng.uniform(0.5, 1.2))
    shape = Shape("x", 1.0, (), (), burst_tail=tail, burst_most=most)
    sizes = burst_sizes(shape, 40_000, draw)
    reach = [sum(size >= k for size in sizes) / len(sizes) for k in range(2, most + 1)]
    return {
        "parts": sorted(int(share * count) for share in shares),
        "in no order": bool(0.3 < rising < 0.7),  # by twelve deviations
        "lengths": [sum(parts(total, n, draw)) for n in (1, 2, count)],
        "all": [sum(burst_sizes(shape, n, draw)) for n in (1, most, count)],
        "least and most": [min(sizes), max(sizes)],
        "as the tail says": [abs(p - k**-tail) < 0.03 for k, p in enumerate(reach, 2)],
    }


@scenario(task=1)
def arrivals_of_all_kinds(nanovllm, rng):
    """Cycles in a busy time that one pause cuts, gaps within bursts, and bundles.

    Whatever is drawn: bounds are more than five deviations from what right code makes.
    """
    import math
    import random
    from dataclasses import replace

    import numpy as np

    from nanovllm.observability.generator import arrival_times
    from nanovllm.observability.shapes import Shape

    draw = random.Random(int(rng.integers(2**30)))
    plain, story = Shape("x", 1.0, (), ()), []
    for _ in range(3):
        seconds, share = float(rng.integers(800, 1500)), float(rng.uniform(0.4, 0.6))
        pause, swing = seconds * share, float(rng.uniform(0.6, 0.9))
        cycle = (seconds - pause) / int(rng.integers(3, 9))
        shape = replace(plain, pause_share=share, pause_mean=pause * float(rng.uniform(0.7, 1.4)),
                        swing=swing, cycle_seconds=cycle)  # fmt: skip
        times = np.array(arrival_times(shape, 8000, seconds, draw))
        gaps = np.diff(times, prepend=0.0, append=seconds)
        busy = times - pause * np.cumsum(gaps > 0.9 * pause)[:-1]
        early = float(np.mean(busy % cycle < cycle / 2))
        one = (gaps > 0.9 * pause).sum() == 1 and pause * 0.999 < gaps.max() < pause + 30
        story.append([len(times) == 8000, bool(one), abs(early - 0.5 - swing / math.pi) < 0.035])
    gap = float(rng.uniform(0.1, 0.5))
    shape = replace(plain, burst_tail=0.1, burst_most=50, burst_gap=gap)
    inside = np.diff(arrival_times(shape, 3000, 1e6, draw)) / gap
    inside = inside[inside < 40]
    story.append([abs(inside.mean() - 1) < 0.2, abs((inside > 2).mean() - math.exp(-2)) < 0.05])
    bundle, bundles = int(rng.integers(2, 90)), int(rng.integers(2, 5))
    times = arrival_times(replace(plain, bundle=float(bundle)), 500, bundle * bundles, draw)
    return {"story": [[bool(x) for x in row] for row in story], "bundles": sorted({*times})}


@scenario(task=1)
def turns_of_sessions(nanovllm, rng):
    """Few requests, of which each goes on with the one session that it can, or with none.

    Names are free; blocks and sessions are numbered by when they are first seen.
    """
    import math
    import random

    from nanovllm.observability.generator import with_sessions
    from nanovllm.observability.shapes import Shape
    from nanovllm.observability.trace import TracedRequest

    draw = random.Random(int(rng.integers(2**30)))
    story = []
    for kind in rng.permutation(["fits", "too long", "short", "taken", "no time"] * 2).tolist():
        block, common = int(rng.integers(2, 40)), int(rng.integers(2, 5))
        shape = Shape("x", 1.0, (), (), follow_share=1.0, think=9.0, common=common, block=block)
        outputs = rng.integers(2, 30, 3).tolist()
        first = block * int(rng.integers(common + 1, 9)) + int(rng.integers(block))
        if kind == "short":
            first = int(rng.integers(block + 1, common * block + 1))
        second = first + outputs[0] - (kind == "too long")
        if kind not in ("fits", "too long"):
            second += int(rng.integers(5 * block))
        third = second + outputs[1] - (1 if kind == "taken" else -int(rng.integers(5 * block)))
        step = 0.0 if kind == "no time" else 1e9
        prompts = [first, second, third][: 2 if kind in ("too long", "no time") else 3]
        given = [TracedRequest(step * i, p, outputs[i]) for i, p in enumerate(prompts)]
        blocks, sessions = {i: i for i in range(common)}, {}
        story += [
            [kind, r.time, r.prompt, r.output, sessions.setdefault(r.session, len(sessions)),
             [blocks.setdefault(name, len(blocks)) for name in r.blocks]]
            for r in with_sessions(shape, given, draw)
        ]  # fmt: skip
    think, far = float(rng.uniform(5, 50)), []
    for follow, later, wanted in ((1.0, math.log(2), 1 / 2), (1.0, math.log(8), 7 / 8),
                                  (0.6, 1e9, 0.6)):  # fmt: skip
        shape = Shape("x", 1.0, (), (), follow_share=follow, think=think)
        pair = [TracedRequest(0.0, 5, 8), TracedRequest(later * think, 400, 8)]
        made = [with_sessions(shape, pair, draw) for _ in range(3000)]
        share = sum(one.session == other.session for one, other in made) / len(made)
        far.append(abs(share - wanted) < 0.055)  # by six deviations
    return {"story": story, "as often as asked": far}


# task 2


@scenario(task=2)
def a_day_in_figures(nanovllm, rng):
    """Figures of arrivals in bursts, in windows of many lengths."""
    from nanovllm.observability import analysis

    starts = rng.uniform(0, 5000, 40)
    offsets = [rng.uniform(0, 3, int(rng.integers(1, 30))) for _ in starts]
    times = sorted(float(s + o) for s, more in zip(starts, offsets, strict=True) for o in more)
    lengths = rng.zipf(1.7, len(times)).clip(1, 10**6).astype(float).tolist()
    gaps = analysis.gaps(times)
    return {
        "cv": [analysis.variation(gaps), analysis.variation(lengths)],
        "peaks": [analysis.peak_to_mean(times, w) for w in (0.25, 1.0, 60.0, 1e5)],
        "dispersion": [analysis.dispersion(times, w) for w in (0.25, 1.0, 60.0)],
        "counts": analysis.counts(times, 700.0),
        "ccdf": [list(point) for point in analysis.ccdf(lengths)][:20],
        "top": [analysis.top_share(lengths, share) for share in (0.001, 0.01, 0.33, 0.999)],
    }


@scenario(task=2)
def conversations(nanovllm, rng):
    """Sessions that begin alike and grow, read by caches of every size.

    Now and then a prompt has another block in its midst, and what stood behind it before.
    """
    from nanovllm.observability.analysis import prefix_hits, session_growth
    from nanovllm.observability.trace import TracedRequest

    state: dict[str, list[int]] = {}
    trace, new = [], 100
    for number in range(120):
        name = str(int(rng.integers(9)))
        chain = state.get(name, [0, 1][: int(rng.integers(1, 3))])
        cut = int(rng.integers(len(chain) + 1)) if rng.random() < 0.2 else len(chain)
        more = int(rng.integers(0, 4))
        chain = chain[:cut] + list(range(new, new + more))
        new += more
        state[name] = chain if rng.random() < 0.9 else []
        if number % 8 == 3:
            trace.append(TracedRequest(float(number), 99, 1, "", (*chain, new, new + 1, new + 2)))
            chain = [*chain, new + 3, new + 1, new + 2]
            new += 4
        trace.append(
            TracedRequest(float(number), 16 * len(chain) + 1, 1, name if number % 7 else "",
                          tuple(chain))
        )  # fmt: skip
    sizes = [0, 1, 2, 4, 7, 12, 20, 33, 60, 99, None]
    return {
        "hits": [list(prefix_hits(trace, size)) for size in sizes],
        "growth": session_growth(trace),
    }


# task 3


def _trace(rng, count, seconds, longest):
    from nanovllm.observability.trace import TracedRequest

    times = sorted(rng.uniform(0, seconds, count).tolist())
    return [
        TracedRequest(t, int(rng.integers(1, longest)), int(rng.integers(0, 20))) for t in times
    ]


def _or_refused(call):
    from nanovllm.observability.errors import CapacityError

    try:
        return call()
    except CapacityError:
        return "refused"


def _says(text, *values):
    """Whether a text has one of these numbers, however it is rounded."""
    import re

    words = re.findall(r"\d[\d,]*\.?\d*(?:e[-+]?\d+)?", text)
    numbers = [float(word.replace(",", "")) for word in words]
    return any(
        abs(number - value) <= max(0.06 * value, 0.5 * (value > 1))
        for number in numbers
        for value in values
    )


@scenario(task=3)
def fleets(nanovllm, rng):
    """Bursts on few and many replicas; a store so small that requests are preempted.

    Stores that just hold the longest request, or just do not; replicas that are always busy.
    """
    from nanovllm.batching.simulator import StepCost
    from nanovllm.observability import capacity
    from nanovllm.observability.capacity_interface import Replica
    from nanovllm.observability.trace import TracedRequest

    trace = _trace(rng, 50, 2.0, 120) + _trace(rng, 25, 0.1, 60)
    trace.append(TracedRequest(1.0, 120, int(rng.integers(20, 40))))
    cost = StepCost(*(rng.uniform(0.5, 1.5, 3) * [0.01, 0.0005, 0.00002]).tolist())
    story = []
    for limits in ((180, 8, 64), (600, 20, 20), (5000, 4, 300)):
        replica = Replica(cost, *limits)
        story.append(capacity.mean_replicas(trace, replica, float(rng.uniform(0.2, 0.9))))
        for n in (1, int(rng.integers(2, 7)), 40):
            found = capacity.simulate_replicas(trace, replica, n)
            story.append([found.ttft_p99, found.tpot_p99, found.busy, found.preemptions])
    for share in rng.permutation([0.0, 1.0, float(rng.uniform(0.3, 0.7))]).tolist():
        replica = Replica(cost, int(rng.integers(9, 30)))  # it does not hold a mean request
        story.append(_or_refused(lambda s=share, r=replica: capacity.mean_replicas(trace, r, s)))
    longest = 120 + trace[-1].output - 1
    for room in (longest - 1, longest):
        small = Replica(cost, room)
        story.append(_or_refused(lambda r=small: capacity.simulate_replicas(trace, r, 2).ttft_p99))
    return {"story": story}


@scenario(task=3)
def plans_and_reasons(nanovllm, rng):
    """Objectives between what one replica reaches and what many do; what nobody reaches."""
    from nanovllm.batching.simulator import StepCost
    from nanovllm.observability import capacity
    from nanovllm.observability.capacity_interface import Replica, Slo
    from nanovllm.observability.errors import CapacityError

    trace, burst = _trace(rng, 60, 1.5, 200), _trace(rng, 120, 0.05, 200)
    replica = Replica(StepCost(0.01, 0.0008, 0.00001), 3000, 12, 100)
    tpot = sum(capacity.simulate_replicas(trace, replica, n).tpot_p99 for n in (1, 30)) / 2
    ttft = 1.001 * capacity.simulate_replicas(burst, replica, 30).ttft_p99
    story = []
    for given, *objective in (
        (trace, 0.3, 9.0),
        (trace, 99.0, tpot),
        (burst, ttft, 99.0),
        (trace, float(rng.uniform(0.2, 2)), 0.3),
    ):
        plan = capacity.plan_replicas(given, replica, Slo(*objective))
        n, fewer = plan.replicas, plan.tried.get(plan.replicas - 1)
        pairs = zip((fewer.ttft_p99, fewer.tpot_p99), objective, strict=True) if fewer else ()
        missed = [x for value, most in pairs if value > most for x in (value, 1000 * value)]
        story.append([
            plan.tried[n].keeps(Slo(*objective)),
            n == 1 or not plan.tried[n - 1].keeps(Slo(*objective)),
            plan.tried[n] == capacity.simulate_replicas(given, replica, n),
            plan.by_mean,
            len(plan.tried) <= 14,
            _says(plan.reason, n) and (n == 1 or _says(plan.reason, *missed)),
        ])  # fmt: skip
    slow = Replica(StepCost(float(rng.uniform(0.15, 0.3)), 0.0008, 0.00001), 3000, 12, 100)
    reached = capacity.simulate_replicas(trace, slow, 3)
    try:
        capacity.plan_replicas(trace, slow, Slo(0.001, 9.0), most=3)
    except CapacityError as error:
        values = reached.ttft_p99, reached.tpot_p99
        story.append(["refused", *(_says(str(error), x, 1000 * x) for x in values)])
    return {"story": story}


@scenario(task=3)
def settings_and_prices(nanovllm, rng):
    """Settings with a figure for each, some of them just allowed; and what it costs."""
    from nanovllm.observability import capacity
    from nanovllm.observability.capacity_interface import Slo
    from nanovllm.observability.cards import CARDS, LLAMA_8B, Card, ModelSize, step_cost
    from nanovllm.observability.trace import TracedRequest

    story = []
    for name, longest, fastest in (
        ("h100", int(rng.integers(50, 200)), 0.3),
        ("h100", int(rng.integers(2000, 9000)), 0.005),
        ("a100", int(rng.integers(2000, 9000)), 0.005),
        ("l4", int(rng.integers(2000, 9000)), 0.005),
    ):
        trace, card = _trace(rng, 32, 9.0, longest), CARDS[name]
        headroom, slo = float(rng.uniform(0, 0.2)), Slo(1.0, float(rng.uniform(fastest, 0.4)))
        found = capacity.choose_settings(trace, LLAMA_8B, card, slo, headroom)
        numbers = (found.kv_tokens, found.block_size, found.max_num_seqs,
                   found.max_num_batched_tokens)  # fmt: skip
        mean = sum(r.prompt + max(r.output, 1) for r in trace) / len(trace)
        step = step_cost(LLAMA_8B, card).seconds(found.max_num_batched_tokens, found.kv_tokens)
        figures = {"kv_tokens": [card.memory / 1e9], "block_size": [mean],
                   "max_num_batched_tokens": [step, 1000 * step],
                   "max_num_seqs": [found.kv_tokens / mean, found.kv_tokens // mean]}  # fmt: skip
        said = [_says(found.reasons.get(what, ""), *values) for what, values in figures.items()]
        story.append([*numbers, *said])
    even = Card("even", 2.0**40, 2.0**47, 2.0**40, 0.5)  # all sums are exact
    whole, room = ModelSize("w", 2**34, 2**17, 2**34), 63 * 2**17
    block, budget, more = 2 ** int(rng.integers(4, 8)), 2 ** int(rng.integers(8, 12)), 90
    trace = [TracedRequest(0.0, 50 * block - more, more), TracedRequest(1.0, 50 * block - 1, 1)]
    just = Slo(1.0, 2.0**-6 + budget * 2.0**-12 + room * 2.0**-23)
    found = capacity.choose_settings(trace, whole, even, just, 0.0)
    story.append([found.block_size, found.max_num_batched_tokens, found.max_num_seqs])
    output = int(rng.integers(2, 99))
    for prompt in (room - output + 1, room - output + 2):
        longest = [*trace, TracedRequest(2.0, prompt, output)]
        story.append(
            _or_refused(
                lambda t=longest: capacity.choose_settings(t, whole, even, just, 0.0).kv_tokens
            )
        )
    trace = _trace(rng, 60, 1.5, 200)
    bill = capacity.bill(trace, int(rng.integers(1, 9)), float(rng.uniform(1, 9)))
    return {"story": story, "bill": [bill.an_hour, bill.a_month, bill.a_million]}


# task 4


@scenario(task=4)
def spans_of_an_engine(nanovllm, rng):
    """A day of events in one stream: samples, preemptions, errors, callers, strangers.

    Samples arrive one after the other; of one request the first is the last.
    """
    from itertools import count

    from nanovllm.batching.events import Aborted, Admitted, Failed, Preempted, Queued
    from nanovllm.generation.events import Completion, Finished, TokenGenerated
    from nanovllm.observability.span import RequestInfo
    from nanovllm.observability.spans import SpanBuilder
    from nanovllm.observability.trace_context import TraceContext

    builder, events = SpanBuilder(count(1).__next__), []
    late, alone = 900 + rng.permutation(8)[:2]
    for request in range(900, 908):
        samples = int(rng.integers(2 if request == late else 1, 4))
        called = request != alone and rng.random() < 0.5
        context = TraceContext(1000 + request, 2000 + request) if called else None
        builder.begin(RequestInfo(request, f"m{request % 2}", 7, samples, context=context))
        arrived = float(rng.integers(0, 40)) / 4
        turns = range(samples)[::-1] if request == late else rng.permutation(samples).tolist()
        for index, turn in enumerate(turns):
            now = arrived + turn / 4
            events.append(Queued(request, index, now))
            for _ in range(int(rng.integers(1, 4))):
                now += float(rng.integers(0, 8)) / 4
                events.append(Admitted(request, index, now))
                for _ in range(int(rng.integers(0, 4))):
                    now += float(rng.integers(1, 8)) / 4
                    events.append(TokenGenerated(request, index, 1, "", now))
                now += float(rng.integers(1, 8)) / 4
                events.append(Preempted(request, index, now))
            now += 0.5
            ends = (
                Finished(request, index, Completion(index, (1,), "", "length"), now),
                Aborted(request, index, (), "", now),
                Failed(request, index, KeyError("x"), now),
            )
            events.append(ends[int(rng.integers(3))])
    order = sorted(range(len(events)), key=lambda i: (events[i].time, i))
    spans = [span for i in order for span in builder.on(events[i])]
    names = {span.span_id: span.attributes["nanovllm.request_id"] for span in spans}
    traces = {span.trace_id for span in spans if span.trace_id < 1000}
    strange = [name for name in traces if 900 <= name < 908]
    found = []
    for span in spans:
        request = span.attributes["nanovllm.request_id"]
        parent = names.get(span.parent_id, span.parent_id)
        sample = span.attributes.get("nanovllm.sample", -1)
        known = span.trace_id if span.trace_id >= 1000 else 0
        rest = {k: v for k, v in span.attributes.items() if k.startswith(("gen_ai", "error"))}
        times = [span.start, span.end]
        what = [span.name, span.kind, span.status, parent, known, sorted(rest.items())]
        found.append([request, sample, *times, *what])
    return {
        "spans": sorted(found, key=repr),
        "own traces": len(traces),
        "of a request's number": strange,
        "ids": len(names),
    }


@scenario(task=4)
def headers(nanovllm, rng):
    """Headers with a letter changed here and there, without one of the ids, or with more parts."""
    from nanovllm.observability.trace_context import format_traceparent, parse_traceparent

    story = []
    for _ in range(200):
        digits = "".join(rng.choice(list("0123456789abcdef"), 48))
        version, flags = rng.choice(["00", "00", "01", "ff"]), rng.choice(["01", "00", "ff", "10"])
        header = f"{version}-{digits[:32]}-{digits[32:]}-{flags}"
        place = int(rng.integers(len(header)))
        change = rng.choice(["", "", "", "A", "-", "g", "00", "0"])
        header = header[:place] + change + header[place + (len(change) == 1) :]
        story.append(header)
    digits = "".join(rng.choice(list("123456789abcdef"), 48))
    trace, span = digits[:32], digits[32:]
    for header in (
        f"00-{'0' * 32}-{span}-01", f"00-{trace}-{'0' * 16}-01", f"00-{trace}-{span}-01-",
        f"00-{trace}-{span}-01-{span}", f"0{int(rng.integers(1, 9))}-{trace}-{span}-01-{span}",
    ):  # fmt: skip
        story.insert(int(rng.integers(len(story))), header)
    found = [parse_traceparent(header) for header in story]
    return {"headers": [None if one is None else format_traceparent(one) for one in found]}


# task 5


@scenario(task=5)
def scrapes(nanovllm, rng):
    """Uneven scrapes with restarts, at many moments and windows.

    After a restart something may have been counted before the next scrape.
    """
    from nanovllm.observability import queries
    from nanovllm.observability.series import Sample, Series

    series = []
    for number in range(4):
        time, value, samples = float(rng.uniform(0, 5)), float(rng.integers(0, 30)), []
        for _ in range(40):
            time += float(rng.choice([5.0, 5.0, 5.0, 15.0, 40.0]))
            anew = value > 0 and rng.random() < 0.1
            value = float(rng.integers(0, value)) if anew else value + float(rng.integers(0, 12))
            samples.append(Sample(time, value))
        series.append(Series({"i": str(number % 3), "z": "q"}, samples))
    moments = [(float(rng.uniform(0, 400)), float(rng.uniform(4, 200))) for _ in range(25)]
    rates = [queries.rate(one.samples, at, w) for one in series for at, w in moments]
    sums = [sorted((list(k), v) for k, v in queries.sum_rates(series, at, w, ["i"]).items())
            for at, w in moments]  # fmt: skip
    burns = [queries.burn_rate(series[:1], series, 0.99, at, w) for at, w in moments]
    return {"rates": rates, "sums": sums, "burns": burns}


@scenario(task=5)
def histograms(nanovllm, rng):
    """Buckets of several replicas, with edges below 0, counts that fall, and empty ones."""
    from nanovllm.observability.queries import histogram_quantile, quantile_over
    from nanovllm.observability.series import Sample, Series

    def drawn(edges, kind):
        counts = rng.integers(0, 9, len(edges) + 1).cumsum() + (rng.random() < 0.3)
        if kind in ("falls", "falls at last"):  # below the count before it
            counts += range(1, len(counts) + 1)
            place = -1 if kind == "falls at last" else int(rng.integers(1, len(counts)))
            counts[place] = rng.integers(0, counts[place - 1])
        elif kind == "empty below":
            counts[0] = 0
        return {str(e): float(c) for e, c in zip([*edges, "+Inf"], counts, strict=True)}

    story = []
    for kind in rng.permutation(["falls"] * 3 + ["falls at last"] * 3 + ["empty below"] * 3
                                + ["usual"] * 11):  # fmt: skip
        edges = sorted({round(float(e), 2) for e in rng.normal(2, 3, int(rng.integers(1, 7)))})
        if kind != "usual":
            edges = [round(float(e), 2) for e in rng.uniform(0.2, 2, 4).cumsum()]
        buckets = drawn(edges, kind)
        found = [histogram_quantile(q, buckets) for q in (0.0, 0.25, 0.5, 0.9, 1.0, -0.5, 2.0)]
        story += [repr(round(float(value), 9) + 0.0) for value in found]  # NaN equals NaN as text
        series = [
            Series({"le": le, "instance": i}, [Sample(0.0, 0.0), Sample(30.0, count)])
            for i, its in {"a": buckets, "b": drawn(edges, kind)}.items()
            for le, count in its.items()
        ]
        story.append(repr(round(float(quantile_over(series, 0.75, 30.0, 30.0)), 9) + 0.0))
    return {"story": story}


# task 6


@scenario(task=6)
def rules_of_a_service(nanovllm, rng):
    """Objectives of one's own: what fires when, over a day with good and bad hours.

    Two replicas; the metrics have series besides those that are meant. At hour 20 all goes
    silent, and without its series an error has never been counted.
    """
    from grader.checks.promql_values import value_of
    from nanovllm.observability.alerts import (
        BurnWindow,
        Objective,
        burn_alerts,
        error_share,
        rule_file,
    )
    from nanovllm.observability.errors import ObservabilityError
    from nanovllm.observability.promql import metric

    folder = f"pages/{int(rng.integers(1000))}"
    objective = Objective("Errors", metric("bad", code="500"), metric("all", path="/v1"), 0.95)
    windows = (BurnWindow("2h", "10m", float(rng.uniform(1, 5)), "1m", "page"),
               BurnWindow("8h", "1h", float(rng.uniform(0.8, 1.2)), "5m", "ticket"))  # fmt: skip
    times, bad, total = [], [0.0], [0.0]
    shares = rng.choice([0.0, 0.02, 0.1, 0.5], 24).tolist()
    loads = rng.choice([0.0, 5.0, 50.0], 24, p=[0.2, 0.4, 0.4]).tolist()
    hour = int(rng.integers(10, 18))
    loads[hour - 1 : hour + 1], shares[hour - 1 : hour + 1] = [50.0] * 2, [0.5, 0.02]
    loads[19:21] = [50.0, 0.0]
    for minute in range(24 * 60):
        times.append(60.0 * minute)
        load = 60 * loads[minute // 60]
        bad.append(bad[-1] + load * shares[minute // 60])
        total.append(total[-1] + load)
    bad, total = (list(zip(times, values, strict=False)) for values in (bad, total))
    data = {"bad": [], "all": []}
    probes = [(time, time) for time in times]
    for name in ("a", "b"):
        series = {"500": bad, "404": total}
        data["bad"] += [({"code": c, "instance": name}, line) for c, line in series.items()]
        series = {"/v1": total, "/health": probes}
        data["all"] += [({"path": p, "instance": name}, line) for p, line in series.items()]
    alerts = burn_alerts(objective, folder, windows)
    minutes = [60 * hour for hour in range(9, 20)] + [1200 + m for m in (3, 7, 9, 12, 40)]
    fired = [[bool(value_of(a.expr, data, 60.0 * m)) for a in alerts] for m in minutes]
    seen = []
    for window in ("10m", "2h"):
        for world in (data, {"all": data["all"]}):
            found = value_of(error_share(objective, window), world, 3600.0 * hour)
            seen.append(sorted(found.values()))
    made = rule_file({"b": alerts[:1], "a": alerts[1:]})["groups"]
    names = [[group["name"], [[r["alert"], r["for"], r["labels"], r["annotations"]["runbook_url"]]
                              for r in group["rules"]]] for group in made]  # fmt: skip
    twice = "taken"
    try:
        rule_file({"a": alerts, "b": alerts[int(rng.integers(3)) :]})
    except ObservabilityError:
        twice = "refused"
    return {
        "fired": fired,
        "nothing there": bool(value_of(alerts[-1].expr, {}, 3600.0)),
        "seen": seen,
        "rules": names,
        "twice": twice,
        "shares": shares,
        "loads": loads,
    }


@scenario(task=6)
def pages(nanovllm, rng):
    """Pages with rows of all kinds, as Grafana would read them."""
    from nanovllm.observability.dashboard import Panel, dashboard
    from nanovllm.observability.promql import rate

    rows = {}
    for name in ("fleet", "engine", "empty", "one request"):
        rows[name] = [
            Panel(f"{name} {i}", [(f"l{k}", rate("x_total", "5m").sum("le"))
                                  for k in range(int(rng.integers(1, 4)))],
                  "s", int(rng.integers(1, 25)), int(rng.integers(1, 12)), "note")
            for i in range(0 if name == "empty" else int(rng.integers(1, 8)))
        ]  # fmt: skip
    page = dashboard("T", "u", rows)
    seen = [
        [p["id"], p["type"], p["title"], sorted(p["gridPos"].items()),
         [[t["refId"], t["expr"], t["legendFormat"]] for t in p.get("targets", [])]]
        for p in page["panels"]
    ]  # fmt: skip
    return {"panels": seen, "keys": sorted(page)}


# task 7


@scenario(task=7)
def nights(nanovllm, rng):
    """Recordings of a thousand seconds with all kinds of trouble, some of it too short.

    And nights with one trouble each, of which some is just none, and what shows it.
    """
    import re
    from dataclasses import replace

    from nanovllm.observability.incidents import diagnose, first_held
    from nanovllm.observability.recording import Second

    story = []
    well = Second(5, 5, 0, 50, 8, 0, 0, 0.5)
    few, free = int(rng.integers(1, 9)), float(rng.uniform(0.5, 0.89))
    troubles = {
        "stuck": replace(well, tokens=0, running=few, waiting=few),
        "kept": replace(well, running=0, waiting=few, free=free),
        "pushed out": replace(well, preempted=5 + few),
        "failing": replace(well, finished=19 * few - 1, failed=few),
        "just not failing": replace(well, finished=19 * few, failed=few),
        "nobody ends": replace(well, finished=0),
    }
    for name in rng.permutation([*troubles]).tolist():
        start = int(rng.integers(20, 36))  # none of the figures
        night = [*[well] * start, *[troubles[name]] * int(rng.integers(10, 20))]
        finding = diagnose(night)
        story.append([name, finding.cause, finding.second])
        if finding.cause in ("hang", "thrash", "errors"):
            numbers = [float(n) for n in re.findall(r"\d+(?:\.\d+)?", finding.evidence)]
            now = troubles[name]
            figures = {
                "hang": (now.running, now.waiting, now.tokens),
                "thrash": (now.preempted, now.finished),
                "errors": (now.failed, now.finished),
            }[finding.cause]
            story.append([start in numbers, any(figure in numbers for figure in figures)])
    for _ in range(12):
        recording, waiting = [], 0
        while len(recording) < 120:
            kind, length = int(rng.integers(7)), int(rng.integers(1, 14))
            if rng.random() < 0.5:
                kind = 6
            for _ in range(length):
                waiting = waiting + 5 if kind == 4 else max(0, waiting - 9)
                recording.append(
                    Second(
                        arrived=5,
                        finished=0 if kind == 0 else 4,
                        failed=int(kind == 3),
                        tokens=0 if kind in (0, 1) else 50,
                        running=0 if kind == 1 else 3,
                        waiting=0 if kind == 1 else waiting,
                        preempted=5 if kind == 2 else 0,
                        free=0.5,
                        healthy=bool(rng.random() < 0.9),
                    )
                )
        finding = diagnose(recording)
        story.append([finding.cause, finding.second])
    signs = (rng.random(300) < 0.8).tolist()
    return {"found": story, "held": [first_held(signs, n) for n in (1, 3, 5, 9, 14, 40)]}

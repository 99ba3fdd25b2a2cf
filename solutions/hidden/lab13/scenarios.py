"""Hidden scenarios of lab 13: other paths than those of the visible checks."""

from grader.checks.scenarios import scenario

# task 1


@scenario(task=1)
def files_of_three_forms(nanovllm, rng):
    """Whole files through `load`, written in another order, compressed or not; and broken ones."""
    import gzip
    import json
    import tempfile
    from pathlib import Path

    from nanovllm.observability.errors import TraceError
    from nanovllm.observability.files import load, write_jsonl

    count = int(rng.integers(3, 9))
    prompts, outputs = rng.integers(1, 999, count).tolist(), rng.integers(0, 99, count).tolist()
    stamps = rng.permutation(rng.integers(0, 60, count)).tolist()
    azure = ["TIMESTAMP,ContextTokens,GeneratedTokens"] + [
        f"2023-11-16 18:17:{s:02d}.{int(rng.integers(10**7)):07d},{p},{o}"
        for s, p, o in zip(stamps, prompts, outputs, strict=True)
    ]
    burst = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"] + [
        f"{s},GPT-4,{p},{o},{p + o},API log"
        for s, p, o in zip(stamps, prompts, outputs, strict=True)
    ]
    moon = [
        json.dumps({"timestamp": 1000 * s, "input_length": p, "output_length": o, "hash_ids": [s]})
        for s, p, o in zip(stamps, prompts, outputs, strict=True)
    ]
    bad = list(burst)
    bad[int(rng.integers(1, len(bad)))] = "7,GPT-4,-5,3,8,API log"
    story = []
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in {
            "a.csv": azure,
            "b.csv.gz": burst,
            "c.jsonl": moon,
            "d.csv": bad,
        }.items():
            path, text = Path(folder) / name, "\n".join(lines) + "\n"
            path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
            try:
                found = load(path)
            except TraceError as error:
                story.append(
                    [name, "refused", [n for n in range(12) if f"line {n}:" in str(error)]]
                )
                continue
            story.append([name, [[round(r.time, 4), r.prompt, r.output, r.ok] for r in found]])
            write_jsonl(found, Path(folder) / "again.jsonl")
            again = load(Path(folder) / "again.jsonl")
            story.append([[round(r.time, 3), r.prompt, list(r.blocks)] for r in again])
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
    """Sessions that begin alike and grow, read by caches of every size."""
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
        trace.append(
            TracedRequest(float(number), 16 * len(chain) + 1, 1, name if number % 7 else "",
                          tuple(chain))
        )  # fmt: skip
    sizes = [1, 2, 4, 7, 12, 20, 33, 60, 99, None]
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


@scenario(task=3)
def fleets(nanovllm, rng):
    """Bursts on few and many replicas; a store so small that requests are preempted."""
    from nanovllm.batching.simulator import StepCost
    from nanovllm.observability import capacity
    from nanovllm.observability.capacity_interface import Replica
    from nanovllm.observability.errors import CapacityError

    trace = _trace(rng, 50, 2.0, 120) + _trace(rng, 25, 0.1, 60)
    cost = StepCost(*(rng.uniform(0.5, 1.5, 3) * [0.01, 0.0005, 0.00002]).tolist())
    story = []
    for limits in ((180, 8, 64), (600, 20, 20), (5000, 4, 300)):
        replica = Replica(cost, *limits)
        story.append(capacity.mean_replicas(trace, replica, float(rng.uniform(0.2, 0.9))))
        for n in (1, int(rng.integers(2, 7)), 40):
            found = capacity.simulate_replicas(trace, replica, n)
            story.append([found.ttft_p99, found.tpot_p99, found.busy, found.preemptions])
    try:
        story.append(capacity.simulate_replicas(trace, Replica(cost, 9), 2))
    except CapacityError:
        story.append("refused")
    return {"story": story}


@scenario(task=3)
def plans_and_prices(nanovllm, rng):
    """Plans for several objectives, and settings and prices that follow."""
    from nanovllm.batching.simulator import StepCost
    from nanovllm.observability import capacity
    from nanovllm.observability.capacity_interface import Replica, Slo
    from nanovllm.observability.cards import CARDS, LLAMA_8B
    from nanovllm.observability.errors import CapacityError

    trace = _trace(rng, 60, 1.5, 200)
    replica = Replica(StepCost(0.01, 0.0008, 0.00001), 3000, 12, 100)
    story = []
    for objective in ((0.3, 9.0), (9.0, 0.2), (float(rng.uniform(0.2, 2)), 0.3), (0.001, 1.0)):
        try:
            plan = capacity.plan_replicas(trace, replica, Slo(*objective), most=24)
        except CapacityError:
            story.append("refused")
            continue
        n = plan.replicas
        right = n == 1 or not plan.tried[n - 1].keeps(Slo(*objective))
        honest = plan.tried[n] == capacity.simulate_replicas(trace, replica, n)
        story.append([plan.tried[n].keeps(Slo(*objective)), right, honest, plan.by_mean])
    for name in ("h100", "a100", "l4"):
        headroom, slo = float(rng.uniform(0, 0.2)), Slo(1.0, float(rng.uniform(0.005, 0.4)))
        found = capacity.choose_settings(trace, LLAMA_8B, CARDS[name], slo, headroom)
        named = {*found.reasons} >= {"kv_tokens", "block_size", "max_num_seqs",
                                     "max_num_batched_tokens"}  # fmt: skip
        story.append([found.kv_tokens, found.block_size, found.max_num_seqs,
                      found.max_num_batched_tokens, named])  # fmt: skip
    bill = capacity.bill(trace, int(rng.integers(1, 9)), float(rng.uniform(1, 9)))
    return {"story": story, "bill": [bill.an_hour, bill.a_month, bill.a_million]}


# task 4


@scenario(task=4)
def spans_of_an_engine(nanovllm, rng):
    """A day of events in one stream: samples, preemptions, errors, callers, strangers."""
    from itertools import count

    from nanovllm.batching.events import Aborted, Admitted, Failed, Preempted, Queued
    from nanovllm.generation.events import Completion, Finished, TokenGenerated
    from nanovllm.observability.span import RequestInfo
    from nanovllm.observability.spans import SpanBuilder
    from nanovllm.observability.trace_context import TraceContext

    builder, events = SpanBuilder(count(1).__next__), []
    for request in range(8):
        samples = int(rng.integers(1, 4))
        context = TraceContext(1000 + request, 2000 + request) if rng.random() < 0.5 else None
        builder.begin(RequestInfo(request, f"m{request % 2}", 7, samples, context=context))
        arrived = float(rng.integers(0, 40)) / 4
        for index in range(samples):
            now = arrived
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
    return {"spans": sorted(found, key=repr), "own traces": len(traces), "ids": len(names)}


@scenario(task=4)
def headers(nanovllm, rng):
    """Headers with a letter changed here and there."""
    from nanovllm.observability.trace_context import format_traceparent, parse_traceparent

    story = []
    for _ in range(200):
        digits = "".join(rng.choice(list("0123456789abcdef"), 48))
        version, flags = rng.choice(["00", "00", "01", "ff"]), rng.choice(["01", "00", "ff", "10"])
        header = f"{version}-{digits[:32]}-{digits[32:]}-{flags}"
        place = int(rng.integers(len(header)))
        change = rng.choice(["", "", "", "A", "-", "g", "00", "0"])
        header = header[:place] + change + header[place + (len(change) == 1) :]
        found = parse_traceparent(header)
        story.append(None if found is None else format_traceparent(found))
    return {"headers": story}


# task 5


@scenario(task=5)
def scrapes(nanovllm, rng):
    """Uneven scrapes with restarts, at many moments and windows."""
    from nanovllm.observability import queries
    from nanovllm.observability.series import Sample, Series

    series = []
    for number in range(4):
        time, value, samples = float(rng.uniform(0, 5)), float(rng.integers(0, 30)), []
        for _ in range(40):
            time += float(rng.choice([5.0, 5.0, 5.0, 15.0, 40.0]))
            value = 0.0 if rng.random() < 0.1 else value + float(rng.integers(0, 12))
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

    story = []
    for _ in range(20):
        edges = sorted({round(float(e), 2) for e in rng.normal(2, 3, int(rng.integers(1, 7)))})
        counts = rng.integers(0, 9, len(edges) + 1).cumsum() + (rng.random() < 0.3)
        buckets = {str(e): float(c) for e, c in zip([*edges, "+Inf"], counts, strict=True)}
        found = [histogram_quantile(q, buckets) for q in (0.25, 0.5, 0.9, 1.0, -0.5, 2.0)]
        story += [repr(round(value, 9) + 0.0) for value in found]  # NaN equals NaN as text
        series = [
            Series({"le": le, "i": i}, [Sample(0.0, 0.0), Sample(30.0, count)])
            for i in "ab"
            for le, count in buckets.items()
        ]
        story.append(repr(round(quantile_over(series, 0.75, 30.0, 30.0), 9) + 0.0))
    return {"story": story}


# task 6


@scenario(task=6)
def rules_of_a_service(nanovllm, rng):
    """Objectives of one's own: what fires when, over a day with good and bad hours."""
    from grader.checks.promql_values import value_of
    from nanovllm.observability.alerts import BurnWindow, Objective, burn_alerts, rule_file
    from nanovllm.observability.promql import metric

    objective = Objective("Errors", metric("bad", code="500"), metric("all"), 0.95)
    windows = (BurnWindow("2h", "10m", float(rng.uniform(1, 5)), "1m", "page"),
               BurnWindow("8h", "1h", 1.0, "5m", "ticket"))  # fmt: skip
    times, bad, total = [], [0.0], [0.0]
    shares = rng.choice([0.0, 0.02, 0.1, 0.5], 24).tolist()
    loads = rng.choice([0.0, 5.0, 50.0], 24, p=[0.2, 0.4, 0.4]).tolist()
    for minute in range(24 * 60):
        times.append(60.0 * minute)
        load = 60 * loads[minute // 60]
        bad.append(bad[-1] + load * shares[minute // 60])
        total.append(total[-1] + load)
    data = {
        "bad": [({"code": "500"}, list(zip(times, bad, strict=False))),
                ({"code": "404"}, list(zip(times, total, strict=False)))],
        "all": [({}, list(zip(times, total, strict=False)))],
    }  # fmt: skip
    alerts = burn_alerts(objective, "docs", windows)
    fired = [
        [bool(value_of(alert.expr, data, 3600.0 * hour)) for alert in alerts]
        for hour in range(9, 24)
    ]
    made = rule_file({"b": alerts[:1], "a": alerts[1:]})["groups"]
    names = [[group["name"], [[r["alert"], r["for"], r["labels"]] for r in group["rules"]]]
             for group in made]  # fmt: skip
    return {"fired": fired, "rules": names, "shares": shares, "loads": loads}


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
    """Recordings of a thousand seconds with all kinds of trouble, some of it too short."""
    from nanovllm.observability.incidents import diagnose, first_held
    from nanovllm.observability.recording import Second

    story = []
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

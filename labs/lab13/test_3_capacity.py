"""Task 3: from a trace to replicas and their settings."""

import random
import re
from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from grader import expect
from nanovllm.batching.budget import FixedBudget
from nanovllm.batching.events import Preempted, Stepped
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import CountingStore
from nanovllm.batching.simulator import StepCost, simulate
from nanovllm.batching.traces import Arrival
from nanovllm.generation.latency import ManualClock
from nanovllm.observability.capacity import (
    bill,
    choose_settings,
    mean_replicas,
    plan_replicas,
    simulate_replicas,
)
from nanovllm.observability.capacity_interface import Replica, Slo
from nanovllm.observability.cards import CARDS, LLAMA_8B, Card, ModelSize
from nanovllm.observability.errors import CapacityError
from nanovllm.observability.trace import TracedRequest

COST = StepCost(base=0.01, per_token=0.001, per_place=0.00001)


def requests(seed, count, seconds, prompt=60, output=12):
    """Random times and lengths, in order."""
    draw = random.Random(seed)
    times = sorted(draw.uniform(0, seconds) for _ in range(count))
    return [
        TracedRequest(t, draw.randint(1, 2 * prompt), draw.randint(0, 2 * output)) for t in times
    ]


def replayed(trace, replica, n):
    """What lab 04's simulator says of n replicas: lines, runs."""
    runs = []
    for i in range(n):
        mine = [Arrival(r.time, r.prompt, max(1, r.output)) for r in trace[i::n]]
        room, budget = CountingStore(replica.kv_tokens), FixedBudget(replica.max_num_batched_tokens)
        most, clock = replica.max_num_seqs, ManualClock()
        scheduler = Scheduler(room, None, budget, max_num_seqs=most, clock=clock)
        if mine:
            runs.append(simulate(mine, scheduler, replica.cost))
    return [line for run in runs for line in run.timelines], runs


def says(text, *values):
    """Whether a text has one of these values, however it is rounded."""
    numbers = [
        float(word.replace(",", "")) for word in re.findall(r"\d[\d,]*\.?\d*(?:e[-+]?\d+)?", text)
    ]
    return any(
        abs(number - value) <= max(0.06 * value, 0.5 * (value > 1))
        for number in numbers
        for value in values
    )


def p99(values):
    return float(np.percentile(values, 99)) if values else 0.0


@pytest.mark.check(task=3, points=4, title="Replicas by mean values")
def test_mean(seed):
    found, expected, given = [], [], []
    for number in range(6):
        trace = requests(seed + number, 200, 10.0 + 7 * number)
        replica = Replica(COST, (20, 90, 700, 9000, 90, 700)[number], 32, 128)
        p = sum(r.prompt for r in trace) / 200
        o = sum(max(r.output, 1) for r in trace) / 200
        rows = max(1.0, min(32, replica.kv_tokens / (p + o)))
        work = p * (0.001 + 0.01 / 128) + (o - 1) * (0.001 + 0.01 / rows + 1e-5 * (p + o / 2))
        seconds = trace[-1].time - trace[0].time
        moved = [replace(r, time=r.time + 1000) for r in trace]
        for utilisation in (0.05, 0.5, 0.95):
            found.append(mean_replicas(trace, replica, utilisation))
            found.append(mean_replicas(moved, replica, utilisation))
            expected += [max(1, ceil(200 * work / seconds / utilisation))] * 2
        given.append({"prompt": p, "output": o, "rows": rows, "work": work, "seconds": seconds})
    expect(
        found,
        expected,
        call="mean_replicas of six traces, each from 0 s and from 1,000 s on, for a utilisation of "
        "0.05, 0.5, 0.95",
        given={"first trace, of 200 requests": given[0]},
        cause="requests * work / seconds / utilisation, rounded up; the first token comes with the "
        "prompt; seconds are from the first arrival to the last",
    )
    one = [TracedRequest(3.0, 50, 5)]
    expect(mean_replicas(one, replica), 1, call="mean_replicas of one request")
    expect(mean_replicas(one * 40, replica), 1, call="mean_replicas at one moment")
    expect(mean_replicas([], replica), 1, call="mean_replicas([], replica)")


@pytest.mark.check(task=3, points=1, title="Nobody plans to be busy all the time")
def test_utilisation(seed):
    trace = requests(seed, 20, 5.0)
    for wrong in (1.0, 0.0, 1.5, -0.5):
        expect.raises(
            CapacityError,
            lambda wrong=wrong: mean_replicas(trace, Replica(COST, 900), wrong),
            call=f"mean_replicas(trace, replica, {wrong})",
            cause="a replica that is busy for 100 % of the time has a queue that only grows",
        )


@pytest.mark.check(task=3, points=3, title="One replica is lab 04's simulator")
def test_one_replica(seed):
    for number, limits in enumerate(((5000, 16, 64), (400, 16, 256), (5000, 3, 64))):
        trace, replica = requests(seed + number, 60, 4.0), Replica(COST, *limits)
        lines, _ = replayed(trace, replica, 1)
        found = simulate_replicas(trace, replica, 1)
        given = {"kv_tokens, max_num_seqs, max_num_batched_tokens": limits}
        expect(
            [found.replicas, found.ttft_p99],
            [1, p99([line.ttft for line in lines])],
            call="simulate_replicas(trace, replica, 1): replicas, ttft_p99",
            given=given,
            cause="the limits are the replica's, the policy is first come first served, the "
            "budget fixed",
            rtol=1e-9,
        )
        expect(
            found.tpot_p99,
            p99([line.tpot for line in lines if line.tpot is not None]),
            call="simulate_replicas(trace, replica, 1).tpot_p99",
            given=given,
            cause="requests of one token have no TPOT",
            rtol=1e-9,
        )
    ones = [TracedRequest(i / 9, 30, i % 2) for i in range(9)]
    expect(
        simulate_replicas(ones, replica, 1).tpot_p99,
        0.0,
        call="tpot_p99, when all answers have one token or none",
        cause="an output of 0 counts as 1",
    )


@pytest.mark.check(task=3, points=5, title="Many replicas, one percentile")
def test_many_replicas(seed):
    for number, n in enumerate((2, 3, 5, 9)):
        trace, replica = requests(seed + number, 70, 3.0), Replica(COST, 900, 16, 96)
        lines, _ = replayed(trace, replica, n)
        mixed = list(trace)
        random.Random(seed).shuffle(mixed)
        for what, given in (("trace", trace), ("trace, not in order", mixed)):
            found = simulate_replicas(given, replica, n)
            expect(
                [found.replicas, found.ttft_p99, found.tpot_p99],
                [
                    n,
                    p99([line.ttft for line in lines]),
                    p99([line.tpot for line in lines if line.tpot is not None]),
                ],
                call=f"simulate_replicas({what}, replica, {n}): replicas, ttft_p99, tpot_p99",
                cause="the i-th request in order of time goes to i mod n; a percentile is taken "
                "once, over the requests of all replicas",
                rtol=1e-9,
            )


@pytest.mark.check(task=3, points=3, title="Busy share and preemptions")
def test_busy(seed):
    for n, tokens in ((1, 260), (2, 300), (4, 3000), (80, 3000)):
        trace, replica = requests(seed + n, 50, 20.0), Replica(COST, tokens, 16, 96)
        lines, runs = replayed(trace, replica, n)
        span = max(line.token_times[-1] for line in lines) - trace[0].time
        steps = [e for run in runs for e in run.events if isinstance(e, Stepped) and e.chunks]
        busy = sum(step.time - step.started for step in steps)
        found = simulate_replicas(trace, replica, n)
        expect(
            found.busy,
            busy / span / n,
            call=f"simulate_replicas(trace, replica, {n}).busy",
            given={"seconds in steps": busy, "from first arrival to last token": span},
            cause="the mean over replicas of the share in which each computes; all have the same "
            "time, and one without requests is there, too",
            rtol=1e-9,
        )
        expect(
            found.preemptions,
            len([event for run in runs for event in run.events if isinstance(event, Preempted)]),
            call=f"simulate_replicas(trace, replica, {n}).preemptions",
        )


@pytest.mark.check(task=3, points=1, title="What cannot be simulated")
def test_refused(seed):
    trace, replica = requests(seed, 9, 2.0), Replica(COST, 900)
    small = Replica(COST, 50)
    large = [*trace, TracedRequest(1.0, 500, 5)]
    long = [TracedRequest(0.0, 10, 5), TracedRequest(1.0, 45, 7)]
    for call, action in {
        "simulate_replicas(trace, replica, 0)": lambda: simulate_replicas(trace, replica, 0),
        "simulate_replicas([], replica, 2)": lambda: simulate_replicas([], replica, 2),
        "simulate_replicas with a prompt of 500 and room for 50": lambda: simulate_replicas(
            large, small, 2
        ),
        "simulate_replicas with 45 + 7 tokens and room for 50": lambda: simulate_replicas(
            long, small, 2
        ),
    }.items():
        expect.raises(CapacityError, action, call=call)
    long[1] = replace(long[1], output=6)
    expect(simulate_replicas(long, small, 2).replicas, 2,
           call="simulate_replicas with 45 + 6 tokens and room for 50",
           cause="the K and V of a request's last token are never read")  # fmt: skip


def planned(seed, objective):
    trace = requests(seed, 60, 2.0, prompt=90)
    replica = Replica(COST, 2000, 16, 128)
    return trace, replica, Slo(*objective)


@pytest.mark.check(task=3, points=5, title="The fewest replicas that keep the objective")
def test_plan(seed):
    for number, objective in enumerate(((0.3, 1.0), (5.0, 0.09), (99.0, 99.0))):
        trace, replica, slo = planned(seed + number, objective)
        plan = plan_replicas(trace, replica, slo)
        given = {"slo": objective, "replicas": plan.replicas}

        def keeps(n, trace=trace, replica=replica, slo=slo):
            lines, _ = replayed(trace, replica, n)
            slow = p99([x.tpot for x in lines if x.tpot is not None])
            return p99([x.ttft for x in lines]) <= slo.ttft_p99 and slow <= slo.tpot_p99

        expect.that(
            keeps(plan.replicas), "the planned replicas keep the objective", given=given,
            observed=plan.replicas, call="plan_replicas(trace, replica, slo).replicas",
            cause="both percentiles must be kept",
        )  # fmt: skip
        expect.that(
            plan.replicas == 1 or not keeps(plan.replicas - 1),
            "one replica fewer does not keep the objective",
            given=given,
            observed=plan.replicas,
            call="plan_replicas(trace, replica, slo).replicas",
            cause="the fewest are asked for",
        )
        expect(
            plan.by_mean,
            mean_replicas(trace, replica),
            call="plan_replicas(trace, replica, slo).by_mean",
        )
        if plan.replicas > 1:
            fewer = plan.tried[plan.replicas - 1]
            pairs = ((fewer.ttft_p99, slo.ttft_p99), (fewer.tpot_p99, slo.tpot_p99))
            missed = [value for value, allowed in pairs if value > allowed]
            expect.that(
                says(plan.reason, *missed, *(1000 * value for value in missed)),
                "the reason has the percentile of one fewer that misses, in s or ms",
                observed=plan.reason,
                given={"TTFT p99 and TPOT p99 of one fewer": (fewer.ttft_p99, fewer.tpot_p99),
                       "objective": objective},
                cause="what one fewer would do is why there are not fewer",
            )  # fmt: skip


@pytest.mark.check(task=3, points=2, title="What a plan has measured")
def test_tried(seed):
    trace, replica, slo = planned(seed, (0.25, 0.12))
    for most in (64, 20):
        plan = plan_replicas(trace, replica, slo, most)
        asked = {plan.replicas, max(1, plan.replicas - 1)}
        expect.that(
            asked <= set(plan.tried),
            f"{sorted(asked)} replicas have been measured",
            observed=sorted(plan.tried),
            cause="that the plan is the fewest must be seen, not assumed",
        )
        expect.that(
            len(plan.tried) <= 2 * np.log2(most) + 2 and max(plan.tried) <= most,
            f"few numbers up to {most} are measured: at most 2 * log2(most) + 2",
            observed=sorted(plan.tried),
            cause="a simulation takes long; halve what is left, do not count up",
        )
        expect.that(
            str(plan.replicas) in plan.reason and len(plan.reason) > 15,
            "the reason names the number of replicas",
            observed=plan.reason,
        )
        for n, measured in plan.tried.items():
            expect(measured.replicas, n, call=f"plan.tried[{n}].replicas")
    plan = plan_replicas(trace, replica, Slo(99.0, 99.0), most=1)
    expect([plan.replicas, sorted(plan.tried)], [1, [1]], call="a plan for at most one replica")
    far = requests(seed, 200, 0.4, prompt=60)
    plan = plan_replicas(far, replica, Slo(0.5, 1.0))
    expect.that(
        len(plan.tried) <= 14 and plan.replicas > 14,
        "a plan of many replicas needs few simulations, too",
        observed=(plan.replicas, sorted(plan.tried)),
    )


@pytest.mark.check(task=3, points=1, title="An objective that nobody keeps")
def test_impossible(seed):
    trace, replica, _ = planned(seed, (1, 1))
    error = expect.raises(
        CapacityError,
        lambda: plan_replicas(trace, replica, Slo(0.25, 0.0101), most=6),
        call="plan_replicas with a TPOT below that of a step, most=6",
        cause="not even `most` replicas keep it",
    )
    reached = simulate_replicas(trace, replica, 6)
    for name, value in (("TTFT", reached.ttft_p99), ("TPOT", reached.tpot_p99)):
        expect.that(
            says(str(error), value, 1000 * value),
            f"the message has the {name} that the most replicas reach",
            observed=str(error),
            given={name: value},
        )
    expect.raises(
        CapacityError,
        lambda: plan_replicas(trace, replica, Slo(99.0, 99.0), most=0),
        call="plan_replicas with most=0",
    )
    expect.raises(
        CapacityError,
        lambda: plan_replicas([], replica, Slo(99.0, 99.0)),
        call="plan_replicas([], replica, slo)",
    )


@pytest.mark.check(task=3, points=4, title="Settings of a replica")
def test_settings(seed):
    draw = random.Random(seed)
    cards = [Card("x", 1e12, 2e14, m) for m in (21e9, 40e9, 200e9)]
    model = ModelSize("m", 16 * 10**9, 131_072, 16 * 10**9)
    for card, output, headroom, slo in (
        (cards[0], 5, 0.1, Slo(1.0, 0.05)),
        (cards[1], 400, 0.2, Slo(1.0, 0.5)),
        (cards[2], 40, 0.05, Slo(1.0, 0.001)),
        (cards[2], 5, 0.0, Slo(1.0, 9.0)),
        (cards[2], 9000, 0.0, Slo(1.0, 9.0)),
    ):
        trace = requests(draw.random(), 50, 9.0, 30 * draw.randint(1, 9), output)
        mean = sum(r.prompt + max(1, r.output) for r in trace) / 50
        places = int((card.memory * (1 - headroom) - model.weight_bytes) // model.kv_bytes)
        base, token = model.weight_bytes / card.bytes_s, model.flops / card.flops_s / card.reached
        place = model.kv_bytes / card.bytes_s
        budgets = [2**k for k in range(7, 15)]
        fast = [b for b in budgets if base + token * b + place * places <= slo.tpot_p99]
        budget = max([128, *fast])
        blocks = [p for p in (8, 16, 32, 64, 128) if p / 2 <= 0.01 * mean]
        found = choose_settings(trace, model, card, slo, headroom)
        given = {"card": card, "mean request": mean, "headroom": headroom, "slo": slo}
        for name, value, cause in (
            ("kv_tokens", places, "memory less headroom and weights, over the bytes of a token"),
            ("block_size", max([8, *blocks]), "the largest that wastes at most 1 %, or 8"),
            ("max_num_batched_tokens", budget, "the largest whose full step, with the whole store "
             "read, is within the TPOT; 128 if none is"),
            ("max_num_seqs", max(1, min(int(places / mean), 1024, budget)),
             "requests of mean length that the store holds, at most 1,024 and a step's tokens"),
            ("headroom", headroom, "as given"),
        ):  # fmt: skip
            expect(
                getattr(found, name),
                value,
                call=f"choose_settings(trace, model, card, slo, {headroom}).{name}",
                given=given,
                cause=cause,
            )
        step = base + token * budget + place * places
        for name, what, values in (
            ("kv_tokens", "the card's memory in GB", (card.memory / 1e9,)),
            ("block_size", "the tokens of a mean request", (mean,)),
            ("max_num_batched_tokens", "how long a full step takes, in s or ms",
             (step, 1000 * step)),
            ("max_num_seqs", "how many mean requests the store holds", (places / mean,)),
        ):  # fmt: skip
            expect.that(
                says(found.reasons.get(name, ""), *values),
                f"reasons[{name!r}] has the figure behind it: {what}",
                observed=found.reasons.get(name, ""),
                given={**given, what: values[0]},
            )
    even = Card("even", 2.0**40, 2.0**47, 2.0**36, 0.5)  # all sums are exact
    whole = ModelSize("w", 2**34, 2**17, 2**34)
    found = choose_settings([TracedRequest(0.0, 700, 100)], whole, even, Slo(1.0, 0.1875), 0.0)
    expect(
        [found.block_size, found.max_num_batched_tokens],
        [16, 512],
        call="choose_settings: block_size of mean requests of 800 tokens, and "
        "max_num_batched_tokens where a full step of 512 takes as long as allowed",
        cause="at most 1 % is wasted, and 8 of 800 is 1 %; no longer than the TPOT, and as long "
        "is no longer",
    )
    tight = Card("small", 1e12, 2e14, 17e9)
    expect.raises(
        CapacityError,
        lambda: choose_settings(trace, model, tight, slo, 0.05),
        call="choose_settings on a card of 17 GB, for 16 GB of weights",
        cause="the longest request must fit",
    )
    fits = int((18e9 - 16e9) // model.kv_bytes)
    exact = Card("exact", 1e12, 2e14, 18e9)
    edge = [TracedRequest(0.0, fits - 9, 10), TracedRequest(1.0, fits, 0)]
    expect(choose_settings(edge, model, exact, slo, 0.0).kv_tokens, fits,
           call="choose_settings, when the longest request just fits")  # fmt: skip
    expect.raises(
        CapacityError,
        lambda: choose_settings([*edge, TracedRequest(2.0, fits - 8, 10)], model, exact, slo, 0.0),
        call="choose_settings, when the longest request is one token too long",
        given={"kv_tokens": fits, "prompt and output of the longest": (fits - 8, 10)},
        cause="a request needs prompt + output - 1 places",
    )
    expect.raises(
        CapacityError,
        lambda: choose_settings([], model, exact, slo, 0.0),
        call="choose_settings([], model, card, slo)",
    )


@pytest.mark.check(task=3, points=1, title="The bill")
def test_bill(seed):
    trace = requests(seed, 40, 30.0)
    count = sum(r.prompt + r.output for r in trace)
    seconds = trace[-1].time - trace[0].time
    found = bill(trace, 3, 2.5)
    expect(
        [found.an_hour, found.a_month, found.a_million],
        [7.5, 7.5 * 730, 7.5 / 3600 * seconds / count * 1e6],
        call="bill(trace, 3, 2.5): an_hour, a_month, a_million",
        given={"seconds": seconds, "tokens of prompts and answers": count},
        rtol=1e-9,
    )
    expect.raises(CapacityError, lambda: bill([], 3, 2.5), call="bill([], 3, 2.5)")
    expect.raises(
        CapacityError, lambda: bill(trace[:1] * 3, 3, 2.5), call="bill of a trace of one moment",
        cause="it has no rate",
    )  # fmt: skip
    hour = choose_settings(trace, LLAMA_8B, CARDS["h100"], Slo())
    expect.that(hour.kv_tokens > 400_000, "an H100 holds over 400,000 tokens of Llama 3.1 8B")

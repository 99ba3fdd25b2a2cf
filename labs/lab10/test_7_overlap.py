"""Task 7: what a step costs, which layout wins, what overlap hides."""

import random

import pytest

from grader import expect
from nanovllm.model.config import ModelConfig
from nanovllm.parallel.costs import (
    Layout,
    ParallelCost,
    Phase,
    all_gather_seconds,
    all_reduce_seconds,
    best_layout,
    send_seconds,
)
from nanovllm.parallel.errors import ParallelError
from nanovllm.parallel.hardware import CARDS, LINKS, Card, Cluster, Link
from nanovllm.parallel.overlap import Span, exposed_seconds, halves, seconds_saved, timeline

# One layer has 2*8*8 + 2*8*4 + 3*8*16 = 576 weights, a table 40 * 8 = 320; K and V of a token take
# 2 * 2 * 2 bytes a head, layer and token (D is 2).
CONFIG = ModelConfig("llama", 40, 8, 5, 4, 2, 2, 16, 64)
INSIDE, ACROSS = Link(2.0, 64.0), Link(16.0, 8.0)
CLUSTER = Cluster(Card(bytes_s=32.0, flops_s=128.0, memory=9000.0), INSIDE, ACROSS, node_size=4)
LLAMA_8B = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, 8192)
LLAMA_70B = ModelConfig("llama", 128256, 8192, 80, 64, 8, 128, 28672, 8192)


def cost_of(tp=1, pp=1, m=1, config=CONFIG, cluster=CLUSTER, dtype_bytes=2):
    layout = Layout(tp, pp, m)
    return ParallelCost(config, cluster, layout, dtype_bytes)


def real(card, inside):
    return Cluster(CARDS[card], LINKS[inside], LINKS["100gbe"])


@pytest.mark.check(task=7, points=1, title="Seconds of a message and of a ring")
def test_messages(seed):
    for number in range(12):
        draw = random.Random(seed + number)
        link = Link(draw.uniform(0.1, 4), draw.uniform(10, 100))
        nbytes, size = draw.choice([0, 7, 512, 9000]), draw.choice([1, 2, 3, 4, 8])
        run = link.latency + nbytes / size / link.bytes_s
        given = {"link": link, "nbytes": nbytes, "size": size}
        expect(
            send_seconds(link, nbytes),
            link.latency + nbytes / link.bytes_s,
            call="send_seconds(link, nbytes)",
            given=given,
            cause="a message without bytes takes the latency, too",
        )
        expect(
            all_gather_seconds(link, nbytes, size),
            (size - 1) * run,
            call="all_gather_seconds(link, nbytes, size)",
            given=given,
            cause="n - 1 messages one after another, each with an nth of what every rank has then",
        )
        expect(
            all_reduce_seconds(link, nbytes, size),
            2 * (size - 1) * run,
            call="all_reduce_seconds(link, nbytes, size)",
            given=given,
            cause="2 (n - 1) messages one after another, each with an nth of the tensor",
        )


@pytest.mark.check(task=7, points=1, title="Memory of a rank")
def test_memory():
    tied = ModelConfig("llama", 40, 8, 5, 4, 2, 2, 16, 64, tie_embeddings=True)
    thirds = ModelConfig("llama", 40, 12, 5, 6, 3, 2, 16, 64)  # 2*12*12 + 2*12*6 + 3*12*16 a layer
    for config, tp, pp, size, weights, kv in (
        (CONFIG, 1, 1, 2, 2 * (5 * 576 + 2 * 320), 2 * 5 * 2 * 2 * 2),
        (CONFIG, 2, 1, 2, 5 * 576 + 2 * 320, 2 * 5 * 1 * 2 * 2),
        (CONFIG, 4, 1, 4, 5 * 576 + 2 * 320, 2 * 5 * 1 * 2 * 4),  # a key head on two ranks each
        (CONFIG, 1, 2, 2, 2 * (3 * 576 + 320), 2 * 3 * 2 * 2 * 2),  # 3 and 2 layers
        (CONFIG, 2, 4, 2, 2 * 576 + 320, 2 * 2 * 1 * 2 * 2),
        (tied, 1, 1, 2, 2 * (5 * 576 + 320), 2 * 5 * 2 * 2 * 2),
        (tied, 2, 3, 4, 2 * (2 * 576 + 320), 2 * 2 * 1 * 2 * 4),
        (thirds, 2, 1, 2, 5 * 1008 + 2 * 480, 2 * 5 * 2 * 2 * 2),  # 3 key heads on 2 ranks
    ):
        cost = cost_of(tp, pp, config=config, dtype_bytes=size)
        given = {"tp": tp, "pp": pp, "dtype_bytes": size, "tied": config.tie_embeddings,
                 "L, H, G, D": (5, config.num_heads, config.num_kv_heads, 2)}  # fmt: skip
        expect(
            cost.kv_bytes(),
            float(kv),
            call="ParallelCost(config, ...).kv_bytes()",
            given=given,
            cause="K and V of ceil(L / pp) layers and ceil(G / tp) heads",
        )
        expect(
            cost.capacity(),
            int(max(9000 - weights, 0) // kv),
            call="ParallelCost(config, ...).capacity() on cards with 9,000 bytes",
            given={**given, "weight bytes": weights, "K/V bytes of a token": kv},
            cause="whole tokens in what the weights leave, and 0 where they leave nothing",
        )
    small = Cluster(Card(1.0, 1.0, 7000.0), INSIDE, ACROSS)
    expect(
        cost_of(cluster=small).capacity(),
        0,
        call="ParallelCost(config, ...).capacity(), weights of 7,040 bytes, 7,000 bytes of memory",
    )


@pytest.mark.check(task=7, points=1, title="Half a layer on one rank")
def test_phase():
    for tp, pp, tokens, places, compute, message in (
        (1, 1, 1, 0, 576 / 32, 0.0),  # reads 288 weights of 2 bytes
        (1, 1, 1, 96, (576 + 96 * 8) / 32, 0.0),  # and half of 16 bytes for each place
        (1, 1, 16, 8, 16 * 576 / 128, 0.0),  # computes
        (2, 1, 1, 96, (288 + 96 * 4) / 32, 2 * (2 + 8 / 64)),
        (4, 1, 3, 96, (144 + 96 * 4) / 32, 6 * (2 + 12 / 64)),  # no fewer heads than one
        (2, 3, 40, 96, 40 * 288 / 128, 2 * (2 + 320 / 64)),
        (8, 1, 4, 64, (72 + 64 * 4) / 32, 14 * (16 + 8 / 8)),  # on two nodes
    ):
        cost = cost_of(tp, pp)
        found = cost.phase(tokens, places)
        given = {"tp": tp, "pp": pp, "tokens": tokens, "places": places}
        expect(
            found.compute,
            compute,
            call="ParallelCost(...).phase(tokens, places).compute",
            given=given,
            cause="288 weights of half a layer over tp, and half of a layer's K and V for each "
            "place; the larger of reading and computing",
        )
        expect(
            found.communicate,
            message,
            call="ParallelCost(...).phase(tokens, places).communicate",
            given={**given, "E": 8, "bytes": 2},
            cause="one all-reduce of [tokens, E] over tp ranks, on the link among these ranks",
        )


def step_by_hand(tp, pp, m, tokens, places, rows):
    """The seconds of a step, from the numbers of CONFIG and CLUSTER written out."""
    layers, m = -(-5 // pp), min(m, tokens)
    here, there = (INSIDE if ranks <= 4 else ACROSS for ranks in (tp, tp * pp))

    def ring(nbytes, rounds):
        return rounds * (tp - 1) * (here.latency + nbytes / tp / here.bytes_s)

    def product(weights, count, cache):
        return max((2 * weights / tp + cache) / 32, 2 * weights / tp * count / 128)

    each = -(-tokens // m)
    half = product(288, each, places / m * -(-2 // tp) * 4) + ring(each * 16, 2)
    tick = 2 * layers * half + (pp > 1) * (there.latency + each * 16 / there.bytes_s)
    ends = ring(tokens * 16, 2) + product(320, rows, 0) + ring(rows * 80, 1)
    return tick, (m + pp - 1) * tick + ends


@pytest.mark.check(task=7, points=3, title="A step through all stages")
def test_step(seed):
    for number in range(40):
        draw = random.Random(seed + number)
        tp, pp, m = draw.choice([1, 2, 4]), draw.choice([1, 2, 3, 5]), draw.choice([1, 2, 3, 7])
        tokens, rows = draw.choice([1, 2, 5, 20, 64]), draw.choice([0, 1, 2])
        places = tokens + draw.randrange(100)
        cost = cost_of(tp, pp, m)
        given = {"tp": tp, "pp": pp, "micro_batches": m, "tokens": tokens, "places": places,
                 "rows": rows}  # fmt: skip
        tick, _ = step_by_hand(tp, pp, 1, tokens, places, rows)
        _, step = step_by_hand(tp, pp, m, tokens, places, rows)
        expect(
            cost.tick_seconds(tokens, places),
            tick,
            call="ParallelCost(...).tick_seconds(tokens, places)",
            given=given,
            cause="two phases a layer of the largest stage; with more stages, one message of "
            "[tokens, E] over the link among all tp x pp ranks",
        )
        expect(
            cost.seconds(tokens, places, rows),
            step,
            call="ParallelCost(...).seconds(tokens, places, rows)",
            given=given,
            cause="m + pp - 1 ticks of ceil(tokens / m) tokens, then the ends once",
        )
    expect(cost_of(2, 2, 4).seconds(0, 0, 0), 0.0, call="ParallelCost(...).seconds(0, 0, 0)")


@pytest.mark.check(task=7, points=1, title="Which layout wins")
def test_best():
    three_heads = ModelConfig("llama", 40, 12, 2, 6, 3, 2, 16, 64)
    slow = Cluster(Card(32.0, 128.0, 1e6), Link(1e6, 8.0), Link(1e6, 8.0))
    fast = Cluster(Card(32.0, 128.0, 1e6), Link(0.0, 1e9), Link(1e6, 8.0), node_size=4)
    narrow = Cluster(Card(32.0, 128.0, 2500.0), Link(1e6, 8.0), Link(1e6, 8.0))
    eight_heads = ModelConfig("llama", 40, 16, 5, 8, 8, 2, 16, 64)
    even = Cluster(Card(32.0, 128.0, 1e6), Link(0.0, 1e9), Link(0.0, 1e9), node_size=4)
    full = cost_of(cluster=slow).capacity()
    for name, config, cluster, cards, step, wanted in (
        ("8B on 2 H100, one request", LLAMA_8B, real("h100", "nvlink"), 2, (1, 2048, 1), (2, 1)),
        ("8B on 8 H100 over PCIe", LLAMA_8B, real("h100", "pcie5"), 8, (1, 2048, 1), (4, 1)),
        ("8B on 8 H100, a prompt", LLAMA_8B, real("h100", "pcie5"), 8, (4096, 4096, 1), (1, 8)),
        ("70B on 8 L4, 8 requests", LLAMA_70B, real("l4", "pcie4"), 8, (8, 16384, 8), (8, 1)),
        ("links so slow that one card is best", CONFIG, slow, 8, (1, 10, 1), (1, 1)),
        ("six heads on 4 cards that are near", three_heads, fast, 4, (1, 10, 1), (3, 1)),
        ("no room on fewer cards, slow links", CONFIG, narrow, 5, (1, 20, 1), (1, 5)),
        ("links cost nothing, 5 cards, 4 near", CONFIG, fast, 5, (1, 10, 1), (4, 1)),
        ("links cost nothing, nodes of 4 cards", eight_heads, even, 8, (1, 10, 1), (8, 1)),
        ("slow links, and one card is just full", CONFIG, slow, 2, (1, full, 1), (1, 1)),
        ("no token: all are equally fast", CONFIG, CLUSTER, 8, (0, 0, 1), (1, 1)),
    ):
        found = best_layout(config, cluster, cards, *step)
        expect(
            (found.tp, found.pp),
            wanted,
            call="tp and pp of best_layout(config, cluster, cards, tokens, places, rows)",
            given={"case": name, "cards": cards, "tokens, places, rows": step},
            cause="best_layout is given: it takes the least of your `seconds` over all layouts "
            "with `capacity` for the places, of which your `kv_bytes` is a part",
        )
    expect(
        best_layout(LLAMA_8B, real("h100", "pcie5"), 4, 4096, 4096, 1),
        Layout(1, 4, 14),
        call="best_layout of 8B on 4 H100 for a prompt of 4,096 tokens",
        cause="1 to 4 x pp micro-batches: many shrink the bubble, too many read weights for "
        "nothing",
    )
    for cards, places, size in ((2, 30_000, 2), (1, 200, 4)):
        expect.raises(
            ParallelError,
            lambda cards=cards, places=places, size=size: best_layout(
                CONFIG, CLUSTER, cards, 1, places, 1, dtype_bytes=size
            ),
            call="best_layout where the places do not fit beside the weights",
        )


def longest_paths(parts):
    """The oracle: every span starts when all that it waits for has ended."""
    order = sorted((p, h) for h, part in enumerate(parts) for p in range(len(part)))
    ends, spans = {}, []
    for place, (p, h) in enumerate(order):
        before = order[place - 1] if place else None
        started = max(ends.get(("compute", before), 0), ends.get(("communicate", (p - 1, h)), 0))
        ends["compute", (p, h)] = started + parts[h][p].compute
        going = max(ends["compute", (p, h)], ends.get(("communicate", before), 0))
        ends["communicate", (p, h)] = going + parts[h][p].communicate
        spans.append(Span(h, p, "compute", started, ends["compute", (p, h)]))
        spans.append(Span(h, p, "communicate", going, ends["communicate", (p, h)]))
    return spans


@pytest.mark.check(task=7, points=2, title="Two halves take turns")
def test_timeline(seed):
    for number in range(30):
        draw = random.Random(seed + number)
        parts = [
            [Phase(draw.choice([0.5, 1, 2, 4]), draw.choice([0, 0.5, 1, 3])) for _ in range(length)]
            for length in draw.choice([(3,), (1, 1), (2, 2), (4, 4), (3, 1), (1, 4), (2, 2, 2)])
        ]
        given = {"(compute, communicate) of each half": [[tuple(p) for p in h] for h in parts]}
        wanted, found = longest_paths(parts), timeline(parts)
        expect(
            [tuple(span) for span in found],
            [tuple(span) for span in wanted],
            call="timeline(halves): half, phase, kind, start and end of each span",
            given=given,
            cause="a phase waits for the rank, and for its own half's message before it; a "
            "message waits for its phase, and for the link",
        )
        computing = sum(s.end - s.start for s in wanted if s.kind == "compute")
        expect(
            exposed_seconds(wanted),
            max(s.end for s in wanted) - computing,
            call="exposed_seconds(timeline(halves))",
            given=given,
            cause="all seconds up to the last end in which nothing is computed",
        )
    expect(exposed_seconds([]), 0.0, call="exposed_seconds([])")


@pytest.mark.check(task=7, points=1, title="When dividing a step pays")
def test_halves():
    for tp, pp, tokens, places in ((2, 1, 7, 70), (4, 1, 64, 64), (2, 2, 1, 9), (2, 5, 2, 31)):
        cost = cost_of(tp, pp)
        sizes = [-(-tokens // 2), tokens // 2] if tokens > 1 else [1]
        wanted = [[cost.phase(n, places * n / tokens)] * (2 * -(-5 // pp)) for n in sizes]
        given = {"tp": tp, "pp": pp, "tokens": tokens, "places": places}
        expect(
            [[tuple(phase) for phase in part] for part in halves(cost, tokens, places)],
            [[tuple(phase) for phase in part] for part in wanted],
            call="halves(cost, tokens, places)",
            given=given,
            cause="two phases for each layer of the stage; tokens and places divided alike",
        )
        whole = [[cost.phase(tokens, places)] * (2 * -(-5 // pp))]
        one, two = (longest_paths(parts)[-1].end for parts in (whole, wanted))
        expect(
            seconds_saved(cost, tokens, places),
            one - two,
            call="seconds_saved(cost, tokens, places)",
            given=given,
            cause="the end of the whole step less the end of its two halves, of one stage",
        )
    for tokens, pays in ((64, False), (8192, True)):
        saved = seconds_saved(
            ParallelCost(LLAMA_8B, real("h100", "nvlink"), Layout(8)), tokens, tokens
        )
        expect.that(
            (saved > 0) == pays,
            "a long prompt ends sooner in two halves, and a short one later",
            observed=saved > 0,
            call="seconds_saved of 8B on 8 H100 > 0",
            given={"tokens": tokens},
        )

"""Task 3: disaggregated serving, and what it is good for."""

import asyncio
import random
import re

import pytest
import torch

from grader import expect
from nanovllm.batching.simulator import StepCost
from nanovllm.cluster.errors import ClusterError, TransferError
from nanovllm.cluster.handshake import Handshake, Side
from nanovllm.cluster.header import Header, encode
from nanovllm.cluster.kv_transfer_params import Remote, answer_of
from nanovllm.cluster.replay import Job, Limits, Progress, Span, Work, replay
from nanovllm.cluster.role import RoleConfig
from nanovllm.cluster.sides import Decodes
from nanovllm.cluster.strategies import Wire, chunked, disaggregated, prefill_first, static
from nanovllm.cluster.wire import Received

MINE = Header(2, 4, 2, 3, "float32", "m")
NAME = "0123456789abcdef" * 2
HEADERS = {"authorization": "Bearer x"}
PREFILL = RoleConfig("prefill", host="10.0.0.7", port=8100)
DECODE = RoleConfig("decode", host="10.0.0.8", port=8200, peers=("10.0.0.7:8100",))
REMOTE = Remote("10.0.0.7", 8100, NAME)
THERE = answer_of(REMOTE, 7)
ALONE = {"do_remote_decode": True, "do_remote_prefill": False}


def on_the_wire(count=7, header=MINE):
    """What a prefill server sends, made here by hand; and the K and V in it."""
    size = header.num_layers * header.num_blocks(count) * header.block_size * 6
    numbers = torch.arange(2 * size, dtype=torch.float32)
    data = encode(header, count) + numbers.view(torch.uint8).numpy().tobytes()
    shape = (2, header.num_layers, -1, header.num_kv_heads, header.head_dim)
    k, v = numbers.view(shape)[:, :, :count]
    return data, Received(k, v)


class Transport:
    """A transport that gives what it was told to, and notes what is asked of it."""

    def __init__(self, data=b"", deaf=False):
        self.data, self.deaf, self.heard = data, deaf, []

    async def receive(self, remote, headers):
        self.heard.append(("receive", remote, dict(headers)))
        await asyncio.sleep(0)
        if isinstance(self.data, Exception):
            raise self.data
        return self.data

    async def acknowledge(self, remote, headers):
        self.heard.append(("acknowledge", remote, dict(headers)))
        if self.deaf:
            raise TransferError("nobody heard it")

    @property
    def words(self):
        return [word for word, _, _ in self.heard]


def take_part(handshake, given, num_tokens=7):
    return asyncio.run(handshake.take_part(given, num_tokens, HEADERS))


@pytest.mark.check(task=3, points=1, title="Prefill: a name of its own, and where it is found")
def test_prefill():
    transport = Transport()
    handshake = Handshake(PREFILL, MINE, transport)
    sides = [take_part(handshake, ALONE, tokens) for tokens in (7, 300, 7)]
    names = []
    for tokens, side in zip((7, 300, 7), sides, strict=True):
        expect.that(
            isinstance(side.transfer, Decodes)
            and re.fullmatch("[0-9a-f]{32}", side.transfer.transfer_id),
            "the request's side is Decodes(a name of 32 hexadecimal digits)",
            observed=side.transfer,
            call="take_part({do_remote_decode: True}, ...) of a prefill server",
        )
        names.append(side.transfer.transfer_id)
        expect(
            side.answer,
            answer_of(Remote("10.0.0.7", 8100, names[-1]), tokens),
            call="the answer of take_part({do_remote_decode: True}, num_tokens, ...)",
            given={"role": PREFILL, "num_tokens": tokens},
            cause="the router sends this to decode word for word: it says where K and V wait",
        )
    expect(
        [len(set(names)), transport.heard, handshake.fallbacks],
        [3, [], 0],
        call="different names of three transfers, what the transport was asked, fallbacks",
        cause="two prompts of one text are two transfers",
    )


@pytest.mark.check(task=3, points=2, title="Decode: K and V come, then they are acknowledged")
def test_decode():
    for role in (DECODE, RoleConfig("decode", peers=("a:1", "10.0.0.7:8100", "b:2"))):
        data, wanted = on_the_wire()
        transport = Transport(data)
        handshake = Handshake(role, MINE, transport)
        side = take_part(handshake, THERE)
        expect.that(
            isinstance(side.transfer, Received),
            "the request's side is what was Received",
            observed=side.transfer,
            call="take_part(kv_transfer_params, ...) of a decode server",
        )
        expect(
            [side.transfer.k, side.transfer.v, side.answer, handshake.fallbacks],
            [wanted.k, wanted.v, None, 0],
            call="K, V, answer, fallbacks of take_part(kv_transfer_params, ...)",
            given={"kv_transfer_params": THERE},
        )
        expect(
            transport.heard,
            [("receive", REMOTE, HEADERS), ("acknowledge", REMOTE, HEADERS)],
            call="what the transport was asked, in order",
            given={"kv_transfer_params": THERE, "peers": role.peers},
            cause="once it is here the other side may free its blocks, and wants the same headers",
        )


@pytest.mark.check(task=3, points=1, title="Requests that take no part")
def test_neither():
    for role in (PREFILL, DECODE):
        for given in (
            {"do_remote_decode": False, "do_remote_prefill": False},
            {"remote_host": "10.0.0.7", "remote_port": 8100, "remote_request_id": NAME},
            {},
        ):
            transport = Transport()
            handshake = Handshake(role, MINE, transport)
            expect(
                [take_part(handshake, given), transport.heard, handshake.fallbacks],
                [Side(), [], 0],
                call=f"take_part(...) of a {role.role} server, what the transport was asked, "
                "fallbacks",
                given={"kv_transfer_params": given},
                cause="nobody has computed this prompt, and nobody else decodes: it is served as "
                "always",
            )


@pytest.mark.check(task=3, points=1, title="A transfer that fails costs time, not the answer")
def test_fallback():
    data, _ = on_the_wire()
    handshake = Handshake(DECODE, MINE, Transport())
    cases = {
        "nothing is parked": TransferError("nothing is parked"),
        "cut in the middle": data[: len(data) // 2],
        "cut in the header": data[:20],
        "nothing": b"",
        "spoiled": b"<html>" + data[6:],
        "too long": data + b"more",
    }
    for number, (what, came) in enumerate(cases.items(), start=1):
        transport = handshake.transport = Transport(came)
        expect(
            [take_part(handshake, THERE), handshake.fallbacks, transport.words],
            [Side(), number, ["receive"]],
            call="take_part(...), fallbacks so far, and what the transport was asked",
            given={"what came": what},
            cause="the prompt is computed here; what was not received whole is not acknowledged",
        )
    handshake.transport = Transport(data)
    side = take_part(handshake, THERE)
    expect(
        [isinstance(side.transfer, Received), handshake.fallbacks],
        [True, len(cases)],
        call="whether the next transfer, a good one, is Received; fallbacks",
    )


@pytest.mark.check(task=3, points=1, title="An acknowledgement that nobody hears")
def test_deaf():
    data, _ = on_the_wire()
    transport = Transport(data, deaf=True)
    handshake = Handshake(DECODE, MINE, transport)
    side = take_part(handshake, THERE)
    expect(
        [isinstance(side.transfer, Received), handshake.fallbacks, transport.words],
        [True, 0, ["receive", "acknowledge"]],
        call="whether take_part(...) gives what was Received; fallbacks; what the transport was "
        "asked",
        given={"acknowledge": "raises TransferError"},
        cause="K and V are here; the other side frees its blocks when their time is over",
    )


@pytest.mark.check(task=3, points=1, title="What the other role does, and both at once")
def test_roles():
    for role, given, why in (
        (DECODE, ALONE, "decode is asked to prefill"),
        (PREFILL, THERE, "prefill is asked to decode"),
        (RoleConfig("prefill", peers=DECODE.peers), THERE, "prefill is asked to decode"),
        (DECODE, THERE | ALONE | {"do_remote_prefill": True}, "both at once"),
        (PREFILL, THERE | ALONE | {"do_remote_prefill": True}, "both at once"),
        (DECODE, THERE | {"remote_host": "10.0.0.9"}, "a stranger's host"),
        (DECODE, THERE | {"remote_port": 22}, "another port of a peer"),
        (DECODE, THERE | {"remote_request_id": "../health"}, "no name of a transfer"),
    ):
        transport = Transport(on_the_wire()[0])
        handshake = Handshake(role, MINE, transport)
        expect.raises(
            ClusterError,
            lambda h=handshake, g=given: take_part(h, g),
            call=f"take_part(...) of a {role.role} server: {why}",
            given={"kv_transfer_params": given, "peers": role.peers},
            cause="a client's words decide whom this server calls: only peers are asked",
        )
        expect(
            [transport.heard, handshake.fallbacks],
            [[], 0],
            call=f"what the transport was asked, and fallbacks: {why}",
            given={"kv_transfer_params": given},
            cause="a wrong request is refused, it is not computed here in silence",
        )


@pytest.mark.check(task=3, points=2, title="K and V of another model, or of another prompt")
def test_foreign():
    for header, count, tokens, why in (
        (Header(2, 4, 2, 3, "float32", "other"), 7, 7, "of another model"),
        (Header(2, 4, 3, 2, "float32", "m"), 7, 7, "of another shape"),
        (MINE, 8, 7, "of 8 tokens, for a prompt of 7"),
        (MINE, 30, 7, "of 30 tokens, for a prompt of 7"),
    ):
        transport = Transport(on_the_wire(count, header)[0])
        handshake = Handshake(DECODE, MINE, transport)
        expect.raises(
            ClusterError,
            lambda h=handshake, n=tokens: take_part(h, THERE, n),
            call=f"take_part(...) when K and V come {why}",
            cause="whole, but not this prompt's: whoever sent it should know",
        )
        expect(
            [transport.words, handshake.fallbacks],
            [["receive"], 0],
            call=f"what the transport was asked, and fallbacks, when K and V come {why}",
            cause="acknowledge what you can use; a mistake of the sender is no fallback",
        )
    for size, count in ((3, 7), (16, 7), (4, 6), (1, 1)):
        header = Header(2, size, 2, 3, "float32", "m")
        data, wanted = on_the_wire(count, header)
        side = take_part(Handshake(DECODE, MINE, Transport(data)), THERE)
        expect.that(
            isinstance(side.transfer, Received),
            "it is received",
            observed=side.transfer,
            call=f"take_part(...) of {count} tokens in blocks of {size}, for a prompt of 7 and "
            "blocks of 4",
        )
        expect(
            side.transfer.k,
            wanted.k,
            call=f"K of take_part(...) of {count} tokens in blocks of {size}",
        )


def waiting_jobs(*prompts, computed=()):
    made = [Progress(n, Job(0.0, tokens, 5), 0.0) for n, tokens in enumerate(prompts)]
    for progress, tokens in zip(made, computed, strict=False):
        progress.computed = tokens
    return made


def running_jobs(count):
    return [Progress(50 + n, Job(0.0, 4, 5), 0.0, 4, [0.0]) for n in range(count)]


def shown(work):
    """Numbers and tokens, sorted: the order within a step is open."""
    prompts = sorted((p.number, tokens) for p, tokens in work.prompts)
    return prompts, sorted(p.number for p in work.decodes)


CASES = [  # prompts that wait, of these computed, how many run, max_num_seqs, tokens a step
    ((30, 10, 5), (), 0, 8, 256),
    ((30, 10, 5), (), 0, 2, 256),
    ((30, 10, 5), (), 2, 8, 256),
    ((30, 10, 5), (), 2, 3, 256),
    ((30, 10), (), 3, 3, 256),
    ((), (), 3, 8, 256),
    ((), (), 5, 3, 256),
    ((30, 10, 5), (), 0, 8, 16),
    ((30, 10, 5), (20,), 2, 8, 16),
    ((30, 10, 5), (22,), 2, 8, 16),
    ((6, 10, 5), (), 2, 8, 8),
    ((6, 10), (), 4, 8, 4),
    ((6, 10), (), 9, 8, 16),
]


def judge(strategy, plans, cause):
    found, told = [], []
    for (prompts, computed, runs, seats, budget), wanted in zip(CASES, plans, strict=True):
        if wanted is not None:
            waiting, running = waiting_jobs(*prompts, computed=computed), running_jobs(runs)
            left = [p.left for p in waiting]
            found.append(shown(strategy(waiting, running, Limits(seats, budget))))
            told.append(f"left {left}, {runs} run, at most {seats}, {budget} tokens")
    wanted = [plan for plan in plans if plan is not None]
    wrong = next(
        (n for n, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1]), 0
    )
    expect(
        found,
        wanted,
        call=f"(number, tokens) of the prompts and numbers of the decodes of "
        f"{strategy.__name__}(waiting, running, limits), in {len(wanted)} cases",
        given={f"case {wrong}": told[wrong]},
        cause=cause,
    )


R = [50 + n for n in range(9)]


@pytest.mark.check(task=3, points=1, title="Static batches")
def test_static():
    whole = [(0, 30), (1, 10), (2, 5)]
    plans = [
        (whole, []), (whole[:2], []), ([], R[:2]), ([], R[:2]), ([], R[:3]), ([], R[:3]), None,
        (whole, []), None, None, ([], R[:2]), ([], R[:4]), None,
    ]  # fmt: skip
    judge(static, plans, "nobody joins a batch that runs")


@pytest.mark.check(task=3, points=1, title="Prefill first")
def test_prefill_first():
    whole = [(0, 30), (1, 10), (2, 5)]
    plans = [
        (whole, []), (whole[:2], []), (whole, []), (whole[:1], []), ([], R[:3]), ([], R[:3]),
        ([], R[:3]), (whole, []), None, None, ([(0, 6), (1, 10), (2, 5)], []),
        ([(0, 6), (1, 10)], []), ([], R[:8]),
    ]  # fmt: skip
    judge(
        prefill_first,
        plans,
        "whoever waits comes before all who run, if there is room to run; prompts whole",
    )


@pytest.mark.check(task=3, points=1, title="Chunked")
def test_chunked():
    whole = [(0, 30), (1, 10), (2, 5)]
    plans = [
        (whole, []), (whole[:2], []), (whole, R[:2]), (whole[:1], R[:2]), ([], R[:3]), ([], R[:3]),
        ([], R[:3]), ([(0, 16)], []), ([(0, 10), (1, 4)], R[:2]), ([(0, 8), (1, 6)], R[:2]),
        ([(0, 6)], R[:2]), ([], R[:4]), ([], R[:8]),
    ]  # fmt: skip
    judge(
        chunked,
        plans,
        "decodes first, then prompts in order with what is left of the tokens and of the room",
    )


COST = StepCost(base=1.0, per_token=0.25, per_place=0.0)


def told(jobs, cost, wire, limits):
    """The oracle: times of each job's tokens, and when each transfer began and ended."""
    first = [Progress(n, Job(j.arrival, j.prompt, 1), j.arrival) for n, j in enumerate(jobs)]

    def all_prompts(waiting, running, limits):
        return Work(tuple((p, p.left) for p in waiting[: limits.max_num_seqs]))

    replay(first, all_prompts, cost, limits)
    order = sorted(range(len(jobs)), key=lambda n: (first[n].times[0], n))
    free, transfers, later = 0.0, [], []
    for n in order:
        if jobs[n].output > 1:
            begin = max(free, first[n].times[0])
            free = begin + wire.base + wire.per_token * jobs[n].prompt
            transfers.append((n, begin, free))
            later.append(Progress(n, jobs[n], free, jobs[n].prompt, list(first[n].times)))

    def all_decodes(waiting, running, limits):
        return Work((), tuple(each for n, each in enumerate(running) if n < limits.max_num_seqs))

    replay(later, all_decodes, cost, limits)
    times = [p.times for p in first]
    for p in later:
        times[p.number] = p.times
    return times, transfers


def compare(jobs, wire, limits):
    given = {
        "jobs (arrival, prompt, output)": [(j.arrival, j.prompt, j.output) for j in jobs],
        "wire": wire,
        "limits": limits,
        "a step": "1 s, and 0.25 s a token",
    }
    progress, spans = disaggregated(jobs, COST, wire, limits)
    times, transfers = told(jobs, COST, wire, limits)
    expect(
        [(p.number, p.times) for p in progress],
        list(enumerate(times)),
        call="number and times of each progress of disaggregated(...)",
        given=given,
        cause="the first token where the prompt is computed; then the wire; then decodes",
    )
    expect(
        sorted((s.jobs[0], s.start, s.end) for s in spans if s.lane == "wire"),
        sorted(transfers),
        call="job, start and end of each span of the lane `wire`",
        given=given,
        cause="one after another, in the order in which prompts were done",
    )
    return spans, given


@pytest.mark.check(task=3, points=2, title="Two instances and a wire")
def test_disaggregated():
    plain = Limits(8, 256)
    for jobs, wire, limits in (
        ([Job(0.0, 4, 3)], Wire(0.5, 0.125), plain),
        ([Job(0.0, 4, 3), Job(0.0, 8, 1), Job(0.0, 4, 2)], Wire(3.0, 0.5), plain),
        ([Job(0.0, 8, 9), Job(1.0, 4, 4), Job(2.0, 4, 1), Job(9.0, 2, 2)], Wire(0.0, 0.0), plain),
        ([Job(3.0, 4, 2), Job(0.0, 40, 2)], Wire(1.0, 0.0), plain),
        ([Job(0.0, 4, 4)] * 5, Wire(0.25, 0.25), Limits(2, 256)),
    ):
        spans, given = compare(jobs, wire, limits)
        kinds = sorted({(s.lane, s.kind) for s in spans})
        allowed = [("decode", "decode"), ("prefill", "prefill"), ("wire", "transfer")]
        expect(
            [kinds, [s.start for s in spans]],
            [allowed, sorted(s.start for s in spans)],
            call="(lane, kind) of all spans, and their starts",
            given=given,
            cause="prompts are never computed where others decode; spans come by their start",
        )
    alone = disaggregated([Job(0.0, 4, 1)], COST, Wire(), plain)
    expect(
        [alone[0][0].times, alone[1], alone[0][0].job],
        [[2.0], [Span("prefill", "prefill", (0,), 0.0, 2.0)], Job(0.0, 4, 1)],
        call="times, spans and job of disaggregated of one job of one token",
        cause="there is nothing to decode, so nothing is sent",
    )
    expect(disaggregated([], COST, Wire(), plain), ([], []), call="disaggregated without jobs")


@pytest.mark.check(task=3, points=1, title="Nobody who decodes waits for a prompt")
def test_gain():
    jobs = [Job(0.0, 8, 30), *(Job(4.0 + 3 * n, 400, 2) for n in range(4))]
    limits = Limits(8, 40)
    longest = {}
    for name, strategy in (
        ("static", static), ("prefill first", prefill_first), ("chunked", chunked)
    ):  # fmt: skip
        mine = [Progress(n, job, job.arrival) for n, job in enumerate(jobs)]
        replay(mine, strategy, COST, limits)
        longest[name] = max(b - a for a, b in zip(mine[0].times, mine[0].times[1:], strict=False))
    mine, _ = disaggregated(jobs, COST, Wire(0.25, 0.0), limits)
    gaps = [b - a for a, b in zip(mine[0].times, mine[0].times[1:], strict=False)]
    longest["disaggregated"] = max(gaps)
    expect(
        {name: round(gap, 2) for name, gap in longest.items()},
        {
            "static": 1.25,
            "prefill first": 404.25,
            "chunked": 11.0,
            "disaggregated": 1.5,
        },
        call="the longest gap between two tokens of a request, while long prompts arrive",
        given={"jobs": [(j.arrival, j.prompt, j.output) for j in jobs], "limits": limits},
        cause="prefill first stops all who decode, chunked slows them, apart they do not notice; "
        "static makes the others wait",
    )


@pytest.mark.check(task=3, points=1, title="Traces beside an oracle (random)", stress=True)
def test_random(seed):
    draw = random.Random(seed)
    for _ in range(25):
        jobs = [
            Job(draw.choice((0.0, 1.0, 2.5, 7.0)), draw.randint(1, 12), draw.randint(1, 6))
            for _ in range(draw.randint(1, 7))
        ]
        wire = Wire(draw.choice((0.0, 0.5, 4.0)), draw.choice((0.0, 0.125, 1.0)))
        compare(jobs, wire, Limits(draw.choice((1, 2, 3, 8)), 256))

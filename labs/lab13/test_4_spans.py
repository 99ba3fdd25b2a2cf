"""Task 4: spans of requests, from events."""

import random
from itertools import count

import pytest

from grader import expect
from nanovllm.batching.events import Aborted, Admitted, Failed, Preempted, Queued, Stepped
from nanovllm.generation.events import Completion, Finished, Prefilled, TokenGenerated
from nanovllm.observability.span import RequestInfo
from nanovllm.observability.spans import SpanBuilder
from nanovllm.observability.trace_context import (
    TraceContext,
    format_traceparent,
    parse_traceparent,
)

CALLER = TraceContext(0xABC, 0xDEF)


def done(request, index, time, reason="stop"):
    return Finished(request, index, Completion(index, (1,), "", reason), time)


def token(request, index, time):
    return TokenGenerated(request, index, 5, "", time)


def built(infos, events):
    """All spans, in the order in which they come; fresh numbers are 1,000, 1,001 ..."""
    builder = SpanBuilder(count(1000).__next__)
    for info in infos:
        builder.begin(info)
    return [span for event in events for span in builder.on(event)]


def phases(spans, request=7, index=0):
    """Name, start and end of a sample's phases, by time."""
    mine = [
        (s.start, s.end, s.name)
        for s in spans
        if s.kind == "internal"
        and s.attributes.get("nanovllm.request_id") == request
        and s.attributes.get("nanovllm.sample") == index
    ]
    return [[name, start, end] for start, end, name in sorted(mine)]


def root(spans, request=7):
    found = [s for s in spans if s.kind == "server" and
             s.attributes.get("nanovllm.request_id") == request]  # fmt: skip
    expect(len(found), 1, call=f"spans of kind server of request {request}",
           cause="one for each request, when its last sample has ended")  # fmt: skip
    return found[0]


@pytest.mark.check(task=4, points=3, title="The header traceparent")
def test_parse(seed):
    draw = random.Random(seed)
    trace, span = draw.getrandbits(128) | 1, draw.getrandbits(64) | 1
    t, s = f"{trace:032x}", f"{span:016x}"
    good = {
        f"00-{t}-{s}-01": True,
        f"00-{t}-{s}-00": False,
        f"  00-{t}-{s}-01 ": True,
        f"00-{t}-{s}-03": True,
        f"00-{t}-{s}-02": False,
        f"01-{t}-{s}-01-later": True,
        f"cc-{t}-{s}-00": False,
    }
    for header, sampled in good.items():
        found = parse_traceparent(header)
        expect(
            None if found is None else [found.trace_id, found.span_id, found.sampled],
            [trace, span, sampled],
            call=f"parse_traceparent({header!r})",
            cause="ids are hexadecimal; of the flags only the lowest bit says sampled; a later "
            "version may have more parts",
        )
    for header in (
        None, "", "-", f"ff-{t}-{s}-01", f"00-{t}-{s}-01-more", f"00-{t}-{s}", f"00-{t}-{s}-1",
        f"00-{'0' * 32}-{s}-01", f"00-{t}-{'0' * 16}-01", f"00-{t[1:]}-{s}-01",
        f"00-{t}-{s}0-01", f"00-{'ABCDEF' + t[6:]}-{s}-01", f"00-{'g' + t[1:]}-{s}-01",
        f"0-{t}-{s}-01", f"00_{t}_{s}_01", f"01-{t}-{s}-01later", f"00-{t}-{s}-0A",
        f"FF-{t}-{s}-01", f"0A-{t}-{s}-01", f"00-{t}-{s}-01-",
    ):  # fmt: skip
        expect(
            parse_traceparent(header),
            None,
            call=f"parse_traceparent({header!r})",
            cause="a wrong header is no header: the request gets a trace of its own",
        )


@pytest.mark.check(task=4, points=1, title="A header for the next service")
def test_format(seed):
    draw = random.Random(seed)
    for bits in (128, 90, 3):
        context = TraceContext(
            draw.getrandbits(bits) | 1, draw.getrandbits(bits // 2) | 1, bits > 5
        )
        expect(
            format_traceparent(context),
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{'01' if bits > 5 else '00'}",
            call=f"format_traceparent({context})",
            cause="ids have 32 and 16 digits, with zeros in front",
        )


def usual(request=7, start=10.0, index=0):
    """Waits 2 s, reads 1.5 s, says 3 tokens in 1 s."""
    return [
        Queued(request, index, start),
        Admitted(request, index, start + 2),
        Prefilled(request, 9, start + 3.5),
        token(request, index, start + 3.5),
        token(request, index, start + 4),
        token(request, index, start + 4.5),
        done(request, index, start + 4.5),
    ]


@pytest.mark.check(task=4, points=2, title="Phases of a request")
def test_phases(seed):
    start = 10.0 + seed % 100
    spans = built([RequestInfo(7, "tiny", 9)], usual(start=start))
    expect(
        phases(spans),
        [
            ["queue", start, start + 2],
            ["prefill", start + 2, start + 3.5],
            ["decode", start + 3.5, start + 4.5],
        ],
        call="phases of a request that waits, reads, and says 3 tokens",
        cause="each begins where the one before it ends; prefill ends with the first token",
    )
    top = root(spans)
    expect([top.start, top.end], [start, start + 4.5], call="start and end of the request's span")
    expect(
        [[s.trace_id, s.parent_id] for s in spans if s is not top],
        [[top.trace_id, top.span_id]] * 3,
        call="trace and parent of the phases",
        cause="phases are children of their request's span",
    )
    expect.that(
        len({s.span_id for s in spans}) == 4 and all(s.span_id for s in spans),
        "each span has an id of its own",
        observed=[s.span_id for s in spans],
    )
    expect(top.parent_id, 0, call="parent of the request's span, without a caller")
    short = [Queued(7, 0, 1.0), Admitted(7, 0, 1.0), token(7, 0, 2.0), done(7, 0, 2.0, "length")]
    expect(
        phases(built([RequestInfo(7, "tiny", 9)], short)),
        [["prefill", 1.0, 2.0]],
        call="phases of a request that waits for nobody and says one token",
        cause="a phase of no length is left out",
    )


@pytest.mark.check(task=4, points=2, title="Preempted, and back")
def test_preempted(seed):
    draw = random.Random(seed)
    for number in range(8):
        now, events, expected = 5.0, [Queued(7, 0, 5.0)], []
        phase = "queue"

        def go(to, expected=expected):
            nonlocal phase, now
            later = now + draw.choice([0.25, 0.5, 1.75])
            expected.append([phase, now, later])
            phase, now = to, later
            return later

        events.append(Admitted(7, 0, go("prefill")))
        for _ in range(draw.randint(1, 4)):
            if draw.random() < 0.7:
                events.append(token(7, 0, go("decode")))
                events.append(token(7, 0, now + 0.125))
            events.append(Preempted(7, 0, go("preempted")))
            events.append(Admitted(7, 0, go("prefill")))
        events.append(token(7, 0, go("decode")))
        events.append(done(7, 0, go("")))
        spans = built([RequestInfo(7, "tiny", 9)], events)
        found = phases(spans)
        expect(
            found,
            expected,
            call=f"phases of request {number} that is preempted now and then",
            given={"events": [type(event).__name__ for event in events]},
            cause="preempted lasts until it is admitted again; then it is prefill until the next "
            "token, for all is computed anew; each phase is closed once",
        )
        top = root(spans)
        total = sum(end - start for _, start, end in found)
        expect(total, top.end - top.start, call="sum of the phases", rtol=1e-9)


@pytest.mark.check(task=4, points=2, title="What the request's span says")
def test_attributes(seed):
    info = RequestInfo(7, f"m{seed}", 9, operation="text_completion", context=CALLER, name="cmpl-1")
    top = root(built([info], usual()))
    expect(top.name, f"text_completion m{seed}", call="name of the request's span")
    expect(
        [top.trace_id, top.parent_id, top.status],
        [CALLER.trace_id, CALLER.span_id, "ok"],
        call="trace, parent and status of a request with a traceparent",
        cause="it is in the caller's trace, below the caller's span",
    )
    for name, value in {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": f"m{seed}",
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.id": "cmpl-1",
        "gen_ai.response.time_to_first_chunk": 3.5,
    }.items():
        expect(top.attributes.get(name), value, call=f"attribute {name}", rtol=1e-9)
    plain = root(built([RequestInfo(7, "tiny", 9)], usual())).attributes
    expect.that(
        "gen_ai.response.id" not in plain and "error.type" not in plain,
        "what is not known is no attribute",
        observed=sorted(plain),
    )


@pytest.mark.check(task=4, points=2, title="Several requests and samples at once")
def test_samples(seed):
    draw = random.Random(seed)
    infos = [
        RequestInfo(3, "a", 5, samples=3),
        RequestInfo(4, "b", 6, context=CALLER),
        RequestInfo(5, "c", 7),
    ]
    lines = [usual(3, 1.0 + i, i)[: 2 + draw.randint(2, 4)] for i in range(3)]
    lines = [[*line, done(3, i, 20.0 + draw.random())] for i, line in enumerate(lines)]
    lines += [usual(4, 2.0), usual(5, 2.5)]
    events = sorted((event for line in lines for event in line), key=lambda event: event.time)
    step = Stepped((), 1, 0, 1, 1, 0.0, 1.0)
    spans = built(infos, [step, *events, step, Queued(99, 0, 50.0), token(98, 0, 51.0)])
    top = root(spans, 3)
    ends = [event.time for event in events if isinstance(event, Finished) and event.request_id == 3]
    expect(
        [top.start, top.end],
        [1.0, max(ends)],
        call="start and end of a request of three samples",
        cause="from its first Queued to the end of its last sample",
    )
    tokens = [e for e in events if isinstance(e, TokenGenerated) and e.request_id == 3]
    expect(
        [top.attributes.get("gen_ai.usage.output_tokens"),
         top.attributes.get("gen_ai.usage.input_tokens"),
         len(top.attributes.get("gen_ai.response.finish_reasons", []))],
        [len(tokens), 5, 3],
        call="output tokens, input tokens, number of finish reasons, of three samples",
        cause="output of all samples together; the prompt once",
    )  # fmt: skip
    expect(
        top.attributes.get("gen_ai.response.time_to_first_chunk"),
        min(e.time for e in tokens) - 1.0,
        call="time to the first chunk of three samples",
        cause="the first token of any sample",
    )
    others = [root(spans, 4), root(spans, 5)]
    expect(
        [others[0].trace_id, others[0].parent_id, others[1].parent_id],
        [CALLER.trace_id, CALLER.span_id, 0],
        call="traces of two requests of one batch, of which one has a caller",
        cause="what a request belongs to is its own, not that of the batch",
    )
    expect.that(
        len({top.trace_id, others[0].trace_id, others[1].trace_id}) == 3,
        "requests without a caller have traces of their own",
    )
    expect.that(
        not {top.trace_id, others[1].trace_id} & {info.request_id for info in infos},
        "a new trace has a fresh number, not that of the request",
        observed=[top.trace_id, others[1].trace_id],
        cause="request ids begin anew in each process; trace ids are of the whole world",
    )
    tops = {span.attributes.get("nanovllm.request_id"): span for span in spans
            if span.kind == "server"}  # fmt: skip
    inner = [span for span in spans if span.kind == "internal"]
    owners = [tops[span.attributes.get("nanovllm.request_id")] for span in inner]
    expect(
        [[span.trace_id == top.trace_id, span.parent_id == top.span_id]
         for span, top in zip(inner, owners, strict=True)],
        [[True, True]] * len(inner),
        call="whether each phase is in its request's trace, below its request's span",
        cause="several requests are in one batch; a phase belongs to its own",
    )  # fmt: skip
    for span in spans:
        expect.that(
            span.end > span.start,
            "each span lasts",
            observed=(span.name, span.start, span.end),
        )


@pytest.mark.check(task=4, points=2, title="Aborted and failed")
def test_ends(seed):
    info, at = RequestInfo(7, "tiny", 9), 3.0 + seed % 100
    waits = [Queued(7, 0, at), Aborted(7, 0, (), "", at + 5)]
    spans = built([info], waits)
    top = root(spans)
    expect(phases(spans), [["queue", at, at + 5]], call="phases of a request given up in the queue")
    expect(
        [top.attributes.get("gen_ai.response.finish_reasons"), top.status],
        [["abort"], "ok"],
        call="finish reasons and status of a request that was given up",
        cause="giving up is no error",
    )
    expect.that(
        "gen_ai.response.time_to_first_chunk" not in top.attributes,
        "without a token there is no time to the first one",
    )
    two = RequestInfo(7, "tiny", 9, samples=2)
    events = [
        *usual(7, at, 0)[:-1],
        Queued(7, 1, at),
        Failed(7, 0, ZeroDivisionError("x"), at + 6),
        Admitted(7, 1, at + 7),
        token(7, 1, at + 8),
        done(7, 1, at + 9, "length"),
        Failed(7, 1, ZeroDivisionError("late"), at + 10),
    ]
    spans = built([two], events)
    top = root(spans)
    expect(
        [top.status, top.attributes.get("error.type"), top.end,
         top.attributes.get("gen_ai.response.finish_reasons")],
        ["error", "ZeroDivisionError", at + 9, ["error", "length"]],
        call="status, error.type, end, finish reasons, when the first of two samples failed",
        cause="one failed sample makes the request an error; reasons are by sample; what comes "
        "after the end changes nothing",
    )  # fmt: skip
    expect(
        phases(spans)[-1],
        ["decode", at + 3.5, at + 6],
        call="last phase of a sample that failed while it decoded",
        cause="phases last until the sample's end, whatever ends it",
    )
    gone = built([info], [*usual(start=at)[:-1], Aborted(7, 0, (), "", at + 6)])
    expect(phases(gone)[-1], ["decode", at + 3.5, at + 6],
           call="last phase of a request given up while it decoded")  # fmt: skip
    crossed = [
        Queued(7, 1, at), Queued(7, 0, at + 1), Admitted(7, 1, at + 2), token(7, 1, at + 3),
        done(7, 1, at + 4, "length"), Admitted(7, 0, at + 5), token(7, 0, at + 6),
        done(7, 0, at + 7, "stop"),
    ]  # fmt: skip
    top = root(built([two], crossed))
    expect(
        [top.start, top.end, top.attributes.get("gen_ai.response.finish_reasons")],
        [at, at + 7, ["stop", "length"]],
        call="start, end, finish reasons, when sample 1 comes and ends before sample 0",
        cause="it begins with its first Queued, of any sample; reasons are by sample, not by end",
    )
    again = built([info, info], [*usual(), *usual(start=30.0)])
    expect(
        len([s for s in again if s.kind == "server"]),
        1,
        call="spans of kind server, when events of a request come that has ended",
    )

"""Task 3: streaming."""

import asyncio
import json

import pytest

from grader import expect
from grader.course.paths import ROOT
from nanovllm.batching.events import Aborted, Admitted, Failed, Stepped
from nanovllm.generation.events import Completion, Finished, Logprob, Sampled, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence
from nanovllm.serving.deltas import Delta, merge
from nanovllm.serving.errors import ApiError, EngineDeadError
from nanovllm.serving.stream import Stream
from nanovllm.serving.streaming import ClientGoneError, event_stream, while_connected
from nanovllm.serving.writers import ChatWriter, CompletionWriter
from nanovllm.tokenization.detokenizer import StreamingDetokenizer
from nanovllm.tokenization.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_pretrained(ROOT / "models" / "target")


def token(request_id, index, token_id, text, logprobs=None):
    return TokenGenerated(request_id, index, token_id, text, 0.0, logprobs)


def finished(request_id, index, reason="stop", stop_reason=None):
    return Finished(request_id, index, Completion(index, (1,), "", reason, stop_reason), 0.0)


def collect(pieces):
    """The pieces of an async iterator."""

    async def main():
        return [piece async for piece in pieces]

    return asyncio.run(main())


def parse(pieces):
    """The data of the events in pieces of bytes, by a reader of the check's own."""
    text = b"".join(pieces).decode()
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


async def steps_of(*steps):
    for step in steps:
        if isinstance(step, Exception):
            raise step
        yield step


@pytest.mark.check(task=3, points=3, title="A step's events become one delta a choice")
def test_merge():
    stream = Stream([5, 8], n=2)
    likely = {3: Logprob(-0.5, 1)}
    step = Stepped((), 1, 0, 8, 9, 0.0, 0.0)
    events = [
        Admitted(8, 0, 0.0), token(8, 1, 7, "first "), token(5, 0, 3, "other", likely), step,
        token(8, 1, 2, "second"), token(5, 1, 4, ""), finished(8, 1, "stop", "END"),
        finished(5, 0, "length"),
    ]  # fmt: skip
    expect(
        merge(stream, events),
        [
            Delta(3, "first second", [7, 2], [], "stop", "END"),
            Delta(0, "other", [3], [likely], "length", None),
            Delta(1, "", [4], [], None, None),
        ],
        call="merge of two steps of two prompts (requests 5 and 8) with n=2",
        cause="text as the engine gave it: it has held back what may become a stop string",
    )


@pytest.mark.check(task=3, points=2, title="Given up or failed: the client learns how it ended")
def test_given_up():
    ends = {}
    for reason in ("timeout", "cancelled", "disconnected", "shutdown", None):
        stream = Stream([5, 8])
        stream.reason = reason
        gone = [Aborted(5, 0, (1, 2), "all of it", 0.0), Aborted(8, 0, (), "", 0.0)]
        ends[str(reason)] = [
            [delta.index, delta.text, delta.finish_reason, delta.stop_reason]
            for delta in merge(stream, gone)
        ]
    expect(
        ends,
        {
            "timeout": [[0, "", "length", "timeout"], [1, "", "abort", "timeout"]],
            "cancelled": [[0, "", "abort", "cancelled"], [1, "", "abort", "cancelled"]],
            "disconnected": [[0, "", "abort", None], [1, "", "abort", None]],
            "shutdown": [[0, "", "abort", None], [1, "", "abort", None]],
            "None": [[0, "", "abort", None], [1, "", "abort", None]],
        },
        call="the deltas of two samples that were aborted, the first with two tokens, the second "
        "still in the queue, by the stream's reason: choice, text, finish_reason, stop_reason",
        cause="what it has said was sent already, token by token; who got nothing did not reach "
        "a length",
    )
    failed = [token(5, 0, 1, "a"), Failed(5, 0, ValueError("NaN in row 3"), 0.0)]
    errors = []
    for reason in (None, "timeout"):
        stream = Stream([5])
        stream.reason = reason
        errors.append(
            expect.raises(
                ApiError,
                lambda stream=stream: merge(stream, failed),
                call=f"merge with a Failed, where the stream's reason is {reason}",
            )
        )
    expect(
        [[e.status, "ValueError" in e.message, "NaN in row 3" in e.message] for e in errors],
        [[500, True, True]] * 2,
        call="status of the two errors; whether they hold the type and the text of the sample's",
        cause="half an answer must not look like a whole one",
    )


@pytest.mark.check(
    task=3, points=2, title="No half of a stop string and no half of a character is ever sent"
)
def test_held_back(tokenizer, rng):
    said = "Mia 🙂 said: the END of it"
    ids = tokenizer.encode(said)
    params = SamplingParams(stop=["END of"], max_tokens=200)
    sequence = Sequence(
        [65], params, max_model_len=300, seed=0, request_id=5,
        detokenizer=StreamingDetokenizer(tokenizer),
    )  # fmt: skip
    stream, shown, pending = Stream([5]), "", []
    for token_id in ids:
        if sequence.finished:
            break
        pending += sequence.append(Sampled(token_id), 0.0)
        if rng.random() < 0.7 or sequence.finished:
            for delta in merge(stream, pending):
                shown += delta.text
            pending = []
    expect(
        [shown, delta.finish_reason, delta.stop_reason],
        ["Mia 🙂 said: the ", "stop", "END of"],
        call="the texts of all deltas joined; the last one's reasons",
        given={"generated": said, "stop": "END of"},
    )


def story_of(events):
    """A streamed chat as words: choice and what it says, usage, [DONE]."""
    seen = []
    for event in events:
        if event == "[DONE]":
            seen.append(event)
        elif not event.get("choices"):
            seen.append("usage" if event.get("usage") else "nothing")
        for choice in event.get("choices", ()) if event != "[DONE]" else ():
            delta = choice["delta"]
            what = delta.get("role") or delta.get("content") or "-"
            seen.append(f"{choice['index']}: {what} {choice['finish_reason'] or ''}".strip())
    return seen


@pytest.mark.check(
    task=3, points=3, title="A stream: openings, chunks, usage, [DONE], in this order"
)
def test_event_stream(tokenizer):
    steps = [
        [Delta(0, ""), Delta(1, "one")],
        [Delta(0, "", [3]), Delta(1, "")],
        [Delta(0, " two", [4]), Delta(1, " three", [5], [], "length")],
        [Delta(0, "", [2], [], "stop")],
    ]
    writer = ChatWriter("id", "tiny", 0, tokenizer, [[65]], n=2, include_usage=True)
    pieces = collect(event_stream(steps_of(*steps), writer))
    expect(
        story_of(parse(pieces)),
        ["1: assistant", "1: one", "0: assistant", "0:  two", "1:  three length", "0: - stop",
         "usage", "[DONE]"],
        call="the events of a streamed chat of two choices, as choice: role or text and "
        "finish_reason",
        cause="a choice's opening comes before its first chunk, usage after all chunks; a delta "
        "with nothing to show is no event",
    )  # fmt: skip
    writer = ChatWriter("id", "tiny", 0, tokenizer, [[65]], n=2)
    plain = parse(collect(event_stream(steps_of(*steps[:3], *steps[3:]), writer)))
    expect(
        [event for event in story_of(plain) if not event[0].isdigit()],
        ["[DONE]"],
        call="what such a stream without usage holds besides the choices",
    )
    echo = CompletionWriter("id", "tiny", 0, tokenizer, [[65]], n=1)
    echo.echo = ["Once"]
    events = parse(collect(event_stream(steps_of([Delta(0, " upon", [4], [], "length")]), echo)))
    expect(
        [e if e == "[DONE]" else [c["text"] for c in e["choices"]] for e in events],
        [["Once"], [" upon"], "[DONE]"],
        call="a streamed completion with echo and without usage: the texts",
    )
    likely = {4: Logprob(-0.5, 1)}
    told = CompletionWriter("id", "tiny", 0, tokenizer, [[65]], n=1, tops=0)
    steps = [[Delta(0, "", [4], [likely])], [Delta(0, " upon", [4], [likely], "length")]]
    events = parse(collect(event_stream(steps_of(*steps), told)))
    expect(
        [len(c["logprobs"]["token_logprobs"]) for e in events[:-1] for c in e["choices"]],
        [1, 1],
        call="log-probabilities in each chunk of a completion that reports them: of a token whose "
        "text is held back, and of the next",
        cause="a delta has something to show if it has text, log-probabilities or a finish reason",
    )


@pytest.mark.check(task=3, points=2, title="A step leaves at once, in one piece")
def test_pieces(tokenizer):
    writer = ChatWriter("id", "tiny", 0, tokenizer, [[65]], n=3)
    sent = []

    async def steps():
        for number in range(4):
            sent.append(f"step {number}")
            yield [Delta(i, f"{number}.{i} ", [4]) for i in range(3)] if number != 1 else []

    async def main():
        async for piece in event_stream(steps(), writer):
            words = [w for e in parse([piece]) if e != "[DONE]" for c in e["choices"]
                     for w in [c["delta"].get("content")] if w]  # fmt: skip
            if words:
                sent.append(words)

    asyncio.run(main())
    expect(
        sent,
        ["step 0", ["0.0 ", "0.1 ", "0.2 "], "step 1", "step 2", ["2.0 ", "2.1 ", "2.2 "],
         "step 3", ["3.0 ", "3.1 ", "3.2 "]],
        call="when each step is asked for, and the texts of each piece that is sent; three "
        "choices, and a second step with nothing to show",
        cause="one piece for all that a step brought, before the next step is asked for",
    )  # fmt: skip


async def reader_closes(tokenizer):
    """How closing an event_stream ends, after the first step."""
    writer = ChatWriter("id", "tiny", 0, tokenizer, [[65]], n=1)
    pieces = event_stream(steps_of([Delta(0, "some", [4])], []), writer)
    await anext(pieces)
    try:
        await pieces.aclose()
    except RuntimeError as error:
        return str(error)
    return "closed"


async def reader_leaves(tokenizer):
    """What a reader of event_stream gets who is cancelled after the first step."""
    writer, got = ChatWriter("id", "tiny", 0, tokenizer, [[65]], n=1), []

    async def steps():
        yield [Delta(0, "some", [4])]
        await asyncio.sleep(60)

    async def read():
        async for piece in event_stream(steps(), writer):
            got.extend(parse([piece]))

    reader = asyncio.ensure_future(read())
    for _ in range(50):
        await asyncio.sleep(0)
    reader.cancel()
    (end,) = await asyncio.gather(reader, return_exceptions=True)
    return [type(end).__name__, [e if e == "[DONE]" else list(e) for e in got[2:]]]


@pytest.mark.check(task=3, points=2, title="An error after the headers is told in the stream")
def test_error_in_stream(tokenizer):
    writer = ChatWriter("id", "tiny", 0, tokenizer, [[65]], n=1, include_usage=True)
    steps = steps_of([Delta(0, "some", [4])], EngineDeadError("The engine has died."))
    try:
        events = parse(collect(event_stream(steps, writer)))
    except EngineDeadError as error:
        events = [f"raised {type(error).__name__}"]
    writer = ChatWriter("id", "tiny", 0, tokenizer, [[65]], n=1)
    whole = parse(collect(event_stream(steps_of([Delta(0, "some", [4], [], "stop")]), writer)))
    expect(
        [whole[-1] == "[DONE]"]
        + [list(event) if isinstance(event, dict) else event for event in events[2:]]
        + [event["error"] for event in events if "error" in event],
        [
            True,
            ["error"],
            "[DONE]",
            {
                "message": "The engine has died.",
                "type": "EngineDeadError",
                "param": None,
                "code": 503,
            },
        ],
        call="whether a stream without an error ends with [DONE]; what follows the opening and "
        "'some' when the engine dies: keys of the events; the error",
        cause="chunks and usage that are missing never come: the error stands in their place",
    )
    writer = ChatWriter("id", "tiny", 0, tokenizer, [[65]], n=1)
    steps = steps_of([Delta(0, "some", [4])], ZeroDivisionError("secret 123"))
    *_, error, _ = parse(collect(event_stream(steps, writer)))
    told = error.get("error", {})
    expect(
        [told.get("code"), "secret" in json.dumps(error)],
        [500, False],
        call="the error that a client reads when a bug raises ZeroDivisionError('secret 123'): "
        "code, whether it shows the text",
        cause="what api_error hides in an answer it hides in a stream",
    )
    expect(
        asyncio.run(asyncio.wait_for(reader_leaves(tokenizer), 5)),
        ["CancelledError", []],
        call="a reader that is cancelled while it waits for the second step: how it ends, and "
        "what is still sent to it after 'some'",
        cause="nobody reads any more; CancelledError is no error of the steps",
    )
    expect(
        asyncio.run(reader_closes(tokenizer)),
        "closed",
        call="aclose() of the stream by its reader, after the first step",
        cause="GeneratorExit is no error of the steps, and nothing may be given after it",
    )


@pytest.mark.check(task=3, points=2, title="A client who leaves ends the work, and no task is left")
def test_while_connected():
    async def scene(messages, seconds, pace=0.001, patience=5.0):
        story = []

        async def receive():
            while not messages:
                await asyncio.sleep(60)
            if pace:
                await asyncio.sleep(pace)
            return {"type": messages.pop(0)}

        async def work():
            try:
                if pace:
                    await asyncio.sleep(seconds)
                story.append("answered")
                if seconds < 0:
                    raise ValueError("bad")
                return "answer"
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)  # to clean up
                story.append("cancelled")
                raise

        try:
            story.append(await asyncio.wait_for(while_connected(receive, work()), patience))
        except (ClientGoneError, ValueError, TimeoutError) as error:
            story.append(type(error).__name__)
        story.append(len(asyncio.all_tasks()) - 1)
        return story

    scenes = {
        "the answer comes": ([], 0),
        "a message comes first": (["http.request"], 0.1),
        "the client leaves": (["http.request", "http.disconnect"], 60),
        "the work fails": ([], -1),
        "both at once": (["http.disconnect"], 0, 0),
        "the caller is cancelled": ([], 60, 0.001, 0.05),
    }
    found = {name: asyncio.run(scene(*how)) for name, how in scenes.items()}
    expect(
        found,
        {
            "the answer comes": ["answered", "answer", 0],
            "a message comes first": ["answered", "answer", 0],
            "the client leaves": ["cancelled", "ClientGoneError", 0],
            "the work fails": ["answered", "ValueError", 0],
            "both at once": ["answered", "answer", 0],
            "the caller is cancelled": ["cancelled", "TimeoutError", 0],
        },
        call="while_connected: what the work saw, how it ended, tasks that are left",
        cause="a task that is left runs for ever",
    )

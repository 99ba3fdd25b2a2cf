"""Task 1: streams, and the engine in a thread of its own."""

import asyncio
import sys
import threading
import traceback
from contextlib import suppress

import pytest

from grader import expect
from nanovllm.batching.events import Aborted, Failed
from nanovllm.generation.errors import EmptyPromptError
from nanovllm.generation.events import Completion, Finished, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.async_engine import AsyncEngine
from nanovllm.serving.errors import EngineDeadError
from nanovllm.serving.scripted import HeldEngine, ScriptedEngine
from nanovllm.serving.stream import Stream

LONG = SamplingParams(max_tokens=60)
PATIENCE = 8.0  # seconds, for a machine that is very busy


def token(request_id, index=0, text="x"):
    return TokenGenerated(request_id, index, 5, text, 0.0)


def finished(request_id, index=0):
    return Finished(request_id, index, Completion(index, (5,), "x", "stop"), 0.0)


class SpinningError(Exception):
    """A reader asks again and again, and never lets the loop do anything else."""


class Bell(asyncio.Event):
    """An Event that notices who waits for it in a circle, though it is set."""

    spins = 0

    async def wait(self):
        self.spins = self.spins + 1 if self.is_set() else 0
        if self.spins > 100:
            raise SpinningError("a reader waits in a circle for an Event that is set already")
        return await super().wait()


HEARD = []  # by each reader of a check


@pytest.fixture(autouse=True)
def bells(monkeypatch):
    """A loop that spins cannot be stopped from outside."""
    HEARD.clear()
    monkeypatch.setattr(asyncio, "Event", Bell)


def waits():
    """Where the code of the lab waits now: the innermost lines, by thread and by task."""
    stacks = [traceback.extract_stack(frame) for frame in sys._current_frames().values()]
    for task in asyncio.all_tasks():
        stacks.append([traceback.FrameSummary(f.f_code.co_filename, f.f_lineno, f.f_code.co_name)
                       for f in task.get_stack()])  # fmt: skip
    found = set()
    for stack in stacks:
        ours = [f for f in stack if "serving" in f.filename and "scripted" not in f.filename]
        if ours:
            found.add(f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].lineno} {ours[-1].line}")
    return sorted(found)


def run(coroutine, call):
    """Run it, but not for ever: of what hangs, the card says where it waits."""

    async def limited():
        task = asyncio.ensure_future(coroutine)
        done, _ = await asyncio.wait([task], timeout=PATIENCE)
        if not done:
            where = waits()
            task.cancel()
            return where, None
        return None, task

    where, task = asyncio.run(limited())
    last = [type(events[-1]).__name__ if events else "nothing" for events in HEARD]
    expect.that(
        where is None,
        f"it ends within {PATIENCE:.0f} s",
        observed=last,
        given={} if where is None else {"it waits at": where or "no line of serving/"},
        call=f"{call}; if it hangs, what each reader of the check heard last",
    )
    return task.result()


async def held(engine):
    """Wait for the next step; a sentence in place of a hang."""
    steps = await engine.until_held(PATIENCE - 3)
    expect.that(
        steps,
        "somebody steps the engine, which has work to do",
        given={} if steps else {"it waits at": waits()},
    )
    for _ in range(10):  # what the step before brought is on its way through the loop
        await asyncio.sleep(0)


async def listen(stream, heard=None):
    """What a stream says to its reader: the events, and how it ended."""
    heard = [] if heard is None else heard
    HEARD.append(heard)
    try:
        async for events in stream:
            heard += events
    except EngineDeadError as error:
        return heard, error
    return heard, "end"


def texts(stream, heard):
    """The text of every choice, by its number."""
    found = {}
    for event in heard:
        if isinstance(event, TokenGenerated):
            choice = stream.choice(event)
            found[choice] = found.get(choice, "") + event.text
    return found


def endless(prompt, index):
    return [f"{prompt[0]} "] * 100


@pytest.mark.check(task=1, points=2, title="Choices are numbered prompt by prompt")
def test_choices():
    async def numbers():
        stream = Stream([4, 9, 2], n=2, name="cmpl-1")
        about = [tuple(stream.request_ids), stream.n, stream.name, stream.reason]
        order = [(4, 0), (4, 1), (9, 0), (9, 1), (2, 0), (2, 1)]
        choices = [stream.choice(token(*who)) for who in order]
        counts = [stream.num_open]
        for event in (finished(9), Aborted(4, 1, (), "", 0.0), token(2), finished(2),
                      Failed(4, 0, ValueError(), 0.0), finished(9, 1), finished(2, 1)):  # fmt: skip
            stream.put([event])
            counts.append(stream.num_open)
        return about, choices, counts, stream.ended

    about, choices, counts, ended = run(numbers(), "a Stream of three prompts, n=2")
    expect(
        choices,
        [0, 1, 2, 3, 4, 5],
        call="choice(event) for the samples 0 and 1 of requests 4, 9 and 2, in this order",
        cause="each prompt has n choices, and those of the second come after those of the first",
    )
    expect(about, [(4, 9, 2), 2, "cmpl-1", None], call="request_ids, n, name, reason of a Stream")
    expect(
        [counts, ended],
        [[6, 5, 4, 4, 3, 2, 1, 0], True],
        call="samples open at first, and after a Finished, an Aborted, a token, a Finished, a "
        "Failed and two Finished; whether the stream has ended then",
        cause="Finished, Aborted and Failed each end one sample, nothing else does",
    )


@pytest.mark.check(task=1, points=3, title="A stream hands over all that came, then ends")
def test_stream():
    async def read_late():
        stream = Stream([4, 9])
        mine = [token(4, text="a"), token(9, text="b")]
        stream.put(mine)
        mine.append(token(4, text="z"))
        stream.put([token(4, text="c")])
        turns = aiter(stream)
        batches = [[e.text for e in await anext(turns)]]
        stream.put([finished(4), token(9, text="d"), finished(9)])
        async for events in turns:
            batches.append([type(e).__name__ for e in events])
        return batches

    expect(
        run(read_late(), "a reader who is late"),
        [["a", "b", "c"], ["Finished", "TokenGenerated", "Finished"]],
        call="what a reader gets who comes after two puts, then after the rest",
        cause="everything since the last look, in order; what the caller does to its list later is "
        "its own affair",
    )

    async def read_early():
        stream = Stream([1])
        turns, found = aiter(stream), []
        for text in "ab":
            reader = asyncio.ensure_future(anext(turns))
            for _ in range(5):
                await asyncio.sleep(0)
            found.append(reader.done())
            stream.put([token(1, text=text)])
            found.append([e.text for e in await reader])
        return found

    expect(
        run(read_early(), "a reader who is early"),
        [False, ["a"], False, ["b"]],
        call="a reader who comes before the event, twice: whether it has something at once; what "
        "it gets",
    )

    async def failing():
        stream = Stream([1])
        before = stream.ended
        stream.put([token(1), token(1)])
        stream.fail(EngineDeadError("dead"))
        heard, end = await listen(stream)
        waiting = Stream([2])
        reader = asyncio.ensure_future(listen(waiting))
        await asyncio.sleep(0)
        waiting.fail(EngineDeadError("dead too"))
        return [before, stream.ended, len(heard), str(end), str((await reader)[1])]

    expect(
        run(failing(), "a stream that fails"),
        [False, True, 2, "dead", "dead too"],
        call="ended before and after fail(error); events read after it; the error that follows; "
        "the error for a reader who waits already",
        cause="what came before an error is read before it",
    )


@pytest.mark.check(
    task=1, points=4, title="The model never runs in the event loop; words stay apart"
)
def test_words(rng):
    engine = ScriptedEngine(max_num_seqs=5)
    front = AsyncEngine(engine)
    firsts = [int(i) for i in rng.choice(1000, size=12, replace=False)]

    async def serve():
        front.start()
        streams = [
            front.submit([[first], [first + 1000]], SamplingParams(n=2), name=f"cmpl-{first}")
            for first in firsts
        ]
        opened = [front.num_open, len(front.streams), streams[3].name == f"cmpl-{firsts[3]}"]
        heard = await asyncio.gather(*map(listen, streams))
        for _ in range(10):
            await asyncio.sleep(0)
        left = [front.num_open, len(front.streams), front.alive]
        await front.stop()
        said = [texts(s, events) for s, (events, _) in zip(streams, heard, strict=True)]
        return opened, said, [end for _, end in heard], left

    opened, said, ends, left = run(serve(), "12 requests at once")
    wanted = [
        {2 * p + i: "".join(f"{first + 1000 * p}-{i}-{k} " for k in range(4))
         for p in range(2) for i in range(2)}
        for first in firsts
    ]  # fmt: skip
    expect(
        said,
        wanted,
        call="the text of each choice of 12 requests of two prompts with n=2, asked at once",
        cause="each event goes to the stream of its own request",
    )
    expect(
        [opened, ends, left],
        [[48, 24, True], ["end"] * 12, [0, 0, True]],
        call="num_open, number of entries of streams, and the name of one, after the submits; how "
        "the streams ended; num_open, entries of streams and alive after them",
        cause="streams has an entry for each prompt until the stream has ended",
    )
    expect(
        [threading.get_ident() in engine.threads, len(engine.threads)],
        [False, 1],
        call="whether the loop's own thread ever stepped the engine; threads that did",
        cause="a step in the loop keeps every connection waiting for as long as it takes",
    )


@pytest.mark.check(task=1, points=3, title="All prompts of a request are taken, or none")
def test_all_or_none():
    engine = HeldEngine(script=endless, max_num_seqs=8)
    front = AsyncEngine(engine)

    async def serve():
        front.start()
        stream = front.submit([[1]], LONG)
        reader = asyncio.ensure_future(listen(stream))
        await held(engine)
        refused = "taken"
        try:
            front.submit([[5], [6], []], LONG)
        except EmptyPromptError as error:
            refused = type(error).__name__
        opened = [front.num_open, len(front.streams)]
        for _ in range(2):
            engine.let_go()
            await held(engine)
        front.cancel(stream, "over")
        engine.let_all_go()
        await reader
        await front.stop()
        return refused, opened

    refused, opened = run(serve(), "submit([[5], [6], []]) beside another request")
    expect(
        [refused, opened],
        ["EmptyPromptError", [1, 1]],
        call="submit of three prompts of which the engine refuses the third; num_open and entries "
        "of streams after it",
    )
    spoke = {e.request_id for events in engine.log for e in events if isinstance(e, TokenGenerated)}
    expect(
        [sorted(spoke), sorted(set(engine.aborted) - {0})],
        [[0], [1, 2]],
        call="requests that the engine computed tokens for; requests that it was told to abort "
        "besides the first",
        cause="requests 1 and 2 are in the engine, and nobody listens to them",
    )
    idle = ScriptedEngine()

    async def refuse():
        alone = AsyncEngine(idle)
        alone.start()
        await alone.call(lambda engine: None)
        await asyncio.sleep(0.05)  # the thread sleeps by now
        with suppress(EmptyPromptError):
            alone.submit([[5], []], LONG)
        for _ in range(200):
            if idle.has_unfinished:
                await asyncio.sleep(0.01)
        left = len(idle.samples)
        await alone.stop()
        return left

    expect(
        run(refuse(), "submit([[5], []]) to an engine that sleeps"),
        0,
        call="samples left in an engine that slept, 2 s after submit of two prompts of which it "
        "refuses the second",
    )


@pytest.mark.check(task=1, points=4, title="Cancelled: given up before the next step begins")
def test_cancel():
    engine = HeldEngine(script=endless, max_num_seqs=8)
    front = AsyncEngine(engine)

    async def serve():
        front.start()
        gone = front.submit([[1], [2]], LONG)
        await held(engine)
        stays = front.submit([[3]], LONG)
        short = front.submit([[4]], SamplingParams(max_tokens=1))
        readers = [asyncio.ensure_future(listen(stream)) for stream in (gone, stays, short)]
        engine.let_go()
        await held(engine)
        engine.let_go()
        await held(engine)  # short has ended
        front.cancel(gone, "timeout")
        front.cancel(gone, "disconnected")
        front.cancel(short, "disconnected")
        at_once = [gone.ended, gone.num_open, gone.reason, short.reason]
        for _ in range(3):
            engine.let_go()
            await held(engine)
        front.cancel(stays, "over")
        engine.let_all_go()
        heard = await asyncio.gather(*readers)
        await front.stop()
        return at_once, heard

    at_once, heard = run(serve(), "three streams, one of them cancelled")
    spoke = [
        sorted({e.request_id for e in events if isinstance(e, TokenGenerated)})
        for events in engine.log[:6]
    ]
    expect(
        spoke,
        [[0, 1], [0, 1, 2, 3], [0, 1, 2], [2], [2], [2]],
        call="requests that got a token in each step: 0 and 1 are one stream, cancelled while the "
        "third step runs",
        cause="the step that has begun still brings tokens; the next one begins without them",
    )
    expect(
        at_once,
        [False, 2, "timeout", None],
        call="right after cancel(stream, 'timeout') and cancel(stream, 'disconnected'): ended, "
        "num_open and reason of the stream; reason of one that was cancelled after its end",
        cause="the stream stays open until the engine's Aborted; the first reason counts",
    )
    events, end = heard[0]
    kinds = [type(e).__name__ for e in events if isinstance(e, TokenGenerated | Aborted)]
    expect(
        [kinds, end, 3 in engine.aborted],
        [["TokenGenerated"] * 6 + ["Aborted"] * 2, "end", False],
        call="what the cancelled stream's reader got, and how it ended; whether the request that "
        "had ended was aborted",
        cause="the reader keeps what there is; a client always leaves after its answer",
    )


@pytest.mark.check(
    task=1, points=2, title="A step costs one call of the loop; observers see it whole"
)
def test_cost():
    engine = HeldEngine(max_num_seqs=40)
    seen, broken, known = [], [], []

    def breaks(events, usage):
        broken.append(usage)
        raise ValueError("a chart is broken")

    def sees(events, usage):
        seen.append((list(events), usage))
        known.append({e.request_id for e in events if hasattr(e, "request_id")} <= {*front.streams})

    front = AsyncEngine(engine, [breaks, sees])

    async def serve():
        loop, calls = asyncio.get_running_loop(), []
        send = loop.call_soon_threadsafe

        def counted(*args, **more):
            calls.append(threading.get_ident())
            return send(*args, **more)

        loop.call_soon_threadsafe = counted
        front.start()
        streams = [front.submit([[i]], SamplingParams(n=2)) for i in range(20)]
        readers = [asyncio.ensure_future(listen(stream)) for stream in streams]
        engine.let_all_go()
        await asyncio.gather(*readers)
        count = sum(thread in engine.threads for thread in calls)
        await front.stop()
        return count

    calls = run(serve(), "20 requests of two samples of four words, at once")
    events = sum(map(len, engine.log))
    expect.that(
        calls <= engine.steps + 2,
        f"{engine.steps} steps cost at most as many calls of the loop",
        observed="a call for each event" if calls >= events else "more calls than steps",
        call="loop.call_soon_threadsafe from the engine's thread, for 20 requests with n=2",
        cause=f"it made {calls} calls; one for each of 40 samples costs more than the step",
    )
    expect(
        [[e for events, _ in seen for e in events] == [e for events in engine.log for e in events],
         len(seen), len(broken), all(known)],
        [True, engine.steps, 1, True],
        call="whether an observer saw every event of the engine, in order; its calls; calls of an "
        "observer that raises, which is dropped; whether streams still had every request that "
        "the observer heard of",
        cause="observer(events, usage) once a step, with all events, also those of no request",
    )  # fmt: skip
    expect(
        [[round(usage, 6) for _, usage in seen][:3], round(seen[-1][1], 6)],
        [[0.04, 0.08, 0.12], 0.0],
        call="usage that the observers saw: after the steps in which 40 samples got their first, "
        "second and third token (of 1000 places); after the last step",
        cause="usage is the share in use: 1 - free_tokens / total_tokens",
    )


@pytest.mark.check(
    task=1, points=2, title="Nothing to do: the thread sleeps, and still answers calls"
)
def test_sleep():
    looks = []

    class Watched(ScriptedEngine):
        @property
        def has_unfinished(self):
            looks.append(self.steps)
            return super().has_unfinished

    engine = Watched()
    front = AsyncEngine(engine)

    async def serve():
        front.start()
        await front.call(lambda engine: None)
        await asyncio.sleep(0.05)
        looks.clear()
        await asyncio.sleep(0.3)
        idle = len(looks)
        answers = [await front.call(lambda engine: threading.get_ident() in engine.threads)]
        answers.append(await front.call(lambda engine: engine.steps))
        try:
            await front.call(lambda engine: 1 / 0)
        except ZeroDivisionError:
            answers.append("ZeroDivisionError")
        heard, _ = await listen(front.submit([[7]], SamplingParams()))
        answers.append("".join(e.text for e in heard if isinstance(e, TokenGenerated)))
        answers.append(await front.call(lambda engine: threading.get_ident() in engine.threads))
        gone = asyncio.ensure_future(front.call(lambda engine: engine.steps))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        answers.append(await front.call(lambda engine: "alive"))
        await front.stop()
        return idle, answers

    idle, answers = run(serve(), "an engine without requests, calls, then a request")
    expect(
        answers,
        [False, 0, "ZeroDivisionError", "7-0-0 7-0-1 7-0-2 7-0-3 ", True, "alive"],
        call="call: whether its thread has stepped (before any request); steps so far; a function "
        "that raises; then the words of a request; again whether its thread steps; a call after "
        "one whose caller has gone",
        cause="function(engine) runs in the engine's thread, between two steps; it is no step",
    )
    expect.that(
        idle <= 2,
        "an idle engine's thread sleeps until it is woken",
        observed=f"more than twice in 0.3 s: {idle > 2}",
        call="how often the thread looked whether there is work, while there was none",
    )


@pytest.mark.check(task=1, points=4, title="A dead engine is reported to everybody at once")
def test_death():
    async def serve(engine, front):
        healthy = [front.alive]
        front.start()
        healthy += [front.error, front.alive]
        streams = [front.submit([[first]], LONG) for first in range(3)]
        readers = [asyncio.ensure_future(listen(stream)) for stream in streams[:2]]
        for _ in range(2):
            await held(engine)
            engine.let_go()
        await held(engine)
        asked = asyncio.ensure_future(front.call(lambda engine: engine.steps))
        await asyncio.sleep(0)
        engine.let_all_go()
        heard = list(await asyncio.gather(*readers))
        heard.append(await listen(streams[2]))  # a reader who comes after the death
        (answer,) = await asyncio.gather(asked, return_exceptions=True)
        later = []
        for ask in (lambda: front.submit([[7]], LONG), lambda: front.call(lambda engine: 1)):
            try:
                found = ask()
                later.append(await found)
            except EngineDeadError as error:
                later.append(type(error).__name__)
        error = front.error
        left = [len(front.streams), front.num_open, front.alive, type(error).__name__]
        await front.stop()
        left.append(front.error is error)
        return healthy, heard, type(answer).__name__, later, left

    for fault in (RuntimeError("out of memory"), SystemExit("out of memory")):
        engine, kind = HeldEngine(script=endless, faults={3: fault}), type(fault).__name__
        healthy, heard, answer, later, left = run(
            serve(engine, AsyncEngine(engine)), f"an engine whose third step raises a {kind}"
        )
        tokens = [e.request_id for ev in engine.log for e in ev if isinstance(e, TokenGenerated)]
        expect(
            [[len([e for e in events if isinstance(e, TokenGenerated)]), type(end).__name__]
             for events, end in heard],
            [[tokens.count(i), "EngineDeadError"] for i in range(3)],
            call="tokens read, and the end, of three streams; the third reader begins afterwards",
            cause="every open stream fails, after what came before, or its reader waits for ever",
        )  # fmt: skip
        said = str(heard[0][1])
        expect(
            [kind in said, "out of memory" in said],
            [True, True],
            call="whether the error holds the type and the text of what killed the engine",
            given={"error": said},
        )
        expect(
            [healthy, answer, later, left],
            [
                [False, None, True],
                "EngineDeadError",
                ["EngineDeadError"] * 2,
                [0, 0, False, "EngineDeadError", True],
            ],
            call="alive before start, then error and alive; the end of a call made in the step "
            "that died; submit, call, entries of streams, num_open, alive and error afterwards; "
            "whether error is the same after stop",
            cause="whoever asks a dead engine is refused at once",
        )


@pytest.mark.check(task=1, points=1, title="Stopped: the step ends, then everybody is told")
def test_stop():
    engine = HeldEngine(script=endless)
    front = AsyncEngine(engine)

    async def serve():
        front.start()
        reader = asyncio.ensure_future(listen(front.submit([[1]], LONG)))
        await held(engine)
        asked = asyncio.ensure_future(front.call(lambda engine: engine.steps))
        stopping = asyncio.ensure_future(front.stop())
        for _ in range(10):
            await asyncio.sleep(0)
        early = stopping.done()
        engine.let_all_go()
        await stopping
        (answer,) = await asyncio.gather(asked, return_exceptions=True)
        heard, end = await reader
        kinds = [type(what).__name__ for what in (end, answer, front.error)]
        return early, len([e for e in heard if isinstance(e, TokenGenerated)]), kinds, front.alive

    early, tokens, kinds, alive = run(serve(), "stop while a step runs, with a stream open")
    expect(
        [early, tokens, kinds, alive, len(engine.log)],
        [False, 1, ["EngineDeadError"] * 3, False, 1],
        call="whether stop returned before the step had ended; tokens of the open stream; how the "
        "stream and a call that waits ended, and error; alive after it; steps",
        cause="the step that has begun is delivered, and none follows; the reader waits for an end",
    )


def history(rng, acts):
    """What people do, as plain data: a round of acts for each step that is held."""
    rounds = []
    for _ in range(acts):
        now = []
        for _ in range(int(rng.integers(0, 3))):
            prompts = [[int(rng.integers(1, 40))] for _ in range(int(rng.integers(1, 4)))]
            if rng.random() < 0.2:
                prompts.append([])
            now.append(("come", prompts, int(rng.integers(1, 3))))
        if rng.random() < 0.4:
            reason = ["timeout", "disconnected", "cancelled"][int(rng.integers(3))]
            now.append(("cancel", int(rng.integers(30)), reason))
        if rng.random() < 0.3:
            now.append(("call",))
        rounds.append(now)
    if rng.random() < 0.3:
        rounds[-1].append(("stop",))
    return rounds


async def story(engine, front, rounds):
    """Live through a history; the first fact that is wrong, as (what, found, wanted), or None."""
    front.start()
    streams, readers, told, calls, stopping = [], [], [], [], None

    def come(prompts, n):
        try:
            stream = front.submit(prompts, SamplingParams(n=n), name=str(len(streams)))
        except EmptyPromptError:
            return
        streams.append(stream)
        readers.append(asyncio.ensure_future(listen(stream)))

    come([[0]], 1)  # request 0 is long: the engine is never idle meanwhile
    for acts in rounds:
        await held(engine)
        if engine.dead:
            break
        for act, *how in acts:
            if act == "come":
                come(*how)
            elif act == "cancel":
                stream = streams[how[0] % len(streams)]
                if not stream.ended:
                    told.append([stream, stream.reason or how[1]])
                front.cancel(stream, how[1])
            elif act == "call":
                calls.append(asyncio.ensure_future(front.call(lambda engine: len(engine.log))))
            else:
                stopping = asyncio.ensure_future(front.stop())
        for _ in range(3):
            await asyncio.sleep(0)
        engine.let_go()
    if not engine.dead and stopping is None:
        await held(engine)
        front.cancel(streams[0], "over")
    engine.let_all_go()
    heard = await asyncio.gather(*readers)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    left = [front.num_open, len(front.streams), front.error is None]
    await (stopping or front.stop())
    dead = engine.dead or stopping is not None
    for what, found, wanted in [
        ("num_open, entries of streams, and whether error is None, at the end", left,
         [0, 0, not dead]),
        ("calls that ended neither with a number of steps nor with an EngineDeadError",
          [str(a) for a in answers if not isinstance(a, int | EngineDeadError)], []),
        ("calls that got no answer, though the engine lives",
         sum(not isinstance(a, int) for a in answers) if not dead else 0, 0),
        ("reasons of streams that were given up: the first counts",
         [stream.reason for stream, _ in told], [reason for _, reason in told]),
    ]:  # fmt: skip
        if found != wanted:
            return what, found, wanted
    return heard_wrong(engine, streams, heard)


def heard_wrong(engine, streams, heard):
    """Every stream against the engine's own log, which is the model of the story."""
    for stream, (events, end) in zip(streams, heard, strict=True):
        mine = [
            e for step in engine.log for e in step
            if getattr(e, "request_id", -1) in stream.request_ids
        ]  # fmt: skip
        if events != mine:
            said = [[f"{type(e).__name__} of {e.request_id}" for e in es] for es in (events, mine)]
            return f"what the reader of stream {stream.name} got, against the log", *said
        ends = sum(isinstance(e, Finished | Aborted | Failed) for e in mine)
        wanted = "end" if ends == stream.n * len(stream.request_ids) else "EngineDeadError"
        found = "end" if end == "end" else type(end).__name__
        if found != wanted:
            return f"how stream {stream.name} ended", found, wanted
    return None


def shrunk(rounds, wrong):
    """The history without what it does not need to go wrong; every try is a new engine."""
    found = wrong(rounds)
    for _ in range(2):
        for number in reversed(range(len(rounds))):
            rest = rounds[:number] + rounds[number + 1 :]
            if rest and (less := wrong(rest)):
                rounds, found = rest, less
        for number, acts in enumerate(rounds):
            for k in reversed(range(len(acts))):
                rest = [*rounds]
                rest[number] = rest[number][:k] + rest[number][k + 1 :]
                if less := wrong(rest):
                    rounds, found = rest, less
    return rounds, found


@pytest.mark.check(
    task=1, points=3, title="Random ending: people come and hang up, engines die", stress=True
)
def test_story(rng):
    for number in range(4):
        lengths = [10**6, *(int(n) for n in rng.integers(1, 9, size=60))]
        dies = number % 2 == 0
        step = int(rng.integers(3, 12))
        fault = RuntimeError("a story ends") if dies else int(rng.integers(1, 4))
        seats = int(rng.integers(2, 7))
        rounds = history(rng, 12)

        def live(rounds, number=number, lengths=lengths, seats=seats, at=step, fault=fault):
            engine = HeldEngine(
                script=lambda prompt, index: [
                    f"{prompt[0]}.{index}.{k} " for k in range(min(lengths[prompt[0]], 40))
                ],
                max_num_seqs=seats,
                faults={at: fault},
            )
            return run(
                story(engine, AsyncEngine(engine), rounds),
                f"story {number} of people who come and hang up",
            )

        wrong = live(rounds)
        if wrong is None:
            continue
        rounds, (what, found, wanted) = shrunk(rounds, live)
        lines = {f"while step {i} runs": acts for i, acts in enumerate(rounds, 1) if acts}
        expect(
            found,
            wanted,
            call=f"story {number}, cut to what it needs: {what}",
            given={"seats": seats, f"in step {step}": "the engine dies" if dies
                   else f"request {fault} fails", **lines},
        )  # fmt: skip

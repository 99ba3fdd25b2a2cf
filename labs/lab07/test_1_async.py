"""Task 1: the engine in a thread of its own."""

import asyncio
import threading

import pytest

from grader import expect
from nanovllm.batching.events import Aborted, Admitted, Failed, Stepped
from nanovllm.generation.errors import EmptyPromptError
from nanovllm.generation.events import Completion, Finished, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.async_engine import AsyncEngine
from nanovllm.serving.errors import EngineDeadError
from nanovllm.serving.scripted import ScriptedEngine
from nanovllm.serving.stream import Stream

LONG = SamplingParams(max_tokens=1000)


def token(request_id, index=0, text="x"):
    return TokenGenerated(request_id, index, 5, text, 0.0)


def finished(request_id, index=0):
    return Finished(request_id, index, Completion(index, (5,), "x", "stop"), 0.0)


class SpinningError(Exception):
    """A reader asks again and again, and never lets the loop do anything else."""


class Bell(asyncio.Event):
    """An Event that is rung once for all: who waits for it again and again does not wait."""

    spins = 0

    async def wait(self):
        self.spins = self.spins + 1 if self.is_set() else 0
        if self.spins > 100:
            raise SpinningError("the reader never waits: its news are old")
        return await super().wait()


@pytest.fixture(autouse=True)
def bells(monkeypatch):
    """A loop that spins cannot be stopped from outside."""
    monkeypatch.setattr(asyncio, "Event", Bell)


def run(coroutine):
    """Run it, but not for ever: what hangs, or raises in the loop, is reported as such."""
    raised = []

    async def limited():
        task = asyncio.ensure_future(coroutine)

        def stop(loop, context):
            raised.append(context.get("exception") or RuntimeError(context["message"]))
            task.cancel()

        asyncio.get_running_loop().set_exception_handler(stop)
        try:
            return await asyncio.wait_for(task, 5)
        except TimeoutError:
            return "still waiting after 5 s"
        except SpinningError as error:
            return str(error)
        except EngineDeadError as error:
            raise error.__cause__ or error from None
        except asyncio.CancelledError:
            raise raised[0] from None

    return asyncio.run(limited())


async def until(condition):
    """Wait until something is so, for 3 seconds at most; whether it is."""
    for _ in range(300):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


def endless(prompt, index):
    return ["x"] * 100_000


class Fatal(ScriptedEngine):
    """Its third step waits until somebody has asked for something."""

    def __post_init__(self):
        super().__post_init__()
        self.begun, self.asked = threading.Event(), threading.Event()

    def step(self):
        if self.steps == 2:
            self.begun.set()
            self.asked.wait(5)
        return super().step()


async def texts_of(stream):
    """The text of every choice of a stream, by its number."""
    found = {}
    async for events in stream:
        for event in events:
            if isinstance(event, TokenGenerated):
                choice = stream.choice(event)
                found[choice] = found.get(choice, "") + event.text
    return found


def paced(front, then=lambda: None):
    """In the loop: after each step the engine's thread waits until the loop has taken it in, and
    `then` has run. What is returned grows by one at each call of the loop by that thread."""
    loop, seen, calls = asyncio.get_running_loop(), [], []
    front.observers.append(lambda events, usage: seen.append(len(events)))
    plain, mine = loop.call_soon_threadsafe, threading.get_ident()

    def call_soon_threadsafe(function, *args, **options):
        if threading.get_ident() == mine:
            return plain(function, *args, **options)
        calls.append(len(args))
        done = threading.Event()

        def run():
            before = len(seen)
            try:
                function(*args)
                if len(seen) > before:
                    then()
            finally:
                done.set()

        handle = plain(run, **options)
        done.wait(5)
        return handle

    loop.call_soon_threadsafe = call_soon_threadsafe
    return calls


class Watched(ScriptedEngine):
    """Notes which threads abort."""

    def __post_init__(self):
        super().__post_init__()
        self.aborters = set()

    def abort(self, request_id):
        self.aborters.add(threading.get_ident())
        return super().abort(request_id)


class Saying(ScriptedEngine):
    """Its one step reports what it was given."""

    def __post_init__(self):
        super().__post_init__()
        self.events = []

    @property
    def has_unfinished(self):
        return bool(self.events)

    def step(self):
        events, self.events = self.events, []
        self.store.free_tokens = 750
        return events


@pytest.mark.check(
    task=1, points=3, title="A stream hands over all that came since the last look, then ends"
)
def test_stream():
    async def read_late():
        stream = Stream([4, 9], n=2)
        stream.put([token(4), token(9)])
        stream.put([token(4, 1)])
        batches = [[(stream.choice(e), type(e).__name__) for e in await anext(stream)]]
        stream.put([finished(4), Aborted(9, 1, (), "", 0.0)])
        open_now = stream.num_open
        stream.put([Failed(9, 0, ValueError(), 0.0), finished(4, 1)])
        async for events in stream:
            batches.append([(stream.choice(e), type(e).__name__) for e in events])
        return batches, open_now, stream.ended

    expect(
        run(read_late()),
        (
            [
                [(0, "TokenGenerated"), (2, "TokenGenerated"), (1, "TokenGenerated")],
                [(0, "Finished"), (3, "Aborted"), (2, "Failed"), (1, "Finished")],
            ],
            2,
            True,
        ),
        call="the batches of a stream over requests 4 and 9, n=2, as (choice, event); samples open "
        "after two have ended; ended",
        cause="choice = n * (number of the prompt) + index; Finished, Aborted and Failed end one",
    )

    async def read_early():
        stream = Stream([1])
        reader = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        before = reader.done()
        stream.put([token(1)])
        first = await reader
        reader = asyncio.ensure_future(anext(stream))  # again too early
        await asyncio.sleep(0)
        stream.put([token(1)])
        await reader
        stream.put([token(1), token(1)])
        stream.fail(EngineDeadError("dead"))
        rest = len(await anext(stream))
        try:
            await anext(stream)
        except EngineDeadError as error:
            return before, len(first), rest, str(error)
        return before, len(first), rest, "no error"

    expect(
        run(read_early()),
        (False, 1, 2, "dead"),
        call="a reader that waits, gets one event, waits again, then gets two, then the error the "
        "stream failed with",
        cause="what came before an error is read before it; a bell that was rung is to be cleared "
        "before one waits for it again",
    )


@pytest.mark.check(task=1, points=3, title="All prompts of a request are taken, or none")
def test_submit():
    engine = Watched()
    front = AsyncEngine(engine)

    async def serve():
        front.start()
        await asyncio.sleep(0.05)  # it is asleep by now
        stream = front.submit([[3], [4]], SamplingParams(n=2), name="cmpl-1")
        taken = [stream.request_ids, stream.n, stream.name, sorted(front.streams), front.num_open]
        texts = await texts_of(stream)
        await asyncio.sleep(0.05)  # and again
        try:
            front.submit([[5], [6], []], SamplingParams())
        except EmptyPromptError:
            error = "EmptyPromptError"
        woken = await until(lambda: len(engine.aborted) >= 2)
        await front.stop()
        return taken, texts, [error, woken, engine.aborted, sorted(front.streams)]

    found = run(serve())
    expect(
        found if isinstance(found, str) else found[0],
        [(0, 1), 2, "cmpl-1", [0, 1], 4],
        call="submit of two prompts with n=2: ids, n, name, the streams by id, samples open",
        cause="one stream for the whole request; the engine is asked once a prompt; its thread, "
        "which may be asleep, is woken",
    )
    expect(
        found[2],
        ["EmptyPromptError", True, [2, 3], []],
        call="submit([[5], [6], []]): the error, whether the engine's thread was woken by it, "
        "requests aborted, streams that are open",
        cause="prompts 5 and 6 are in the engine, and nobody listens to them",
    )
    expect(
        threading.get_ident() in engine.aborters,
        False,
        call="whether the loop's own thread called engine.abort",
        cause="the engine is in the middle of a step, perhaps: leave a note for its thread",
    )
    expect.raises(
        EngineDeadError,
        lambda: front.submit([[7]], SamplingParams()),
        call="submit where the engine's thread has ended",
        cause="nobody would ever answer",
    )


@pytest.mark.check(
    task=1,
    points=4,
    title="The model never runs in the event loop, and nobody gets another's words",
)
def test_threads(rng):
    looks = []

    class Looking(ScriptedEngine):
        @property
        def has_unfinished(self):
            looks.append(self.steps)
            return super().has_unfinished

    engine = Looking(max_num_seqs=64)
    front = AsyncEngine(engine)
    firsts = [int(i) for i in rng.choice(1000, size=12, replace=False)]

    async def serve():
        looks.clear()
        front.start()
        await asyncio.sleep(0.06)
        idle = [engine.steps, len(looks) > 1]
        streams = [front.submit([[first]], SamplingParams(n=2)) for first in firsts]
        texts = await asyncio.gather(*map(texts_of, streams))
        left = dict(front.streams)
        await front.stop()
        return idle, texts, left

    found = run(serve())
    wanted = [
        {i: "".join(f"{first}-{i}-{k} " for k in range(4)) for i in range(2)} for first in firsts
    ]
    expect(
        found,
        ([0, False], wanted, {}),
        call="steps while idle, and whether the thread kept asking for work; the text of each "
        "choice of 12 requests asked at once; streams left",
        cause="each event goes to the stream of its request; a thread that sleeps must be woken",
    )
    expect(
        threading.get_ident() in engine.threads,
        False,
        call="whether the event loop's own thread ever stepped the engine",
        cause="a step in the loop stops every connection for as long as it takes",
    )


@pytest.mark.check(
    task=1, points=3, title="One call of the loop a step; each stream gets its events at once"
)
def test_deliver():
    seen = []

    def look(events, usage):
        seen.append(([type(event).__name__ for event in events], round(usage, 6)))

    async def three():
        engine = ScriptedEngine(max_num_seqs=2)
        front = AsyncEngine(engine, [look])
        for first in (1, 2, 3):
            engine.add_request([first])
        calls = paced(front)
        front.start()
        await until(lambda: len(seen) == 8)
        made = len(calls)
        await front.stop()
        return made, engine.steps

    expect(
        [run(three()), seen[1]],
        [(8, 8), (["TokenGenerated", "TokenGenerated", "Stepped"], 0.004)],
        call="three requests of 4 tokens, two at a time: calls of the loop and steps; what "
        "observers saw of the second step: its events, and the share of the store in use after it "
        "(4 of 1000 tokens)",
        cause="64 calls a step would cost more than the step",
    )

    async def asked():
        front = AsyncEngine(ScriptedEngine())
        front.start()
        await front.call(lambda engine: None)
        steps = await front.call(lambda engine: engine.steps)
        await front.stop()
        return steps

    expect(
        run(asked()),
        0,
        call="steps of an engine that has nothing to do, after two notes (`call`)",
        cause="a note is no work: whoever looks at the dashboard does not make the engine step",
    )

    async def stopped():
        front = AsyncEngine(ScriptedEngine(script=endless, pause=0.001))
        front.engine.add_request([1], SamplingParams(max_tokens=2000))
        front.start()
        await until(lambda: front.engine.steps > 1)
        await front.stop()
        return front.alive, front.engine.has_unfinished

    expect(
        run(stopped()),
        (False, True),
        call="stop in the middle of an answer of 2,000 tokens: whether the thread is alive, and "
        "whether the answer is unfinished",
        cause="it ends after the step it is in, whatever is open",
    )
    seen.clear()
    piles = {}

    class Pile(Stream):
        def put(self, events):
            piles.setdefault(self.name, []).append([type(e).__name__ for e in events])
            self.num_open -= sum(isinstance(e, Finished) for e in events)

    pair, single = Pile([10, 11], name="pair"), Pile([12], name="single")
    step = Stepped((), 3, 0, 8, 990, 0.0, 1.0)
    events = [Admitted(12, 0, 0.0), token(10), token(99), token(12), finished(12), token(11), step]

    async def sorted_out():
        engine = Saying()
        front = AsyncEngine(engine, [look])
        front.streams = {10: pair, 11: pair, 12: single}
        engine.events = events
        front.start()
        await until(lambda: seen)
        await asyncio.sleep(0)
        left = sorted(front.streams)
        await front.stop()
        return left

    left = run(sorted_out())
    expect(
        [piles, [(len(names), usage) for names, usage in seen], left],
        [
            {
                "pair": [["TokenGenerated", "TokenGenerated"]],
                "single": [["Admitted", "TokenGenerated", "Finished"]],
            },
            [(7, 0.25)],
            [10, 11],
        ],
        call="a step with events of requests 10 and 11 (one stream), 12 (which finishes), 99 "
        "(unknown), and Stepped: what each stream was given; what the observers saw; streams left",
        cause="one put a stream and step; a stream that has ended is forgotten",
    )


@pytest.mark.check(task=1, points=3, title="Cancelled: aborted before the next step")
def test_cancel():
    engine, spoke, meanwhile = ScriptedEngine(script=endless), [], []

    def look(events, usage):
        spoke.append(sorted({e.request_id for e in events if isinstance(e, TokenGenerated)}))

    front = AsyncEngine(engine, [look])
    done = Stream([7])
    done.put([finished(7)])

    async def serve():
        stream = front.submit([[1], [2]], LONG)
        other = front.submit([[3]], LONG)
        fourth = asyncio.Event()

        def then():  # between two steps: the engine's thread waits
            if len(spoke) == 2:
                front.cancel(stream, "timeout")
                front.cancel(stream, "disconnected")
                meanwhile.extend([stream.ended, sorted(front.streams), list(engine.aborted)])
            elif len(spoke) == 4:
                front.cancel(done, "disconnected")
                fourth.set()

        paced(front, then)
        front.start()
        await fourth.wait()
        await front.call(lambda engine: None)  # all notes before it have been followed
        await front.stop()
        return stream.reason, other.reason

    reasons = run(serve())
    expect(
        meanwhile,
        [False, [0, 1, 2], []],
        call="right after the cancel, before the next step: whether the stream has ended, the "
        "streams that are open, requests aborted (the engine's thread does that, by a note)",
        cause="its reader still gets what there is, and Aborted: that ends it",
    )
    expect(
        [spoke[:4], reasons, sorted(set(engine.aborted) - {7})],
        [[[0, 1, 2], [0, 1, 2], [2], [2]], ("timeout", None), [0, 1]],
        call="who speaks in each of four steps, the stream of 0 and 1 cancelled after the second "
        "(timeout, then disconnected); the reasons of both streams; requests aborted",
        cause="the step after a cancel begins with it",
    )
    expect(
        [done.reason, 7 in engine.aborted],
        [None, False],
        call="cancel of a stream that has ended: its reason, whether its request is aborted",
        cause="a client always leaves after its answer; that is no abort",
    )


@pytest.mark.check(task=1, points=4, title="A dead engine is reported to everybody at once")
def test_death():
    engine = Fatal(script=endless, faults={3: RuntimeError("out of memory")})
    front = AsyncEngine(engine)

    async def serve():
        front.start()
        streams = [front.submit([[first]], LONG) for first in range(3)]
        if not await asyncio.to_thread(engine.begun.wait, 3):
            return "step 3 never came"
        asked = asyncio.ensure_future(front.call(lambda engine: engine.steps))
        await asyncio.sleep(0)
        engine.asked.set()
        ends = []
        for stream in streams:
            try:
                ends.append(await texts_of(stream))
            except EngineDeadError as error:
                said = "out of memory" in str(error) and "RuntimeError" in str(error)
                ends.append([type(error).__name__, error.status, said])
        (answer,) = await asyncio.gather(asked, return_exceptions=True)
        ends.append(type(answer).__name__)
        return ends, type(front.error).__name__, front.alive, len(front.streams)

    expect(
        run(serve()),
        ([["EngineDeadError", 503, True]] * 3 + ["EngineDeadError"], "EngineDeadError", False, 0),
        call="how three open streams end when step 3 raises RuntimeError('out of memory') (error, "
        "status, whether its text says why), and a `call` made during that step; the engine's "
        "error; alive; streams left",
        cause="whoever is not told waits for ever",
    )
    quiet, left = AsyncEngine(ScriptedEngine()), Stream([3])
    quiet.streams = {3: left}

    async def stopped():
        quiet.start()
        await quiet.stop()
        return str(quiet.error)

    said = run(stopped())
    expect(
        [left.ended, len(quiet.streams), "stopped" in said and "died" not in said],
        [True, 0, True],
        call="after a plain stop, with a stream open: whether it has ended, streams left, whether "
        "the error says that the engine was stopped",
        cause="the reader of an open stream waits, also when nothing has gone wrong",
    )

"""Task 1: the engine in a thread of its own."""

import asyncio
import contextlib
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
    """Run it, but not for ever: what hangs is reported as such."""

    async def limited():
        try:
            return await asyncio.wait_for(coroutine, 5)
        except TimeoutError:
            return "still waiting after 5 s"
        except SpinningError as error:
            return str(error)

    return asyncio.run(limited())


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


class RunawayError(Exception):
    """The engine's thread goes on when it was told to stop."""


class Loop:
    """Stands in for the event loop: notes what it is to call, and then what `then` says."""

    def __init__(self, then=lambda calls: None):
        self.calls, self.then = [], then

    def call_soon_threadsafe(self, function, *args):
        self.calls.append((function, args))
        self.then(len(self.calls))
        if len(self.calls) == 20:
            raise RunawayError


def drive(front):
    """Step in this thread until it stops, or for 20 calls of the loop."""
    with contextlib.suppress(RunawayError):
        front._drive()


class Rung(threading.Condition):
    """Counts how often the engine's thread is woken."""

    times = 0

    def notify(self, n=1):
        self.times += 1
        super().notify(n)


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
    engine = ScriptedEngine()
    front = AsyncEngine(engine)
    front._condition = bell = Rung()
    stream = front.submit([[3], [4]], SamplingParams(n=2), name="cmpl-1")
    woken = [bell.times > 0]
    expect(
        [stream.request_ids, stream.n, stream.name, sorted(front.streams), front.num_open],
        [(0, 1), 2, "cmpl-1", [0, 1], 4],
        call="submit of two prompts with n=2: ids, n, name, the streams by id, samples open",
        cause="one stream for the whole request; the engine is asked once a prompt",
    )
    error = expect.raises(
        EmptyPromptError,
        lambda: front.submit([[5], [6], []], SamplingParams()),
        call="submit([[5], [6], []])",
    )
    told = list(engine.aborted)
    for note in front._notes:
        note()
    expect(
        [type(error).__name__, told, engine.aborted, sorted(front.streams)],
        ["EmptyPromptError", [], [2, 3], [0, 1]],
        call="after it: requests aborted before and after the engine's thread has read its notes; "
        "streams",
        cause="prompts 5 and 6 are in the engine, and nobody listens to them",
    )
    before = bell.times
    with contextlib.suppress(EmptyPromptError):
        front.submit([[8], []], SamplingParams())
    woken.append(bell.times > before)
    expect(
        woken,
        [True, True],
        call="whether the engine's thread is woken by a submit that is taken, and by one that is "
        "refused half-way",
        cause="it may be asleep: requests, and notes, do not wake it by themselves",
    )
    front.error = EngineDeadError("The engine has died.")
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

    class Watched(ScriptedEngine):
        @property
        def has_unfinished(self):
            looks.append(self.steps)
            return super().has_unfinished

    engine = Watched(max_num_seqs=64)
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

    front._stopping = True
    front._drive()  # returns at once
    front._stopping = False
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
    engine = ScriptedEngine(max_num_seqs=2)
    front = AsyncEngine(engine)
    front._loop = Loop(then=lambda calls: setattr(front, "_stopping", calls >= 3))
    for first in (1, 2, 3):
        engine.add_request([first])
    drive(front)
    shapes = [[type(e).__name__ for e in args[0]] for _, args in front._loop.calls]
    expect(
        [len(shapes), shapes[1], round(front._loop.calls[1][1][1], 6)],
        [3, ["TokenGenerated", "TokenGenerated", "Stepped"], 0.004],
        call="_drive over three steps of two running samples: calls of the loop; events of the "
        "second; share of the store in use after it (4 of 1000 tokens)",
        cause="64 calls a step would cost more than the step",
    )
    idle = AsyncEngine(ScriptedEngine())
    idle._loop = Loop()
    idle._note(lambda: setattr(idle, "_stopping", True))
    drive(idle)
    expect(
        [idle.engine.steps, len(idle._loop.calls)],
        [0, 0],
        call="steps and calls of the loop when a note comes (the last one) and nobody asks",
        cause="a note is no work: whoever looks at the dashboard does not make the engine step",
    )
    busy = AsyncEngine(ScriptedEngine(script=endless))
    busy._loop = Loop(then=lambda calls: setattr(busy, "_stopping", calls >= 2))
    busy.engine.add_request([1])
    drive(busy)
    expect(
        len(busy._loop.calls),
        2,
        call="calls of the loop by a thread that is told to stop at the second, in the middle of "
        "an answer",
        cause="it ends after the step it is in, whatever is open",
    )
    seen = []
    front = AsyncEngine(engine, [lambda events, usage: seen.append((len(events), usage))])
    piles = {}

    class Pile(Stream):
        def put(self, events):
            piles.setdefault(self.name, []).append([type(e).__name__ for e in events])
            self.num_open -= sum(isinstance(e, Finished) for e in events)

    pair, single = Pile([10, 11], name="pair"), Pile([12], name="single")
    front.streams = {10: pair, 11: pair, 12: single}
    step = Stepped((), 3, 0, 8, 990, 0.0, 1.0)
    events = [Admitted(12, 0, 0.0), token(10), token(99), token(12), finished(12), token(11), step]
    front._deliver(events, 0.25)
    expect(
        [piles, seen, sorted(front.streams)],
        [
            {
                "pair": [["TokenGenerated", "TokenGenerated"]],
                "single": [["Admitted", "TokenGenerated", "Finished"]],
            },
            [(7, 0.25)],
            [10, 11],
        ],
        call="_deliver of events of requests 10 and 11 (one stream), 12 (which finishes), 99 "
        "(unknown), and Stepped: what each stream was given; what the observers saw; streams left",
        cause="one put a stream and step; a stream that has ended is forgotten",
    )


@pytest.mark.check(task=1, points=3, title="Cancelled: aborted before the next step")
def test_cancel():
    engine = ScriptedEngine(script=endless)
    front = AsyncEngine(engine)
    stream = front.submit([[1], [2]], LONG)
    other = front.submit([[3]], LONG)

    meanwhile = []

    def then(calls):  # in the place of the loop, while the engine's thread waits
        if calls == 2:
            front.cancel(stream, "timeout")
            front.cancel(stream, "disconnected")
            meanwhile.extend([stream.ended, sorted(front.streams), list(engine.aborted)])
        front._stopping = calls >= 4

    front._loop = Loop(then)
    drive(front)
    expect(
        meanwhile,
        [False, [0, 1, 2], []],
        call="right after the cancel, before the next step: whether the stream has ended, the "
        "streams that are open, requests aborted (the engine's thread does that, by a note)",
        cause="its reader still gets what there is, and Aborted: that ends it",
    )
    spoke = [
        sorted({e.request_id for e in args[0] if isinstance(e, TokenGenerated)})
        for _, args in front._loop.calls
    ]
    expect(
        [spoke, stream.reason, sorted(set(engine.aborted))],
        [[[0, 1, 2], [0, 1, 2], [2], [2]], "timeout", [0, 1]],
        call="who speaks in each of four steps, the stream of 0 and 1 cancelled after the second "
        "(timeout, then disconnected); its reason; requests aborted",
        cause="the step after a cancel begins with it",
    )
    done = Stream([7])
    done.put([finished(7)])
    front.cancel(done, "disconnected")
    for note in front._notes:
        note()
    expect(
        [done.reason, 7 in engine.aborted, other.reason],
        [None, False, None],
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

    front._end(None)
    stopped = str(front.error)
    front.error = None
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
    quiet._end(None)
    expect(
        [left.ended, len(quiet.streams), "stopped" in stopped and "died" not in stopped],
        [True, 0, True],
        call="after a plain stop, with a stream open: whether it has ended, streams left, whether "
        "the error says that the engine was stopped",
        cause="the reader of an open stream waits, also when nothing has gone wrong",
    )

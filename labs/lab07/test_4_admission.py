"""Task 4: admission."""

import asyncio
import math

import httpx
import pytest

from grader import expect
from grader.course.paths import ROOT
from nanovllm.batching.config import EngineConfig
from nanovllm.generation.latency import ManualClock
from nanovllm.serving.admission import Admission, TokenBucket
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.deadline import deadline, drain
from nanovllm.serving.errors import ApiError, OverloadedError
from nanovllm.serving.scripted import HeldEngine
from nanovllm.serving.stream import Stream
from nanovllm.serving.virtual_time import run_virtual
from nanovllm.tokenization.tokenizer import Tokenizer

KEYS = ("abc", "xyz")


@pytest.mark.check(task=4, points=4, title="A bucket of tokens a minute")
def test_bucket(rng):
    rate = int(rng.choice([30, 60, 120]))
    clock = ManualClock(100.0)
    bucket = TokenBucket(rate, clock)
    found = [bucket.wait]
    bucket.charge(rate - 1)
    found.append(bucket.wait)  # one left
    bucket.charge(1)
    found.append(bucket.wait)  # empty: above zero after any time, so at the next whole second
    bucket.charge(rate // 2)
    found.append(bucket.wait)  # half a minute in debt
    clock.advance(10.0)
    found.append(bucket.wait)
    clock.advance(20.5)
    found.append(bucket.wait)
    expect(
        found,
        [0, 0, 1, 31, 21, 0],
        call=f"wait of a bucket of {rate} tokens a minute: full; after a charge of {rate - 1}; "
        f"of 1 more; of {rate // 2} more; 10 s later; 20.5 s later",
    )
    clock.advance(10_000.0)
    levels = [bucket.wait, float(bucket.level)]
    for _ in range(4):
        clock.advance(0.25)
        bucket.charge(0)
    bucket.charge(2 * rate)
    levels += [float(bucket.level), bucket.wait]
    expect(
        levels,
        [0, float(rate), -float(rate), 61],
        call=f"wait and level after hours of rest; then looked at four times in a second, and "
        f"charged {2 * rate}: level and wait",
        cause="an idle hour does not save up for a burst of an hour's worth",
    )
    clock.advance(30.0)
    bucket.charge(rate // 2)  # half a minute has flowed in since anybody looked
    late = [float(bucket.level)]
    clock.advance(600.0)
    bucket.charge(rate // 2)  # it was full by then, and no more than full
    late.append(float(bucket.level))
    expect(
        late,
        [-float(rate), rate / 2],
        call=f"level of the same bucket 30 s later, after a charge of {rate // 2} before "
        "anybody looks; ten minutes later, after another such charge",
        cause="what has flowed in counts first, and no more fits in than a minute's worth",
    )


def told(admission, *requests):
    """What each request (key, samples, open samples) is told."""
    answers = []
    for key, samples, num_open in requests:
        try:
            admission.enter(key, samples, num_open)
            answers.append("in")
        except ApiError as error:
            after = error.headers.get("Retry-After")
            if error.status == 503:  # when to come back is nobody's contract, but it must be said
                after = "later" if str(after).isdigit() and int(after) > 0 else after
            answers.append("503 later" if after == "later" else f"{error.status} after {after}")
    return answers


@pytest.mark.check(task=4, points=4, title="Let in: fits at all, not draining, key not empty, room")
def test_enter():
    clock = ManualClock()
    config = ServeConfig(api_keys=KEYS, max_queue=6, rate_limit=60)

    def story(*requests, draining=False):
        admission = Admission(config, max_num_seqs=4, clock=clock)
        admission.draining = draining
        admission.charge("xyz", 75)
        admission.charge("nobody", 10**9)
        return [admission.limit, *told(admission, *requests)]

    expect(
        story(("abc", 1, 0), ("abc", 10, 0), ("abc", 1, 9), ("abc", 1, 10), ("abc", 3, 8),
              ("abc", 11, 0), ("xyz", 1, 0), ("xyz", 11, 0), ("xyz", 1, 10), ("nobody", 1, 0)),
        [10, "in", "in", "in", "503 later", "503 later", "400 after None", "429 after 16",
         "400 after None", "429 after 16", "in"],
        call="limit; enter(key, samples, open) with room for 4 to run and 6 to wait, the key xyz "
        "15 tokens in debt: abc with 1 and 0 open, 10/0, 1/9, 1/10, 3/8, 11/0; xyz with 1/0, 11/0, "
        "1/10; a key that is not configured, after any use, with 1/0",
    )  # fmt: skip
    expect(
        story(("abc", 1, 0), ("xyz", 1, 0), ("abc", 11, 0), ("abc", 1, 10), draining=True)[1:],
        ["503 later", "503 later", "400 after None", "503 later"],
        call="enter(key, samples, open) while the server drains, with room for 4 to run and 6 to "
        "wait, the key xyz 15 tokens in debt: abc 1/0, xyz 1/0, abc 11/0, abc 1/10",
    )
    free = Admission(ServeConfig(max_queue=0), max_num_seqs=1, clock=clock)
    free.charge("", 10**9)
    free.charge("nobody", 10**9)
    expect(
        told(free, ("", 1, 0), ("", 1, 1), ("", 2, 0)),
        ["in", "503 later", "400 after None"],
        call="enter without keys and without a rate limit, after any use: 1/0, 1/1, 2/0",
    )
    open_door = Admission(ServeConfig(max_queue=3, rate_limit=60), max_num_seqs=1, clock=clock)
    open_door.charge("", 63)
    expect(
        told(open_door, ("", 1, 0)),
        ["429 after 4"],
        call="enter with a rate limit and without keys, 3 tokens in debt",
        cause='without keys everybody shares one bucket, that of the key ""',
    )


def model_level(rate, start, charges, now):
    """The level of a bucket, from its whole history."""
    level, last = float(rate), start
    for when, tokens in [*charges, (now, 0)]:
        level = min(rate, level + (when - last) * rate / 60) - tokens
        last = when
    return level


@pytest.mark.check(
    task=4, points=4, title="Random ending: an hour at the door, against a model", stress=True
)
def test_door(rng):
    for number in range(3):
        rate, seats, queue = (int(n) for n in rng.integers((20, 1, 0), (200, 6, 9)))
        clock = ManualClock(float(rng.integers(0, 100)))
        config = ServeConfig(api_keys=KEYS, max_queue=queue, rate_limit=rate)
        admission = Admission(config, seats, clock)
        limit, history = seats + queue, []
        spent = {key: [] for key in KEYS}  # the model: all charges, from which a level is computed
        start = clock.now
        for _ in range(60):
            clock.advance(float(rng.choice([0.0, 0.25, 3.0, 61.0])))
            key = KEYS[int(rng.integers(2))]
            samples, num_open = int(rng.integers(1, limit + 2)), int(rng.integers(0, limit + 1))
            level = model_level(rate, start, spent[key], clock.now)
            seconds = -level * 60 / rate
            if abs(seconds - round(seconds)) < 1e-6:
                continue  # a whole second: rounding decides, and it is not what is asked here
            if samples > limit:
                wanted = "400 after None"
            elif level <= 0:
                wanted = f"429 after {math.floor(seconds) + 1}"
            elif num_open + samples > limit:
                wanted = "503 later"
            else:
                wanted = "in"
            (found,) = told(admission, (key, samples, num_open))
            history.append([key, samples, num_open, found])
            expect(
                found,
                wanted,
                call=f"enter({key!r}, {samples}, {num_open}) in story {number}, with {rate} tokens "
                f"a minute and a limit of {limit} samples",
                given={"second": clock.now - start, "level": level, "before": history[-4:-1]},
            )
            if found == "in":
                tokens = int(rng.integers(0, rate))
                admission.charge(key, tokens)
                spent[key].append((clock.now, tokens))


@pytest.mark.check(task=4, points=2, title="A deadline gives up the request, not the answer")
def test_deadline():
    async def scene(seconds, work, fails=False):
        loop, calls = asyncio.get_running_loop(), []

        def cancel(stream, reason):
            calls.append((stream.name, reason, round(loop.time(), 3)))

        try:
            with deadline(loop, seconds, cancel, Stream([1], name="mine")):
                await asyncio.sleep(work)
                if fails:
                    raise ValueError
        except ValueError:
            calls.append("ValueError")
        await asyncio.sleep(100)
        return calls

    found = {
        "limit 5, work 8": run_virtual(scene(5.0, 8.0)),
        "limit 5, work 3": run_virtual(scene(5.0, 3.0)),
        "limit 0, work 3": run_virtual(scene(0.0, 3.0)),
        "limit 5, fails at 3": run_virtual(scene(5.0, 3.0, fails=True)),
        "no limit": run_virtual(scene(None, 90.0)),
    }
    expect(
        found,
        {
            "limit 5, work 8": [("mine", "timeout", 5.0)],
            "limit 5, work 3": [],
            "limit 0, work 3": [("mine", "timeout", 0.0)],
            "limit 5, fails at 3": ["ValueError"],
            "no limit": [],
        },
        call="deadline of so many seconds around work of so many: what is cancelled, why and at "
        "which second",
    )


@pytest.mark.check(
    task=4, points=2, title="Drain: wait for what is open, then give up what is left"
)
def test_drain():
    async def scene(ends, seconds):
        loop, calls, naps = asyncio.get_running_loop(), [], []
        streams = {str(i): (Stream([i], name=str(i)), end) for i, end in enumerate(ends)}

        def still_open():
            return [stream for stream, end in streams.values() if loop.time() < end]

        def cancel(stream, reason):
            calls.append((stream.name, reason))
            streams[stream.name] = stream, 0.0  # it has ended

        async def nap(seconds):
            naps.append(seconds)
            await asyncio.sleep(seconds)

        cut = await drain(still_open, cancel, seconds, nap, tick=0.5)
        slept = max([0.0, *naps]) <= 0.5 and abs(sum(naps) - loop.time()) < 0.001
        return cut, calls, loop.time(), slept

    scenes = {
        "nothing open": ([], 30.0),
        "2 and 4.2 s": ([2.0, 4.2], 30.0),
        "2, 99 and 98 s": ([2.0, 99.0, 98.0], 10.0),
    }
    found = {name: run_virtual(scene(*how)) for name, how in scenes.items()}
    expect(
        {name: [cut, sorted(calls), slept] for name, (cut, calls, _, slept) in found.items()},
        {
            "nothing open": [0, [], True],
            "2 and 4.2 s": [0, [], True],
            "2, 99 and 98 s": [2, [("1", "shutdown"), ("2", "shutdown")], True],
        },
        call="drain with 30, 30 and 10 s of patience: the number it returns; who is cancelled, "
        "why; whether it waited by sleep(...) alone, at most a tick (0.5 s) each. A stream that "
        "is cancelled ends at once",
    )
    took = {name: when for name, (_, _, when, _) in found.items()}
    limits = {"nothing open": (0.0, 0.5), "2 and 4.2 s": (4.2, 4.7), "2, 99 and 98 s": (10.0, 10.5)}
    expect(
        {name: low - 0.001 <= took[name] <= high + 0.001 for name, (low, high) in limits.items()},
        dict.fromkeys(limits, True),
        call="whether drain returned within a tick (0.5 s) of the last end, or of its time",
        given={"seconds": took},
        cause="it waits no longer than it has to, and not for ever",
    )


@pytest.mark.check(
    task=4, points=2, title="The whole server: 503 when full; a timeout gives what there is"
)
def test_server():
    expect.raises(
        OverloadedError,
        lambda: Admission(ServeConfig(max_queue=0), 1).enter("", 1, 1),
        call="enter when full",
    )
    engine = HeldEngine(script=lambda prompt, index: ["word "] * 10**6, max_num_seqs=1)
    engine.tokenizer = Tokenizer.from_pretrained(ROOT / "models" / "target")
    engine.max_model_len, engine.config = 10**7, EngineConfig(max_num_seqs=1)
    settings = ServeConfig(model_name="tiny", max_queue=1, timeout=0.5, drain_timeout=0.1)
    server = Server(engine, settings)
    body = {"prompt": "Once", "max_tokens": 10**6}

    async def main():
        transport = httpx.ASGITransport(server.app)
        client = httpx.AsyncClient(transport=transport, base_url="http://lab", timeout=60)
        async with server.app.router.lifespan_context(server.app), client:
            asks = []
            for number in (1, 2):
                asks.append(asyncio.ensure_future(client.post("/v1/completions", json=body)))
                while server.engine.num_open < number:
                    await asyncio.sleep(0.001)
                await engine.until_held()
            refused = await client.post("/v1/completions", json=body)
            while None in [stream.reason for stream in server.engine.streams.values()]:
                await asyncio.sleep(0.01)  # until both deadlines have passed
            engine.let_all_go()
            answers = await asyncio.gather(*asks)
            server.admission.draining = True
            closed = await client.get("/health")
            return refused, answers, closed, server.engine.num_open

    try:
        refused, answers, closed, left = asyncio.run(asyncio.wait_for(main(), 15))
    except TimeoutError:
        engine.let_all_go()
        expect.that(
            False,
            "every request ends",
            call="three requests of a server with one seat, a queue of one and a timeout of 0.5 s",
        )
    error = refused.json().get("error", {})
    choices = [answer.json()["choices"][0] for answer in answers]
    expect(
        [refused.status_code, refused.headers.get("Retry-After", "").isdigit(), error.get("code")],
        [503, True, 503],
        call="one seat, a queue of one, two requests open: status of a third, whether Retry-After "
        "is a number of seconds, code",
    )
    expect(
        [[[c["text"], c["finish_reason"], c["stop_reason"]] for c in choices], closed.status_code,
         left],
        [[["word ", "length", "timeout"], ["", "abort", "timeout"]], 503, 0],
        call="the other two after their timeout: text, finish_reason, stop_reason; status of "
        "/health while draining; samples open",
        cause="the first gets what there is; the second never left the queue",
    )  # fmt: skip

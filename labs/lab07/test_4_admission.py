"""Task 4: admission."""

import asyncio

import httpx
import pytest

from grader import expect
from grader.course.paths import ROOT
from nanovllm.batching.config import EngineConfig
from nanovllm.generation.latency import ManualClock
from nanovllm.serving.admission import Admission, TokenBucket, authorize
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.deadline import deadline, drain
from nanovllm.serving.errors import ApiError, OverloadedError, UnauthorizedError
from nanovllm.serving.scripted import ScriptedEngine
from nanovllm.serving.stream import Stream
from nanovllm.serving.virtual_time import run_virtual
from nanovllm.tokenization.tokenizer import Tokenizer

KEYS = ("abc", "xyz")


@pytest.mark.check(
    task=4,
    points=3,
    title="Only known keys, and none for the paths that machines watch",
    hints=(
        "Who asks for /health and /metrics, and what do they know?",
        "Split the header at the first space; the scheme in any case; compare with every key.",
        "hmac.compare_digest(key.encode(), given.encode()) for each key; [] means unknown",
    ),
)
def test_authorize():
    headers = ["Bearer abc", "bearer xyz", "BEARER abc", "Bearer ab", "Bearer abcd", "Basic abc",
               "abc", "Bearer ", "Bearer  abc", "Bearer é", "", None]  # fmt: skip
    found = {}
    for header in headers:
        try:
            found[str(header)] = authorize("/v1/completions", header, KEYS)
        except UnauthorizedError as error:
            found[str(header)] = f"{error.status} {error.headers.get('WWW-Authenticate')}"
    expect(
        found,
        {str(h): "401 Bearer" for h in headers}
        | {"Bearer abc": "abc", "bearer xyz": "xyz", "BEARER abc": "abc"},
        call="authorize('/v1/completions', header, ('abc', 'xyz')): the key, or the refusal",
    )
    paths = ["/health", "/metrics", "/version", "/tokenize", "/dashboard/state", "/healthy",
             "/docs", "/docs/secret"]  # fmt: skip
    answers = []
    for path in paths:
        try:
            answers.append(authorize(path, None, KEYS))
        except UnauthorizedError:
            answers.append("refused")
    expect(
        dict(zip(paths, answers, strict=True)),
        dict(zip(paths, ["", "", "", *["refused"] * 3, "", "refused"], strict=True)),
        call="authorize of paths without a header",
        cause="a load balancer has no key",
    )


@pytest.mark.check(
    task=4,
    points=4,
    title="A bucket of tokens a minute",
    hints=(
        "How much flows in between two looks? How full can it get?",
        "Refill before every look and every charge; never above a minute's worth; the wait is "
        "until the level is above zero.",
        "min(rate, level + (now - updated) * rate / 60); floor(-level * 60 / rate) + 1",
    ),
)
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
    levels = [bucket.wait, bucket.level]
    for _ in range(4):
        clock.advance(0.25)
        bucket.charge(0)
    bucket.charge(2 * rate)
    levels += [bucket.level, bucket.wait]
    expect(
        levels,
        [0, float(rate), -float(rate), 61],
        call=f"wait and level after hours of rest; then looked at four times in a second, and "
        f"charged {2 * rate}: level and wait",
        cause="an idle hour does not save up for a burst of an hour's worth",
    )


@pytest.mark.check(
    task=4,
    points=3,
    title="Who is let in: fits at all, not draining, key not empty, room now",
    hints=(
        "Which refusals mend themselves by waiting, and which never?",
        "The four questions in the order of the docstring.",
        "samples > limit: BadRequestError; draining: OverloadedError; bucket.wait: RateLimitError; "
        "num_open + samples > limit: OverloadedError",
    ),
)
def test_enter():
    clock = ManualClock()
    config = ServeConfig(api_keys=KEYS, max_queue=6, rate_limit=60)

    def story(*requests, draining=False):
        admission = Admission(config, max_num_seqs=4, clock=clock)
        admission.draining = draining
        admission.charge("xyz", 75)
        admission.charge("nobody", 75)
        told = []
        for key, samples, num_open in requests:
            try:
                admission.enter(key, samples, num_open)
                told.append("in")
            except ApiError as error:
                told.append(f"{error.status} after {error.headers.get('Retry-After')}")
        return told

    expect(
        story(("abc", 1, 0), ("abc", 10, 0), ("abc", 1, 9), ("abc", 1, 10), ("abc", 3, 8),
              ("abc", 11, 0), ("xyz", 1, 0), ("xyz", 11, 0), ("xyz", 1, 10)),
        ["in", "in", "in", "503 after 1", "503 after 1", "400 after None", "429 after 16",
         "400 after None", "429 after 16"],
        call="enter(key, samples, open) with 4 seats and a queue of 6, the key xyz 15 tokens in "
        "debt: abc with 1 and 0 open, 10/0, 1/9, 1/10, 3/8, 11/0; xyz with 1/0, 11/0, 1/10",
        cause="running and waiting together may be 10",
    )  # fmt: skip
    expect(
        story(("abc", 1, 0), ("xyz", 1, 0), ("abc", 11, 0), draining=True),
        ["503 after 1", "503 after 1", "400 after None"],
        call="the same while the server drains: abc 1/0, xyz 1/0, abc 11/0",
    )
    free = Admission(ServeConfig(max_queue=0), max_num_seqs=1, clock=clock)
    free.charge("", 10**9)
    expect(free.enter("", 1, 0), None, call="enter without a rate limit, after any use")
    full = expect.raises(OverloadedError, lambda: free.enter("", 1, 1), call="enter when full")
    expect(full.headers, {"Retry-After": "1"}, call="the headers of a full server's refusal")


@pytest.mark.check(
    task=4,
    points=2,
    title="A deadline gives up the request, not the answer",
    hints=(
        "Who fires the timer if the answer was ready in time?",
        "call_later with the reason 'timeout'; cancel the timer when the block ends, also by an "
        "error.",
        "timer = loop.call_later(seconds, cancel, stream, 'timeout'); try: yield; finally: "
        "timer.cancel()",
    ),
)
def test_deadline():
    async def scene(seconds, work, fails=False):
        loop, told = asyncio.get_running_loop(), []

        def cancel(stream, reason):
            told.append((stream.name, reason, round(loop.time(), 3)))

        try:
            with deadline(loop, seconds, cancel, Stream([1], name="mine")):
                await asyncio.sleep(work)
                if fails:
                    raise ValueError
        except ValueError:
            told.append("ValueError")
        await asyncio.sleep(100)
        return told

    found = [
        run_virtual(scene(5.0, 8.0)),
        run_virtual(scene(5.0, 3.0)),
        run_virtual(scene(5.0, 3.0, fails=True)),
        run_virtual(scene(None, 90.0)),
    ]
    expect(
        found,
        [[("mine", "timeout", 5.0)], [], ["ValueError"], []],
        call="what is cancelled, why and when: limit 5 s and work of 8 s; of 3 s; of 3 s that "
        "fails; no limit",
        cause="a timer that outlives its request fires at nobody, or at the wrong one",
    )


@pytest.mark.check(
    task=4,
    points=2,
    title="Drain: wait for what is open, then give up what is left",
    hints=(
        "What if everything is finished early? What if something never ends?",
        "Look every tick, until nothing is open or the time is up.",
        "while streams() and waited < seconds: await sleep(tick); waited += tick",
    ),
)
def test_drain():
    async def scene(ends, seconds):
        loop, told = asyncio.get_running_loop(), []
        streams = {Stream([i], name=str(i)): end for i, end in enumerate(ends)}

        def still_open():
            return [stream for stream, end in streams.items() if loop.time() < end]

        def cancel(stream, reason):
            told.append((stream.name, reason))

        cut = await drain(still_open, cancel, seconds, tick=0.5)
        return cut, told, loop.time()

    found = [
        run_virtual(scene([], 30.0)),
        run_virtual(scene([2.0, 4.25], 30.0)),
        run_virtual(scene([2.0, 99.0, 98.0], 10.0)),
    ]
    expect(
        found,
        [(0, [], 0.0), (0, [], 4.5), (2, [("1", "shutdown"), ("2", "shutdown")], 10.0)],
        call="drain: number given up, who and why, when it returned; with nothing open; with "
        "requests of 2 and 4.25 s; with 2, 99 and 98 s, and 10 s of patience; looked at every 0.5",
        cause="it does not wait longer than it has to, nor for ever",
    )


@pytest.mark.check(
    task=4,
    points=2,
    title="The whole server: full is 503, a deadline returns what there is",
    hints=(
        "Does task 4 alone explain it? The first check of an earlier task that fails is nearer.",
        "num_open counts samples that wait or run; the timer's cancel makes the engine end the "
        "sample, and its reader goes on to the end.",
        "with deadline(...): the block ends when the last event was read",
    ),
)
def test_server():
    expect.raises(
        OverloadedError,
        lambda: Admission(ServeConfig(max_queue=0), 1).enter("", 1, 1),
        call="enter when full",
    )
    engine = ScriptedEngine(script=lambda prompt, index: ["word "] * 10**6, max_num_seqs=1)
    engine.tokenizer = Tokenizer.from_pretrained(ROOT / "models" / "target")
    engine.max_model_len, engine.config = 10**7, EngineConfig(max_num_seqs=1)
    server = Server(
        engine, ServeConfig(model_name="tiny", max_queue=1, timeout=0.4, drain_timeout=0.1)
    )
    body = {"prompt": "Once", "max_tokens": 10**6}

    async def main():
        transport = httpx.ASGITransport(server.app)
        client = httpx.AsyncClient(transport=transport, base_url="http://lab", timeout=20)
        async with server.app.router.lifespan_context(server.app), client:
            asks = [client.post("/v1/completions", json=body) for _ in range(2)]
            first = [asyncio.ensure_future(ask) for ask in asks]
            while server.engine.num_open < 2:
                await asyncio.sleep(0.001)
            refused = await client.post("/v1/completions", json=body)
            answers = await asyncio.gather(*first)
            server.admission.draining = True
            closed = await client.get("/health")
            return refused, answers, closed, server.engine.num_open

    try:
        refused, answers, closed, left = asyncio.run(asyncio.wait_for(main(), 8))
    except TimeoutError:
        expect.that(
            False,
            "every request ends",
            observed="still waiting after 8 s",
            call="three requests of a server with one seat, a queue of one and a timeout of 0.4 s",
            cause="a reader whose stream is given up waits for the engine's Aborted",
        )
    error = refused.json().get("error", {})
    choices = [answer.json()["choices"][0] for answer in answers]
    expect(
        [
            [refused.status_code, refused.headers.get("Retry-After"), error.get("code")],
            [[c["finish_reason"], c["stop_reason"]] for c in choices],
            choices[0]["text"].startswith("word word "),
            closed.status_code,
            left,
        ],
        [[503, "1", 503], [["length", "timeout"]] * 2, True, 503, 0],
        call="one seat, a queue of one: the third request (status, Retry-After, code); the other "
        "two after their timeout (reasons; whether the first has text); "
        "/health while draining; samples open",
    )

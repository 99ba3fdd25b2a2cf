# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 07: Serving
#
# The handout is `labs/lab07/README.md`; your code is in `nanovllm/serving/`. This notebook puts users
# in front of it: most of them live in virtual time, where a minute takes a moment and every run gives
# the same numbers. A cell that needs a task you have not written says so: write the task, restart the
# kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.**

# %%
import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

from grader.student.notebook import needs
from grader.student.notebook import style
from grader.course.paths import MODELS
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.generation.latency import ManualClock, percentile
from nanovllm.generation.params import SamplingParams
from nanovllm.model.loader import load_model
from nanovllm.serving.admission import Admission, TokenBucket
from nanovllm.serving.async_engine import AsyncEngine
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.deltas import merge
from nanovllm.serving.errors import ApiError
from nanovllm.serving.failures import api_error
from nanovllm.serving.load import Record, Slo, arrival_times, closed_loop, goodput, open_loop
from nanovllm.serving.metrics import Metrics
from nanovllm.serving.monitor import Monitor
from nanovllm.serving.protocol import ChatCompletionRequest, CompletionRequest
from nanovllm.serving.registry import TTFT
from nanovllm.serving.sampling import sampling_params
from nanovllm.serving.scripted import ScriptedEngine
from nanovllm.serving.snapshot import engine_state
from nanovllm.serving.sse import EventReader
from nanovllm.serving.stream import Stream
from nanovllm.serving.streaming import event_stream
from nanovllm.serving.virtual_time import run_virtual
from nanovllm.serving.writers import CompletionWriter
from nanovllm.tokenization.tokenizer import Tokenizer

torch.set_num_threads(1)
style()


def apart(run: Callable[[Coroutine], Any], main: Coroutine) -> Any:
    """Run a coroutine in a thread of its own: in the notebook's an event loop runs already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run, main).result()


# %% [markdown]
# ## 1. Whose thread is it?
#
# An engine whose step takes 60 ms answers one request of 12 tokens. Meanwhile a task of the event loop
# wants to run every 5 ms: it stands for everything else that a server does, such as taking the next
# request. **Predict** the longest it has to wait when the engine is stepped in the loop, and when it
# is stepped in its own thread.

# %%
STEP = 0.06


async def pulse(beats: list[float]) -> None:
    """Note the time every 5 ms, as far as the loop lets it."""
    while True:
        beats.append(time.perf_counter())
        await asyncio.sleep(0.005)


def dozen(prompt: list[int], index: int) -> list[str]:
    """Twelve words."""
    return ["word "] * 12


async def in_the_loop() -> list[float]:
    """Steps between which the loop has a moment for others."""
    beats: list[float] = []
    task = asyncio.ensure_future(pulse(beats))
    engine = ScriptedEngine(script=dozen, pause=STEP)
    engine.add_request([1])
    while engine.has_unfinished:
        engine.step()
        await asyncio.sleep(0.001)
    task.cancel()
    return beats


async def in_a_thread() -> list[float]:
    """The same request through your AsyncEngine."""
    beats: list[float] = []
    engine = AsyncEngine(ScriptedEngine(script=dozen, pause=STEP))
    stream = engine.submit([[1]], SamplingParams())
    engine.start()
    task = asyncio.ensure_future(pulse(beats))

    async def read() -> None:
        async for _ in stream:
            pass

    await asyncio.wait_for(read(), 30)
    task.cancel()
    await engine.stop()
    return beats


with needs("07", 1):
    figure, axes = plt.subplots(2, 1, figsize=(7, 2.6), sharex=True)
    for axis, (name, scene) in zip(
        axes, (("in the loop", in_the_loop), ("own thread", in_a_thread)), strict=True
    ):
        beats = np.array(apart(asyncio.run, scene()))
        axis.vlines(1000 * (beats - beats[0]), 0, 1, color="C0", lw=0.8)
        axis.set(yticks=[], title=f"{name}: longest wait {1000 * np.diff(beats).max():.0f} ms")
        axis.grid(visible=False)
    axes[1].set_xlabel("ms; a line for each time that the loop looked at anything else")
    figure.tight_layout()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab07-task-1", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=1
from grader.student.notebook import check_task

check_task("07", 1)

# %% [markdown]
# ## 2. What a request asks for
#
# A model with a context of 64 tokens, prompts of 50. Say for each request below how many tokens it may
# get, or which status it is refused with.

# %%
HI = [{"role": "user", "content": "Hi"}]
with needs("07", 2):
    for request in (
        CompletionRequest(prompt="Hi"),
        CompletionRequest(prompt="Hi", max_tokens=14),
        CompletionRequest(prompt="Hi", max_tokens=15),
        CompletionRequest(prompt="Hi", temperature=-1),
        ChatCompletionRequest(messages=HI),
        ChatCompletionRequest(messages=HI, max_tokens=9, max_completion_tokens=4),
        ChatCompletionRequest(messages=HI, top_logprobs=2),
    ):
        asked = request.model_dump(exclude_unset=True, exclude={"prompt", "messages"})
        try:
            said = f"{sampling_params(request, 50, 64).max_tokens} tokens"
        except (ApiError, ValueError) as error:
            found = api_error(error)
            said = f"{found.status} {found.type}: {found.message[:60]}..."
        print(f"{type(request).__name__[:4]} {asked!s:<48} {said}")

# %% nbgrader={"grade": true, "grade_id": "lab07-task-2", "locked": true, "points": 18, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=2
from grader.student.notebook import check_task

check_task("07", 2)

# %% [markdown]
# ## 3. Frames on a time line
#
# Two choices of eight words each, a step every 10 ms. The stream is written for two readers: one who
# looks as soon as there is something, and one who looks every 35 ms. **Predict** how many chunks each
# gets, and whether the slow one makes the other's, or the engine's, life slower. Below the picture:
# the first piece as bytes, and the stream read again as a network might cut it, 7 bytes at a time.

# %%
tokenizer = Tokenizer.from_pretrained(MODELS / "target")


SAID = (
    ["The", " dog", " ran", " to", " the", " big", " old", " tree"],
    ["Tom", " has", " a", " red", " ball", " and", " a", " cat"],
)


def eight(prompt: list[int], index: int) -> list[str]:
    """The words of a choice."""
    return SAID[index]


async def framed(pause: float) -> list[tuple[float, bytes]]:
    """When which bytes leave, for a reader who sleeps `pause` seconds after each look."""
    loop = asyncio.get_running_loop()
    engine = ScriptedEngine(script=eight)
    stream = Stream([engine.add_request([1], SamplingParams(n=2))], n=2)
    writer = CompletionWriter(
        id="cmpl-1", model="scripted", created=0, tokenizer=tokenizer, prompts=[[1]], n=2
    )

    missing: list[NotImplementedError] = []

    async def steps() -> Any:
        try:
            async for events in stream:
                yield merge(stream, events)
                await asyncio.sleep(pause)
        except NotImplementedError as error:  # which the stream would tell the client of
            missing.append(error)
            raise

    async def drive() -> None:
        while engine.has_unfinished:
            await asyncio.sleep(0.01)
            stream.put(engine.step())

    driving = asyncio.ensure_future(drive())
    pieces = [(loop.time(), piece) async for piece in event_stream(steps(), writer)]
    if missing:
        raise missing[0]
    await driving
    return pieces


with needs("07", 1, 2, 3):
    import orjson

    figure, axis = plt.subplots(figsize=(10, 3.4))
    sent = {}
    for row, (name, pause) in enumerate((("looks at once", 0.0), ("every 35 ms", 0.035))):
        sent[name] = apart(run_virtual, framed(pause))
        count = 0
        for when, piece in sent[name]:
            for data in EventReader().push(piece):
                if data == "[DONE]":
                    axis.text(1000 * when + 2.5, row, "[DONE]", va="center", fontsize=7)
                    continue
                count += 1
                choice = orjson.loads(data)["choices"][0]
                y = row + (0.16 if choice["index"] else -0.16)
                color = "C4" if choice["index"] else "C0"
                axis.plot(1000 * when, y, "o", ms=4, color=color)
                words = choice["text"].replace("$", "")
                axis.text(1000 * when + 0.8, y, words, fontsize=6.5, va="center", color=color)
        print(f"{name}: {len(sent[name])} pieces, {count} chunks")
    axis.set(yticks=(0, 1), yticklabels=list(sent), xlabel="ms", ylim=(1.5, -0.5), xlim=(5, 125))
    axis.set_title("One row a reader; blue: choice 0, orange: choice 1; each mark is one chunk")
    plt.show()
    print(sent["looks at once"][0][1].decode())
    whole = b"".join(piece for _, piece in sent["looks at once"])
    reader = EventReader()
    cut = [data for i in range(0, len(whole), 7) for data in reader.push(whole[i : i + 7])]
    print("read in pieces of 7 bytes:", len(cut), "events,", cut == EventReader().push(whole))

# %% nbgrader={"grade": true, "grade_id": "lab07-task-3", "locked": true, "points": 18, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=3
from grader.student.notebook import check_task

check_task("07", 3)

# %% [markdown]
# ## 4. A bucket of tokens
#
# A key may use 600 tokens a minute. Its user sends a request every 4 seconds: 30 tokens of prompt,
# charged when it is let in, and 90 of answer, charged as they come over the next 3 seconds. **Predict**
# for how long nothing is refused, and which share is let in after that.

# %%
with needs("07", 4):
    clock = ManualClock()
    bucket = TokenBucket(rate=600, clock=clock)
    level, times, marks, due = [], [], [], {}
    for tick in range(1800):  # tenths of a second
        clock.now = tick / 10
        if tick % 40 == 0:
            let_in = bucket.wait == 0
            marks.append((clock.now, let_in))
            if let_in:
                bucket.charge(30)
                due.update({tick + 1 + k: 3 for k in range(30)})
        bucket.charge(due.get(tick, 0))
        times.append(clock.now)
        level.append(bucket.level)
    figure, axis = plt.subplots(figsize=(8, 3))
    axis.plot(times, level, lw=1, color="C0")
    axis.fill_between(times, level, 0, where=np.array(level) <= 0, color="C1", alpha=0.4)
    for good, color, name in ((True, "C0", "let in"), (False, "C1", "429")):
        axis.plot(
            *zip(*[(when, 640) for when, ok in marks if ok == good], strict=True),
            "|", ms=9, color=color, label=name,
        )  # fmt: skip
    late = [ok for when, ok in marks if when > 60]
    axis.set(xlabel="seconds", ylabel="tokens in the bucket")
    axis.set_title(f"After the first minute {sum(late)} of {len(late)} requests are let in")
    axis.legend(loc="center right")
    plt.show()

# %% [markdown]
# ## 5. Arrivals
#
# Four requests a second for 20 seconds, three times: even (`burstiness` 20), Poisson (1), in bursts
# (0.15). **Predict** the longest stretch without a request in each, and the most within one second.

# %%
with needs("07", 7):
    shapes = {"even": 20.0, "Poisson": 1.0, "bursts": 0.15}
    figure, axes = plt.subplots(3, 1, figsize=(9, 3.6), sharex=True)
    for axis, (name, shape) in zip(axes, shapes.items(), strict=True):
        times = np.array(arrival_times(4.0, 200, burstiness=shape, seed=5))
        shown = times[times < 20]
        axis.vlines(shown, 0, 1, color="C0", lw=1)
        most = np.histogram(shown, bins=np.arange(0, 21))[0].max()
        gap = np.diff(shown, prepend=0).max()
        axis.set(yticks=[], xlim=(0, 20))
        axis.set_title(f"{name}: longest gap {gap:.1f} s, up to {most} within a second", fontsize=8)
        axis.grid(visible=False)
    axes[-1].set_xlabel("seconds")
    figure.tight_layout()
    plt.show()

# %% [markdown]
# ## 6. Overload
#
# Below, your `Stream` and `Admission` around a scripted engine, in virtual time. Eight seats; a step
# takes 20 ms and 1 ms for each running request; an answer has 10 to 50 tokens.

# %%
LENGTHS = np.random.default_rng(3).integers(10, 51, 4096)


class VirtualServer:
    """A server without threads and sockets: steps that take virtual time, and your front door."""

    def __init__(self, max_queue: int, seats: int = 8) -> None:
        self.loop = asyncio.get_running_loop()
        self.engine = ScriptedEngine(script=self.answer, max_num_seqs=seats)
        self.admission = Admission(ServeConfig(max_queue=max_queue), seats, self.loop.time)
        self.streams: dict[int, Stream] = {}
        self.news = asyncio.Event()
        self.queue: list[tuple[float, int]] = []  # when, requests that wait

    def answer(self, prompt: list[int], index: int) -> list[str]:
        """As many words as the request of this number gets."""
        return ["word "] * int(LENGTHS[prompt[0]])

    @property
    def num_open(self) -> int:
        return sum(stream.num_open for stream in self.streams.values())

    async def run(self) -> None:
        """Step while there is anything to do; an error reaches every reader."""
        try:
            while True:
                while not self.engine.has_unfinished:
                    self.news.clear()
                    await self.news.wait()
                running = min(self.num_open, self.engine.max_num_seqs)
                events = self.engine.step()
                await asyncio.sleep(0.02 + 0.001 * running)
                self.queue.append((self.loop.time(), max(0, self.num_open - running)))
                for stream in list(self.streams.values()):
                    mine = [e for e in events if getattr(e, "request_id", -1) in stream.request_ids]
                    if mine:
                        stream.put(mine)
                    if stream.ended:
                        del self.streams[stream.request_ids[0]]
        except Exception as error:
            for stream in self.streams.values():
                stream.fail(error)

    async def send(self, number: int, due: float) -> Record:
        """A client: asks, and notes when each token came."""
        try:
            self.admission.enter("", 1, self.num_open)
        except ApiError as error:
            return Record(due, ended=self.loop.time(), error=str(error.status))
        request_id = self.engine.add_request([number], SamplingParams(max_tokens=50))
        stream = self.streams[request_id] = Stream([request_id])
        self.news.set()
        times: list[float] = []
        async for events in stream:
            times += [
                self.loop.time() for event in events if type(event).__name__ == "TokenGenerated"
            ]
        return Record(due, tuple(times), self.loop.time())


def serve(max_queue: int, load: Callable[[VirtualServer], Coroutine]) -> tuple[VirtualServer, list]:
    """Start a server, put a load on it; the server and the records."""

    async def main() -> tuple[VirtualServer, list]:
        server = VirtualServer(max_queue)
        running = asyncio.ensure_future(server.run())
        try:
            return server, await load(server)
        finally:
            running.cancel()

    return apart(run_virtual, main())


# %% [markdown]
# From second 20 to second 50 requests come at 16 a second, before and after at 5; the server can do
# about 9. It runs once with a queue of 16 and once with one of 10,000. **Predict** for both: the TTFT of a request
# that comes at second 49, and the second at which new requests are served at once again.

# %%
with needs("07", 1, 4, 7):
    wave = [20 + t for t in arrival_times(16.0, 480, seed=2) if t < 30]
    calm = [t for t in arrival_times(5.0, 600, seed=1) if not 20 <= t < 50 and t < 110]
    times = sorted(wave + calm)
    figure, axes = plt.subplots(2, 2, figsize=(10, 4.6), sharex=True, sharey="row")
    for column, max_queue in enumerate((10_000, 16)):
        server, records = serve(max_queue, lambda server: open_loop(server.send, times))
        answered = [r for r in records if r.error is None]
        refused = [r.due for r in records if r.error is not None]
        top, bottom = axes[0, column], axes[1, column]
        top.plot(*zip(*server.queue, strict=True), color="black", lw=0.8)
        top.set_title(f"queue of {max_queue:,}: {len(refused)} of {len(records)} refused with 503")
        waits = [r.timeline.ttft for r in answered]
        bottom.plot([r.due for r in answered], waits, ".", ms=3, color="C0", label="answered")
        bottom.plot(refused, [0.1] * len(refused), "|", ms=7, color="C1", label="503")
        bottom.set(xlabel="the request came at second", yscale="log")
        for axis in (top, bottom):
            axis.axvspan(20, 50, color="gray", alpha=0.15)
        print(f"queue of {max_queue}: TTFT p50 {percentile(waits, 50):.2f} s, "
              f"p99 {percentile(waits, 99):.2f} s")  # fmt: skip
    axes[0, 0].set_ylabel("requests waiting")
    axes[1, 0].set_ylabel("TTFT, s")
    axes[1, 1].legend(fontsize=7)
    figure.tight_layout()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab07-task-4", "locked": true, "points": 16, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=4
from grader.student.notebook import check_task

check_task("07", 4)

# %% [markdown]
# ## 7. Goodput
#
# The same two servers at rates from 2 to 16 a second. An answer is good if its first token came within
# 1 s and the others every 60 ms on average. **Predict** the shape of the two goodput curves beyond the
# rate that the server can do.

# %%
with needs("07", 1, 4, 7):
    slo = Slo.parse("ttft:1000,tpot:60")
    rates = (2, 4, 6, 8, 9, 10, 12, 16)
    figure, axis = plt.subplots(figsize=(7, 3.6))
    axis.plot(rates, rates, ":", color="gray", lw=0.8, label="all that is asked")
    curves = {}
    for max_queue, color in ((10_000, "C1"), (8, "C0")):
        good, done = [], []
        for rate in rates:
            times = arrival_times(rate, 30 * rate, seed=7)
            _, records = serve(max_queue, lambda server, times=times: open_loop(server.send, times))
            good.append(goodput(records, slo))
            done.append(goodput(records, Slo()))
        curves[max_queue] = good
        axis.plot(rates, good, "o-", color=color, ms=4, label=f"goodput, queue of {max_queue:,}")
        axis.plot(rates, done, "--", color=color, lw=0.8, label=f"answers, queue of {max_queue:,}")
    axis.set(xlabel="requests a second", ylabel="a second", ylim=(0, 12))
    axis.set_title("30 s of Poisson arrivals, SLO: TTFT 1 s, TPOT 60 ms")
    axis.legend(fontsize=7)
    plt.show()
    for max_queue, good in curves.items():
        print(max_queue, [float(f"{g:.1f}") for g in good])

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab07-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** Both servers of the last picture compute about as many answers a second at
# 16 requests a second. Where does the goodput of the one with the long queue go? Choose a queue length
# for an SLO of 1 s on the first token from the server's own numbers (about 9 answers a second), and
# say what the client should do with a 503.

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab07-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# In a queue that only grows every request waits longer than the one before it. After the first
# seconds each answer comes after its limit: the server works on nothing but late answers.
#
# Whoever is last in a queue of Q waits about Q / 9 s, so Q = 8 or 9 keeps the first token within 1 s
# (a little less, as prefill and a step take their part). A longer queue only stores lateness. The
# queue still has to cover the bursts of Poisson arrivals: with none, a server at 7 a second would
# refuse although it has room on average.
#
# A client that gets a 503 waits at least Retry-After, longer after each refusal and with some chance
# in it, or asks another server; to ask again at once adds to the overload.
#
# - 2 points: the waiting time grows without bound, so all the work goes into answers that miss the SLO.
# - 2 points: queue length = allowed wait times service rate (Little's law), about 8.
# - 1 point: Retry-After with growing, random waits, or another server.
# ### END SOLUTION

# %% [markdown]
# ### Open and closed
#
# 600 requests: at 8 a second with even, Poisson and bursty arrivals, and from 12 users of whom each
# asks again when he has his answer. **Predict** the order of the four p99 of TTFT. Which of the four would
# you report for your server, and which tells of overload at all?

# %%
with needs("07", 1, 4, 7):
    figure, axis = plt.subplots(figsize=(7, 3.4))
    loads = {
        name: lambda server, shape=shape: open_loop(
            server.send, arrival_times(8.0, 600, burstiness=shape, seed=11)
        )
        for name, shape in shapes.items()
    }
    loads["12 users"] = lambda server: closed_loop(server.send, 600, 12)
    for name, load in loads.items():
        _, records = serve(10_000, load)
        waits = sorted(r.timeline.ttft for r in records)
        span = max(r.ended for r in records)
        axis.plot(waits, np.linspace(0, 100, len(waits)), label=f"{name}: {600 / span:.1f}/s")
        ranks = " ".join(f"p{q} {percentile(waits, q):6.2f}" for q in (50, 90, 99))
        print(f"{name:<10} {ranks} s, mean {np.mean(waits):.2f} s")
    for q in (50, 90, 99):
        axis.axhline(q, color="gray", lw=0.7, ls=":")
    axis.set(
        xscale="log", xlabel="TTFT, s", ylabel="percent of requests within", yticks=(0, 50, 90, 99)
    )
    axis.set_title("The same server: who asks, and when, decides what it is said to do")
    axis.legend(fontsize=7)
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab07-task-7", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=7
from grader.student.notebook import check_task

check_task("07", 7)

# %% [markdown]
# ## 8. What the metrics still know
#
# 60 requests through a scripted engine of four seats, read by your `Metrics`. Prometheus keeps only how
# many values fell into each bucket. **Predict** how far the p90 that one reads from the buckets may be
# from the true one, and which numbers below are equal.

# %%
with needs("07", 5):
    engine = ScriptedEngine(script=lambda prompt, index: ["word "] * int(LENGTHS[prompt[0]]))
    metrics = Metrics("scripted")
    true = {}
    for number in range(60):
        engine.add_request([number], SamplingParams(max_tokens=50))
    engine.abort(59)
    while engine.has_unfinished:
        events = engine.step()
        metrics.observe(events, 0.0)
        for event in events:
            if type(event).__name__ == "TokenGenerated":
                true.setdefault(event.request_id, event.time)
    found = metrics.registry.registry.get_sample_value
    labels = {"model_name": "scripted", "engine": "0"}
    buckets = [
        found("nanovllm:time_to_first_token_seconds_bucket", labels | {"le": f"{le}"})
        for le in TTFT
    ]
    count = found("nanovllm:time_to_first_token_seconds_count", labels)
    p90 = np.interp(0.9 * count, buckets, TTFT)
    exact = percentile(list(true.values()), 90)
    figure, axis = plt.subplots(figsize=(7, 3.2))
    axis.step(sorted(true.values()), range(1, len(true) + 1), where="post", label="every request")
    axis.plot(TTFT, buckets, "s--", ms=4, color="C4", label="what the buckets know")
    axis.axhline(0.9 * count, color="gray", lw=0.8, ls=":")
    axis.set(xlim=(0, 6), xlabel="TTFT, s", ylabel="requests within")
    axis.set_title(f"p90: true {exact:.2f} s, from the buckets {p90:.2f} s")
    axis.legend()
    plt.show()
    for name in (
        "generation_tokens_total", "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count", "e2e_request_latency_seconds_count",
        "num_requests_running", "num_requests_waiting",
    ):  # fmt: skip
        print(f"{name:<36}{found(f'nanovllm:{name}', labels):>8.0f}")

# %% nbgrader={"grade": true, "grade_id": "lab07-task-5", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=5
from grader.student.notebook import check_task

check_task("07", 5)

# %% [markdown]
# ## 9. The store through the dashboard's eyes
#
# Twelve requests on the bundled model, four seats; your `engine_state` is asked after every step who
# holds which slot. Before step 25 the second request of the batch is given up. **Predict** how
# many steps its slot stays empty, and how many that of a request that ends by itself.

# %%
with needs("07", 6):
    engine = Engine(
        load_model(MODELS / "target"), EngineConfig(max_num_seqs=4), tokenizer=tokenizer
    )
    monitor = Monitor(engine.clock)
    for number in range(12):
        length = 8 + (7 * number) % 17
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        engine.add_request(tokenizer.encode("Once upon a time"), params)
    names = {number: f"cmpl-{number}" for number in range(12)}
    rows = []
    while engine.has_unfinished:
        if len(rows) == 25:
            gone = engine_state(engine, names)["running"][1]
            engine.abort(int(gone["id"].removeprefix("cmpl-")))
        monitor.observe(engine.step(), 0.0)
        state = engine_state(engine, names)
        slots = np.full(4, np.nan)
        for row in state["running"]:
            slots[row["blocks"]] = int(row["id"].removeprefix("cmpl-"))
        rows.append(slots)
    figure, axis = plt.subplots(figsize=(9, 2.4))
    axis.imshow(
        np.array(rows).T, aspect="auto", cmap="tab20", interpolation="none", vmin=0, vmax=19
    )
    axis.axvline(24.5, color="black", lw=1, ls=":")
    axis.set(xlabel="step", ylabel="slot", yticks=range(4))
    axis.set_title(f"A color for each request; {gone['id']} is given up before step 25 (dotted)")
    axis.grid(visible=False)
    plt.show()
    recent = monitor.recent()
    print(gone)
    print(recent["totals"])

# %% nbgrader={"grade": true, "grade_id": "lab07-task-6", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=6
from grader.student.notebook import check_task

check_task("07", 6)

"""The pictures of lab 07's notebook, and the scenes that they show."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import orjson

from nanovllm.generation.events import TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.scripted import ScriptedEngine
from nanovllm.serving.sse import EventReader

BLUE, RED, GREEN, GRAY = "C0", "C1", "C2", "gray"


def beats(scenes: dict[str, Sequence[float]]) -> None:
    """A line for each moment at which the event loop could look after others."""
    figure, rows = plt.subplots(len(scenes), 1, figsize=(8, 2.6), sharex=True)
    for axes, (name, times) in zip(rows, scenes.items(), strict=True):
        found = 1000 * (np.array(times) - times[0])
        axes.vlines(found, 0, 1, color=BLUE, lw=0.8)
        axes.set(yticks=[], title=f"{name}: longest wait {np.diff(found).max():.0f} ms")
        axes.grid(visible=False)
    rows[-1].set_xlabel("ms")
    figure.tight_layout()
    plt.show()


def frames(sent: dict[str, list[tuple[float, bytes]]]) -> None:
    """Each reader's chunks on a time line: the text that it got, by choice."""
    _, axes = plt.subplots(figsize=(10, 3.6))
    for row, pieces in enumerate(sent.values()):
        chunks = 0
        for when, piece in pieces:
            for data in EventReader().push(piece):
                if data == "[DONE]":
                    continue
                chunks += 1
                choice = orjson.loads(data)["choices"][0]
                second = choice["index"] == 1
                y = row + (0.17 if second else -0.17)
                color = RED if second else BLUE
                axes.plot(1000 * when, y, "o", ms=4, color=color)
                words = choice["text"].strip()
                axes.text(1000 * when, y - 0.06, words, fontsize=7, ha="center", color=color)
        axes.text(86, row, f"{chunks} chunks", va="center", fontsize=9)
    axes.set(
        yticks=range(len(sent)), yticklabels=list(sent), xlabel="ms", ylim=(len(sent) - 0.5, -0.5),
        xlim=(5, 122), title="blue: choice 0, orange: choice 1; each mark is one chunk",
    )  # fmt: skip
    plt.show()


def bucket(times: Sequence[float], levels: Sequence[float], asked: Sequence[tuple]) -> None:
    """The level of a bucket, and which requests it let in."""
    _, axes = plt.subplots(figsize=(8, 3))
    axes.plot(times, levels, lw=1, color=BLUE)
    axes.fill_between(times, levels, 0, where=np.array(levels) <= 0, color=RED, alpha=0.4)
    for good, color, name in ((True, BLUE, "let in"), (False, RED, "429")):
        marks = [when for when, ok in asked if ok == good]
        axes.plot(marks, [660] * len(marks), "|", ms=9, color=color, label=name)
    late = [ok for when, ok in asked if when > 60]
    axes.set(xlabel="seconds", ylabel="tokens in the bucket")
    axes.set_title(f"after the first minute {sum(late)} of {len(late)} requests are let in")
    axes.legend(loc="center right")
    plt.show()


def arrivals(found: dict[str, Sequence[float]], seconds: float = 20.0) -> None:
    """Requests on a time line, one row a burstiness."""
    figure, rows = plt.subplots(len(found), 1, figsize=(9, 3.8), sharex=True)
    for axes, (name, times) in zip(rows, found.items(), strict=True):
        shown = np.array([time for time in times if time < seconds])
        most = np.histogram(shown, bins=np.arange(0, seconds + 1))[0].max()
        gap = np.diff(shown, prepend=0).max()
        axes.vlines(shown, 0, 1, color=BLUE, lw=1)
        axes.set(yticks=[], xlim=(0, seconds))
        axes.set_title(f"{name}: longest gap {gap:.1f} s, up to {most} within a second")
        axes.grid(visible=False)
    rows[-1].set_xlabel("seconds")
    figure.tight_layout()
    plt.show()


def overload(runs: dict[str, tuple[Any, list]], wave: tuple[float, float]) -> None:
    """The queue over time, and what each request waited, one column a server."""
    figure, axes = plt.subplots(2, len(runs), figsize=(10, 4.8), sharex=True, sharey="row")
    for column, (name, (server, records)) in enumerate(runs.items()):
        top, bottom = axes[0, column], axes[1, column]
        answered = [record for record in records if record.error is None]
        refused = [record.due for record in records if record.error is not None]
        top.plot(*zip(*server.queue, strict=True), color="black", lw=0.8)
        top.set_title(f"{name}: {len(refused)} of {len(records)} refused")
        waits = [record.timeline.ttft for record in answered]
        bottom.plot([r.due for r in answered], waits, ".", ms=3, color=BLUE, label="answered")
        bottom.plot(refused, [0.03] * len(refused), "|", ms=7, color=RED, label="503")
        bottom.axhline(1, color=GRAY, ls=":", lw=1)
        bottom.set(xlabel="the request came at second", yscale="log")
        for one in (top, bottom):
            one.axvspan(*wave, color=GRAY, alpha=0.15)
    axes[0, 0].set_ylabel("requests waiting")
    axes[1, 0].set_ylabel("TTFT, s")
    axes[1, -1].legend(fontsize=7)
    figure.tight_layout()
    plt.show()


def knee(curves: dict[str, list[tuple[float, float]]], guess: float | None = None) -> None:
    """Goodput over the rate at which requests really came, and the most that there could be."""
    _, axes = plt.subplots(figsize=(7, 3.8))
    top = max(asked for points in curves.values() for asked, _ in points)
    axes.plot([0, top], [0, top], ":", color=GRAY, lw=0.8, label="all that is asked")
    for (name, points), color in zip(curves.items(), (RED, BLUE, GREEN), strict=False):
        axes.plot(*zip(*points, strict=True), "o-", ms=4, color=color, label=name)
    if guess:
        axes.axvline(guess, color="black", lw=0.8, ls="--", label=f"your guess, {guess:g}")
    axes.set(xlabel="requests a second that came", ylabel="good answers a second", ylim=(0, None))
    axes.legend(fontsize=7)
    plt.show()


def waits(axes: Any, found: tuple[Any, list], limit: float = 1.0) -> None:
    """What each request of a run waited, and the limit; in the title the share that is good."""
    _, records = found
    good = [r for r in records if r.error is None and r.timeline.ttft <= limit]
    late = [r for r in records if r.error is None and r.timeline.ttft > limit]
    refused = [r.due for r in records if r.error is not None]
    axes.plot([r.due for r in good], [r.timeline.ttft for r in good], ".", ms=3, color=BLUE)
    axes.plot([r.due for r in late], [r.timeline.ttft for r in late], ".", ms=3, color=RED)
    axes.plot(refused, [-0.4] * len(refused), "|", ms=5, color=GRAY)
    axes.axhline(limit, color="black", lw=0.8, ls=":")
    axes.set(xlabel="came at second", ylim=(-0.9, 8))
    if axes.get_subplotspec().is_first_col():
        axes.set_ylabel("TTFT, s")
    share = 100 * len(good) / max(1, len(records))
    axes.text(0.03, 0.93, f"{share:.0f} % good", transform=axes.transAxes, fontsize=8, va="top")


def retries(policies: dict[str, tuple[Sequence[float], int, int, float]]) -> None:
    """How often the server is asked each second, by what refused clients do; dotted: the end."""
    figure, rows = plt.subplots(len(policies), 1, figsize=(8, 4.6), sharex=True, sharey=True)
    seconds = max(62, *(int(end) + 2 for *_, end in policies.values()))
    for axes, (name, (asked, answered, people, end)) in zip(rows, policies.items(), strict=True):
        counts, edges = np.histogram(asked, bins=np.arange(0, seconds + 1))
        axes.bar(edges[:-1], counts, width=1.0, align="edge", color=BLUE)
        axes.axvline(end, color="black", lw=1, ls=":")
        done = f"{answered} of {people} people answered, the last is done after {end:.0f} s"
        axes.set_title(f"{name}: {len(asked)} requests, {done}", fontsize=9)
    rows[-1].set_xlabel("second")
    rows[len(rows) // 2].set_ylabel("requests a second")
    figure.tight_layout()
    plt.show()


def cumulative(loads: dict[str, list]) -> None:
    """Which share of requests had its first token within a time, one curve a load."""
    _, axes = plt.subplots(figsize=(7, 3.6))
    for name, records in loads.items():
        found = sorted(record.timeline.ttft for record in records)
        axes.plot(found, np.linspace(0, 100, len(found)), label=name)
    axes.axhline(99, color=GRAY, lw=0.7, ls=":")
    axes.set(xscale="log", xlabel="TTFT, s", ylabel="% of requests within", yticks=(0, 50, 99))
    axes.legend(fontsize=8)
    plt.show()


def buckets(true: Sequence[float], limits: Sequence[float], counts: Sequence[float]) -> None:
    """What a histogram still knows of the values that it has counted."""
    _, axes = plt.subplots(figsize=(7, 3.4))
    axes.step(sorted(true), range(1, len(true) + 1), where="post", label="every request")
    axes.plot(limits, counts, "s--", ms=4, color=RED, label="what the buckets know")
    read = float(np.interp(0.9 * len(true), counts, limits))
    exact = float(np.quantile(true, 0.9))
    axes.axhline(0.9 * len(true), color=GRAY, lw=0.8, ls=":")
    axes.set(xlim=(0, 6), xlabel="TTFT, s", ylabel="requests within")
    axes.set_title(f"p90: true {exact:.2f} s, from the buckets {read:.2f} s")
    axes.legend()
    plt.show()


def slots(rows: Sequence[Sequence[float]], given_up: int, name: str) -> None:
    """Who holds which slot after each step, a colour for each request."""
    figure, axes = plt.subplots(figsize=(9, 2.6))
    axes.imshow(
        np.array(rows).T, aspect="auto", cmap="tab20", interpolation="none", vmin=0, vmax=19
    )
    axes.axvline(given_up - 0.5, color="black", lw=1, ls=":")
    axes.set(xlabel="step", ylabel="slot", yticks=range(len(rows[0])))
    axes.set_title(f"a colour for each request; request {name} is given up before step {given_up}")
    axes.grid(visible=False)
    figure.tight_layout()
    plt.show()


# Scenes that are drawn above: a few clients of the student's own code.


async def _pulse(found: list[float]) -> None:
    """Note the time every 5 ms, as far as the loop lets it."""
    while True:
        found.append(time.perf_counter())
        await asyncio.sleep(0.005)


def stepped_in_the_loop(seconds: float) -> list[float]:
    """When the loop was free, while an engine is stepped in it."""

    async def main() -> list[float]:
        found: list[float] = []
        task = asyncio.ensure_future(_pulse(found))
        engine = ScriptedEngine(script=lambda prompt, index: ["word "] * 12, pause=seconds)
        engine.add_request([1])
        while engine.has_unfinished:
            engine.step()
            await asyncio.sleep(0.001)
        task.cancel()
        return found

    return apart(asyncio.run, main())


def stepped_in_a_thread(seconds: float) -> list[float]:
    """When the loop was free, while the same engine is behind an AsyncEngine."""
    from nanovllm.serving.async_engine import AsyncEngine

    async def main() -> list[float]:
        found: list[float] = []
        script = ScriptedEngine(script=lambda prompt, index: ["word "] * 12, pause=seconds)
        engine = AsyncEngine(script)
        engine.start()
        task = asyncio.ensure_future(_pulse(found))
        async for _ in engine.submit([[1]], SamplingParams()):
            pass
        task.cancel()
        await engine.stop()
        return found

    return apart(asyncio.run, main())


SAID = (
    ["The", " dog", " ran", " to", " the", " big", " old", " tree"],
    ["Tom", " has", " a", " red", " ball", " and", " a", " cat"],
)


def read_every(pause: float) -> list[tuple[float, bytes]]:
    """When which bytes leave, for a reader who sleeps so many seconds after each look."""
    from nanovllm.serving.deltas import merge
    from nanovllm.serving.stream import Stream
    from nanovllm.serving.streaming import event_stream
    from nanovllm.serving.virtual_time import run_virtual
    from nanovllm.serving.writers import CompletionWriter

    async def main() -> list[tuple[float, bytes]]:
        loop = asyncio.get_running_loop()
        engine = ScriptedEngine(script=lambda prompt, index: SAID[index])
        stream = Stream([engine.add_request([1], SamplingParams(n=2))], n=2)
        writer = CompletionWriter("cmpl-1", "scripted", 0, None, [[1]], 2)
        merge(stream, [])  # a task that is missing says so here

        async def steps() -> Any:
            async for events in stream:
                yield merge(stream, events)
                await asyncio.sleep(pause)

        async def drive() -> None:
            while engine.has_unfinished:
                await asyncio.sleep(0.01)
                stream.put(engine.step())

        driving = asyncio.ensure_future(drive())
        pieces = [(loop.time(), piece) async for piece in event_stream(steps(), writer)]
        await driving
        return pieces

    return apart(run_virtual, main())


def apart(run: Callable[[Coroutine], Any], main: Coroutine) -> Any:
    """Run a coroutine in a thread of its own: in the notebook's an event loop runs already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run, main).result()


def people(
    rule: Callable[[int, float], float], count: int = 300
) -> tuple[list[float], int, int, float]:
    """People who come within 10 s and ask again by a rule.

    When the server was asked, how many were answered, of how many, and when the last was done.
    """
    from nanovllm.serving.load import open_loop
    from nanovllm.serving.virtual_server import simulate

    draws = random.Random(9)

    async def load(server: Any) -> list:
        async def persist(number: int, due: float) -> Any:
            for attempt in range(1, 9):
                record = await server.send(number, due)
                if record.error is None:
                    break
                await asyncio.sleep(rule(attempt, draws.random()))
            return record

        return await open_loop(persist, sorted(draws.uniform(0, 10) for _ in range(count)))

    server, records = simulate(load, 8)
    answered = sum(record.error is None for record in records)
    return server.asked, answered, count, max(record.ended for record in records)


def observed(metrics: Any) -> list[float]:
    """60 requests through a scripted engine of four, read by these metrics: their true TTFTs."""
    draws = np.random.default_rng(3).integers(10, 51, 60)
    engine = ScriptedEngine(script=lambda prompt, index: ["word "] * int(draws[prompt[0]]))
    for number in range(60):
        engine.add_request([number], SamplingParams(max_tokens=50))
    first: dict[int, float] = {}
    while engine.has_unfinished:
        metrics.observe(events := engine.step(), 0.0)
        for event in events:
            if isinstance(event, TokenGenerated):
                first.setdefault(event.request_id, event.time)
    return list(first.values())


def counted(metrics: Any) -> tuple[list[float], list[float]]:
    """The limits of the TTFT histogram, and how many values lie below each."""
    from nanovllm.serving.registry import TTFT

    labels = {"model_name": "scripted", "engine": "0"}
    name = "nanovllm:time_to_first_token_seconds_bucket"
    value = metrics.registry.registry.get_sample_value
    return list(TTFT), [value(name, labels | {"le": f"{limit}"}) for limit in TTFT]


def watched(engine: Any, give_up: int) -> tuple[list, dict[str, Any]]:
    """Who holds which slot after each step; before one of them the second of the batch goes."""
    from nanovllm.serving.snapshot import engine_state

    rows, gone = [], {}
    while engine.has_unfinished:
        if len(rows) == give_up:
            gone = engine_state(engine, {})["running"][1]
            engine.abort(int(gone["id"]))
        engine.step()
        held = np.full(4, np.nan)
        for row in engine_state(engine, {})["running"]:
            held[row["blocks"]] = int(row["id"])
        rows.append(held)
    return rows, gone

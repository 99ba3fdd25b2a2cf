"""A server dies under streams: `python -m benchmarks.faults [--python ENV/bin/python]`.

ENV has sglang-router. Streams of every kind that a cut harms go through a router to two replicas,
one of which gets a signal when a share of all tokens is there. Counted are texts that are those of
an undisturbed run. `recovered`: seconds from the signal until the last stream had its next chunk.
"""

import argparse
import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from benchmarks.routers import router
from nanovllm.bench import tables
from nanovllm.bench.record import record, save
from nanovllm.bench.serve_process import own_server
from nanovllm.serving.sse import EventReader

Results = dict[str, Any]
TOKENS = 64
PROMPTS = ("Once upon a time", "The", "12 + 30 =", "Tell me a story about a cat.")
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 0.8, "presence_penalty": 1.2, "frequency_penalty": 0.8},
    {"temperature": 0.7, "min_tokens": 60, "repetition_penalty": 1.2, "ignore_eos": False},
    {"temperature": 0.7, "stop": ["zebra", "the end of all"]},
    {"temperature": 0.9, "n": 2},
)
MOMENTS = (0.1, 0.5)
SILENCE = 60.0  # seconds without a byte, after which a client takes its stream for lost


@dataclass
class Heard:
    """What one client got: its texts, whether they came to their end, and when each chunk came."""

    texts: dict[int, str] = field(default_factory=dict)
    ended: bool = False
    times: list[float] = field(default_factory=list)
    error: str = ""


@dataclass
class Hurt:
    """What is done to whom, once, when `chunks` of them have come to all clients together."""

    chunks: float
    do: Callable[[], None]
    when: float | None = None
    seen: int = 0


def body(number: int) -> dict[str, Any]:
    """A request; each of a dozen numbers is of another kind."""
    asked = {"prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": TOKENS, "ignore_eos": True}
    return {"model": "draft", "stream": True, "seed": number} | asked | KINDS[number % len(KINDS)]


async def _stream(http: httpx.AsyncClient, url: str, number: int, hurt: Hurt | None) -> Heard:
    heard, reader = Heard(), EventReader()
    try:
        async with http.stream("POST", f"{url}/v1/completions", json=body(number)) as answer:
            async for data in answer.aiter_raw():
                for event in reader.push(data):
                    if event == "[DONE]":
                        heard.ended = not heard.error
                        continue
                    _hear(heard, json.loads(event))
                    if hurt is not None:
                        hurt.seen += 1
                        if hurt.when is None and hurt.seen >= hurt.chunks:
                            hurt.when = time.monotonic()
                            await asyncio.to_thread(hurt.do)
    except httpx.HTTPError as error:
        heard.error, heard.ended = repr(error), False
    return heard


def _hear(heard: Heard, chunk: Results) -> None:
    heard.times.append(time.monotonic())
    for choice in chunk.get("choices", ()):
        index = choice["index"]
        heard.texts[index] = heard.texts.get(index, "") + choice["text"]
        if choice["finish_reason"] == "abort":
            heard.error = "aborted"
    if "error" in chunk:
        heard.error = str(chunk["error"])


async def _all(url: str, count: int, hurt: Hurt | None) -> list[Heard]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=SILENCE, trust_env=False, limits=limits) as http:
        return await asyncio.gather(*(_stream(http, url, n, hurt) for n in range(count)))


def streams(url: str, count: int, hurt: Hurt | None = None) -> list[Heard]:
    """Send so many requests at once, and hear them to their end."""
    return asyncio.run(_all(url, count, hurt))


def judge(heard: list[Heard], truth: list[Heard], when: float) -> Results:
    """Counts; and `recovered`: seconds from the signal to the end of the last long pause.

    Of each stream the longest pause that ends after the signal counts, and of these all that are
    at least half as long as the longest one.
    """
    pairs = list(zip(heard, truth, strict=True))
    pauses = [max(_pauses(one.times, when), default=(0.0, when)) for one in heard]
    longest = max(seconds for seconds, _ in pauses)
    return {
        "streams": len(heard),
        "whole": sum(one.ended and one.texts == other.texts for one, other in pairs),
        "cut": sum(not one.ended for one in heard),
        "wrong": sum(one.ended and one.texts != other.texts for one, other in pairs),
        "recovered": max(end - when for seconds, end in pauses if seconds >= longest / 2),
        "errors": sorted({one.error[:200] for one in heard if one.error}),
    }


def _pauses(times: list[float], when: float) -> list[tuple[float, float]]:
    """Length and end of each pause between two chunks that ends after a moment."""
    return [(end - start, end) for start, end in pairwise(times) if end > when]


def steps(url: str) -> int:
    """Steps that a server's engine has taken."""
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "nanovllm:iteration_tokens_total_count":
                return int(sample.value)
    return 0


def retries(url: str) -> float:
    """Further tries of our router; 0 of any other."""
    answer = httpx.get(f"{url}/metrics", trust_env=False)
    lines = answer.text.splitlines() if answer.status_code == 200 else []
    found = [line for line in lines if line.startswith("nanovllm:router_retries_total")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


class Watch:
    """Looks at a number again and again while it is open: `at(moment)` is what it was then."""

    def __init__(self, look: Callable[[], float]) -> None:
        self.look, self.seen = look, [(time.monotonic(), look())]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            self.seen.append((time.monotonic(), self.look()))

    def at(self, moment: float) -> float:
        """The last that was seen by then."""
        return [number for when, number in self.seen if when <= moment][-1]

    def rises(self, moment: float) -> float:
        """Seconds from a moment until it was first seen to be more than it was then."""
        before = self.at(moment)
        return next((when - moment for when, number in self.seen if number > before), 0.0)


def trial(
    url: str, pid: int, other: str, which: signal.Signals, moment: float, truth: list[Heard]
) -> Results:
    """Process `pid` of a replica gets the signal; `other` is the replica that is left.

    noticed: seconds until our router has tried again; steps: of the other replica, from the signal
    until all went on; gone_on: tries of our router.
    """
    hurt = Hurt(moment * sum(len(one.times) for one in truth), lambda: os.kill(pid, which))
    try:
        with Watch(lambda: steps(other)) as taken, Watch(lambda: retries(url)) as tried:
            heard = streams(url, len(truth), hurt)
    finally:
        if which is signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    assert hurt.when is not None, "the streams were over before the signal"
    when, found = hurt.when, judge(heard, truth, hurt.when)
    counted = taken.at(when + found["recovered"]) - taken.at(when)
    gone_on = tried.seen[-1][1] - tried.seen[0][1]
    return found | {"noticed": tried.rises(when), "steps": counted, "gone_on": gone_on}


def show(found: dict[str, Results]) -> None:
    """A row for each trial."""
    table = tables.plain(
        "Two replicas, one gets a signal", "router", "signal", "at", "whole", "cut", "wrong",
        "gone on", "noticed, s", "recovered, s", "steps",
    )  # fmt: skip
    for name, one in found.items():
        counts = f"{one['whole']} of {one['streams']}", f"{one['cut']}", f"{one['wrong']}"
        seconds = f"{one['noticed']:.1f}", f"{one['recovered']:.1f}"
        table.add_row(*name.split(", "), *counts, f"{one['gone_on']:.0f}", *seconds,
                      f"{one['steps']:.0f}")  # fmt: skip
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", help="of an environment with sglang-router")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--streams", type=int, default=50)
    given = parser.parse_args()
    names = ["nanovllm route"] + ["sglang-router"] * bool(given.python)
    model, found = ["--model", "models/draft", "--served-model-name", "draft"], {}
    with own_server(model) as (url, _):
        truth = streams(url, given.streams)
    settings = {"streams": given.streams, "replicas": 2, "model": "draft", "tokens": TOKENS}
    for name in names:
        for moment in MOMENTS:
            with ExitStack() as stack:
                replicas = [stack.enter_context(own_server(model)) for _ in range(2)]
                urls, pid = [url for url, _ in replicas], replicas[0][1]
                for which in (signal.SIGSTOP, signal.SIGKILL):  # the second is the last one
                    with router(name, "round_robin", urls, given.python or "") as (url, _):
                        one = trial(url, pid, urls[1], which, moment, truth)
                    found[f"{name}, {which.name}, {moment:.0%}"] = one
                    save(record("faults", settings, found), given.out / "faults.json")
    show(found)


if __name__ == "__main__":
    main()

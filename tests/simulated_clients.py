"""Clients of a simulated fleet: what they ask, each in its way, and what they complain of."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from nanovllm.batching.offline import generate_continuous
from nanovllm.generation.params import SamplingParams
from nanovllm.resilience.calls import HEADER
from nanovllm.resilience.careful_router import GRACE
from nanovllm.serving.sse import EventReader
from tests.serving_tools import MODEL, TOKENIZER

AGAIN, TRIES = 3.0, 40  # seconds
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"repetition_penalty": 1.4},
    {"min_tokens": 6, "ignore_eos": False},
    {"stop": ["e", "an", " t"]},
    {"n": 3},
)
WAYS = ("stream", "stream", "whole", "keyed", "later", "hurried", "leaving")


@dataclass(frozen=True)
class Ask:
    """What a client sends, when, and how it wants its answer."""

    number: int
    time: float
    way: str
    body: dict[str, Any]


def asks_of(seed: int, most: int = 7) -> list[Ask]:
    """Requests of every kind."""
    draw, found = random.Random(f"asks {seed}"), []
    for number in range(draw.randint(1, most)):
        body = {
            "prompt": [draw.randrange(3, 2000) for _ in range(draw.randint(1, 40))],
            "max_tokens": draw.randint(8, 24), "seed": number, "ignore_eos": draw.random() < 0.7,
        } | draw.choice(KINDS)  # fmt: skip
        way = draw.choice(WAYS)
        if way == "hurried":
            body |= {"max_tokens": 120, "ignore_eos": True}
        found.append(Ask(number, draw.uniform(0, 0.5), way, body))
    return found


_truths: dict[str, list[tuple[str, str]]] = {}


def truth_of(ask: Ask) -> list[tuple[str, str]]:
    """Texts and reasons where nothing fails."""
    key = json.dumps(ask.body)
    if key not in _truths:
        params = SamplingParams(**{name: ask.body[name] for name in ask.body if name != "prompt"})
        found = generate_continuous(MODEL, [ask.body["prompt"]], [params], tokenizer=TOKENIZER)
        _truths[key] = [(one.text, one.finish_reason) for one in found.completions[0]]
    return _truths[key]


@dataclass
class Client:
    """Of one request. answer: (text, finish_reason) of each choice; () where nothing is promised.

    late: seconds for which steps that hang may keep the only loop, and with it everybody.
    """

    ask: Ask
    client: httpx.AsyncClient
    clock: Callable[[], float]
    late: float = 0.0
    answer: Any = ()
    complaints: list[str] = field(default_factory=list)
    retries: int = 0

    async def run(self) -> None:
        """A client that asks again while it is refused; nothing wrong is ever heard."""
        await asyncio.sleep(self.ask.time)
        for _ in range(TRIES):
            found = await getattr(self, f"_{self.ask.way}")()
            if found is not None:
                self.answer = found
                return
            self.retries += 1
            await asyncio.sleep(AGAIN)
        self._complain("was never answered")

    def judged(self) -> list[str]:
        """All that is wrong."""
        truth = truth_of(self.ask)
        if self.answer in ((), truth):
            return self.complaints
        self._complain(f"got {self.answer}, but the truth is {truth}")
        return self.complaints

    def _complain(self, said: str) -> None:
        self.complaints.append(f"request {self.ask.number} ({self.ask.way}) {said}")

    async def _whole(self, **headers: str) -> list[tuple[str, str]] | None:
        got = await self.client.post("/v1/completions", json=self.ask.body, headers=headers)
        return self._choices(got)

    async def _keyed(self) -> Any:
        """Twice at once with one key: both hear the same, if they hear anything."""
        key = {"idempotency-key": f"k{self.ask.number}"}
        one, two = await asyncio.gather(*(self._whole(**key) for _ in range(2)))
        if None not in (one, two) and one != two:
            self._complain(f"got {one} and {two}")
        return two if one is None else one

    async def _later(self) -> Any:
        """Who is told 202 has an answer, whatever comes."""
        headers = {"prefer": "respond-async"}
        got = await self.client.post("/v1/completions", json=self.ask.body, headers=headers)
        if got.status_code != 202:
            return self._choices(got)
        for _ in range(TRIES):
            await asyncio.sleep(1.0)
            answer = await self.client.get(got.headers["location"])
            if answer.status_code == 200:
                return self._choices(answer)
            if answer.status_code not in (202, 502, 503):
                self._complain(f"told 202, got {answer.text}")
                return ()
        self._complain("told 202, has no answer")
        return ()

    async def _hurried(self) -> Any:
        """In the time that it has, all of it; else a beginning, or nothing."""
        limit, began = self.ask.number * 0.1 + 0.1, self.clock()
        header = {HEADER: str(int(limit * 1000))}
        got = await self.client.post("/v1/completions", json=self.ask.body, headers=header)
        if self.clock() - began > limit + GRACE + self.late + 0.1:
            self._complain(f"took {self.clock() - began:g} s")
        if got.status_code != 200:
            if got.status_code not in (502, 503, 504):
                self._complain(f"got {got.text:.200}")
            return ()
        choices = [one["text"] for one in got.json()["choices"]]
        self._beginning({index: [text] for index, text in enumerate(choices)})
        return ()

    async def _leaving(self) -> Any:
        """Hangs up in the middle of its stream."""
        pieces = 3 * self.ask.number
        sent = self.client.build_request(
            "POST", "/v1/completions", json=self.ask.body | {"stream": True}
        )
        got = await self.client.send(sent, stream=True)
        async for _ in got.aiter_raw():
            pieces -= 1
            if pieces <= 0:
                break
        await got.aclose()
        return ()

    async def _stream(self) -> Any:
        body = self.ask.body | {"stream": True}
        got = await self.client.post("/v1/completions", json=body)
        if got.status_code != 200:
            return self._choices(got)
        told: dict[int, list[str]] = {}
        ends: dict[int, list[str]] = {}
        events = EventReader().push(got.content)
        for event in events:
            if event == "[DONE]":
                continue
            said = json.loads(event)
            if "error" in said:
                self._refused(said["error"].get("code"), str(said))
                self._beginning(told)
                return None
            for choice in said["choices"]:
                told.setdefault(choice["index"], []).append(choice["text"])
                if choice["finish_reason"]:
                    ends.setdefault(choice["index"], []).append(choice["finish_reason"])
        found = []
        for index, pieces in sorted(told.items()):
            if len(ends.get(index, ())) != 1:
                self._complain(f"choice {index}: ends {ends}")
            found.append(("".join(pieces), ends.get(index, [""])[0]))
        if events.count("[DONE]") != 1:
            self._complain(f"ended {events.count('[DONE]')} times [DONE]")
        return found

    def _beginning(self, told: dict[int, list[str]]) -> None:
        for index, pieces in told.items():
            if not truth_of(self.ask)[index][0].startswith("".join(pieces)):
                self._complain(f"was told {''.join(pieces)!r}")

    def _choices(self, got: httpx.Response) -> list[tuple[str, str]] | None:
        if got.status_code != 200:
            self._refused(got.status_code, got.text)
            return None
        return [(one["text"], one["finish_reason"]) for one in got.json()["choices"]]

    def _refused(self, status: Any, said: str) -> None:
        if status not in (502, 503):
            self._complain(f"got {status}: {said:.200}")

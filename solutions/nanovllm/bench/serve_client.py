"""One request to a server that speaks OpenAI's protocol, and when each of its tokens came."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from nanovllm.bench.exchange import Connections
from nanovllm.bench.workload import Job
from nanovllm.serving.load import Record
from nanovllm.serving.sse import EventReader

PATIENCE = 600.0  # seconds that an answer may take


class ServerError(RuntimeError):
    """The server cannot be measured: it is not there, or wants something else."""


@dataclass
class Client:
    """Sends jobs to one server. done: called with each record, as soon as there is one.

    stream: whether answers come token by token; else whole, and all their tokens come at the end.
    """

    http: httpx.AsyncClient
    model: str
    jobs: Sequence[Job | str]  # or another thing that gives them by number
    output_tokens: int
    done: Callable[[Record], None]
    stream: bool = True
    connections: Connections = field(default_factory=Connections)

    async def send(self, number: int, due: float) -> Record:
        """Send request `number`; what went wrong is in the record, not raised."""
        now = asyncio.get_running_loop().time
        answer = Answer(now, self.stream)
        asked = self.http.build_request("POST", "/v1/completions", json=self._body(number))
        try:
            async with asyncio.timeout(PATIENCE):
                error = answer.verdict(await self.connections.exchange(asked, answer.read))
        except (OSError, TimeoutError, orjson.JSONDecodeError) as failure:
            error = f"{type(failure).__name__}: {failure}".rstrip(": ")
        times = spread(answer.arrivals, answer.usage.get("completion_tokens", len(answer.arrivals)))
        record = Record(due, times, now(), answer.usage.get("prompt_tokens", 0), error)
        self.done(record)
        return record

    def close(self) -> None:
        """Let go of the connections."""
        self.connections.close()

    def _body(self, number: int) -> dict[str, Any]:
        job = self.jobs[number]
        text = isinstance(job, str)
        how = {"stream": True, "stream_options": {"include_usage": True}} if self.stream else {}
        return how | {
            "model": self.model,
            "prompt": job if text else list(job.prompt),
            "max_tokens": self.output_tokens if text else job.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }


@dataclass
class Answer:
    """What has come of one answer, and when by the clock `now`.

    Pieces are only kept while they come, and read when the answer is whole: what a client does
    between two tokens it takes from the server.
    """

    now: Callable[[], float]
    streamed: bool = True
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)  # of the events that carry choices
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    def read(self, body: bytes) -> None:
        """Take in a piece of the body."""
        self.pieces.append((self.now(), body))

    def verdict(self, status: int) -> str | None:
        """Read the whole of an answer with this status: what is wrong with it, if anything."""
        whole = b"".join(body for _, body in self.pieces)
        if status != 200:
            return f"{status}: {message_of(httpx.Response(status, content=whole))}"
        if not self.streamed:
            self._event(self.now(), whole)
            return self.error
        reader = EventReader()
        for when, body in self.pieces:
            for data in reader.push(body):
                if data == "[DONE]":
                    return self.error
                self._event(when, data)
        return self.error or "the stream ended without [DONE]"

    def _event(self, when: float, data: str | bytes) -> None:
        event = orjson.loads(data)
        if "error" in event:
            self.error = str(event["error"].get("message", event["error"]))
        self.usage |= event.get("usage") or {}
        if event.get("choices"):
            self.arrivals.append(when)


def spread(arrivals: Sequence[float], tokens: int) -> tuple[float, ...]:
    """A time for each token, where some pieces of a stream carried several, or none.

    Usually each carries one. Which did not is not told, so tokens are laid evenly over the pieces;
    the first and the last stay where they are.

    >>> spread([1.0, 2.0, 3.0], 3), spread([1.0, 2.0], 4), spread([1.0, 2.0, 3.0], 2)
    ((1.0, 2.0, 3.0), (1.0, 1.0, 2.0, 2.0), (1.0, 3.0))
    """
    if not arrivals or tokens < 2:
        return tuple(arrivals[:tokens])
    last = len(arrivals) - 1
    return tuple(arrivals[round(i * last / (tokens - 1))] for i in range(tokens))


def message_of(answer: httpx.Response) -> str:
    """What an answer that is no success says."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200] or answer.reason_phrase


async def served_model(http: httpx.AsyncClient, wanted: str | None) -> str:
    """The name to ask for: `wanted`, else the server's first. Raises ServerError."""
    try:
        answer = await http.get("/v1/models")
    except httpx.HTTPError as error:
        raise ServerError(
            f"no server answers at {http.base_url} ({type(error).__name__}); start one with "
            "`nanovllm serve`, or leave --base-url out."
        ) from None
    if answer.status_code != 200:
        raise ServerError(f"{http.base_url} said {answer.status_code}: {message_of(answer)}")
    try:
        names = [card["id"] for card in answer.json()["data"]]
    except (ValueError, KeyError, TypeError):
        names = []
    if not names:
        raise ServerError(f"{http.base_url}v1/models names no model; is it an OpenAI server?")
    if wanted not in (None, *names):
        raise ServerError(f"{http.base_url} serves {', '.join(names)}, not {wanted}.")
    return wanted or names[0]

"""One request to a server that speaks OpenAI's protocol, and when each of its tokens came."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from nanovllm.bench.workload import Job
from nanovllm.serving.load import Record
from nanovllm.serving.sse import EventReader

PATIENCE = 600.0  # seconds between two pieces of an answer, or to connect


class ServerError(RuntimeError):
    """The server cannot be measured: it is not there, or wants something else."""


@dataclass
class Client:
    """Sends jobs to one server. done: called with each record, as soon as there is one."""

    http: httpx.AsyncClient
    model: str
    jobs: Sequence[Job | str]
    output_tokens: int
    done: Callable[[Record], None]

    async def send(self, number: int, due: float) -> Record:
        """Stream request `number`; what went wrong is in the record, not raised."""
        now = asyncio.get_running_loop().time
        arrivals: list[float] = []
        usage: dict[str, Any] = {}
        error = None
        try:
            async with self.http.stream("POST", "/v1/completions", json=self._body(number)) as got:
                if got.status_code != 200:
                    await got.aread()
                    error = f"{got.status_code}: {message_of(got)}"
                else:
                    error = await self._read(got, arrivals, usage, now)
        except httpx.HTTPError as failure:
            error = f"{type(failure).__name__}: {failure}".rstrip(": ")
        times = spread(arrivals, usage.get("completion_tokens", len(arrivals)))
        record = Record(due, times, now(), usage.get("prompt_tokens", 0), error)
        self.done(record)
        return record

    def _body(self, number: int) -> dict[str, Any]:
        job = self.jobs[number]
        text = isinstance(job, str)
        return {
            "model": self.model,
            "prompt": job if text else list(job.prompt),
            "max_tokens": self.output_tokens if text else job.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _read(
        self,
        got: httpx.Response,
        arrivals: list[float],
        usage: dict[str, Any],
        now: Callable[[], float],
    ) -> str | None:
        """Note when each piece came; what is wrong with the stream, if anything."""
        reader = EventReader()
        async for received in got.aiter_raw():
            for data in reader.push(received):
                if data == "[DONE]":
                    return None
                event = json.loads(data)
                if "error" in event:
                    return str(event["error"].get("message", event["error"]))
                usage |= event.get("usage") or {}
                arrivals += [now()] * bool(event.get("choices"))
        return "the stream ended without [DONE]"


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

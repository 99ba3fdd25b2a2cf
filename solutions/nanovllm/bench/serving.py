"""Load on a server and what came of it: open loop or closed loop, latencies, goodput."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Any

import httpx

from nanovllm.bench.acceptance import Acceptance, counters
from nanovllm.bench.serve_client import PATIENCE, Client, ServerError, served_model
from nanovllm.bench.workload import Job, random_workload
from nanovllm.generation.latency import percentile
from nanovllm.serving.load import Record, Slo, arrival_times, closed_loop, goodput, open_loop

VOCABULARY = 1000  # random ids stay below it: every tokenizer has so many
QUANTILES = (50, 90, 95, 99, 99.9)


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a server is put under.

    rate: requests a second, sent whatever the server does (open loop; burstiness as in
    `arrival_times`); or concurrency: users who wait for their answers (closed loop). prompts:
    texts, in turn; else random token ids of input_len. Every answer has output_len tokens.
    duration: seconds in which requests are sent, in place of num_prompts; the run ends when all of
    them are answered.
    warmup: requests before the clock starts, which are not counted.
    """

    rate: float = math.inf
    burstiness: float = 1.0
    concurrency: int | None = None
    num_prompts: int = 100
    duration: float | None = None
    input_len: int = 128
    output_len: int = 64
    prompts: tuple[str, ...] = ()
    slo: Slo = field(default_factory=Slo)
    warmup: int = 2
    seed: int = 0

    @property
    def size(self) -> str:
        """How much it is, in words."""
        return f"{self.num_prompts} requests" if self.duration is None else f"{self.duration:g} s"

    def times(self) -> list[float]:
        """When the requests of an open loop are due, in seconds from its start."""
        count, seconds = self.num_prompts, self.duration
        if seconds is None:
            return arrival_times(self.rate, count, burstiness=self.burstiness, seed=self.seed)
        count, times = 1, [0.0]
        while times[-1] < seconds:  # the same arrivals, twice as many of them
            count *= 2
            times = arrival_times(self.rate, count, burstiness=self.burstiness, seed=self.seed)
        return [when for when in times if when < seconds] or times[:1]

    def jobs(self, count: int, seed: int) -> list[Job | str]:
        """The requests."""
        if self.prompts:
            return [self.prompts[i % len(self.prompts)] for i in range(count)]
        lengths = (self.input_len,) * 2, (self.output_len,) * 2
        return list(random_workload(VOCABULARY, count, *lengths, seed=seed).jobs)


class Endless:
    """The requests of a closed loop, of which nobody knows how many there will be: by number."""

    def __init__(self, load: Load) -> None:
        self.load, self.made = load, load.jobs(load.num_prompts, load.seed)

    def __getitem__(self, number: int) -> Job | str:
        while number >= len(self.made):  # others than before: no prefix cache knows them
            self.made += self.load.jobs(self.load.num_prompts, self.load.seed + 2 + len(self.made))
        return self.made[number]


@asynccontextmanager
async def connected(
    base_url: str, model: str | None = None, api_key: str | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """What to ask a server with, and the name of its model. Raises ServerError."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=PATIENCE, trust_env=False
    ) as http:
        yield http, await served_model(http, model)


async def measure(
    base_url: str, load: Load, done: Callable[[Record], None], *,
    model: str | None = None, api_key: str | None = None,
) -> tuple[list[Record], Acceptance]:  # fmt: skip
    """Put the server under the load; the records in the order of the requests, and its guesses.

    Raises:
        ServerError: there is no server, or it refuses the warm-up.
    """
    async with connected(base_url, model, api_key) as (http, name):
        await _warm_up(http, name, load)
        times = load.times() if load.concurrency is None else []
        jobs = load.jobs(len(times), load.seed) if times else Endless(load)
        before = await counters(http)
        with closing(Client(http, name, jobs, load.output_len, done)) as client:
            if load.concurrency is not None:
                count = load.num_prompts if load.duration is None else None
                records = await closed_loop(client.send, count, load.concurrency, load.duration)
            else:
                records = await open_loop(client.send, times)
        new = await counters(http) - before
        return records, Acceptance(new["drafts"], new["accepted_tokens"])


async def _warm_up(http: httpx.AsyncClient, name: str, load: Load) -> None:
    jobs = load.jobs(load.warmup, load.seed + 1)
    with closing(Client(http, name, jobs, load.output_len, lambda record: None)) as client:
        for number in range(load.warmup):
            record = await client.send(number, asyncio.get_running_loop().time())
            if record.error is not None:
                raise ServerError(f"{http.base_url} did not answer the warm-up: {record.error}")


def summary(records: Sequence[Record], slo: Slo) -> dict[str, Any]:
    """The numbers of a run; times in seconds, rates a second, over the whole run.

    goodput is None without an SLO; a latency is None where no request was answered (TPOT and ITL:
    with two tokens or more).
    """
    answered = [record for record in records if record.error is None and record.token_times]
    seconds = max(row["ended"] for row in as_rows(records))
    lines = [record.timeline for record in answered]
    tokens = sum(len(record.token_times) for record in answered)
    prompt_tokens = sum(record.prompt_tokens for record in answered)
    times = {
        "ttft": [line.ttft for line in lines],
        "tpot": [line.tpot for line in lines if line.tpot is not None],
        "itl": [gap for line in lines for gap in line.inter_token_latencies],
        "e2e": [line.e2e for line in lines],
    }
    return {
        "requests": len(records),
        "answered": len(answered),
        "errors": _counted(record.error for record in records if record.error is not None),
        "seconds": seconds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": tokens,
        "requests_per_second": len(answered) / seconds,
        "output_tokens_per_second": tokens / seconds,
        "total_tokens_per_second": (prompt_tokens + tokens) / seconds,
        "slo": asdict(slo),
        "good": sum(map(slo.met, records)) if slo != Slo() else None,
        "goodput": goodput(records, slo) if slo != Slo() else None,
        **{name: _latency(values) for name, values in times.items()},
    }


def _latency(values: Sequence[float]) -> Mapping[str, float] | None:
    if not values:
        return None
    return {"mean": mean(values)} | {f"p{q:g}": percentile(values, q) for q in QUANTILES}


def _counted(errors: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for error in errors:
        counts[error] = counts.get(error, 0) + 1
    return counts


def as_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The records for a file, in seconds from the first `due`."""
    start = min(record.due for record in records)
    return [
        {
            "due": record.due - start,
            "token_times": [when - start for when in record.token_times],
            "ended": record.ended - start,
            "prompt_tokens": record.prompt_tokens,
            "error": record.error,
        }
        for record in records
    ]

"""What your server gives a crowd: first tokens for everybody, room from those who leave, sums."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.generation.events import TokenGenerated
from nanovllm.model.loader import load_model
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.run import bind
from nanovllm.serving.sse import EventReader
from nanovllm.tokenization.tokenizer import Tokenizer

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
TEXTS = ("Once upon a time", "Tom has a red ball.", "Mia went to the park.", "The dog saw a cat.")
CLIENTS, TOKENS = 8, 16


class Paced:
    """An engine whose steps wait for a sign: what is counted then is the same on every machine."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._step = engine, engine.step
        self.may_step: Callable[[], bool] = lambda: True
        self.steps: list[list[Any]] = []
        engine.step = self.step

    def step(self) -> list[Any]:
        """One step of the engine, once it may."""
        ends = time.monotonic() + 30
        while not self.may_step() and time.monotonic() < ends:
            time.sleep(0.002)
        events = self._step()
        self.steps.append(events)
        return events

    def speakers(self, step: int) -> int:
        """How many samples got a token in a step."""
        return sum(isinstance(event, TokenGenerated) for event in self.steps[step])


@contextlib.contextmanager
def served(at_once: int, max_queue: int = 256) -> Iterator[tuple[str, Server, Paced]]:
    """The bundled model behind your server, on a free port."""
    config = EngineConfig(max_num_seqs=at_once)
    engine = Engine(load_model(TARGET), config, tokenizer=Tokenizer.from_pretrained(TARGET))
    paced = Paced(engine)
    server = Server(engine, ServeConfig(model_name="target", max_queue=max_queue))
    sock = bind("127.0.0.1", 0)
    runner = uvicorn.Server(uvicorn.Config(server.app, log_config=None, access_log=False))
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not runner.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}", server, paced
    finally:
        paced.may_step = lambda: True
        runner.should_exit = True
        thread.join(10)


def body(number: int, tokens: int) -> dict[str, Any]:
    """One request to stream."""
    asked = {"prompt": TEXTS[number % len(TEXTS)], "max_tokens": tokens, "ignore_eos": True}
    return asked | {"stream": True, "temperature": 0}


async def read(client: httpx.AsyncClient, number: int) -> int:
    """Stream one answer; its status."""
    reader = EventReader()
    async with client.stream("POST", "/v1/completions", json=body(number, TOKENS)) as response:
        async for piece in response.aiter_bytes():
            for data in reader.push(piece) if response.status_code == 200 else ():
                if data != "[DONE]" and "error" in (found := orjson.loads(data)):
                    raise RuntimeError(found["error"]["message"])
        return response.status_code


async def until(found: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that happens soon."""
    ends = time.monotonic() + seconds
    while not found():
        if time.monotonic() > ends:
            raise TimeoutError("The server does not get on; `lab check 07` says more.")
        await asyncio.sleep(0.005)


def firsts(paced: Paced) -> list[int]:
    """For each request, the step in which it got its first token."""
    found: dict[int, int] = {}
    for number, events in enumerate(paced.steps, start=1):
        for event in events:
            if isinstance(event, TokenGenerated):
                found.setdefault(event.request_id, number)
    return sorted(found.values())


async def crowd(url: str, server: Server, paced: Paced) -> list[int]:
    """All clients come before the first step."""
    paced.may_step = lambda: server.engine.num_open >= CLIENTS
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        asks = [asyncio.ensure_future(read(client, i)) for i in range(CLIENTS)]
        await until(lambda: server.engine.num_open >= CLIENTS or any(ask.done() for ask in asks))
        paced.may_step = lambda: True
        await asyncio.gather(*asks)
    return firsts(paced)


async def leave(url: str, server: Server, paced: Paced) -> list[int]:
    """Four clients read; two hang up while a step is held. Who speaks in the steps around it."""
    begun = len(paced.steps)
    paced.may_step = lambda: server.engine.num_open >= 4
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        async with contextlib.AsyncExitStack() as stay, contextlib.AsyncExitStack() as go:
            for number in range(4):
                stack = go if number % 2 else stay
                stream = client.stream("POST", "/v1/completions", json=body(number, 400))
                await stack.enter_async_context(stream)
            await until(lambda: len(paced.steps) > begun + 3)
            paced.may_step = lambda: False
            await asyncio.sleep(0.05)  # the step that has begun ends, the next one waits
            held = len(paced.steps)
            await go.aclose()
            streams = lambda: set(dict(server.engine.streams).values())  # noqa: E731
            await until(lambda: sum(bool(stream.reason) for stream in streams()) == 2)
            paced.may_step = lambda: True
            await until(lambda: len(paced.steps) > held + 3)
            spoke = [paced.speakers(step) for step in range(held, held + 3)]
        await until(lambda: server.engine.num_open == 0)
        return spoke


async def refused(url: str, server: Server, paced: Paced) -> list[int]:
    """Statuses of twelve clients of a server with room for four and a queue of four."""
    paced.may_step = lambda: False
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        asks = [asyncio.ensure_future(read(client, i)) for i in range(12)]
        await until(lambda: sum(ask.done() for ask in asks) >= 4)
        paced.may_step = lambda: True
        return sorted(await asyncio.gather(*asks))


async def metrics(url: str) -> dict[str, float]:
    """Every number of /metrics by its name, labels summed up."""
    found: dict[str, float] = {}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        text = (await client.get("/metrics")).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("nanovllm:")
            found[name] = found.get(name, 0.0) + sample.value
    return found


def sums(console: Console, found: dict[str, float]) -> None:
    """The identities that the metrics keep, whatever happened."""
    gaps, tokens = found["inter_token_latency_seconds_count"], found["generation_tokens_total"]
    begun = found["time_to_first_token_seconds_count"]
    ended, steps = found["request_success_total"], found["iteration_tokens_total_sum"]
    left = found["num_requests_running"] + found["num_requests_waiting"]
    whole = found["prompt_tokens_total"] + tokens - begun
    for text, good in (
        ("gaps between tokens = tokens - first tokens", gaps == tokens - begun),
        ("tokens computed = prompts + tokens fed back", steps == whole),
        ("answers ended = answers begun", ended == begun),
        ("running, waiting and KV in use are back at 0",
         left == found["kv_cache_usage_perc"] == 0),
    ):  # fmt: skip
        console.print(f"{'[green]yes[/]' if good else '[red]NO [/]'}  {text}", highlight=False)


def main() -> None:
    """A crowd at two servers, people who leave, a full server, and the sums of the metrics."""
    console = Console()
    table = Table(title=f"{CLIENTS} clients at the same moment, {TOKENS} tokens each")
    for title in ("server", "first client", "eighth client", "all steps"):
        table.add_column(title, justify="left" if title == "server" else "right")
    with served(1) as (url, server, paced):
        found = asyncio.run(crowd(url, server, paced))
        row = [f"step {found[0]}", f"step {found[-1]}", str(len(paced.steps))]
        table.add_row("one at a time", *row)
    with served(CLIENTS) as (url, server, paced):
        found = asyncio.run(crowd(url, server, paced))
        row = [f"step {found[0]}", f"step {found[-1]}", str(len(paced.steps))]
        table.add_row("all together", *row)
        console.print(table)
        spoke = asyncio.run(leave(url, server, paced))
        console.print(
            "2 of 4 clients hang up in the middle of a step. Samples that get a token, from that "
            f"step on: [bold]{', '.join(map(str, spoke))}[/]",
            highlight=False,
        )
        numbers = asyncio.run(metrics(url))
    with served(4, max_queue=4) as (url, server, paced):
        statuses = asyncio.run(refused(url, server, paced))
        console.print(
            "12 clients, room for 4 and a queue of 4: "
            f"[bold]{statuses.count(200)} x 200, {statuses.count(503)} x 503[/]",
            highlight=False,
        )
    sums(console, numbers)


if __name__ == "__main__":
    main()

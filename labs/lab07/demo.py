"""What your server gives a crowd: first tokens for everybody, room from those who leave, books."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import orjson
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.generation.latency import percentile
from nanovllm.model.loader import load_model
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.load import Record, open_loop
from nanovllm.serving.run import bind
from nanovllm.serving.sse import EventReader
from nanovllm.tokenization.tokenizer import Tokenizer

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
TEXTS = ("Once upon a time", "Tom has a red ball.", "Mia went to the park.", "The dog saw a cat.")
CLIENTS, TOKENS, WIDTH = 8, 16, 60


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The bundled model behind your server, on a free port; its address."""
    config = EngineConfig(max_num_seqs=CLIENTS)
    engine = Engine(load_model(TARGET), config, tokenizer=Tokenizer.from_pretrained(TARGET))
    server = Server(engine, ServeConfig(model_name="target"))
    sock = bind("127.0.0.1", 0)
    runner = uvicorn.Server(uvicorn.Config(server.app, log_config=None, access_log=False))
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not runner.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        runner.should_exit = True
        thread.join(10)


def body(number: int, tokens: int) -> dict:
    """One request to stream."""
    asked = {"prompt": TEXTS[number % len(TEXTS)], "max_tokens": tokens, "ignore_eos": True}
    return asked | {"stream": True, "temperature": 0}


async def read(client: httpx.AsyncClient, number: int, due: float) -> Record:
    """Stream one answer, and note when each token came."""
    loop, reader, times = asyncio.get_running_loop(), EventReader(), []
    async with client.stream("POST", "/v1/completions", json=body(number, TOKENS)) as response:
        response.raise_for_status()
        async for piece in response.aiter_bytes():
            for data in reader.push(piece):
                if data != "[DONE]" and "error" in (found := orjson.loads(data)):
                    raise RuntimeError(found["error"]["message"])
                if data != "[DONE]":
                    times.append(loop.time())
    return Record(due, tuple(times), loop.time())


async def crowd(client: httpx.AsyncClient, at_once: int) -> list[Record]:
    """All clients come at the same moment; so many of them are let through to the server."""
    door = asyncio.Semaphore(at_once)

    async def send(number: int, due: float) -> Record:
        async with door:
            return await read(client, number, due)

    return await open_loop(send, [0.0] * CLIENTS)


async def leave(client: httpx.AsyncClient) -> tuple[list[int], float]:
    """Samples in the batch before and after half of four clients hang up, and the ms it took."""
    long = 400
    async with contextlib.AsyncExitStack() as stay, contextlib.AsyncExitStack() as go:
        pieces = []  # a reader that is forgotten closes its connection
        for number in range(4):
            stack = go if number % 2 else stay
            stream = client.stream("POST", "/v1/completions", json=body(number, long))
            pieces.append((await stack.enter_async_context(stream)).aiter_bytes())
            await anext(pieces[-1])
        counts = [await running(client)]
        start = time.perf_counter()
        await go.aclose()
        counts.append(await until(lambda: running(client), 2))
        return counts, 1000 * (time.perf_counter() - start)


async def running(client: httpx.AsyncClient) -> int:
    """Rows of the dashboard that hold a place in the KV store."""
    state = (await client.get("/dashboard/state")).json()
    return sum(bool(row["blocks"]) for row in state["running"])


async def until(look: Callable[[], Awaitable[int]], wanted: int, seconds: float = 5.0) -> int:
    """Look again and again until the number is the wanted one, or time is up."""
    ends = time.perf_counter() + seconds
    while (found := await look()) != wanted and time.perf_counter() < ends:
        await asyncio.sleep(0.002)
    return found


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """Every number of /metrics by its name, labels summed up."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            name = sample.name.removeprefix("nanovllm:")
            found[name] = found.get(name, 0.0) + sample.value
    return found


def picture(console: Console, title: str, records: list[Record], scale: float) -> None:
    """A line for each client: waiting, then writing."""
    start = min(record.due for record in records)
    console.print(f"[bold]{title}[/]", highlight=False)
    for record in records:
        first = max(1, round((record.token_times[0] - start) / scale * WIDTH))
        last = max(first + 1, round((record.ended - start) / scale * WIDTH))
        console.print(f"  [dim]{'·' * first}[/][green]{'█' * (last - first)}[/]", highlight=False)


async def show(console: Console, url: str) -> None:
    """The three scenes."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        await read(client, 0, 0.0)  # warm up; a missing task shows now
        runs = {
            "one at a time": await crowd(client, 1),
            "your server": await crowd(client, CLIENTS),
        }
        scale = max(r.ended - r.due for records in runs.values() for r in records)
        for title, records in runs.items():
            picture(console, f"{title} ({scale:.1f} s wide)", records, scale)
        console.print("[dim]  · waits for the first token   █ reads[/]\n", highlight=False)
        table = Table(title=f"{CLIENTS} clients at the same moment, {TOKENS} tokens each")
        table.add_column("")
        for title in runs:
            table.add_column(title, justify="right")
        waits = [[r.timeline.ttft for r in records] for records in runs.values()]
        for q in (50, 99):
            table.add_row(
                f"first token after, p{q}", *(f"{1000 * percentile(w, q):.0f} ms" for w in waits)
            )
        spans = [max(r.ended for r in rs) - min(r.due for r in rs) for rs in runs.values()]
        table.add_row("all have read all after", *(f"{span:.2f} s" for span in spans))
        table.add_row("tokens/s", *(f"{CLIENTS * TOKENS / span:.0f}" for span in spans))
        console.print(table)

        (before, after), took = await leave(client)
        console.print(
            f"2 of 4 clients hung up: {before} requests held KV places, "
            f"[bold]{after} after {took:.0f} ms[/]; their answers had hundreds of tokens to go.",
            highlight=False,
        )
        await until(lambda: running(client), 0)
        books(console, await metrics(client))


def books(console: Console, found: dict[str, float]) -> None:
    """The identities that the metrics keep, whatever happened."""
    gaps, tokens = found["inter_token_latency_seconds_count"], found["generation_tokens_total"]
    firsts = found["time_to_first_token_seconds_count"]
    ended, steps = found["request_success_total"], found["iteration_tokens_total_sum"]
    left = found["num_requests_running"] + found["num_requests_waiting"]
    whole = found["prompt_tokens_total"] + tokens - firsts
    for text, good in (
        (f"gaps between tokens = tokens - first tokens: {gaps:.0f} = {tokens:.0f} - {firsts:.0f}",
         gaps == tokens - firsts),
        (f"tokens computed = prompts + tokens fed back: {steps:.0f} = {whole:.0f}", steps == whole),
        (f"answers ended = answers begun: {ended:.0f} = {firsts:.0f}", ended == firsts),
        (f"running + waiting, and KV in use, are back at {left:.0f} and "
         f"{found['kv_cache_usage_perc']:.0f}", left == found["kv_cache_usage_perc"] == 0),
    ):  # fmt: skip
        console.print(f"{'[green]yes[/]' if good else '[red]NO [/]'}  {text}", highlight=False)


def main() -> None:
    """Start the server, send it a crowd, look at its books."""
    with served() as url:
        asyncio.run(show(Console(), url))


if __name__ == "__main__":
    main()

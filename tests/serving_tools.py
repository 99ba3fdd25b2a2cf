"""A live server on a free port of this machine, around a tiny model or a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner

from grader.course.paths import ROOT
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.offline import generate_continuous
from nanovllm.generation.params import SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.sse import EventReader
from nanovllm.tokenization.chat import ChatTemplate
from nanovllm.tokenization.tokenizer import Tokenizer

FOLDER = ROOT / "models" / "target"
CONFIG = ModelConfig("qwen3", 2048, 32, 2, 4, 2, 8, 48, 256, qk_norm=True, eos_token_ids=(0, 2))
TOKENIZER = Tokenizer.from_pretrained(FOLDER)
TEMPLATE = ChatTemplate.from_pretrained(FOLDER)
MODEL = dummy_model(CONFIG, seed=3)


def tiny_engine(max_num_seqs: int = 16, **more: Any) -> Engine:
    """A real engine with a model that talks nonsense fast."""
    config = EngineConfig(max_num_seqs=max_num_seqs)
    return Engine(MODEL, config, tokenizer=TOKENIZER, **more)


def offline(bodies: list[dict[str, Any]]) -> list[list[str]]:
    """The texts that the engine gives to each of these requests without a server."""
    prompts = [body["prompt"] for body in bodies]
    params = [
        SamplingParams(**{name: value for name, value in body.items() if name != "prompt"})
        for body in bodies
    ]
    config = EngineConfig(max_num_seqs=32)
    found = generate_continuous(MODEL, prompts, params, config, tokenizer=TOKENIZER)
    return [[completion.text for completion in samples] for samples in found.completions]


def server_of_command(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Any, str, int]:
    """The server of `nanovllm serve` with these words, which is not run; what it says, and how many
    engines `LLM` itself made for it."""
    from nanovllm.cli import app
    from nanovllm.llm.paged_level import PagedRung

    served: list[Any] = []
    made: list[Any] = []
    make_engine = PagedRung.make_engine

    def run(server: Any, sock: socket.socket) -> None:
        sock.close()
        served.append(server)

    def making(rung: PagedRung) -> Any:
        made.append(make_engine(rung))
        return made[-1]

    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # else the command sets it, for good
    monkeypatch.setattr("nanovllm.serving.logs.configure_logs", lambda level: None)
    monkeypatch.setattr("nanovllm.serving.run.run", run)
    monkeypatch.setattr(PagedRung, "make_engine", making)
    done = CliRunner().invoke(app, ["serve", "--port", "0", *words])
    assert done.exit_code == 0, done.output
    return served[0], done.output, len(made)


class Live:
    """A server that runs in a thread of its own, with an event loop of its own."""

    def __init__(self, engine: Any = None, config: ServeConfig | None = None) -> None:
        config = config or ServeConfig(model_name="tiny")
        self.server = Server(engine or tiny_engine(), config, TEMPLATE)
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        settings = uvicorn.Config(
            self.server.app, log_config=None, access_log=False, timeout_graceful_shutdown=1
        )
        self.uvicorn = uvicorn.Server(settings)
        self.loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Live:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            await self.uvicorn.serve(sockets=[self.sock])

        self.thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
        self.thread.start()
        wait_until(lambda: self.uvicorn.started)
        return self

    def __exit__(self, *_: object) -> None:
        self.uvicorn.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive(), "the server does not stop"

    def tasks(self) -> list[str]:
        """What runs in the server's loop for a request."""
        names = [repr(task) for task in asyncio.all_tasks(self.loop)]
        return [name for name in names if "streaming.py" in name or "run_asgi" in name]

    def assert_idle(self) -> None:
        """Nothing is left of any request: no sample, no place of the store, no task, no gauge."""
        engine = self.server.engine
        wait_until(lambda: engine.num_open == 0 and not engine.engine.has_unfinished)
        wait_until(lambda: not self.tasks())
        assert not engine.streams
        assert engine.engine.store.free_tokens == engine.engine.store.total_tokens
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert self.metric(name) == 0.0, name
        assert self.server.metrics.num_open == 0
        assert self.server.monitor.lines == {}
        if hasattr(engine.engine, "check"):
            engine.engine.check()

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric now."""
        labels = {"model_name": "tiny", "engine": "0"} | labels
        registry = self.server.metrics.registry.registry
        return registry.get_sample_value(f"nanovllm:{name}", labels)


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that happens soon; fail if it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


async def stream_text(
    port: int, body: dict[str, Any], leave_after: int | None = None
) -> tuple[int, list[Any]]:
    """Status and events of a streamed completion, over a bare socket.

    leave_after: the number of events after which the client is gone without a word.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body | {"stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + data)
    events: list[Any] = []
    parser = EventReader()
    try:
        if leave_after == 0:
            await writer.drain()
            return 0, []
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer.split()[1])
        if status != 200:
            return status, [json.loads(await reader.read())]
        async for chunk in chunks(reader):
            events += parser.push(chunk)
            if leave_after is not None and len(events) >= leave_after:
                break
        return status, [e if e == "[DONE]" else json.loads(e) for e in events]
    finally:
        writer.transport.abort()


async def chunks(reader: asyncio.StreamReader) -> Any:
    """The body of an answer in HTTP's chunked coding."""
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


def text_of(events: list[Any]) -> str:
    """The text of a stream of one choice, which must have come to its end."""
    assert events[-1] == "[DONE]"
    return "".join(c["text"] for e in events[:-1] for c in e["choices"])


@contextlib.contextmanager
def live(engine: Any = None, **settings: Any) -> Iterator[Live]:
    """A server with these settings."""
    with Live(engine, ServeConfig(model_name="tiny", **settings)) as server:
        yield server

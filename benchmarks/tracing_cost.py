"""What tracing costs a server: `python -m benchmarks.tracing_cost`.

Processor time of the server's process for the same requests, with spans to a collector and without,
in turns; a client and the collector are processes of their own. A round's ratio is with / without.
Where the machine's own noise is larger than that, the second figure says more: what the threads
spend inside of the two hooks and of the exporter, over the round's processor time without.
"""

import argparse
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median, quantiles
from threading import enumerate as threads
from time import clock_gettime, process_time, pthread_getcpuclockid, thread_time
from typing import Any

import httpx

WORDS = "Once upon a time there was a little cat who lived in a big house. "


class Collector(BaseHTTPRequestHandler):
    """Reads what it is sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def collect(line: Connection) -> None:
    """A process: a collector; says its port."""
    server = HTTPServer(("127.0.0.1", 0), Collector)
    line.send(server.server_port)
    server.serve_forever()


def ask(line: Connection, url: str, requests: int, tokens: int) -> None:
    """A process: sends a round of requests each time it is told to, and says when all are there."""
    body = {"max_tokens": tokens, "ignore_eos": True, "stream": True}
    with httpx.Client(timeout=120) as client:

        def one(number: int) -> int:
            prompt = f"{number} {WORDS * 4}"
            return len(client.post(url + "/v1/completions", json=body | {"prompt": prompt}).content)

        while (start := line.recv()) is not None:
            line.send(sum(map(one, range(start, start + requests))))


class Timed:
    """A list's last function, with the processor time of the threads that call it."""

    def __init__(self, hooks: list[Any]) -> None:
        self.function, self.seconds = hooks[-1], 0.0
        hooks[-1] = self

    def __call__(self, *args: Any) -> Any:
        began = thread_time()
        try:
            return self.function(*args)
        finally:
            self.seconds += thread_time() - began


def exporting() -> float:
    """Processor seconds of the exporter's thread so far."""
    found = [t.ident for t in threads() if "OtelBatch" in t.name and t.ident is not None]
    return sum(clock_gettime(pthread_getcpuclockid(ident)) for ident in found)


def measure(rounds: int, requests: int, tokens: int) -> list[tuple[float, float, float]]:
    """Seconds without, with, and inside of the tracing, of each round; not of the first."""
    from nanovllm import LLM
    from nanovllm.telemetry.otlp import tracing
    from tests.serving_tools import Live

    context = get_context("spawn")
    llm = LLM()
    if hasattr(llm.runner.engine, "wait"):
        llm.runner.engine.wait()
    found: list[tuple[float, float, float]] = []
    with Live(llm.runner.engine) as live:
        here, there = context.Pipe()
        collector = context.Process(target=collect, args=(there,), daemon=True)
        collector.start()
        to = f"http://127.0.0.1:{here.recv()}"
        line, end = context.Pipe()
        client = context.Process(target=ask, args=(end, live.url, requests, tokens), daemon=True)
        client.start()
        asked = 0

        def run() -> float:
            nonlocal asked
            began = process_time()
            line.send(asked)
            asked += requests
            line.recv()
            return process_time() - began

        def traced() -> tuple[float, float]:
            began = process_time()
            with tracing(live.server, to):
                hooks = [
                    Timed(live.server.handlers.watchers), Timed(live.server.engine.observers)
                ]  # fmt: skip
                run()
                inside = exporting()
                left = process_time()
            ended = process_time()  # with the last batch
            live.server.handlers.watchers.clear()
            live.server.engine.observers.pop()
            return ended - began, inside + ended - left + sum(hook.seconds for hook in hooks)

        for number in range(rounds + 1):
            if number % 2:
                without, (with_, inside) = run(), traced()
            else:
                (with_, inside), without = traced(), run()
            found.append((without, with_, inside))
        line.send(None)
        client.join()
        collector.terminate()
    return found[1:]


def main() -> None:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    found = measure(given.rounds, given.requests, given.tokens)
    ratios = [with_ / without for without, with_, _ in found]
    low, middle, high = quantiles(ratios, n=4)
    shares = [inside / without for without, _, inside in found]
    each = sum(without for without, _, _ in found) / len(found) / given.requests
    print(f"with / without: {middle:.4f} (median), {low:.4f} to {high:.4f} (quartiles)")
    print(f"inside of the tracing: {median(shares):.4f} of the time without (median)")
    print(f"{1000 * each:.2f} ms of processor time a request without")


if __name__ == "__main__":
    main()

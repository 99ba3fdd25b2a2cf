"""What tracing costs a server: `python -m benchmarks.tracing_cost`.

Processor time of the server's process for the same requests, with spans to a collector and without,
in turns; a client and the collector are processes of their own. A round's ratio is with / without.
"""

import argparse
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import quantiles
from time import process_time

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


def measure(rounds: int, requests: int, tokens: int) -> list[tuple[float, float]]:
    """Seconds without and with, of each round; the first round is left out."""
    from nanovllm import LLM
    from nanovllm.telemetry.otlp import tracing
    from tests.serving_tools import Live

    context = get_context("spawn")
    llm = LLM()
    if hasattr(llm.runner.engine, "wait"):
        llm.runner.engine.wait()
    found: list[tuple[float, float]] = []
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

        def traced() -> float:
            began = process_time()
            with tracing(live.server, to):
                run()
            seconds = process_time() - began  # with the last batch
            live.server.handlers.watchers.clear()
            live.server.engine.observers.pop()
            return seconds

        for number in range(rounds + 1):
            if number % 2:
                without, with_ = run(), traced()
            else:
                with_, without = traced(), run()
            found.append((without, with_))
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
    ratios = [with_ / without for without, with_ in found]
    low, middle, high = quantiles(ratios, n=4)
    each = sum(without for without, _ in found) / len(found) / given.requests
    print(f"with / without: {middle:.4f} (median), {low:.4f} to {high:.4f} (quartiles)")
    print(f"{1000 * each:.2f} ms of processor time a request without")


if __name__ == "__main__":
    main()

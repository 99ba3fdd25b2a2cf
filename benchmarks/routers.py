"""Real routers before our servers: `python -m benchmarks.routers --python ENV/bin/python`.

ENV has sglang-router and vllm-router. The same requests, from as many clients in a closed loop, go
through each router and policy to the same replicas; each trial has texts of its own, so no cache
helps the next. Counted are prompt tokens that replicas found in their prefix caches, requests by
replica, and the router's processor time.
"""

import argparse
import asyncio
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from nanovllm.bench import tables
from nanovllm.bench.process import ROOT
from nanovllm.bench.record import record, save
from nanovllm.bench.serve_process import own_server, server_process
from nanovllm.cluster.routing_interface import POLICIES

Results = dict[str, Any]
REAL = {
    "sglang-router": ("round_robin", "random", "power_of_two", "cache_aware"),
    "vllm-router": ("random", "power_of_two", "consistent_hash", "cache_aware"),
}
TICKS = 100  # of /proc a second
COUNTERS = {
    "asked": "nanovllm:prefix_cache_queries",
    "found": "nanovllm:prefix_cache_hits",
    "requests": "nanovllm:request_success",
}


def prompts(trial: str, count: int) -> list[str]:
    """Requests that begin with one of twelve texts, of which some are popular."""
    draws = random.Random(trial)
    words = ["house", "sea", "cat", "red", "little", "river", "tree", "boy", "girl", "day", "sun"]
    texts = [" ".join(draws.choices(words, k=90)) for _ in range(12)]
    weights = [1 / (rank + 1) ** 1.2 for rank in range(12)]
    ends = [" ".join(draws.choices(words, k=draws.randrange(6, 18))) for _ in range(count)]
    order = random.Random(11)  # which text comes when is the same in every trial
    return [f"{order.choices(texts, weights)[0]} {end}" for end in ends]


def counters(replica: str) -> dict[str, float]:
    """What a replica has counted so far."""
    text = httpx.get(f"{replica}/metrics", trust_env=False).text
    found = {family.name: family for family in text_string_to_metric_families(text)}
    return {
        name: sum(sample.value for sample in found[metric].samples if "_total" in sample.name)
        for name, metric in COUNTERS.items()
    }


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def router(name: str, policy: str, replicas: list[str], python: str) -> Iterator[tuple[str, int]]:
    """A router before the replicas; its address and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    if name == "nanovllm route":
        servers = [word for url in replicas for word in ("--server", url)]
        command = [sys.executable, "-m", "nanovllm.cli", "route", *servers]
    else:
        module = f"{name.replace('-', '_')}.launch_router"
        command = [python, "-m", module, "--worker-urls", *replicas]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            command += ["--prometheus-port", str(free.getsockname()[1])]
    command += ["--policy", policy, "--host", "127.0.0.1", "--port", port]
    with server_process(command, lambda said: f"http://127.0.0.1:{port}") as found:
        yield found


async def ask(address: str, texts: list[str], clients: int) -> int:
    """Send them all, from so many clients; how many were answered."""
    waiting, answered = list(reversed(texts)), 0

    async def client(http: httpx.AsyncClient) -> None:
        nonlocal answered
        while waiting:
            body = {
                "model": "draft", "prompt": waiting.pop(), "max_tokens": 16, "temperature": 0,
                "ignore_eos": True,
            }  # fmt: skip
            answer = await http.post(f"{address}/v1/completions", json=body)
            answered += answer.status_code == 200

    async with httpx.AsyncClient(timeout=300, trust_env=False) as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))
    return answered


def trial(
    name: str, policy: str, replicas: list[str], python: str, count: int, clients: int
) -> Results:
    """One router with one policy."""
    with router(name, policy, replicas, python) as (address, pid):
        before, used = [counters(replica) for replica in replicas], processor_seconds(pid)
        texts = prompts(f"{name} {policy} {clients}", count)
        answered = asyncio.run(ask(address, texts, clients))
        used = processor_seconds(pid) - used
        after = [counters(replica) for replica in replicas]
    each = [
        {key: new[key] - old[key] for key in COUNTERS}
        for old, new in zip(before, after, strict=True)
    ]
    return {
        "answered": answered,
        "requests": sorted((int(one["requests"]) for one in each), reverse=True),
        "found": sum(one["found"] for one in each) / sum(one["asked"] for one in each),
        "router_cpu_ms": 1e3 * used / count,
    }


def show(found: dict[str, Results]) -> None:
    """A row for each router and policy."""
    table = tables.plain(
        "Routers before three replicas", "router", "policy", "clients", "answered", "found",
        "requests by replica", "processor, ms a request",
    )  # fmt: skip
    for name, one in found.items():
        row = f"{one['answered']}", f"{one['found']:.0%}", f"{one['requests']}"
        table.add_row(*name.split(", "), *row, f"{one['router_cpu_ms']:.1f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True, help="of an environment with both routers")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 6])
    given = parser.parse_args()
    found: dict[str, Results] = {}
    with ExitStack() as stack:
        model = ["--model", str(ROOT / "models" / "draft"), "--served-model-name", "draft"]
        replicas = [stack.enter_context(own_server(model))[0] for _ in range(3)]
        for name, policies in ({"nanovllm route": POLICIES} | REAL).items():
            for policy in policies:
                for clients in given.clients:
                    found[f"{name}, {policy}, {clients}"] = trial(
                        name, policy, replicas, given.python, given.requests, clients
                    )
    show(found)
    settings = {"requests": given.requests, "replicas": 3, "model": "draft"}
    save(record("routers", settings, found), given.out / "routers.json")


if __name__ == "__main__":
    main()

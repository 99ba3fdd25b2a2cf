"""K and V of a prompt from one process to another, by each connector.

`python -m benchmarks.transports --out FOLDER`. For each connector a server that prefills; this
process is the other side. They take turns, with prompts that no prefix cache knows. What a transfer
takes is from the question to the bytes in this process; that all got the same bytes is checked.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from rich.console import Console

from nanovllm.bench import tables
from nanovllm.bench.models import model_folder
from nanovllm.bench.record import record, save
from nanovllm.bench.serve_process import own_server
from nanovllm.cluster.connectors import make_connector
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.kv_transfer_params import read_remote
from nanovllm.cluster.role import CONNECTORS
from nanovllm.cluster.transport import HttpTransport
from nanovllm.model.loader import load_config

Results = dict[str, Any]


def usable() -> list[str]:
    """Connectors that can be had here; the others are named."""
    found = []
    for name in CONNECTORS:
        try:
            connector = make_connector(name)
        except ClusterError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        if connector is not None:
            connector.close()
        found.append(name)
    return found


async def transferred(url: str, transport: HttpTransport, prompt: list[int]) -> tuple[bytes, float]:
    """A prompt is computed there; its K and V, and the seconds until they were here."""
    body = {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
        answer = (await client.post(f"{url}/v1/completions", json=body)).raise_for_status().json()
    given = answer["kv_transfer_params"]
    remote = read_remote(given, [f"{given['remote_host']}:{given['remote_port']}"])
    assert remote is not None
    began = time.perf_counter()
    data = await transport.receive(remote, {})
    seconds = time.perf_counter() - began
    await transport.acknowledge(remote, {})
    return data, seconds


async def measured(
    urls: dict[str, str], lengths: list[int], rounds: int, size: int
) -> dict[int, Results]:
    """Bytes and seconds of each transfer, by connector and length; the first round is left out."""
    draws = random.Random(0)
    transports = {name: HttpTransport(60.0, make_connector(name)) for name in urls}
    found: dict[int, Results] = {n: {name: [] for name in urls} for n in lengths}
    for number in range(rounds + 1):
        for length in lengths:
            prompt, got = draws.choices(range(10, size), k=length), {}
            for name, url in urls.items():
                got[name], seconds = await transferred(url, transports[name], prompt)
                if number:
                    run = {"bytes": len(got[name]), "seconds": seconds}
                    found[length][name].append(run)
            assert len(set(got.values())) == 1, f"not the same bytes: {length} tokens"
            print(f"  round {number}: {length} tokens", file=sys.stderr, flush=True)
    for transport in transports.values():
        await transport.close()
    return found


def with_tokenizer(folder: Path, home: Path) -> Path:
    """The model's files and the bundled model's tokenizer: a server needs one, the ids do not."""
    for source in (model_folder("bundled"), folder):
        for file in source.iterdir():
            link = home / file.name
            if source == folder or file.name.startswith("tokenizer"):
                link.unlink(missing_ok=True)
                link.symlink_to(file.resolve())
    return home


def show(found: dict[int, Results]) -> None:
    """Medians."""
    table = tables.plain(
        "K and V of a prompt, medians", "tokens", "MB", *(f"{name}, ms" for name in CONNECTORS),
        *(f"{name}, GB/s" for name in CONNECTORS),
    )  # fmt: skip
    for length, runs in found.items():
        seconds = {name: median(run["seconds"] for run in got) for name, got in runs.items()}
        nbytes = next(iter(runs.values()))[0]["bytes"]
        times = [f"{1e3 * seconds[name]:.1f}" if name in seconds else "" for name in CONNECTORS]
        speeds = [
            f"{nbytes / seconds[name] / 1e9:.2f}" if name in seconds else "" for name in CONNECTORS
        ]
        table.add_row(str(length), f"{nbytes / 1e6:.1f}", *times, *speeds)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--model", default="mid")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lengths", type=int, nargs="*", default=[32, 128, 450])
    given = parser.parse_args()
    folder = model_folder(given.model)
    with ExitStack() as stack:
        urls, home = {}, Path(stack.enter_context(tempfile.TemporaryDirectory()))
        served = with_tokenizer(folder, home)
        for name in usable():
            words = ["--model", str(served), "--role", "prefill", "--kv-transfer", name]
            urls[name] = stack.enter_context(own_server(words, OMP_NUM_THREADS="1"))[0]
        size = load_config(folder).vocab_size
        found = asyncio.run(measured(urls, given.lengths, given.rounds, size))
    show(found)
    settings = {"model": given.model, "rounds": given.rounds}
    save(record("transports", settings, {"runs": found}), given.out / "transports.json")


if __name__ == "__main__":
    main()

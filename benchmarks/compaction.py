"""What a pool that is made smaller gives back, and what that takes.

`python -m benchmarks.compaction --out FOLDER`. Each engine in a process of its own, with a pool of
`--mb` of K and V, which long requests have filled. All but the last three end; these stay open, at
the pool's high end. Then `LLM.compact` makes the pool as small as they allow.
"""

import argparse
import multiprocessing
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from nanovllm import LLM, SamplingParams
from nanovllm.bench import tables
from nanovllm.bench.record import record, save
from nanovllm.bench.stages import settle

OPEN = 3  # requests
ENGINES: dict[str, dict[str, Any]] = {"compiled": {}, "plain": {"enforce_eager": True}}


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def one(name: str, megabytes: int) -> dict[str, Any]:
    """Of one pool: what compaction did, its seconds, and this process's memory around it."""
    llm = LLM(kv_cache_memory_bytes=megabytes << 20, max_num_seqs=256, **ENGINES[name])
    engine: Any = llm.runner.engine
    settle(engine)
    longest, size = llm.max_model_len, engine.store.block_size
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    count = engine.store.num_blocks // -(-longest // size)
    for number in range(count):
        prompt = [5 + number] * (longest - 64)
        engine.add_request(prompt, params, request_id=number)
    while min(sample.num_output_tokens for sample in engine.requests.all()[0]) < 2:
        engine.step()
    for number in range(count - OPEN):
        engine.abort(number)
    engine.step()
    before, started = resident(), time.perf_counter()
    done = llm.compact(OPEN * -(-longest // size))
    seconds = time.perf_counter() - started
    return asdict(done) | {"seconds": seconds, "rss_before": before, "rss": resident()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    context, found = multiprocessing.get_context("spawn"), {}
    for name in ENGINES:
        runs = []
        for _ in range(given.rounds):
            with context.Pool(1) as pool:
                runs.append(pool.apply(one, (name, given.mb)))
        found[name] = runs
    table = tables.plain(
        "A pool made smaller, medians", "engine", "MB of K and V", "then", "moved", "ms",
        "process MB", "then",
    )  # fmt: skip
    for name, runs in found.items():
        fields = [("nbytes_before", 1e-6), ("nbytes", 1e-6), ("moved", 1), ("seconds", 1e3),
                  ("rss_before", 1e-6), ("rss", 1e-6)]  # fmt: skip
        cells = [f"{median(run[field] for run in runs) * scale:,.0f}" for field, scale in fields]
        table.add_row(name, *cells)
    Console().print(table)
    settings = {"mb": given.mb, "rounds": given.rounds}
    save(record("compaction", settings, {"runs": found}), given.out / "compaction.json")


if __name__ == "__main__":
    main()

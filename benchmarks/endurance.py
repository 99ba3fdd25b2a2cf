"""Whether 10,000 requests leave a mark: `python -m benchmarks.endurance --out FOLDER`.

One process answers them a thousand at a time: tokens a second, and the most memory until then.
Then all 10,000 wait at once. Memory ought to be flat, and the last thousand as quick as the first.
The first fill the 64 MiB for K and V, so what grows later is something else.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from nanovllm.bench.contestants import OURS, Ready, Settings, started
from nanovllm.bench.machine import require_quiet, usable_cpus
from nanovllm.bench.models import model_folder
from nanovllm.bench.record import record, save, save_figure
from nanovllm.bench.workload import random_workload
from nanovllm.model.loader import load_config

PROMPT, OUTPUT, POOL = (16, 128), (8, 64), 64 << 20


def measure(ready: Ready, vocab: int, requests: int, portions: int) -> dict[str, Any]:
    """Tokens a second and memory by portion, and of all at once."""
    found: dict[str, Any] = {"tokens_per_second": [], "peak_mb": []}
    each = requests // portions

    def run(name: str, count: int, seed: int) -> tuple[float, float]:
        workload = random_workload(vocab, count, PROMPT, OUTPUT, seed)
        rate = workload.output_tokens / ready.run(workload)["seconds"]
        memory = ready.process.ask("memory")["peak_bytes"] / 1e6
        print(f"  {name}: {rate:,.0f} tokens/s, {memory:,.0f} MB", file=sys.stderr, flush=True)
        return rate, memory

    for number in range(portions):
        rate, memory = run(f"requests to {each * (number + 1):,}", each, number)
        found["tokens_per_second"].append(rate)
        found["peak_mb"].append(memory)
    rate, memory = run(f"{requests:,} at once", requests, portions)
    return {**found, "at_once": {"tokens_per_second": rate, "peak_mb": memory}}


def plot(found: dict[str, Any], requests: int, title: str, path: Path) -> Path:
    """Both curves, from 0 up."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    labels = {"tokens_per_second": "output tokens/s", "peak_mb": "most memory so far, MB"}
    for axis, (key, label) in zip(axes, labels.items(), strict=True):
        values = found[key]
        at = [requests * (i + 1) / len(values) for i in range(len(values))]
        axis.plot(at, values, "o-", color="#d97706", label="in portions")
        axis.plot(requests, found["at_once"][key], "s", color="#64748b", label="all at once")
        axis.set_ylim(0, 1.2 * max(*values, found["at_once"][key]))
        axis.set_xlabel("requests answered")
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, loc="lower right", fontsize=8)
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--together", type=int, default=256)
    parser.add_argument("--anyway", action="store_true", help="on a busy machine, too")
    given = parser.parse_args()
    require_quiet(given.anyway)
    folder = model_folder(given.model)
    settings = Settings(
        str(folder), given.dtype, given.threads, given.together, 512, kv_cache_memory_bytes=POOL
    )
    with started([OURS], settings) as ready:
        vocab = load_config(folder).vocab_size
        found = measure(ready[OURS], vocab, given.requests, max(1, given.requests // 1000))
    asked = {name: value for name, value in vars(given).items() if name not in ("out", "anyway")}
    save(record("endurance", asked, found), given.out / "endurance.json")
    title = f"{given.model}, {given.dtype}, {given.requests:,} requests, {given.together} at once"
    plot(found, given.requests, title, given.out / "endurance.png")


if __name__ == "__main__":
    main()

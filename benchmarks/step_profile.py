"""What a compiled step spends where: `python -m benchmarks.step_profile --out FOLDER`.

`perf record` counts in which function of the native library a process is that runs the same step
again and again: a prompt, and a token for each of many requests. Its shares times the step's median
time are the parts. --before FILE draws an older record's parts beside the new ones.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import torch

from nanovllm.bench.machine import require_quiet, usable_cpus
from nanovllm.bench.models import model_folder
from nanovllm.bench.record import record, save, save_figure
from nanovllm.fast.build import load_library
from nanovllm.fast.cache import FastCache
from nanovllm.fast.step import NativeStep, StepInput
from nanovllm.fast.weights import NativeWeights
from nanovllm.model.loader import load_model

BLOCK, SECONDS = 32, 6.0
PARTS = {  # by what a function's name has in it, the first that fits
    "attention": r"attend|score|mix|weigh|Softmax",
    "products": r"::add[(<]|add_rows|add_tiles",
    "place q, k and v": r"Run::attention",
    "results of products": r"multiply_slab|linear",
    "norms, waiting, rest": r"",
}


def given(prompt: int, requests: int) -> StepInput:
    """One prompt, or the next token of so many requests behind prompts of that length."""
    counts, ends = ([prompt], [prompt]) if requests == 1 else ([1] * requests, [prompt] * requests)
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    blocks = -(-prompt // BLOCK)
    numbers = (
        [5 + 7 * i % 2000 for i in range(starts[-1])], starts, ends, [1] * len(counts),
        list(range(blocks * len(counts))), [blocks * i for i in range(len(counts))],
    )  # fmt: skip
    return StepInput(*(array("i", some) for some in numbers))


def repeat(model: str, dtype: torch.dtype, threads: int, prompt: int, requests: int) -> None:
    """Run the step for a while, and print its median seconds."""
    torch.set_num_threads(threads)
    weights = load_model(model_folder(model), dtype)
    library = load_library(dtype, lambda message: None)
    step = NativeStep(library, NativeWeights(weights, library.nv_lanes(), 4096))
    cache = FastCache(weights.config, requests * -(-prompt // BLOCK), BLOCK, dtype)
    what, seconds, begun = given(prompt, requests), [], time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        start = time.perf_counter()
        step(what, cache)
        seconds.append(time.perf_counter() - start)
    print(statistics.median(seconds[len(seconds) // 4 :]))


def measure(model: str, dtype: str, threads: int, prompt: int, requests: int) -> dict[str, float]:
    """Milliseconds of a step by part."""
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder, "perf.data"))
        child = [sys.executable, "-m", "benchmarks.step_profile", "--repeat", model, dtype]
        child += [str(number) for number in (threads, prompt, requests)]
        done = subprocess.run(["perf", "record", "-q", "-o", data, "--", *child],
                              check=True, capture_output=True, text=True)  # fmt: skip
        told = subprocess.run(
            ["perf", "report", "-i", data, "--stdio", "-F", "overhead,dso,symbol"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
    whole = 1e3 * float(done.stdout.split()[-1])
    shares = dict.fromkeys(PARTS, 0.0)
    for percent, name in re.findall(r"([\d.]+)% +step-\w+\.so +\[\.\] (.*)", told):
        part = next(part for part, pattern in PARTS.items() if re.search(pattern, name))
        shares[part] += float(percent)
    return {part: whole * share / sum(shares.values()) for part, share in shares.items()}


def draw(cases: dict[str, dict[str, dict[str, float]]], path: Path, title: str) -> Path:
    """An axis a case, a bar a record, a piece a part."""
    from matplotlib.figure import Figure

    height = 0.9 + 0.4 * sum(map(len, cases.values())) + 0.5 * len(cases)
    figure = Figure(figsize=(9, height), layout="constrained")
    every = figure.subplots(len(cases), squeeze=False)[:, 0]
    for axes, (case, bars) in zip(every, cases.items(), strict=True):
        for number, part in enumerate(PARTS):
            left = [sum(list(one.values())[:number]) for one in bars.values()]
            axes.barh(list(bars), [one[part] for one in bars.values()], left=left, label=part)
        for place, one in enumerate(bars.values()):
            axes.annotate(f" {sum(one.values()):.0f} ms", (sum(one.values()), place), va="center")
        axes.invert_yaxis()
        axes.set_title(case, fontsize=10, loc="left")
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    every[-1].set_xlabel("milliseconds of a step")
    figure.legend(
        *every[0].get_legend_handles_labels(), ncols=5, fontsize=8, loc="outside lower center"
    )
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--model", default="mid")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--before", type=Path, help="an older record, to be drawn too")
    parser.add_argument("--anyway", action="store_true", help="on a busy machine, too")
    parser.add_argument("--repeat", nargs=5, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.repeat:
        model, dtype, *numbers = asked.repeat
        repeat(model, getattr(torch, dtype), *map(int, numbers))
        return
    require_quiet(asked.anyway)
    cases = {"a prompt of 256": (256, 1), "a prompt of 2,048": (2048, 1), "64 requests": (128, 64)}
    found: dict[str, Any] = {
        name: measure(asked.model, asked.dtype, asked.threads, *case)
        for name, case in cases.items()
    }
    settings = {"model": asked.model, "dtype": asked.dtype, "threads": asked.threads}
    shown: dict[str, dict[str, dict[str, float]]] = {}
    before = json.loads(asked.before.read_text())["results"] if asked.before else {}
    for name, parts in found.items():
        shown[name] = ({"before": before[name]} if name in before else {}) | {"now": parts}
        print(name, *(f"{part} {ms:.1f}" for part, ms in parts.items()), sep=", ")
    title = f"{asked.model}, {asked.dtype}, {asked.threads} threads"
    draw(shown, asked.out / "step-profile.png", title)
    print(save(record("step profile", settings, found), asked.out / "step-profile.json"))


if __name__ == "__main__":
    main()

"""Fewer bits beside others' fewer bits: `python -m benchmarks.quantized_speed --out DIR`.

`mid` in bfloat16 and in codes, one request alone and 64 at once, in rounds in which everybody has a
turn: this engine, llama.cpp (Q8_0, Q4_0) and vLLM (W8A8, W4A16) on the processor. Those whose
Python is not named are left out.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.progress import Progress

from nanovllm.bench import tables
from nanovllm.bench.contestants import OURS, Ready, Settings, started
from nanovllm.bench.machine import require_quiet, usable_cpus
from nanovllm.bench.models import CONTEXT, model_folder
from nanovllm.bench.record import bar_plot, record, save
from nanovllm.bench.rounds import Rounds, latency, throughput
from nanovllm.bench.stats import median_ratio
from nanovllm.bench.workload import random_workload
from nanovllm.llm.engine_options import AT_LOAD
from nanovllm.model.loader import load_config, load_model
from nanovllm.quantization.checkpoint import save_quantized
from nanovllm.quantization.methods import quantize
from nanovllm.quantization.scheme import Scheme

AS_IT_IS = f"{OURS} bfloat16"
FOLDERS = {  # what vLLM reads, and how it is made
    "W8A8": ("smoothquant", Scheme(8, None, True)),
    "W4A16": ("rtn", Scheme(4, 64, True)),
}
LLAMA = {"bfloat16": "llama.cpp", "Q8_0": "llama.cpp-q8_0", "Q4_0": "llama.cpp-q4_0"}


def contestants(model: Path, given: Settings, home: Path) -> Iterator[tuple[str, str, Settings]]:
    """A label, who it is, and with which settings."""
    yield AS_IT_IS, OURS, given
    for kind in AT_LOAD:
        yield f"{OURS} {kind}", OURS, replace(given, quantization=kind)
    if given.llama_python:
        for kind, name in LLAMA.items():
            yield f"llama.cpp {kind}", name, given
    if given.vllm_python:
        yield "vLLM bfloat16", "vllm", given
        rows = torch.randint(1, load_config(model).vocab_size, (4, 128))
        for kind, (method, scheme) in FOLDERS.items():
            save_quantized(quantize(load_model(model), method, scheme, rows), model, home / kind)
            yield f"vLLM {kind}", "vllm", replace(given, model=str(home / kind))


def measure(given: argparse.Namespace, ready: dict[str, Ready], vocab: int) -> dict[str, Rounds]:
    """Tokens a second of 64 requests, and the time of one request's tokens."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("rounds", total=len(ready) * (given.rounds + 4 * given.rounds + 2))

        def report(line: str) -> None:
            progress.update(task, advance=1, description=line)

        ttft, tpot = latency(ready, vocab, 4 * given.rounds, report)
        workload = random_workload(vocab, given.requests)
        rates, _ = throughput(ready, workload, vocab, given.rounds, report)
    return {
        f"tokens/s, {given.requests} requests": rates,
        "time per token, one request, ms": _scaled(tpot),
        "time to first token, one request, ms": _scaled(ttft),
    }


def _scaled(rounds: Rounds) -> Rounds:
    found = {name: [1e3 * value for value in values] for name, values in rounds.values.items()}
    return Rounds("ms", rounds.higher_is_better, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--model", default="mid")
    parser.add_argument("--llama-python", help="of an environment with llama-cpp-python, gguf")
    parser.add_argument("--vllm-python", help="the Python of an environment that has vllm")
    parser.add_argument("--rounds", type=int, default=5, help="of 64 requests; of one, four times")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--anyway", action="store_true", help="on a busy machine, too")
    given = parser.parse_args()
    require_quiet(given.anyway)
    folder = model_folder(given.model)
    config = load_config(folder)
    settings = Settings(
        str(folder), threads=given.threads, max_num_seqs=given.requests, max_model_len=CONTEXT,
        vllm_python=given.vllm_python, llama_python=given.llama_python,
    )  # fmt: skip
    with TemporaryDirectory() as home, ExitStack() as stack:
        ready: dict[str, Ready] = {}
        for label, name, own in contestants(folder, settings, Path(home)):
            print(f"  {label} starts", file=sys.stderr, flush=True)
            ready[label] = stack.enter_context(started([name], own))[name]
        found = measure(given, ready, config.vocab_size)
        facts = {label: one.facts | one.process.ask("memory") for label, one in ready.items()}
    figures = {label: rounds.summary(AS_IT_IS) for label, rounds in found.items()}
    title = f"{given.model}, {given.threads} threads (times {AS_IT_IS}'s)"
    table = tables.plain(title, "", *found)
    for label in ready:
        own = [rounds.values[label] for rounds in found.values()]
        alone = [rounds.values[AS_IT_IS] for rounds in found.values()]
        ratios = [median_ratio(*pair) for pair in zip(own, alone, strict=True)]
        cells = (f"{median(a):.1f} ({b:.2f} x)" for a, b in zip(own, ratios, strict=True))
        table.add_row(label, *cells)
    Console().print(table)
    asked = {"model": given.model, "rounds": given.rounds, "requests": given.requests,
             "threads": given.threads, "dtype": "bfloat16"}  # fmt: skip
    results = {"figures": figures, "engines": facts}
    save(record("quantized speed", asked, results), given.out / "quantized-speed.json")
    panels = {label: rounds.values for label, rounds in found.items()}
    bar_plot(given.out / "quantized-speed.png", title, panels, OURS)


if __name__ == "__main__":
    main()

"""How speed changes as contexts and batches grow: `python -m benchmarks.growth --out DIR`.

Requests of 512 to 32,768 tokens, 1 to 512 at once, with a shared beginning and without, beside
vLLM where its Python is named. In each cell and round everybody gets the same fresh prompts three
times: for 32 tokens (tokens a second), for 32 again and for one (both from the prefix cache: their
difference is the time of the 31 steps behind a first token; what the first run takes besides them
is that of its prompts). A cell whose K and V take more than 8 GiB, or whose run would
take over two minutes by the cells before it, is left out and named.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from nanovllm.bench import tables
from nanovllm.bench.contestants import OURS, Ready, Settings, started
from nanovllm.bench.machine import require_quiet, usable_cpus
from nanovllm.bench.models import model_folder
from nanovllm.bench.record import record, save, save_figure
from nanovllm.bench.workload import Workload, random_workload
from nanovllm.llm.engine_options import GIB
from nanovllm.model.loader import load_config

OUTPUT, GIBS, LONGEST_RUN = 32, 8, 120.0
SHARED = 0.75  # of a prompt, where requests begin alike
CONTEXTS, TOGETHER = (512, 2048, 8192, 32768), (1, 16, 64, 256, 512)
TRAINED = 8192  # positions; beyond them YaRN


@dataclass(frozen=True)
class Cell:
    """Requests at once, tokens of each (prompt and answer), and whether they begin alike."""

    context: int
    together: int
    shared: bool

    def __str__(self) -> str:
        alike = ", begin alike" if self.shared else ""
        return f"{self.together} x {self.context:,}{alike}"

    def workload(self, vocab: int, seed: int) -> Workload:
        prompt = self.context - OUTPUT
        made = random_workload(vocab, self.together, (prompt, prompt), (OUTPUT, OUTPUT), seed)
        if not self.shared:
            return made
        start = made.jobs[0].prompt[: int(SHARED * prompt)]
        jobs = (replace(job, prompt=(*start, *job.prompt[len(start) :])) for job in made.jobs)
        return Workload(f"{made.name}, begin alike", tuple(jobs))


def first_only(workload: Workload) -> Workload:
    """The same prompts, one token each."""
    return replace(workload, jobs=tuple(replace(job, max_tokens=1) for job in workload.jobs))


def long_model(name: str, home: Path) -> Path:
    """A model's folder with room for 32,768 positions, of which YaRN makes the last 24,576."""
    folder = home / name
    shutil.copytree(model_folder(name), folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]}
    scaled = {"rope_type": "yarn", "factor": CONTEXTS[-1] / TRAINED,
              "original_max_position_embeddings": TRAINED}  # fmt: skip
    config |= {"max_position_embeddings": CONTEXTS[-1], "rope_parameters": rope | scaled}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def cells(contexts: list[int], together: list[int]) -> Iterator[Cell]:
    """Fewer and shorter requests first, so that the time of the others can be foretold."""
    for context in contexts:
        for shared in (False, True):
            for number in together:
                if number > 1 or not shared:
                    yield Cell(context, number, shared)


def foretold(cell: Cell, seconds: dict[Cell, float]) -> float:
    """What a run will take at most: as long for each request as with fewer of them."""
    fewer = [one for one in seconds if (one.context, one.shared) == (cell.context, cell.shared)]
    known = max(fewer, key=lambda one: one.together, default=None)
    return seconds[known] / known.together * cell.together if known else 0.0


def run_cell(
    cell: Cell, ready: dict[str, Ready], vocab: int, rounds: int, seed: int
) -> dict[str, Any]:
    """Output tokens a second, seconds of the prompts and of a step of everybody, by round."""
    found: dict[str, Any] = {
        name: {"tokens_per_second": [], "prompts": [], "step": [], "longest": 0.0} for name in ready
    }
    names = list(ready)
    for number in range(rounds):
        work = cell.workload(vocab, 1000 * seed + number)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            cold, warm = (ready[name].run(work)["seconds"] for _ in range(2))
            first = ready[name].run(first_only(work))["seconds"]
            its = found[name]
            its["tokens_per_second"].append(work.output_tokens / cold)
            its["prompts"].append(cold - (warm - first))
            its["step"].append((warm - first) / (OUTPUT - 1))
            its["longest"] = max(its["longest"], cold)
        if max(its["longest"] for its in found.values()) > LONGEST_RUN / 6:
            break  # one round of what takes so long
    return found


def measure(
    ready: dict[str, Ready], given: argparse.Namespace, vocab: int, bytes_a_token: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every cell, and those left out with the reason."""
    done: list[dict[str, Any]] = []
    left_out: list[str] = []
    seconds: dict[Cell, float] = {}
    for seed, cell in enumerate(cells(given.contexts, given.together)):
        held = cell.together * cell.context * bytes_a_token
        if held > GIBS * GIB:
            left_out.append(f"{cell}: K and V of {held / GIB:.0f} GiB")
        elif (expected := foretold(cell, seconds)) > LONGEST_RUN:
            left_out.append(f"{cell}: {expected:.0f} s foretold")
        else:
            found = run_cell(cell, ready, vocab, given.rounds, seed)
            seconds[cell] = max(its["longest"] for its in found.values())
            done.append(asdict(cell) | {"engines": found})
            line = ", ".join(f"{name} {figures(its)}" for name, its in found.items())
            print(f"  {cell}: {line}", file=sys.stderr, flush=True)
            continue
        print(f"  left out: {left_out[-1]}", file=sys.stderr, flush=True)
    return done, left_out


def figures(its: dict[str, Any]) -> str:
    """What one engine did in a cell."""
    prompts, step = (1e3 * median(its[key]) for key in ("prompts", "step"))
    return f"{median(its['tokens_per_second']):,.0f} ({prompts:,.0f}; {step:.2f})"


def table_of(title: str, done: list[dict[str, Any]], names: list[str]) -> Any:
    """A row a cell: tokens a second, milliseconds of the prompts and of a step of everybody."""
    heads = (f"{name}, tokens/s (ms: prompts; a step)" for name in names)
    table = tables.plain(title, "requests x tokens", *heads)
    for row in done:
        cell = Cell(row["context"], row["together"], row["shared"])
        table.add_row(str(cell), *(figures(row["engines"][name]) for name in names))
    return table


def plot(done: list[dict[str, Any]], names: list[str], title: str, path: Path) -> Path:
    """Tokens a second, and the times of prompts and of a step, over the requests at once, a line a
    context; over the contexts, where there is one number of requests."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    over, by = "together", "context"
    if len({row[over] for row in done}) == 1:
        over, by = by, over
    unit = "tokens" if by == "context" else "at once"
    lines = sorted({row[by] for row in done})
    shades = [0.85 * i / max(1, len(lines) - 1) for i in range(len(lines))]
    colours = plt.get_cmap("viridis")(shades)
    panels = {
        "tokens_per_second": "output tokens/s, prompts included",
        "prompts": "s until all prompts are read",
        "step": "s a step of one token each",
    }
    columns = sorted({row["shared"] for row in done})
    figure, axes = plt.subplots(
        len(panels), len(columns), figsize=(1 + 5 * len(columns), 10), sharex=True, sharey="row",
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for column, shared in enumerate(columns):
        for line, colour in zip(lines, colours, strict=True):
            rows = [row for row in done if row[by] == line and row["shared"] == shared]
            for name in names:
                style = "o-" if name == OURS else "x--"
                at = [row[over] for row in rows]
                for axis, key in zip(axes[:, column], panels, strict=True):
                    values = [median(row["engines"][name][key]) for row in rows]
                    axis.plot(at, values, style, color=colour, label=f"{name}, {line:,} {unit}")
        axes[0, column].set_title(
            "three quarters of each prompt alike" if shared else "nothing alike", fontsize=10
        )
        axes[-1, column].set_xlabel("requests at once" if over == "together" else "tokens")
    for axis in axes.flat:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(sorted({row[over] for row in done}))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.spines[["top", "right"]].set_visible(False)
    for axis, label in zip(axes[:, 0], panels.values(), strict=True):
        axis.set_ylabel(label)
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--vllm-python", help="the Python of an environment that has vllm")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--contexts", type=int, nargs="*", default=list(CONTEXTS))
    parser.add_argument("--together", type=int, nargs="*", default=list(TOGETHER))
    parser.add_argument("--anyway", action="store_true", help="on a busy machine, too")
    given = parser.parse_args()
    require_quiet(given.anyway)
    names = [OURS, "vllm"] if given.vllm_python else [OURS]
    with TemporaryDirectory() as home:
        folder = long_model(given.model, Path(home))
        config = load_config(folder)
        size = 2 if given.dtype == "bfloat16" else 4
        bytes_a_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * size
        # Twice what the largest cell takes: memory that nobody has written yet comes slowly.
        largest = max(given.together) * max(given.contexts) * bytes_a_token
        settings = Settings(
            str(folder), given.dtype, given.threads, max(given.together), max(given.contexts),
            vllm_python=given.vllm_python, kv_cache_memory_bytes=min(GIBS * GIB, 2 * largest),
        )  # fmt: skip
        with started(names, settings) as ready:
            done, left_out = measure(ready, given, config.vocab_size, bytes_a_token)
            facts = {name: one.facts | one.process.ask("memory") for name, one in ready.items()}
    title = f"{given.model}, {given.dtype}, {given.threads} threads, {OUTPUT} tokens each"
    Console().print(table_of(title, done, names))
    asked = {"model": given.model, "dtype": given.dtype, "threads": given.threads,
             "rounds": given.rounds, "output_tokens": OUTPUT}  # fmt: skip
    results = {"cells": done, "left_out": left_out, "engines": facts}
    name = f"growth-{given.model}" + ("" if given.dtype == "bfloat16" else f"-{given.dtype}")
    save(record("growth", asked, results), given.out / f"{name}.json")
    plot(done, names, title, given.out / f"{name}.png")


if __name__ == "__main__":
    main()

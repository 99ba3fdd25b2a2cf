"""Quantized folders, ours and others', read by all: `python -m benchmarks.quantized_files`.

The bundled model, quantized by llm-compressor and by `nanovllm quantize` with the same text, is
loaded by `LLM`, by transformers with compressed-tensors, and by vLLM on the processor. Nothing is
timed. llm-compressor and vLLM live in environments of their own, whose Pythons are named; without
them their part is left out, and transformers is this environment's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Int
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanovllm import LLM, SamplingParams
from nanovllm.bench import tables
from nanovllm.bench.contestants import Settings, started
from nanovllm.bench.forced import Forced
from nanovllm.bench.machine import usable_cpus
from nanovllm.bench.process import ROOT, ContestantError
from nanovllm.bench.record import record, save
from nanovllm.bench.workload import Job, Workload
from nanovllm.llm.read_options import BUNDLED
from nanovllm.model.errors import ModelFolderError
from nanovllm.quantization.held_out import calibration_rows, held_out_rows, hidden_states

Results = dict[str, Any]
PEER = ROOT / "benchmarks" / "peers" / "llmcompressor_peer.py"
THEIRS = (  # a recipe of the peer's, and compressed-tensors' name of a scheme
    "rtn W4A16_ASYM", "gptq W4A16", "awq W4A16_ASYM", "gptq W8A16", "gptq W8A8",
    "smoothquant W8A8",
)  # fmt: skip
OURS = (  # options of `nanovllm quantize`
    "rtn --bits 4", "gptq --bits 4", "awq --bits 4", "gptq --bits 4 --symmetric",
    "rtn --bits 8", "gptq --bits 8", "awq --bits 8", "gptq --bits 8 --group -1 --symmetric",
    "smoothquant --bits 8 --group -1 --symmetric", "gptq --bits 4 --symmetric --format gptq",
    "gptq --bits 8 --symmetric --format gptq", "awq --bits 4 --format awq",
)  # fmt: skip
PROMPT = ANSWER = 32  # tokens


def plan(maker: str | None, rows: int, home: Path) -> Iterator[tuple[str, str, Path, list]]:
    """Who makes each folder and how, where, and the command; first the model as it is."""
    yield "training", "not quantized", BUNDLED, ["true"]
    taken = home / "calibration.safetensors"
    save_file({"rows": calibration_rows(rows)}, taken)
    for number, name in enumerate(THEIRS if maker else ()):
        to = home / f"theirs-{number}"
        yield "llm-compressor", name, to, [maker, PEER, "make", BUNDLED, name, taken, to]
    for number, name in enumerate(OURS):
        to = home / f"ours-{number}"
        words = ["bundled", "--to", to, "--held-out", 0, "--rows", rows, "--method", *name.split()]
        command = [sys.executable, "-m", "nanovllm.cli", "quantize", *words]
        yield "nanovllm", name, to, command


def said(*words: object) -> str:
    """The last line that a command printed. Raises ContestantError with its last complaint."""
    done = subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise ContestantError(done.stderr.strip().rpartition("\n")[2])
    return done.stdout.strip().rpartition("\n")[2]


def in_transformers(python: str, folder: Path, ours: LLM, home: Path) -> Results:
    """transformers' logits less ours, in float32; beside it, what the last bits are worth in ours.

    A code of int8 activations that lies between two falls to either side, and moves all behind it.
    """
    rows, to = held_out_rows(4)[:, :128].contiguous(), home / "logits.safetensors"
    save_file({"rows": rows}, home / "rows.safetensors")
    versions = json.loads(said(python, PEER, "logits", folder, home / "rows.safetensors", to))
    theirs = load_file(to)["logits"]
    weight = ours.model.embed_tokens.weight
    kept = weight.clone()
    with torch.inference_mode():
        logits = ours.model.logits(hidden_states(ours.model, rows))
        weight.copy_(weight.nextafter(torch.tensor(torch.inf)))
        nudged = ours.model.logits(hidden_states(ours.model, rows))
        weight.copy_(kept)
    same = (logits.argmax(dim=-1) == theirs.argmax(dim=-1)).double().mean()
    return {
        "largest_difference": float((logits - theirs).abs().max()),
        "ours_with_embeddings_a_bit_larger": float((logits - nudged).abs().max()),
        "same_choice": float(same), "versions": versions,
    }  # fmt: skip


def in_vllm(python: str, folder: Path, ours: LLM, threads: int) -> Results:
    """vLLM's greedy tokens in bfloat16, judged behind their own past by our float32 logits."""
    prompts = held_out_rows(16)[:, :PROMPT]
    jobs = tuple(Job(tuple(prompt), ANSWER) for prompt in prompts.tolist())
    settings = Settings(str(folder), threads=threads, max_num_seqs=16, vllm_python=python)
    with started(["vllm"], settings) as ready:
        versions = ready["vllm"].facts
        texts = torch.tensor(ready["vllm"].run(Workload("held out", jobs))["token_ids"])
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    answers = ours.generate(prompts.tolist(), params, use_tqdm=False)
    own = torch.tensor([answer.outputs[0].token_ids for answer in answers])
    return {
        "teacher_forced": asdict(judged(ours, prompts, texts)),
        "same_texts": int((texts == own).all(dim=1).sum()), "texts": len(texts),
        "versions": versions,
    }  # fmt: skip


@torch.inference_mode()
def judged(ours: LLM, prompts: Int[Tensor, "R P"], texts: Int[Tensor, "R T"]) -> Forced:
    """How these tokens compare with the argmax of our logits behind the same tokens."""
    hidden = hidden_states(ours.model, torch.cat([prompts, texts], dim=1)[:, :-1])
    logits = ours.model.logits(hidden[:, prompts.shape[1] - 1 :])
    gap = logits.amax(dim=-1) - logits.gather(-1, texts[..., None])[..., 0]
    return Forced(gap.numel(), float((gap == 0).double().mean()), float(gap.max()))


def readings(given: argparse.Namespace, folder: Path, home: Path) -> Results:
    """What each engine makes of a folder, or why it cannot read it."""
    ours = LLM(folder, dtype="float32")
    python = given.llmcompressor_python or sys.executable
    readers = {"transformers": partial(in_transformers, python, folder, ours, home)}
    if given.vllm_python:
        readers["vLLM"] = partial(in_vllm, given.vllm_python, folder, ours, given.threads)
    found: Results = {}
    for name, read in readers.items():
        try:
            found[name] = read()
        except ContestantError as error:
            found[name] = {"error": " ".join(str(error).split())}
    return found


def measure(given: argparse.Namespace, home: Path) -> list[Results]:
    """A row a folder; with `error` where it could not be made, or `LLM` cannot read it."""
    rows = []
    for by, how, folder, command in plan(given.llmcompressor_python, given.rows, home):
        if given.only and how not in given.only:
            continue
        print(f"  {by}: {how}", file=sys.stderr, flush=True)
        row: Results = {"by": by, "how": how}
        rows.append(row)
        try:
            said(*command)
            row["bytes"] = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            row |= readings(given, folder, home)
        except (ContestantError, ModelFolderError) as error:
            row["error"] = str(error)
    return rows


def show(rows: list[Results]) -> None:
    """A line a folder; what went wrong below."""
    console = Console(width=max(130, Console().width))  # no cell is cut
    table = tables.plain(
        "Largest difference of transformers' logits, and of ours if the embeddings' last bits "
        "change; vLLM's tokens that are our argmax, and the largest gap to it",
        "folder", "MB", "transformers", "last bits", "same choice", "vLLM", "gap", "same texts",
    )  # fmt: skip
    for row in rows:
        cells, theirs, texts = ["-"] * 6, row.get("transformers", {}), row.get("vLLM", {})
        if "versions" in theirs:
            moved = theirs["largest_difference"], theirs["ours_with_embeddings_a_bit_larger"]
            cells[:3] = *(f"{most:.2g}" for most in moved), f"{theirs['same_choice']:.1%}"
        if "versions" in texts:
            forced = texts["teacher_forced"]
            cells[3:] = (f"{forced['argmax_share']:.1%}", f"{forced['largest_gap']:.3f}",
                         f"{texts['same_texts']} of {texts['texts']}")  # fmt: skip
        table.add_row(f"{row['by']}: {row['how']}", f"{row.get('bytes', 0) / 1e6:.2f}", *cells)
    console.print(table)
    for row in rows:
        for reader, its in {"LLM": row, **row}.items():
            if isinstance(its, dict) and "error" in its:
                line = f"{row['by']}, {row['how']}, {reader}: {its['error']}"
                console.print(line, markup=False, highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--llmcompressor-python", help="of an environment that has llmcompressor")
    parser.add_argument("--vllm-python", help="the Python of an environment that has vllm")
    parser.add_argument("--only", nargs="*", help="folders, as the table names them")
    parser.add_argument("--rows", type=int, default=24, help="rows of text to calibrate with")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    given = parser.parse_args()
    with TemporaryDirectory() as home:
        rows = measure(given, Path(home))
    show(rows)
    found = record("quantized files", {"rows": given.rows}, {"folders": rows})
    save(found, given.out / "quantized-files.json")


if __name__ == "__main__":
    main()

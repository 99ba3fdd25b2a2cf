"""`nanovllm bench`: how fast, how large, how fair; alone, against others, and lab by lab."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanovllm.cli.engine import select_code
from nanovllm.cli.errors import Refused
from nanovllm.cli.options import (
    GUESSES,
    HELP,
    KV_CODES,
    SLICES,
    STAGES,
    WEIGHT_CODES,
    Code,
    speculative,
)
from nanovllm.cli.output_files import picture, writable

if TYPE_CHECKING:
    from nanovllm.bench.runs import Outcome

bench = typer.Typer(
    rich_markup_mode=HELP,
    no_args_is_help=True,
    help=(__doc__ or "").partition(": ")[2].capitalize(),
)

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="bundled, a folder, or random: tiny (6.8 M), mid (184 M), moe (160 M).",
    ),
]
Rounds = Annotated[int, typer.Option(min=1, help="Each contestant runs once a round.")]
Requests = Annotated[int, typer.Option(min=1, help="Requests, all there at the start.")]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        help="nanovllm-plain, transformers, transformers-static, transformers-continuous, "
        "transformers-assisted, vllm, vllm-own-process, vllm-ngram, llama.cpp, llama.cpp-q8_0 or "
        "llama.cpp-q4_0; may be repeated.",
    ),
]
VllmPython = Annotated[str | None, typer.Option(help="The Python of an environment that has vllm.")]
LlamaPython = Annotated[
    str | None, typer.Option(help="That of one with llama-cpp-python, gguf, torch, safetensors.")
]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16, for every contestant.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Of each contestant. (default: the processors there are)"),
]
Guesses = Annotated[str | None, typer.Option("--speculative-config", help=GUESSES + " Of ours.")]
KvCodes = Annotated[str | None, typer.Option("--kv-cache-dtype", help=KV_CODES + " Of ours.")]
WeightCodes = Annotated[str | None, typer.Option("--quantization", help=WEIGHT_CODES + " Of ours.")]
Slices = Annotated[int, typer.Option("--tensor-parallel-size", min=1, help=SLICES + " Of ours.")]
Stages = Annotated[int, typer.Option("--pipeline-parallel-size", min=1, help=STAGES + " Of ours.")]
Out = Annotated[
    Path | None, typer.Option(callback=writable, help="Write the record to this .json file.")
]
Plot = Annotated[Path | None, typer.Option(callback=picture, help="Draw it into this .png file.")]


@bench.command()
def throughput(
    model: Model = "tiny", requests: Requests = 64, rounds: Rounds = 3, peers: Peers = None,
    vllm_python: VllmPython = None, llama_python: LlamaPython = None, dtype: Dtype = "bfloat16",
    threads: Threads = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most at once.")] = 64,
    speculative_config: Guesses = None, kv_cache_dtype: KvCodes = None,
    quantization: WeightCodes = None,
    tensor_parallel_size: Slices = 1, pipeline_parallel_size: Stages = 1,
    out: Out = None, plot: Plot = None, code: Code = None,
) -> None:  # fmt: skip
    """Output tokens a second on many requests."""
    runs = _ready(code, dtype)
    show(
        runs.run_throughput(
            model, peers or [], rounds, requests, report, dtype=dtype,
            threads=threads or _cpus(), max_num_seqs=max_num_seqs, vllm_python=vllm_python,
            llama_python=llama_python,
            speculative_config=speculative_config and speculative(speculative_config),
            kv_cache_dtype=kv_cache_dtype, quantization=quantization,
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
        ), out, plot,
    )  # fmt: skip


@bench.command()
def latency(
    model: Model = "tiny", rounds: Rounds = 3, peers: Peers = None,
    vllm_python: VllmPython = None, llama_python: LlamaPython = None, dtype: Dtype = "bfloat16",
    threads: Threads = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of the prompt, random.")] = 256,
    output_tokens: Annotated[int, typer.Option(min=2, help="Of the answer.")] = 64,
    speculative_config: Guesses = None, kv_cache_dtype: KvCodes = None,
    quantization: WeightCodes = None,
    tensor_parallel_size: Slices = 1, pipeline_parallel_size: Stages = 1,
    out: Out = None, plot: Plot = None, code: Code = None,
) -> None:  # fmt: skip
    """One request alone: first token, further tokens, start, memory."""
    runs = _ready(code, dtype)
    show(
        runs.run_latency(
            model, peers or [], rounds, report, prompt_tokens, output_tokens, dtype=dtype,
            threads=threads or _cpus(), vllm_python=vllm_python, llama_python=llama_python,
            speculative_config=speculative_config and speculative(speculative_config),
            kv_cache_dtype=kv_cache_dtype, quantization=quantization,
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
        ), out, plot,
    )  # fmt: skip


@bench.command()
def progression(
    model: Model = "bundled", requests: Requests = 24, rounds: Rounds = 3,
    seats: Annotated[int, typer.Option(min=1, help="KV memory, in longest requests.")] = 4,
    dtype: Dtype = "float32", threads: Threads = None, peers: Peers = None,
    out: Out = None, plot: Plot = None, code: Code = None,
) -> None:  # fmt: skip
    """The same requests on each lab's engine, yours where you have started the lab."""
    runs = _ready(code, dtype)
    show(
        runs.run_progression(
            model, rounds, requests, seats, dtype, threads or _cpus(), report, peers or []
        ),
        out, plot,
    )  # fmt: skip


@bench.command()
def memory(
    kv_tokens: Annotated[int, typer.Option(min=1, help="KV memory, in tokens.")] = 32768,
    max_model_len: Annotated[int, typer.Option(min=8, help="Length of a slot.")] = 2048,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a block.")] = 16,
    requests: Requests = 250, out: Out = None, plot: Plot = None, code: Code = None,
) -> None:  # fmt: skip
    """Slots of the greatest length against blocks: what fits, and what is wasted."""
    runs = _ready(code)
    show(runs.run_memory(kv_tokens, max_model_len, block_size, requests, report), out, plot)


@bench.command()
def policies(
    requests: Requests = 200,
    rate: Annotated[float, typer.Option(min=0.01, help="Arrivals a second.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of the traces.")] = 0,
    out: Out = None, plot: Plot = None, code: Code = None,
) -> None:  # fmt: skip
    """Simulated: static batches and every scheduling policy, on three traces."""
    runs = _ready(code)
    show(runs.run_policies(requests, rate, seed), out, plot)


@bench.command("speculative")
def guesses_against_none(
    model: Model = "bundled",
    draft: Annotated[
        str | None,
        typer.Option(help="A folder. (default: the bundled draft where the model is bundled; with "
                          "any other one guesses come for nothing, and a given share is right)"),
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="May be repeated. (default: 1, 8)")
    ] = None,
    prompts: Annotated[
        list[str] | None, typer.Option(help="stories, facts, sums, recall, lists. (default: all)")
    ] = None,
    guesses: Annotated[int, typer.Option(min=1, help="The most in one step.")] = 4,
    rounds: Rounds = 5,
    max_tokens: Annotated[int, typer.Option(min=2, help="Of an answer, at most.")] = 48,
    peers: Annotated[
        bool, typer.Option(help="Guesses of transformers (at batch 1), and of the next two.")
    ] = False,
    vllm_python: VllmPython = None, llama_python: LlamaPython = None,
    llama_speculative: Annotated[
        str | None, typer.Option(help="llama.cpp's llama-speculative-simple; at batch 1.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of each contestant.")] = 1,
    out: Out = None, plot: Plot = None, code: Code = None,
) -> None:  # fmt: skip
    """Guesses against none, in turns, and the bound that the costs of guessing set."""
    runs = _ready(code)
    from nanovllm.bench.guessing_prompts import KINDS

    for kind in prompts or ():
        if kind not in KINDS:
            raise Refused(f"--prompts {kind} is not known; use {', '.join(KINDS)}.")
    if llama_speculative and not llama_python:
        raise Refused("--llama-speculative needs --llama-python, which writes the weights for it.")
    llama = (llama_speculative, llama_python) if llama_speculative and llama_python else None
    show(
        runs.run_speculative(
            model, draft, batch or [1, 8], prompts or KINDS, guesses, rounds, max_tokens, peers,
            threads, report, vllm_python, llama,
        ), out, plot,
    )  # fmt: skip


@bench.command()
def quantization(
    model: Model = "mid",
    batch: Annotated[
        list[int] | None,
        typer.Option("--batch", "-b", min=1, help="Requests at once; may be repeated: 1 and 64."),
    ] = None,
    rounds: Rounds = 20, steps: Annotated[int, typer.Option(min=1, help="A round.")] = 4,
    dtype: Dtype = "bfloat16", threads: Threads = None,
    out: Out = None, plot: Plot = None, code: Code = None,
) -> None:  # fmt: skip
    """Weights as they are, and in int8, int4 and w8a8, in turns: the speed of decoding."""
    runs = _ready(code, dtype)
    show(
        runs.run_quantization(
            model, batch or [1, 64], rounds, steps, dtype, threads or _cpus(), report
        ), out, plot,
    )  # fmt: skip


def _ready(code: str | None, dtype: str = "float32"):  # noqa: ANN202, a module
    if dtype not in ("float32", "bfloat16"):
        raise Refused(f"--dtype {dtype} is not for benchmarks; use float32 or bfloat16.")
    select_code(code)
    from nanovllm.bench import runs

    return runs


def _cpus() -> int:
    from nanovllm.bench.machine import usable_cpus

    return usable_cpus()


def report(line: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(line, style="dim", highlight=False, soft_wrap=True)


def show(outcome: "Outcome", out: Path | None, plot: Path | None) -> None:
    from rich.console import Console

    from nanovllm.bench.record import save

    console = Console()
    for table in outcome.tables:
        console.print(table)
    if out is not None:
        report(f"record: {save(outcome.record, out)}")
    if plot is not None:
        report(f"plot: {outcome.plot(plot)}")

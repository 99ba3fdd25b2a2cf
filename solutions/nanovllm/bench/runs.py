"""Each measurement from its options to its tables, its record and its plot."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from nanovllm.bench import tables
from nanovllm.bench.contestants import OURS, Settings, started
from nanovllm.bench.forced import judge
from nanovllm.bench.limits import Limits
from nanovllm.bench.models import CONTEXT, model_folder
from nanovllm.bench.progression import progression
from nanovllm.bench.record import bar_plot, record
from nanovllm.bench.rounds import Report, agreement, latency, throughput
from nanovllm.bench.stages import Room
from nanovllm.bench.workload import random_workload, service_workload
from nanovllm.llm.engine_options import AT_LOAD
from nanovllm.llm.read_options import BUNDLED, OptionError
from nanovllm.model.accounting import generation_flops, step_bytes, step_flops
from nanovllm.model.loader import load_config, load_model, read_quantization
from nanovllm.tokenization.tokenizer import Tokenizer

JUDGED = 16  # requests whose tokens are judged by teacher forcing


@dataclass
class Outcome:
    """What a measurement leaves behind; `plot` draws it into a file."""

    record: dict[str, Any]
    tables: list[Table]
    plot: Callable[[Path], Path]


def run_throughput(
    model: str, names: Sequence[str], rounds: int, requests: int, report: Report, **options: Any
) -> Outcome:
    """Output tokens a second on random requests that are all there at the start."""
    folder = model_folder(model)
    config = load_config(folder)
    workload = random_workload(config.vocab_size, requests)
    settings = Settings(str(folder), max_model_len=min(CONTEXT, config.max_position), **options)
    everybody = [OURS, *names]
    with started(everybody, settings) as ready:
        limits = Limits(settings.dtype, settings.threads)
        rates, texts = throughput(ready, workload, config.vocab_size, rounds, report, limits.look)
        title = f"{model}, {requests} requests, {settings.dtype}, {settings.threads} threads"
        flops = sum(
            generation_flops(config, len(job.prompt), job.max_tokens, cached=True)
            for job in workload.jobs
        )
        shares = {}
        if _counted(folder, settings):
            shares["of products"] = limits.shares(rates.each(workload.output_tokens), flops=flops)
        table = tables.contest(title, {"output tokens/s": (rates, 1)}, ready, shares)
        results = {
            "workload": workload.describe(),
            "output_tokens_per_second": rates.summary(),
            "limits": limits.told() | {"flops": flops, "shares": shares},
            "same_texts_as_ours": agreement(texts),
            "engines": _facts(ready),
        }
    last = workload.variant(rounds, config.vocab_size).first(JUDGED)
    forced = judge(folder, last, {name: answers[:JUDGED] for name, answers in texts.items()})
    report("the tokens are judged")
    results["teacher_forced"] = {name: asdict(one) for name, one in forced.items()}
    return Outcome(
        record("throughput", _published(model, settings), results),
        [table, tables.forced(forced)],
        lambda path: bar_plot(path, title, {"output tokens/s": rates.values}, OURS),
    )


def run_latency(
    model: str,
    names: Sequence[str],
    rounds: int,
    report: Report,
    prompt_tokens: int = 256,
    output_tokens: int = 64,
    **options: Any,
) -> Outcome:
    """One request alone: time to first token, time per further token, start, memory."""
    folder = model_folder(model)
    config = load_config(folder)
    context = min(max(CONTEXT, prompt_tokens + output_tokens), config.max_position)
    settings = Settings(str(folder), max_model_len=context, **options)
    with started([OURS, *names], settings) as ready:
        limits = Limits(settings.dtype, settings.threads)
        ttft, tpot = latency(
            ready, config.vocab_size, rounds, report, prompt_tokens, output_tokens, limits.look
        )
        title = f"{model}, one request of {prompt_tokens} tokens, {settings.dtype}, "
        title += f"{settings.threads} threads"
        size = limits.dtype.itemsize
        flops = step_flops(config, prompt_tokens)
        moved = step_bytes(config, 1, prompt_tokens + output_tokens // 2, size)
        shares = {}
        if _counted(folder, settings):
            shares["of products"] = limits.shares(ttft, flops=flops)
            shares["of memory"] = limits.shares(tpot, bytes_=moved)
        figures = {"TTFT, ms": (ttft, 1e3), "TPOT, ms": (tpot, 1e3)}
        table = tables.contest(title, figures, ready, shares)
        facts = _facts(ready)
    results = {
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "ttft_seconds": ttft.summary(),
        "tpot_seconds": tpot.summary(),
        "limits": limits.told() | {"flops": flops, "bytes": moved, "shares": shares},
        "engines": facts,
    }
    panels = {
        "time to first token, ms": {n: [1e3 * v for v in vs] for n, vs in ttft.values.items()},
        "time per token, ms": {n: [1e3 * v for v in vs] for n, vs in tpot.values.items()},
        "first token after start, s": {n: [f["first_token_seconds"]] for n, f in facts.items()},
        "peak memory, MB": {n: [f["peak_bytes"] / 1e6] for n, f in facts.items()},
    }
    return Outcome(
        record("latency", _published(model, settings), results),
        [table],
        lambda path: bar_plot(path, title, panels, OURS),
    )


def run_progression(
    model: str, rounds: int, requests: int, seats: int, dtype: str, threads: int, report: Report,
    peers: Sequence[str] = (),
) -> Outcome:  # fmt: skip
    """Every lab's engine on one workload, and those of others beside them."""
    import torch

    torch.set_num_threads(threads)
    folder = model_folder(model)
    weights = load_model(folder, getattr(torch, dtype))
    tokenizer = Tokenizer.from_pretrained(folder if model == "bundled" else BUNDLED)
    workload = service_workload(tokenizer.encode, requests)
    room = Room(seats, min(CONTEXT, weights.config.max_position))
    theirs = Settings(str(folder), dtype, threads, seats, room.max_model_len)
    with started(peers, theirs) as ready:
        results = progression(weights, workload, room, rounds, report, ready)
    title = f"{model}, {requests} requests, {dtype}, {threads} threads, "
    title += f"KV memory for {seats} x {room.max_model_len} tokens"
    rates = {
        f"{r.name} ({r.lab}{', yours' if r.mine else ''})": r.rates for r in results if r.rates
    }
    settings = {"model": model, "dtype": dtype, "threads": threads, **asdict(room)}
    done = {"workload": workload.describe(), "stages": [asdict(r) for r in results]}
    own = [name for name in rates if not name.endswith("(peer)")]
    ours = own[-1] if own else ""
    return Outcome(
        record("progression", settings, done),
        [tables.stages(title, results)],
        lambda path: bar_plot(path, title, {"output tokens/s": rates}, ours),
    )


def run_memory(
    kv_tokens: int, max_model_len: int, block_size: int, requests: int, report: Report
) -> Outcome:
    """Slots against blocks: on the books with a large trace, and in a real run."""
    from nanovllm.bench import memory, memory_run  # on labs that may not be here

    config = load_config(BUNDLED)
    sizes = {"kv_tokens": kv_tokens, "max_model_len": max_model_len, "block_size": block_size}
    found, samples = memory.compare(config, **sizes, count=requests)
    report("the trace is booked")
    model = load_model(BUNDLED)
    room = Room(8, min(CONTEXT, config.max_position))
    jobs = random_workload(config.vocab_size, 40, (128, 320), (16, 48))
    real = memory_run.measure(model, jobs, room)
    report("the real run is done")
    titles = (
        f"On the books: {requests} requests, {kv_tokens:,} tokens of KV memory, "
        f"slots of {max_model_len:,}, blocks of {block_size}",
        f"Real run: 40 requests on the bundled model, room for {room.seats} x "
        f"{room.max_model_len} tokens",
    )
    results = {"books": memory.as_json(found), "real_run": memory.as_json(real)}
    return Outcome(
        record("memory", {**sizes, "requests": requests}, results),
        [tables.memory(titles[0], found), tables.memory(titles[1], real)],
        lambda path: memory.plot(found, samples, path),
    )


def run_policies(requests: int, rate: float, seed: int) -> Outcome:
    """Lab 04's simulator: static batches and all policies, on three traces."""
    from nanovllm.bench import compare_policies  # on a lab that may not be here

    found = compare_policies.compare(requests, rate, seed)
    settings = {"requests": requests, "rate": rate, "seed": seed}
    return Outcome(
        record("policies", settings, compare_policies.as_json(found)),
        tables.policies(found),
        lambda path: compare_policies.plot(found, path),
    )


def run_speculative(
    model: str, draft: str | None, batches: Sequence[int], kinds: Sequence[str], guesses: int,
    rounds: int, max_tokens: int, peers: bool, threads: int, report: Report,
    vllm_python: str | None = None, llama: tuple[str, str] | None = None,
) -> Outcome:  # fmt: skip
    """With guesses and without, in turns; without a draft model, with guesses that are given.

    peers: where there is a draft, transformers at batch 1, vLLM where its Python is given, and, at
    batch 1, llama.cpp where `llama-speculative-simple` is, with the Python of its peer.
    """
    import torch

    from nanovllm.bench import (
        assisted,
        guessing_prompts,
        guessing_rows,
        speculative,  # on a lab that may not be here
    )

    torch.set_num_threads(threads)
    folder = model_folder(model)
    if model == "bundled":
        draft = draft or str(folder.parent / "draft")
    weights = load_model(folder, torch.float32)
    tokenizer = Tokenizer.from_pretrained(BUNDLED if draft is None else folder)
    longest = min(CONTEXT, weights.config.max_position)
    rows: list[guessing_rows.Row] = []
    names = ["vllm", "vllm-ngram"] if peers and draft and vllm_python else []
    given = Settings(
        str(folder), "float32", threads, max(batches), longest, vllm_python, guesses=guesses
    )
    with started(names, given) as ready:
        lookup = assisted.Lookup(ready) if ready else None
        for batch in batches:
            ways = speculative.ways(draft, guesses)
            bench = speculative.Bench(weights, longest, batch, ways, max_tokens)
            theirs = example = None
            if peers and draft and batch == 1:
                theirs = assisted.Assisted(folder, Path(draft), guesses, max_tokens)
                if llama:
                    both = folder, Path(draft)
                    example = assisted.Example(*llama, both, guesses, max_tokens, threads)
            for kind in kinds:
                texts = guessing_prompts.prompts(kind, max(6, batch))
                asked = [tokenizer.encode(text) for text in texts]
                rows += bench.rows(kind, asked, rounds)
                if theirs is not None:
                    rows += theirs.rows(kind, asked, max(rounds // 10, 1))
                if lookup is not None:
                    rows.append(lookup.row(kind, asked, bench.texts, max(rounds // 5, 1), batch))
                if example is not None:
                    rows.append(example.row(kind, texts, max(rounds // 5, 1)))
                report(f"batch {batch}, {kind}")
    settings = {
        "model": Path(model).name, "draft": draft and Path(draft).name, "guesses": guesses,
        "rounds": rounds, "max_tokens": max_tokens, "threads": threads, "dtype": "float32",
    }  # fmt: skip
    title = f"{model}, float32, {guesses} guesses, {threads} threads, {rounds} rounds"
    return Outcome(
        record("speculative", settings, {"rows": [asdict(r) | {"bound": r.bound} for r in rows]}),
        tables.guessing(title, rows),
        lambda path: guessing_rows.plot(rows, path, title),
    )


def run_quantization(
    model: str, batches: Sequence[int], rounds: int, steps: int, dtype: str, threads: int,
    report: Report,
) -> Outcome:  # fmt: skip
    """The weights as they are, and in codes, in turns."""
    import torch

    from nanovllm.bench.quantized import PROMPT, Formats

    torch.set_num_threads(threads)
    folder = model_folder(model)
    longest, context = PROMPT + rounds * steps + 3, load_config(folder).max_position
    if longest > context:
        raise OptionError(
            f"{rounds} rounds of {steps} steps need a context of {longest} tokens, and that of "
            f"{model} is {context}; take fewer rounds or steps."
        )
    formats = Formats(folder, getattr(torch, dtype), max(batches), longest)
    rows = []
    for batch in batches:
        rows += formats.rows(batch, rounds, steps)
        report(f"{batch} at once")
    settings = {
        "model": Path(model).name, "dtype": dtype, "rounds": rounds, "steps": steps,
        "threads": threads,
    }  # fmt: skip
    title = f"{model}, {dtype}, {threads} threads, {rounds} rounds"
    panels = {
        f"tokens/s, {batch} at once": {row.format: row.rates for row in rows if row.batch == batch}
        for batch in batches
    }
    return Outcome(
        record("quantization", settings, {"rows": [asdict(row) for row in rows]}),
        tables.quantized(title, rows),
        lambda path: bar_plot(path, title, panels, AT_LOAD),
    )


def _facts(ready: dict) -> dict[str, Any]:
    return {
        name: {
            "versions": one.facts,
            "first_token_seconds": one.first_token_seconds,
            "ready_seconds": one.ready_seconds,
            **one.process.ask("memory"),
        }
        for name, one in ready.items()
    }


def _counted(folder: Path, settings: Settings) -> bool:
    """Whether lab 02 counts this model's operations and bytes: neither experts nor codes."""
    codes = settings.quantization or read_quantization(folder)
    return load_config(folder).experts is None and not codes


def _published(model: str, settings: Settings) -> dict[str, Any]:
    """A record is published: where this machine keeps its files is nobody's business."""
    known = asdict(settings) | {"model": Path(model).name}
    del known["vllm_python"], known["llama_python"]
    return known

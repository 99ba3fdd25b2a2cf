"""Servers side by side: `python -m benchmarks.servers --vllm-python ENV/bin/python --out FOLDER`.

The same requests, from as many clients in a closed loop, go to `nanovllm serve` and to vLLM's
server as streams, to `nanovllm serve` once more for whole answers, and without a server to
`LLM.generate`. All are up the whole time and take turns; what the others use of the processor
meanwhile is in the record, and should be nothing. The clients run on the same processors: the
processor time of who answers and of the clients is told by token.
"""

import argparse
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from nanovllm.bench import tables
from nanovllm.bench.contestants import Settings
from nanovllm.bench.exchange import run as run_loop
from nanovllm.bench.machine import usable_cpus
from nanovllm.bench.models import model_folder
from nanovllm.bench.process import Process
from nanovllm.bench.record import bar_plot, record, save
from nanovllm.bench.rounds import Report, Rounds
from nanovllm.bench.serve_client import Client, ServerError
from nanovllm.bench.serve_process import own_server, server_process
from nanovllm.bench.serving import connected, summary
from nanovllm.bench.stats import median_ratio
from nanovllm.bench.workload import Workload, random_workload
from nanovllm.model.loader import load_config
from nanovllm.serving.load import Slo, closed_loop

OURS, WHOLE = "nanovllm serve", "nanovllm serve, whole answers"
OFFLINE, VLLM = "LLM.generate", "vllm serve"
TICKS = 100  # of /proc a second
Answer = Callable[[Workload], dict[str, Any]]  # output_tokens, seconds, and latencies of a server


def over_http(address: str, concurrency: int, stream: bool = True) -> Answer:
    """Ask a server, from so many clients; a whole answer tells nothing about its tokens' times."""

    async def ask(workload: Workload) -> dict[str, Any]:
        async with connected(address) as (http, name):
            with closing(
                Client(http, name, workload.jobs, 0, lambda record: None, stream)
            ) as client:
                records = await closed_loop(client.send, len(workload.jobs), concurrency)
        return summary(records, Slo())

    def answer(workload: Workload) -> dict[str, Any]:
        found = run_loop(ask(workload))
        if found["errors"]:
            raise ServerError(f"{address} failed: {found['errors']}")
        return found if stream else {key: found[key] for key in ("seconds", "output_tokens")}

    return answer


def offline(process: Process) -> Answer:
    """Ask `LLM.generate` in its process."""

    def answer(workload: Workload) -> dict[str, Any]:
        found = process.ask("run", jobs=workload.as_json())
        return {"seconds": found["seconds"], "output_tokens": sum(map(len, found["token_ids"]))}

    return answer


@contextmanager
def started(given: argparse.Namespace, model: str) -> Iterator[dict[str, tuple[Answer, int]]]:
    """Everybody, one after another: how to ask them, and their process."""
    threads, seats = str(given.threads), str(given.concurrency)
    settings = Settings(model, given.dtype, vllm_python=given.vllm_python)
    length = load_config(Path(model)).max_position
    alike = ["--dtype", given.dtype, "--max-num-seqs", seats, "--max-model-len", str(length)]
    with ExitStack() as stack:
        adapter = Path(__file__).with_name("peers") / "generate_peer.py"
        process = stack.enter_context(
            Process(OFFLINE, [sys.executable, str(adapter)], given.threads)
        )
        process.ask(
            "load", model=model, dtype=given.dtype, threads=given.threads, max_model_len=length,
            max_num_seqs=given.concurrency,
        )  # fmt: skip
        found = {OFFLINE: (offline(process), process.process.pid)}
        address, pid = stack.enter_context(
            own_server(["--model", model, *alike], OMP_NUM_THREADS=threads)
        )
        found[OURS] = over_http(address, given.concurrency), pid
        found[WHOLE] = over_http(address, given.concurrency, stream=False), pid
        if given.vllm_python:
            port = _free_port()
            command = [given.vllm_python, "-m", "vllm.entrypoints.openai.api_server",
                       "--model", model, "--host", "127.0.0.1", "--port", str(port), *alike,
                       "--disable-log-stats", "--disable-uvicorn-access-log"]  # fmt: skip
            environment = settings.environment("vllm") | {
                "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
                "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": threads,
                "VLLM_CPU_OMP_THREADS_BIND": given.vllm_bind,
            }  # fmt: skip
            address, pid = stack.enter_context(
                server_process(command, lambda said: f"http://127.0.0.1:{port}", **environment)
            )
            found[VLLM] = over_http(address, given.concurrency), pid
        yield found


def measure(given: argparse.Namespace, model: str, report: Report) -> dict[str, Any]:
    """Rounds in which each answers the same requests; other token ids in each round."""
    vocabulary = load_config(Path(model)).vocab_size
    workload = random_workload(vocabulary, given.requests)
    rates, ttft, tpot = (Rounds(unit, unit == "tokens/s") for unit in ("tokens/s", "s", "s"))
    idle: list[float] = []
    with started(given, model) as everybody:
        names = list(everybody)
        work = {name: {"answers": [], "clients": []} for name in names}  # microseconds a token
        for number in range(given.rounds + 1):
            # one server answers twice: without other token ids its prefix cache would
            streamed, whole = (workload.variant(2 * number + i, vocabulary) for i in (1, 2))
            first = number % len(names)
            for name in names[first:] + names[:first]:
                asked = whole if name == WHOLE else streamed
                answer, pid = everybody[name]
                others = {pid for _, pid in everybody.values()} - {pid}
                begun, used = time.monotonic(), sum(map(cpu_seconds, others))
                before = cpu_seconds(pid), time.process_time()
                found = answer(asked)
                after = cpu_seconds(pid), time.process_time()
                used = (sum(map(cpu_seconds, others)) - used) / (time.monotonic() - begun)
                if found["output_tokens"] != asked.output_tokens:
                    raise ServerError(
                        f"{name} gave {found['output_tokens']} tokens, not {asked.output_tokens}."
                    )
                rate = found["output_tokens"] / found["seconds"]
                report(f"round {number}, {name}: {rate:.0f} tokens/s; others {used:.1%} of a CPU")
                if not number:
                    continue  # the warm-up
                idle.append(used)
                rates.add(name, rate)
                for who, then, now in zip(work[name], before, after, strict=True):
                    work[name][who].append(1e6 * (now - then) / asked.output_tokens)
                if "ttft" in found:
                    ttft.add(name, found["ttft"]["p50"])
                    tpot.add(name, found["tpot"]["p50"])
    values = rates.values
    return {
        "workload": workload.describe(),
        "output_tokens_per_second": rates.summary(OURS),
        "ttft_p50_seconds": ttft.summary(OURS),
        "tpot_p50_seconds": tpot.summary(OURS),
        "http_to_offline": median_ratio(values[OURS], values[OFFLINE]),
        "whole_answers_to_offline": median_ratio(values[WHOLE], values[OFFLINE]),
        "microseconds_a_token": work,
        "cpus_used_by_the_others": {"median": median(idle), "most": max(idle)},
    }


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all that it started; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task").glob("*/children")
        below = [int(child) for each in children for child in each.read_text().split()]
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS + sum(map(cpu_seconds, below))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def show(results: dict[str, Any], title: str) -> None:
    """The table, and what HTTP costs."""
    table = tables.plain(
        title, "", "tokens/s", "ours is", "TTFT p50, ms", "TPOT p50, ms",
        "processor, µs a token", "clients'",
    )  # fmt: skip
    for name, its in results["output_tokens_per_second"].items():
        waits = [
            f"{1e3 * results[key][name]['median']:.3g}" if name in results[key] else "-"
            for key in ("ttft_p50_seconds", "tpot_p50_seconds")
        ]
        better = f"{its['reference_is_better_by']:.2f} x"
        work = (f"{median(its):.0f}" for its in results["microseconds_a_token"][name].values())
        table.add_row(name, f"{its['median']:,.0f}", better, *waits, *work)
    console = Console()
    console.print(table)
    console.print(
        f"HTTP / offline: {results['http_to_offline']:.2f} as streams, "
        f"{results['whole_answers_to_offline']:.2f} as whole answers"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--vllm-python", help="the Python of an environment that has vllm")
    parser.add_argument(
        "--vllm-bind", default=f"0-{usable_cpus() - 1}",
        help="VLLM_CPU_OMP_THREADS_BIND; auto, vLLM's default, leaves one processor out",
    )  # fmt: skip
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    report: Report = lambda line: print(f"  {line}", file=sys.stderr, flush=True)  # noqa: E731
    results = measure(given, str(model_folder(given.model)), report)
    title = f"{given.model}, {given.requests} requests, {given.concurrency} clients, "
    title += f"{given.dtype}, {given.threads} threads"
    show(results, title)
    private = ("out", "vllm_python")  # where this machine keeps its files
    kept = {name: value for name, value in vars(given).items() if name not in private}
    name = "servers" if given.model == "bundled" else f"servers-{Path(given.model).name}"
    save(record("servers", kept, results), given.out / f"{name}.json")
    panels = {
        label: {name: its["rounds"] for name, its in results[key].items()}
        for label, key in (
            ("output tokens/s", "output_tokens_per_second"),
            ("time to first token, p50, s", "ttft_p50_seconds"),
            ("time per output token, p50, s", "tpot_p50_seconds"),
        )
    }
    for who, whose in (("answers", "who answers"), ("clients", "the clients")):
        times = {name: its[who] for name, its in results["microseconds_a_token"].items()}
        panels[f"processor time of {whose}, µs a token"] = times
    bar_plot(given.out / f"{name}.png", title, panels, OURS)


if __name__ == "__main__":
    main()

"""`nanovllm bench serve`: load on a server, and what its users get."""

import json
import math
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from nanovllm.cli.bench import Out, Plot, show
from nanovllm.cli.engine import select_code
from nanovllm.cli.errors import Refused
from nanovllm.cli.options import (
    BatchingOptions,
    Code,
    Device,
    Dtype,
    MaxModelLen,
    Model,
    with_groups,
)

if TYPE_CHECKING:
    from nanovllm.serving.load import Record, Slo


@with_groups
def bench_serve(
    base_url: Annotated[
        str | None, typer.Option(help="A server that runs. (default: start one for the run)")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Open loop: requests a second; inf sends all at once. (default: 4)"),
    ] = None,
    burstiness: Annotated[
        float, typer.Option(help="With --rate: 1 is Poisson; less comes in bursts, more is even.")
    ] = 1.0,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Closed loop: so many users, who wait for answers.")
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Requests in all. (default: 100)")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds in which requests are sent, in place of a number.")
    ] = None,
    input_len: Annotated[int, typer.Option(min=1, help="Tokens of a prompt, random.")] = 128,
    output_len: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 64,
    prompts: Annotated[
        Path | None, typer.Option(help="A prompt a line, in turn, in place of random tokens.")
    ] = None,
    slo: Annotated[
        str, typer.Option(help="What a good answer keeps to, in ms: ttft:200,tpot:50,e2e:2000.")
    ] = "",
    warmup: Annotated[int, typer.Option(min=0, help="Requests that do not count.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the arrivals and the prompts.")] = 0,
    served_model: Annotated[
        str | None, typer.Option(help="The name to ask for. (default: the server's first)")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="NANOVLLM_API_KEY", help="What the server asks for.")
    ] = None,
    out: Out = None,
    plot: Plot = None,
    model: Model = None,
    batching: BatchingOptions = BatchingOptions(),  # noqa: B008, frozen
    dtype: Dtype = None,
    device: Device = None,
    max_model_len: MaxModelLen = None,
    code: Code = None,
) -> None:
    """Latencies and goodput of a server under load; --model and what follows it start our own."""
    if rate is not None and concurrency is not None:
        raise Refused("--rate is an open loop and --concurrency a closed one; give one of them.")
    if duration is not None and (num_prompts is not None or rate == math.inf):
        raise Refused(
            "--duration says when sending ends; leave out --num-prompts, and --rate inf, which "
            "sends all at once."
        )
    own = {"model": model, "dtype": dtype, "device": device,
           "max_model_len": max_model_len, "code": code, **batching.given()}  # fmt: skip
    arguments = _arguments(own)
    if base_url and arguments:
        raise Refused(f"{arguments[0]} is for a server of our own; leave it or --base-url out.")
    for name, value in (("--rate", rate), ("--burstiness", burstiness), ("--duration", duration)):
        if value is not None and not value > 0:
            raise Refused(f"{name} must be above 0, got {value:g}.")
    select_code(code)
    from nanovllm.bench.serve_run import run_serve
    from nanovllm.bench.serving import Load
    from nanovllm.bench.stop_signals import unwound_by_signals

    load = Load(
        rate=4.0 if rate is None else rate, burstiness=burstiness, concurrency=concurrency,
        num_prompts=num_prompts or 100, duration=duration, input_len=input_len,
        output_len=output_len,
        prompts=_lines(prompts), slo=_slo(slo), warmup=warmup, seed=seed,
    )  # fmt: skip
    if api_key and not base_url:
        os.environ["NANOVLLM_API_KEY"] = api_key  # what our own server will ask for
    with unwound_by_signals(), Progress(None if duration else load.num_prompts) as progress:
        outcome = run_serve(
            load, progress.done, base_url=base_url and base_url.rstrip("/").removesuffix("/v1"),
            server=arguments, model=served_model, api_key=api_key,
        )  # fmt: skip
    show(outcome, out, plot)


def _arguments(options: dict[str, Any]) -> list[str]:
    """The options of `nanovllm serve` that say the same."""
    found: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            plain = isinstance(value, str | int | float)
            found += [f"--{flag}", str(value) if plain else json.dumps(value)]
    return found


def _lines(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"--prompts {path} cannot be read: {error}.") from None
    found = tuple(line for line in lines if line.strip())
    if not found:
        raise Refused(f"--prompts {path} has no prompt; write one a line.")
    return found


def _slo(text: str) -> "Slo":
    from nanovllm.serving.load import Slo

    try:
        return Slo.parse(text) if text else Slo()
    except ValueError as error:
        raise Refused(f"--slo {text!r} is not an SLO, such as ttft:200,tpot:50: {error}") from None


class Progress:
    """A bar on stderr: answered and failed so far."""

    def __init__(self, count: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self.bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("[red]{task.fields[failed]}[/]"),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self.task = self.bar.add_task("waiting for the server", total=count, failed="")
        self.failed = 0

    def done(self, record: "Record") -> None:
        self.failed += record.error is not None
        failed = f"{self.failed} failed" if self.failed else ""
        self.bar.update(self.task, advance=1, description="requests", failed=failed)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: object, trace: TracebackType | None) -> None:
        self.bar.stop()

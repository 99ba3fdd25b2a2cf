"""`nanovllm profile`: where the time of a model's steps goes, and a trace to look at."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanovllm.cli.engine import load_engine
from nanovllm.cli.errors import Refused
from nanovllm.cli.options import Code, Model
from nanovllm.cli.output_files import check_can_write

if TYPE_CHECKING:
    from nanovllm.llm import LLM
    from nanovllm.performance.interval import Interval
    from nanovllm.performance.profile import Node

STEP = "step"
SHOWN = 12


def profile(
    prompt: Annotated[str, typer.Argument(help="The prompt of each request.")] = "Once upon a time",
    model: Model = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests that run together.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each.")] = 16,
    warmup: Annotated[int, typer.Option(min=0, help="First steps that do not count.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Write a Chrome trace (.json) here.")] = None,
    roofline: Annotated[
        Path | None, typer.Option(help="Draw the operations under this machine's roof here (.png).")
    ] = None,
    compiled: Annotated[bool, typer.Option(help="The compiled step, not the plain one.")] = False,
    code: Code = None,
) -> None:
    """Operations a step, the host's share of the time, and which operations take it (lab 14)."""
    if warmup >= max_tokens:
        raise Refused(f"--warmup {warmup} leaves none of about {max_tokens} steps; take fewer.")
    check_can_write("--out", out)
    check_can_write("--roofline", roofline)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler tells stderr that it runs
    llm = load_engine(code, model=model, enforce_eager=not compiled, max_num_seqs=requests)
    from nanovllm.cli.profile_roofline import show as show_roofline
    from nanovllm.performance.profile import chrome_trace, steps_of, time_tree

    tracks = list(record(llm, prompt, requests, max_tokens))
    steps = [i for i in tracks if i.track == "engine"]
    launched = [i for i in tracks if i.track == "host"]
    device = [i for i in tracks if i.track == "device"] or launched
    found = steps_of(steps, launched, device, warmup)
    if out is not None:
        out.write_text(json.dumps(chrome_trace(tracks)), encoding="utf-8")
    kept = sorted(steps, key=lambda step: step.start)[warmup:]
    inside = [i for i in launched if i.start >= kept[0].start]
    show(llm, found.launches, found.host_share, time_tree([*kept, *inside]).children[STEP])
    if llm.device.type == "cpu":
        show_roofline(inside, llm.dtype, roofline)
    else:
        print("The roofline is measured on CPUs; on a GPU ncu has it: labs/lab14/PROFILERS.md.")


def record(llm: LLM, prompt: str, requests: int, max_tokens: int) -> Iterator[Interval]:
    """Run the requests under torch's profiler; steps, outermost operations and kernels of it."""
    import torch
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as torch_profile

    from nanovllm.cli.profile_roofline import work_of
    from nanovllm.generation.params import SamplingParams
    from nanovllm.performance.interval import Interval

    engine, ids = llm.rung.make_engine(), llm.get_tokenizer().encode(prompt)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    for number in range(requests):
        engine.add_request(ids, params, seed=0, request_id=number)
    with torch_profile(activities=activities, with_flops=True, record_shapes=True) as seen:
        while engine.has_unfinished:
            with record_function(STEP):
                engine.step()
    for event in seen.events() or ():
        start, end = event.time_range.start / 1e6, event.time_range.end / 1e6
        if event.device_type.name != "CPU":
            yield Interval(event.name, start, end, "device")
        elif event.name == STEP:
            yield Interval(STEP, start, end, "engine")
        elif event.cpu_parent is not None and event.cpu_parent.name == STEP:
            flops, moved = work_of(event, llm.dtype.itemsize)
            yield Interval(event.name, start, end, "host", flops=flops, bytes=moved)


def show(llm: LLM, launches: tuple[int, ...], host_share: float, step: Node) -> None:
    """The table: the operations that take most, and what no operation accounts for."""
    from rich.console import Console
    from rich.table import Table

    ordered = sorted(launches)
    table = Table(
        title=f"{llm.name}, {llm.rung.step.partition(':')[0]} step: {step.count} steps of "
        f"{1000 * step.seconds / step.count:.2f} ms, {ordered[len(ordered) // 2]} operations a "
        f"step (median), host share {host_share:.0%}",
    )
    table.add_column("operation")
    for column in ("a step", "ms a step", "share"):
        table.add_column(column, justify="right")

    def row(name: str, calls: str, seconds: float) -> None:
        table.add_row(name, calls, f"{1000 * seconds / step.count:.3f}",
                      f"{seconds / step.seconds:.0%}")  # fmt: skip

    children: list[Any] = sorted(step.children.values(), key=lambda node: -node.seconds)
    for node in children[:SHOWN]:
        row(node.name, f"{node.count / step.count:.1f}", node.seconds)
    row("(no operation: Python)", "", step.own)
    Console().print(table)

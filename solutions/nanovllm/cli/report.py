"""Show many answers: progress while they come, then a table, or JSON."""

import json
import re
import sys
from dataclasses import asdict
from typing import Any

from rich import box, progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nanovllm.cli.screen import safe
from nanovllm.outputs import CompletionOutput, RequestOutput

# Harmless in JSON, but a terminal would obey them; inside a JSON string all may be escaped.
_UNSAFE_IN_JSON = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Progress:
    """A bar on stderr with the few methods of tqdm that LLM uses; silent where no terminal is."""

    def __init__(self, total: int, desc: str = "", **_: Any) -> None:
        console = Console(stderr=True)
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[speed]}"),
            progress.TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(desc, total=total, speed="")
        self.bar.start()

    def update(self, n: int = 1) -> None:
        self.bar.advance(self.task, n)

    def set_postfix_str(self, text: str) -> None:
        self.bar.update(self.task, speed=text)

    def close(self) -> None:
        self.bar.stop()


def print_json(outputs: list[RequestOutput]) -> None:
    """Print one JSON object a request."""
    for output in outputs:
        text = json.dumps(_as_dict(output), ensure_ascii=False)
        print(_UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def _as_dict(output: RequestOutput) -> dict[str, Any]:
    data = asdict(output)
    if output.metrics:
        data["metrics"]["tokens_per_second"] = output.metrics.tokens_per_second
    return data


def print_table(outputs: list[RequestOutput], labels: list[str | None]) -> None:
    """Print prompt and answers, as a table in a terminal and as plain text elsewhere."""
    prompts = [_label(output, label) for output, label in zip(outputs, labels, strict=True)]
    if sys.stdout.isatty():
        _print_rich(outputs, prompts)
    else:
        for i, (output, prompt) in enumerate(zip(outputs, prompts, strict=True), 1):
            for answer in output.outputs:
                print(f"[{_number(i, answer, output)}] {prompt}\n{safe(answer.text)}\n")
    sys.stdout.flush()
    print(totals(outputs), file=sys.stderr)


def _label(output: RequestOutput, label: str | None) -> str:
    text = label if label is not None else output.prompt
    return safe(text) if text is not None else f"<{len(output.prompt_token_ids)} token ids>"


def _number(prompt: int, answer: CompletionOutput, output: RequestOutput) -> str:
    return f"{prompt}.{answer.index + 1}" if len(output.outputs) > 1 else f"{prompt}"


def _print_rich(outputs: list[RequestOutput], prompts: list[str]) -> None:
    scored = any(a.cumulative_logprob is not None for o in outputs for a in o.outputs)
    table = Table(box=box.ROUNDED, show_lines=True, expand=True)
    table.add_column("#", justify="right", style="dim")
    table.add_column("prompt", style="cyan", ratio=2)
    table.add_column("answer", ratio=5)
    table.add_column("tokens", justify="right")
    table.add_column("end")
    if scored:
        table.add_column("log p", justify="right")
    for i, (output, prompt) in enumerate(zip(outputs, prompts, strict=True), 1):
        for answer in output.outputs:
            row = [
                Text(_number(i, answer, output)),
                Text(prompt if answer is output.outputs[0] else ""),
                Text(safe(answer.text).strip()),
                Text(str(len(answer.token_ids))),
                Text(answer.finish_reason or ""),
            ]
            if scored and answer.cumulative_logprob is not None:
                row.append(Text(f"{answer.cumulative_logprob:.2f}"))
            table.add_row(*row)
    Console().print(table)


def totals(outputs: list[RequestOutput]) -> str:
    """Return one line: prompts, tokens, time and speed of the whole run."""
    metrics = [output.metrics for output in outputs if output.metrics]
    generated = sum(m.generation_tokens for m in metrics)
    seconds = max(m.latency for m in metrics)
    return (
        f"{len(outputs)} prompt{'s' * (len(outputs) != 1)}, "
        f"{sum(m.prompt_tokens for m in metrics)} prompt tokens, "
        f"{generated} tokens generated in {seconds:.2f} s, "
        f"{generated / seconds if seconds else 0:.1f} tokens/s"
    )

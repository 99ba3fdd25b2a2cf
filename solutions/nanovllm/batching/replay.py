"""A run's events as a picture: a row a request, a column a step; in the terminal or as HTML."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

from nanovllm.batching.events import (
    Aborted,
    Admitted,
    ChunkRun,
    EngineEvent,
    Failed,
    Preempted,
    Queued,
    Stepped,
)
from nanovllm.generation.events import Finished

Key = tuple[int, int]  # request id and sample
LEGEND = "█ several tokens  ▪ one token  . waits or idles  x preempted  ! failed  - aborted"


class Replay:
    """What happened in a run, step by step, from nothing but its events."""

    def __init__(self, events: Iterable[EngineEvent]) -> None:
        self.steps: list[Stepped] = []
        self.marks: dict[Key, list[tuple[int, str]]] = {}  # (step, what happened before it ran)
        for event in events:
            if isinstance(event, Stepped):
                self.steps.append(event)
                for chunk in event.chunks:
                    self.marks.setdefault((chunk.request_id, chunk.index), [])
            elif isinstance(event, Queued | Admitted | Preempted | Aborted | Failed | Finished):
                key = event.request_id, event.index
                name = type(event).__name__.lower()
                self.marks.setdefault(key, []).append((len(self.steps), name))

    @property
    def requests(self) -> list[Key]:
        """Every sample that appears, in order."""
        return sorted(self.marks)

    def chunks(self, step: int) -> dict[Key, ChunkRun]:
        """What a step computed, by sample."""
        return {(c.request_id, c.index): c for c in self.steps[step].chunks}

    def row(self, key: Key) -> str:
        """One sample's row: a character a step (see LEGEND)."""
        present, cells = False, []
        marks = self.marks[key]
        computed = [step for step in range(len(self.steps)) if key in self.chunks(step)]
        seen = max([*computed, *(at for at, name in marks if name != "finished")], default=0)
        for step in range(len(self.steps)):
            names = [name for at, name in marks if at == step]
            if "queued" in names or "admitted" in names:
                present = True
            chunk = self.chunks(step).get(key)
            if chunk is not None:
                cell = "█" if chunk.length > 1 else "▪"
            elif "preempted" in names:
                cell = "x"
            elif "failed" in names:
                cell = "!"
            elif "aborted" in names:
                cell = "-"
            else:
                cell = "." if present else " "
            cells.append(cell)
            # the end of a request is reported before the Stepped of the step it ended in
            if {"finished", "failed", "aborted"} & set(names):
                present = False
            elif step >= seen and computed and marks[-1][1] in ("queued", "admitted"):
                present = False  # a simulated run reports no end: it ended with its last chunk
        return "".join(cells).rstrip()

    def text(self, first: int = 0, last: int | None = None) -> str:
        """The steps first .. last - 1 as lines for a terminal.

        >>> step = Stepped((ChunkRun(0, 0, 0, 5),), 1, 0, 8, 3, 0.0, 1.0)
        >>> print(Replay([Queued(0, 0, 0.0), step]).text())
        step      0
        request 0 █
        tokens    5
        """
        last = len(self.steps) if last is None else min(last, len(self.steps))
        names = [str(r) if i == 0 else f"{r}.{i}" for r, i in self.requests]
        width = max([len("request ") + len(name) for name in names] + [9]) + 1
        ruler = "".join(f"{step:<5}" for step in range(first, last, 5))
        lines = ["step".ljust(width) + ruler[: max(last - first, len(str(first)))]]
        for key, name in zip(self.requests, names, strict=True):
            lines.append(f"request {name}".ljust(width) + self.row(key)[first:last])
        counts = [sum(c.length for c in step.chunks) for step in self.steps[first:last]]
        tall = max([len(str(n)) for n in counts] + [1])
        for digit in range(tall):  # the number of tokens, written downwards
            head = "tokens" if digit == 0 else ""
            lines.append(head.ljust(width) + "".join(str(n).rjust(tall)[digit] for n in counts))
        return "\n".join(line.rstrip() for line in lines)

    def html(self, title: str = "Replay") -> str:
        """The whole run as one self-contained page, times to scale; hover over a chunk."""
        return _page(title, self)

    def save(self, path: str | Path, title: str = "Replay") -> Path:
        """Write the page; where it is."""
        path = Path(path)
        path.write_text(self.html(title), encoding="utf-8")
        return path


def first_difference(actual: Sequence[object], expected: Sequence[object]) -> int | None:
    """The first step at which two runs differ; None if they are the same.

    >>> first_difference([1, 2, 3], [1, 5, 3]), first_difference([1], [1, 2])
    (1, 1)
    """
    for step, (a, b) in enumerate(zip(actual, expected, strict=False)):
        if a != b:
            return step
    return None if len(actual) == len(expected) else min(len(actual), len(expected))


_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 24px; background: #fff; color: #222 }
svg { background: #fafafa; border: 1px solid #ddd }
text { font: 11px system-ui, sans-serif; fill: #444 }
.prompt { fill: #d97706 } .decode { fill: #2563eb } .again { fill: #9333ea }
.wait { fill: #ddd } .mark { fill: #dc2626; font-weight: bold }
.key { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 14px }
""".strip()
_WIDTH, _LEFT, _ROW = 1000, 90, 16


def _page(title: str, replay: Replay) -> str:
    start = replay.steps[0].started if replay.steps else 0.0
    end = replay.steps[-1].time if replay.steps else 1.0
    scale = _WIDTH / max(end - start, 1e-9)

    def x(moment: float) -> float:
        return _LEFT + (moment - start) * scale

    shapes: list[str] = []
    for line, key in enumerate(replay.requests):
        top = 10 + line * _ROW
        name = f"request {key[0]}" + (f".{key[1]}" if key[1] else "")
        shapes.append(f'<text x="4" y="{top + 11}">{name}</text>')
        shapes += _row(replay, key, top, x)
    bottom = 10 + len(replay.requests) * _ROW
    shapes += _load(replay, bottom + 14, x)
    height = bottom + 90
    legend = "".join(
        f'<span class="key" style="background:{colour}"></span>{what}'
        for colour, what in (
            ("#d97706", "prompt"),
            ("#2563eb", "decode"),
            ("#9333ea", "computed again after preemption"),
            ("#ddd", "waits"),
        )
    )
    facts = f"{len(replay.steps)} steps, {len(replay.requests)} requests, {end - start:.4g} s"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><p>{facts}.{legend}, "
        f"<b>x</b> preempted, <b>!</b> failed, <b>-</b> aborted</p>"
        f'<svg width="{_WIDTH + _LEFT + 20}" height="{height}">{"".join(shapes)}</svg>'
        "</body></html>\n"
    )


def _row(replay: Replay, key: Key, top: int, x: Callable[[float], float]) -> list[str]:
    shapes, computed = [], 0
    row = replay.row(key)
    for number, step in enumerate(replay.steps):
        left, width = x(step.started), x(step.time) - x(step.started)
        chunk = replay.chunks(number).get(key)
        place = f'x="{left:.2f}" y="{top + 1}" width="{max(width - 0.4, 0.4):.2f}" height="13"'
        if chunk is None:
            cell = row[number] if number < len(row) else " "
            if cell in ".x":
                shapes.append(f'<rect class="wait" {place}/>')
            if cell in "x!-":
                shapes.append(f'<text class="mark" x="{left:.2f}" y="{top + 11}">{cell}</text>')
            continue
        end = chunk.start + chunk.length
        kind = "again" if end <= computed else "decode" if chunk.length == 1 else "prompt"
        computed = max(computed, end)
        tip = f"step {number}: tokens {chunk.start} to {end - 1} ({chunk.length})"
        shapes.append(f'<rect class="{kind}" {place}><title>{tip}</title></rect>')
    return shapes


def _load(replay: Replay, top: int, x: Callable[[float], float]) -> list[str]:
    """Two strips below the rows: tokens of each step, and how many run and wait."""
    shapes = []
    counts = [sum(chunk.length for chunk in step.chunks) for step in replay.steps]
    queue = [step.running + step.waiting for step in replay.steps]
    strips = (("tokens", counts, "#d97706"), ("requests", queue, "#2563eb"))
    for strip, (name, values, colour) in enumerate(strips):
        base, most = top + 28 + strip * 36, max([*values, 1])
        shapes.append(f'<text x="4" y="{base}">{name} (max {most})</text>')
        for step, value in zip(replay.steps, values, strict=True):
            height = 26 * value / most
            width = max(x(step.time) - x(step.started) - 0.4, 0.4)
            text = f"{value} {name}, {step.running} run, {step.waiting} wait, "
            text += f"{step.free_tokens} places free"
            shapes.append(
                f'<rect fill="{colour}" x="{x(step.started):.2f}" y="{base - height:.2f}" '
                f'width="{width:.2f}" height="{height:.2f}"><title>{text}</title></rect>'
            )
    return shapes

"""A run's events as a picture: a row a request, a column a step; in the terminal or as HTML."""

from collections.abc import Iterable, Sequence
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
        self.hits: dict[tuple[Key, int], int] = {}  # tokens found in the store, by sample and step
        entering: set[Key] = set()  # admitted, and not computed since
        self.marks: dict[Key, list[tuple[int, str]]] = {}  # (step, what happened before it ran)
        for event in events:
            if isinstance(event, Stepped):
                self.steps.append(event)
                for chunk in event.chunks:
                    key = chunk.request_id, chunk.index
                    self.marks.setdefault(key, [])
                    if key in entering and chunk.start:
                        self.hits[key, len(self.steps) - 1] = chunk.start
                    entering.discard(key)
            elif isinstance(event, Queued | Admitted | Preempted | Aborted | Failed | Finished):
                key = event.request_id, event.index
                name = type(event).__name__.lower()
                self.marks.setdefault(key, []).append((len(self.steps), name))
                if isinstance(event, Admitted):
                    entering.add(key)

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
        from nanovllm.batching.replay_page import page

        return page(title, self)

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

"""Draw answers: live with a status line in a terminal, as plain text elsewhere."""

import re
import sys
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from nanovllm.cli.meter import Meter
from nanovllm.outputs import StreamOutput

# What a terminal could obey: C0 but tab and newline, DEL, C1, and marks that reorder a line.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_REDRAWS_PER_SECOND = 12


def safe(text: str) -> str:
    """Return `text` with every control character replaced by a visible symbol.

    >>> safe("a\\x1b[31mb\\tc")
    'a␛[31mb\\tc'
    """
    return _UNSAFE.sub(_symbol, text)


def _symbol(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"<U+{code:04X}>"


class PlainAnswer:
    """Write pieces to stdout as they come and one line of status to stderr at the end."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.ends_line = True

    def __enter__(self) -> Self:
        return self

    def push(self, step: StreamOutput) -> None:
        self.meter.push(step)
        if step.text:
            text = safe(step.text)
            self.ends_line = text.endswith("\n")
            sys.stdout.write(text)
            sys.stdout.flush()

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is BrokenPipeError:
            return
        if not self.ends_line or self.meter.tokens:
            sys.stdout.write("" if self.ends_line and self.meter.tokens else "\n")
            sys.stdout.flush()
        if self.meter.tokens:
            print(self.meter.plain(), file=sys.stderr)


class LiveAnswer:
    """Print lines of the answer as they fill, and redraw only the unfinished one and the status.

    So the region that moves is never taller than the screen, and the answer stays in the
    terminal's own history.
    """

    def __init__(self, meter: Meter, console: Console) -> None:
        self.meter, self.console = meter, console
        self.tail = ""
        self.live = Live(
            console=console,
            transient=True,
            refresh_per_second=_REDRAWS_PER_SECOND,
            get_renderable=self._region,
        )

    def __enter__(self) -> Self:
        self.live.__enter__()
        return self

    def push(self, step: StreamOutput) -> None:
        self.meter.push(step)
        if step.text:
            *lines, tail = (self.tail + safe(step.text).expandtabs(4)).split("\n")
            *full, last = Text(tail).wrap(self.console, self.console.width) or [Text("")]
            self.tail = last.plain  # before printing, which redraws the region
            for line in [*lines, *(line.plain for line in full)]:
                self._print(line)

    def _print(self, line: str) -> None:
        self.console.print(Text(line), highlight=False)

    def _region(self) -> Text | Group:
        status = self.meter.line(self.console.width)
        return Group(Text(self.tail), status) if self.tail else status

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.__exit__(kind, error, trace)
        if self.tail:
            self._print(self.tail)
        if self.meter.tokens:
            self.console.print(self.meter.line(self.console.width))


def answer_screen(meter: Meter) -> PlainAnswer | LiveAnswer:
    """Return the screen that fits stdout."""
    console = Console()
    alive = sys.stdout.isatty() and not console.is_dumb_terminal
    return LiveAnswer(meter, console) if alive else PlainAnswer(meter)


def complain(sentence: str) -> None:
    """Print one sentence to stderr."""
    print(f"nanovllm: {safe(sentence)}", file=sys.stderr)

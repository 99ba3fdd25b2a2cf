"""A recording of `lab watch` from red to green, as one small SVG that moves without a script."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grader.authoring.mistakes import bank, plant
from grader.course.errors import LabError
from grader.course.lab_toml import Lab, find_lab
from grader.course.paths import ROOT

LAB, TASK, MISTAKE = "02", 1, "rms-eps-outside-root"
COLUMNS, SECONDS = 92, 4  # of the terminal; that a frame is shown
CLEARED, FOOTER = "\x1b[2J", "q quit"
LIMIT = 180  # seconds that a run of the checks may take
FRAME = (
    '<svg class="frame" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    "<style>.{unique_id}-matrix {{ font: {char_height}px/{line_height}px monospace; }} {styles}"
    '</style><defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" '
    'height="{terminal_height}"/></clipPath>{lines}</defs>{chrome}'
    '<g transform="translate({terminal_x}, {terminal_y})" '
    'clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}'
    '<g class="{unique_id}-matrix">{matrix}</g></g></svg>'
)


class Terminal:
    """A program in a terminal of its own, and what it has written since it last cleared."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)

    def screen(self) -> str:
        """Wait for the end of the checks; raises LabError where it does not come."""
        said, end = "", time.monotonic() + LIMIT
        while FOOTER not in re.sub(r"\x1b\[[\d;]*m", "", said.rpartition(CLEARED)[2]):
            ready, _, _ = select.select([self.ours], [], [], 1)
            if ready:
                said += os.read(self.ours, 65536).decode(errors="replace")
            elif time.monotonic() > end or self.process.poll() is not None:
                raise LabError(f"`lab watch` did not come to an end; it said: {said[-500:]}")
        return said.rpartition(CLEARED)[2]

    def quit(self) -> None:
        os.write(self.ours, b"q")
        self.process.wait(timeout=30)
        os.close(self.ours)


def record() -> list[str]:
    """The screens: the untouched stub, a known mistake with its card, the solution."""
    lab = find_lab(LAB)
    with tempfile.TemporaryDirectory() as folder:
        mine = Path(folder) / "mine"
        environment = {
            **os.environ, "NANOVLLM_MINE": str(mine), "NANOVLLM_STATE": f"{folder}/state",
            "TERM": "xterm-256color", "COLUMNS": str(COLUMNS),
        }  # fmt: skip
        words = [sys.executable, "-m", "grader.student.lab_command"]
        subprocess.run([*words, "start", LAB], cwd=ROOT, env=environment, check=True)
        terminal = Terminal([*words, "watch", LAB, "--task", str(TASK)], environment)
        screens = [terminal.screen()]
        for solution in (_with_mistake(lab, Path(folder)), lab.reference):
            name = "norms.py"
            (mine / lab.package / name).write_bytes((solution / name).read_bytes())
            screens.append(terminal.screen())
        terminal.quit()
    return [_readable(screen).replace(str(mine), "nanovllm") for screen in screens]


def _readable(said: str) -> str:
    """Without moves of the cursor; of a line that was written over, its last text."""
    lines = re.sub(r"\x1b\[[\d;]*[A-Za-ln-z]", "", said).split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).rstrip()


def _with_mistake(lab: Lab, folder: Path) -> Path:
    [mistake] = [one for one in bank(lab) if one.name == MISTAKE]
    plant(mistake, lab, folder / "planted")
    return folder / "planted" / lab.package


def moving(screens: list[str]) -> str:
    """The screens as one picture that shows them in turn; the last alone where nothing moves."""
    height = max(len(screen.splitlines()) for screen in screens)
    frames = [_frame(screen, height, number) for number, screen in enumerate(screens)]
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', frames[0])
    share = 100 / len(frames)
    style = (
        f".frame {{ opacity: 0; animation: shown {SECONDS * len(frames)}s step-end infinite; }}"
        f"@keyframes shown {{ 0% {{ opacity: 1; }} {share:.2f}% {{ opacity: 0; }} }}"
        "@media (prefers-reduced-motion: reduce) { .frame { animation: none; }"
        " .frame:last-child { opacity: 1; } }"
    )
    style += "".join(
        f".frame:nth-of-type({n}) {{ animation-delay: {SECONDS * (n - 1)}s; }}"
        for n in range(1, len(frames) + 1)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {box[1]} {box[2]}">'
        f"<title>lab watch, from red to green</title><style>{style}</style>"
        f"{''.join(frames)}</svg>\n"
    )


def _frame(screen: str, height: int, number: int) -> str:
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    lines = screen.splitlines()
    for line in [*lines, *[""] * (height - len(lines))]:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop")
    title = f"lab watch {LAB}"
    return console.export_svg(title=title, code_format=FRAME, unique_id=f"f{number}")

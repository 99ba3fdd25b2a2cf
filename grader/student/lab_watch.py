"""`lab watch`: the checks run again on every save, single keys do the rest."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grader.course.errors import LabError, sentence_of
from grader.course.lab_toml import Lab
from grader.course.terminal import Keys
from grader.student import run_pytest
from grader.student_files import lab_state
from grader.student_files.lab_folder import require_started, shown

HELP = {"h": "hint", "l": "list", "r": "reset", "Enter": "run again", "q": "quit"}
POLL_SECONDS = 0.1
SAVED = (".py", ".html")  # what labs are written in


class Saves:
    """The names of files saved in a folder, gathered by a thread of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem = ""
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._gather, daemon=True)

    def __enter__(self) -> Saves:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=2)

    def take(self) -> list[str]:
        """The files saved since the last call."""
        with self._lock:
            names, self._names = sorted(self._names), set()
        return names

    def _gather(self) -> None:
        from watchfiles import watch

        try:
            for changes in watch(
                self.folder,
                stop_event=self._stop,
                debounce=300,
                step=50,
                rust_timeout=500,
                raise_interrupt=False,
            ):
                with self._lock:
                    self._names |= {Path(path).name for _, path in changes if _counts(path)}
        except (OSError, RuntimeError) as error:
            self.problem = sentence_of(error) if isinstance(error, OSError) else str(error)


def _counts(path: str) -> bool:
    """Whether a change is a save: editors write other files beside it, and so may the code."""
    name = Path(path).name
    return not name.startswith(".") and name.endswith(SAVED)


class Watch:
    """One watched lab, in a terminal or (without keys) in a pipe."""

    def __init__(
        self,
        lab: Lab,
        task: int | None,
        mine: bool,
        console: Console,
        actions: dict[str, Callable[[], None]],
    ) -> None:
        self.lab, self.task, self.mine = lab, task, mine
        self.console, self.actions = console, actions
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Until q or Ctrl-C; the checks under way are ended and the terminal is put back."""
        require_started(self.lab)
        run_pytest.command(self.lab, self.task, self.mine)  # refuses before anything is watched
        try:
            watched = self.lab.mine.parent if self.mine else self.lab.mine
            with Keys() as keys, Saves(watched) as saves:
                self._loop(keys, saves)
        except KeyboardInterrupt:
            self.console.print()
        finally:
            self._end()
        self.console.print(f"stopped watching {shown(self.lab.mine)}", markup=False)

    def _loop(self, keys: Keys, saves: Saves) -> None:
        self._begin("")
        waiting = ""
        while True:
            key = keys.get(POLL_SECONDS)
            if key in ("q", "Q"):
                return
            waiting = key.lower() or waiting
            if saves.problem or not self.lab.mine.is_dir():
                raise LabError(
                    f"{shown(self.lab.mine)} can no longer be watched: "
                    f"{saves.problem or 'it is gone'}; `lab start` brings stubs back."
                )
            names = saves.take()
            if names:
                warning = lab_state.record_saves()
                self._end()
                self._begin(f"saved {', '.join(names)}", warning)
            elif self.process is not None and self.process.poll() is not None:
                self.process = None
                self._footer(keys)
            elif self.process is None and waiting:
                self._act(waiting, keys)
                waiting = ""

    def _act(self, key: str, keys: Keys) -> None:
        if key in ("\n", "\r"):
            self._begin("")
            return
        if key in self.actions:
            with keys.lines():
                try:
                    self.actions[key]()
                except LabError as error:
                    self.console.print(str(error), style="yellow", markup=False)
                except OSError as error:
                    self.console.print(sentence_of(error), style="yellow", markup=False)
        self._footer(keys)

    def _begin(self, reason: str, warning: str = "") -> None:
        if self.console.is_terminal:
            self.console.clear()
        now = datetime.now().strftime("%H:%M:%S")
        parts = [f"{self.lab.key} {self.lab.title}", reason, now]
        self.console.print(Text(" · ".join(filter(None, parts)), style="bold cyan"))
        if warning:
            self.console.print(warning, style="yellow", markup=False)
        self.process = run_pytest.begin(self.lab, self.task, self.mine, apart=True)

    def _end(self) -> None:
        if self.process is not None:
            run_pytest.end(self.process)
            self.process = None

    def _footer(self, keys: Keys) -> None:
        line = Text.assemble(("watching", "bold cyan"))
        for key, meaning in HELP.items() if keys.available else [("Ctrl-C", "quit")]:
            line.append(" · ", style="dim").append(key, style="bold").append(f" {meaning}")
        self.console.print(line)

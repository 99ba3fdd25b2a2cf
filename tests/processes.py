"""Run `nanovllm`: in this process, in one of its own, or in a pseudo-terminal.

Processes of their own are forked from a server that has imported torch, which else takes most of
a short run; each imports the course's own package anew, under the environment it is given.
"""

import contextlib
import fcntl
import io
import multiprocessing
import os
import pty
import re
import runpy
import select
import sys
import tempfile
import termios
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from grader.checks.run_checks import PRELOADED, fresh_processes

ROOT = Path(__file__).parent.parent
OF_THE_COURSE = {"grader", "models", "nanovllm", "tests"}
_SERVER = multiprocessing.get_context("forkserver")
# A process has one such server, whoever starts it: runs of checks fork from this one too.
_SERVER.set_forkserver_preload([*PRELOADED, "typer.main", "rich.live", "rich.progress"])


def lines_of(program: str, *words: str, env: dict[str, str]) -> list[str]:
    """What a program prints, in a fork that has the heavy imports done; its errors are raised."""
    [lines] = fresh_processes(_lines, [(program, words, env)], 1)
    return lines


def _lines(work: tuple[str, tuple[str, ...], dict[str, str]]) -> list[str]:
    program, words, env = work
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c", *words]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(program, {"__name__": "__main__"})
    except BaseException:  # not every error can be sent to the process that waits
        raise AssertionError(said.getvalue() + traceback.format_exc()) from None
    return said.getvalue().splitlines()


@dataclass(frozen=True)
class Done:
    """How a run ended."""

    returncode: int
    stdout: str
    stderr: str


def environment(**more: str) -> dict[str, str]:
    """The environment of a run: the reference's code, offline, one thread."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NANOVLLM_", "PYTEST_"))}
    return kept | {
        "PYTHONPATH": str(ROOT), "NANOVLLM_CODE": "reference", "HF_HUB_OFFLINE": "1",
        "NANOVLLM_ENFORCE_EAGER": "1",
        "OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", **more,
    }  # fmt: skip


def run(*args: object, stdin: str | bytes = "") -> Done:
    """Run the command in this process, which is quick; it must not select code (--code)."""
    from nanovllm.cli import main

    given = stdin if isinstance(stdin, bytes) else stdin.encode()
    streams = [io.TextIOWrapper(io.BytesIO(data), "utf-8") for data in (given, b"", b"")]
    saved = sys.stdin, sys.argv
    sys.stdin, sys.argv = streams[0], ["nanovllm", *map(str, args)]
    try:
        with contextlib.redirect_stdout(streams[1]), contextlib.redirect_stderr(streams[2]):
            main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdin, sys.argv = saved
    for stream in streams[1:]:
        stream.flush()
    return Done(code, *(stream.buffer.getvalue().decode() for stream in streams[1:]))


def run_apart(
    *args: object,
    stdin: str | bytes = "",
    env: dict[str, str] | None = None,
    interrupt_after: str = "",
) -> Done:
    """Run the command in its own process, with a Ctrl-C once its stdout holds `interrupt_after`."""
    return _forked(_child, ([str(a) for a in args], environment(**(env or {}))), stdin,
                   interrupt_after)  # fmt: skip


def run_copy(root: Path, *words: str, cwd: Path, env: dict[str, str], stdin: str) -> Done:
    """Python with these words, `-m` or `-c` first, where the course is the copy at `root`."""
    return _forked(_child_of_copy, (list(words), env, [cwd, root]), stdin)


def _forked(
    child: Callable[..., None], args: tuple, stdin: str | bytes, interrupt_after: str = ""
) -> Done:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        for file in files:
            file.touch()
        files[0].write_bytes(stdin if isinstance(stdin, bytes) else stdin.encode())
        process = _SERVER.Process(target=child, args=(*args, [str(file) for file in files]))
        process.start()
        while interrupt_after and process.is_alive():
            if interrupt_after in files[1].read_text("utf-8", "replace"):
                os.kill(process.pid, 2)
                break
            time.sleep(0.02)
        process.join(300)
        texts = [file.read_bytes().decode("utf-8", "replace") for file in files[1:]]
        return Done(process.exitcode, *texts)


def _child_of_copy(
    words: list[str], env: dict[str, str], places: list[Path], paths: list[str]
) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] in OF_THE_COURSE]:
        del sys.modules[name]
    sys.path[:] = [*map(str, places), *(path for path in sys.path if Path(path) != ROOT)]
    os.chdir(places[0])
    _take_over(env, paths)
    sys.argv = words[1:]
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        exec(words[1], {"__name__": "__main__"})


def _child(args: list[str], env: dict[str, str], paths: list[str]) -> None:
    _take_over(env, paths)
    sys.argv = ["nanovllm", *args]
    from nanovllm.cli import main

    main()


def _take_over(env: dict[str, str], paths: list[str]) -> None:
    """Make this fork's environment and standard streams those of a process of its own."""
    os.environ.clear()
    os.environ.update(env)
    in_terminal = len(set(paths)) == 1
    if in_terminal:
        os.setsid()
    modes = [os.O_RDONLY, os.O_WRONLY, os.O_WRONLY]
    for number, (path, mode) in enumerate(zip(paths, modes, strict=True)):
        os.dup2(os.open(path, os.O_RDWR if in_terminal else mode), number)
    if in_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    # ruff: noqa: SIM115, these files stay open
    sys.stdin = open(0, encoding=encoding, closefd=False)
    sys.stdout, sys.stderr = (
        open(number, "w", encoding=encoding, errors=errors, buffering=1, closefd=False)
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )


class Terminal:
    """The command in a pseudo-terminal, typed to and read like a person would."""

    def __init__(self, *args: object, columns: int = 100) -> None:
        self.master, slave = pty.openpty()
        paths = [os.ttyname(slave)] * 3
        self.process = _SERVER.Process(
            target=_child, args=([str(a) for a in args], environment(COLUMNS=str(columns)), paths)
        )
        self.process.start()
        self.slave = slave
        self.seen, self.mark = "", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join(60)
        os.close(self.slave)
        os.close(self.master)

    def type(self, text: str) -> None:
        """Type; what comes before the next `until` counts as an answer to it."""
        self.mark = len(self.seen)
        os.write(self.master, text.encode())

    def interrupt(self, pattern: str) -> str:
        """Press Ctrl-C, again if nothing happens, until the pattern shows.

        A signal that comes after the prompt is drawn and before readline waits is not seen until
        the next key; a person presses again too.
        """
        self.type("\x03")
        for _ in range(20):
            with contextlib.suppress(AssertionError):
                return self.until(pattern, seconds=3)
            os.write(self.master, b"\x03")
        return self.until(pattern)

    def until(self, pattern: str, seconds: float = 120) -> str:
        """Read until the pattern shows in what came since the last `type`; return all that."""
        end = time.monotonic() + seconds
        while not re.search(pattern, plain(self.seen[self.mark :]), re.DOTALL):
            if not self._read(end):
                raise AssertionError(f"{pattern!r} did not come in:\n{self.seen[self.mark :]!r}")
        return plain(self.seen[self.mark :])

    def rest(self) -> tuple[str, int]:
        """Read to the end; return all that was ever sent to the screen, and the exit code."""
        end = time.monotonic() + 120
        while self._read(end):
            pass
        self.process.join(60)
        return self.seen, self.process.exitcode

    def _read(self, end: float) -> bool:
        """Read what there is; False when the program has ended and all is read, or time is up."""
        while time.monotonic() < end:
            alive = self.process.is_alive()
            ready, _, _ = select.select([self.master], [], [], 0.2 if alive else 0)
            if ready:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
                    return True
            if not alive:
                return False
        return False


def plain(screen: str) -> str:
    """What a screen says, without the sequences that move, colour and erase."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen)

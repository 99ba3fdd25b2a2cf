"""The labs as their `lab.toml` files describe them."""

from __future__ import annotations

import json
import shlex
import tomllib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from grader.course.errors import LabError
from grader.course.paths import LABS, REFERENCE, student_package


class CatalogError(LabError):
    """A lab that does not exist or a lab.toml that cannot be used."""


@dataclass(frozen=True)
class Task:
    """One graded task of a lab; `symbols` are the bodies that the student writes."""

    id: int
    title: str
    points: int
    minutes: int  # an estimate: by grader/authoring/hours.py, where lab.toml has a difficulty
    symbols: tuple[str, ...]
    needs: tuple[int, ...] = ()
    difficulty: int = 0  # 1 a plain transcription, 2 needs thought, 3 a design of one's own
    runs_on: tuple[str, ...] = ()  # lower labs for which no stand-in will do
    machine: str = ""  # "triton": written in Triton, so meant for a GPU


@dataclass(frozen=True)
class Lab:
    """One lab: its number, its subpackage of nanovllm, its tasks, and those its demo needs."""

    number: int
    title: str
    package: str
    first: str
    tasks: tuple[Task, ...]
    demo: tuple[int, ...] = ()  # the tasks that its demo needs
    machine: str = ""  # of all of its tasks
    home: Path = LABS  # the folder of its folder: that of a kept release while it grades packs

    @property
    def key(self) -> str:
        return f"lab{self.number:02d}"

    @property
    def folder(self) -> Path:
        return self.home / self.key

    @property
    def stubs(self) -> Path:
        return self.folder / "stubs"

    @property
    def reference(self) -> Path:
        return REFERENCE / self.package

    @property
    def mine(self) -> Path:
        """The student's folder of this lab, whether it exists yet or not."""
        return student_package() / self.package

    @property
    def started(self) -> bool:
        return self.mine.is_dir() and any(self.mine.glob("*.py"))

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)

    @property
    def minutes(self) -> int:
        return sum(task.minutes for task in self.tasks)

    def task(self, number: int) -> Task:
        for task in self.tasks:
            if task.id == number:
                return task
        known = ", ".join(str(task.id) for task in self.tasks)
        raise CatalogError(f"{self.key} has no task {number}; its tasks are {known}.")

    @cached_property
    def task_of_symbol(self) -> dict[str, Task]:
        return {symbol: task for task in self.tasks for symbol in task.symbols}


def read_lab(folder: Path) -> Lab:
    """Read one `lab.toml`; again only when the file has changed."""
    path = folder / "lab.toml"
    try:
        found = path.stat()
    except FileNotFoundError:
        raise CatalogError(
            f"{path} is missing; restore it with `git checkout {shlex.quote(str(path))}`."
        ) from None
    checks = folder / "checks.json"
    built = checks.stat().st_mtime_ns if checks.is_file() else 0
    return _parsed(path, found.st_mtime_ns, found.st_size, built)


def _estimates(path: Path) -> dict[str, int]:
    """The minutes by task that the builder recorded; a release has no solutions to count."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")).get("minutes", {}))
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


@lru_cache(256)
def _parsed(path: Path, modified: int, size: int, built: int) -> Lab:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        minutes = _estimates(path.with_name("checks.json"))
        tasks = tuple(
            Task(
                id=entry["id"],
                title=entry["title"],
                points=entry["points"],
                minutes=entry.get("minutes", minutes.get(str(entry["id"]), 0)),
                symbols=tuple(entry["symbols"]),
                needs=tuple(entry.get("needs", ())),
                difficulty=0 if "minutes" in entry else entry["difficulty"],
                runs_on=tuple(entry.get("runs_on", ())),
                machine=entry.get("machine", data.get("machine", "")),
            )
            for entry in data["task"]
        )
        return Lab(
            data["number"],
            data["title"],
            data["package"],
            data["first"],
            tasks,
            tuple(data.get("demo", ())),
            data.get("machine", ""),
            path.parent.parent,
        )
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise CatalogError(f"{path} cannot be used: {error!r}.") from None


def labs() -> list[Lab]:
    """All labs that have landed, in order."""
    return [read_lab(path.parent) for path in sorted(LABS.glob("lab[0-9][0-9]/lab.toml"))]


def find_lab(name: str | int) -> Lab:
    """The lab called `1`, `01` or `lab01`."""
    text = str(name).lower().removeprefix("lab").strip()
    known = labs()
    for lab in known:
        if text.isdigit() and int(text) == lab.number:
            return lab
    raise CatalogError(
        f"there is no lab {name!r}; the labs are {', '.join(lab.key for lab in known)}."
    )

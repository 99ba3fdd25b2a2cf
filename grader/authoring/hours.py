"""How long a lab takes: an estimate by one rule, and the medians of a class that has done it.

The rule: reading the handout, and for each solution line that is not blank or a comment so many
minutes as its task is difficult. They hold thinking, running the checks and mending.
"""

from __future__ import annotations

import ast
import json
import math
import re
import statistics
import zipfile
from collections import defaultdict
from pathlib import Path

from grader.course.lab_toml import Lab, labs
from grader.course.stubs import definitions, regions

WORDS_A_MINUTE = 100  # technical text, in a second language
MINUTES_A_LINE = {1: 0.7, 2: 1.2, 3: 1.8}
STEP = 5  # an estimate is told in steps of so many minutes
MANIFEST = "manifest.json"


def estimate(lab: Lab) -> dict[int, int]:
    """Minutes by task; the reading is shared out evenly among the tasks.

    A task that says its minutes itself (`minutes` in lab.toml) keeps them.
    """
    words = len(re.findall(r"\S+", (lab.folder / "README.md").read_text(encoding="utf-8")))
    lines = solution_lines(lab)
    reading = words / WORDS_A_MINUTE / len(lab.tasks)
    return {
        task.id: task.minutes
        if not task.difficulty
        else rounded(reading + lines[task.id] * MINUTES_A_LINE[task.difficulty])
        for task in lab.tasks
    }


def rounded(minutes: float) -> int:
    """The estimate in steps, upwards.

    >>> rounded(31), rounded(30)
    (35, 30)
    """
    return math.ceil(minutes / STEP) * STEP


def stated(lab: Lab) -> str:
    """The words with which a handout says it."""
    minutes = sum(estimate(lab).values())
    return f"Estimated time: {minutes // 60}:{minutes % 60:02d} hours"


def solution_lines(lab: Lab) -> dict[int, float]:
    """Lines that matter of each task's solutions; what several tasks share is shared out."""
    found: dict[int, float] = defaultdict(float)
    for path in sorted(lab.reference.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        named = dict(definitions(source))
        for region in regions(source):
            names = (region.owner,) if region.owner else region.names
            tasks = {n: lab.task_of_symbol.get(f"{path.stem}:{n}") for n in names}
            listed = {name: task.id for name, task in tasks.items() if task}
            if not listed:  # helpers of public names that stand elsewhere in the file
                beside = {
                    t.id for n, t in lab.task_of_symbol.items() if n.startswith(f"{path.stem}:")
                }
                listed = {"": beside.pop()} if len(beside) == 1 else {}
            total = _count(region.body)
            if len(set(listed.values())) > 1:  # a file of several tasks: each has its own names
                for name, task in listed.items():
                    node = named.get(name)
                    own = _count(ast.get_source_segment(source, node) or "") if node else 1
                    found[task] += own
                    total -= own
            for task in set(listed.values()):
                found[task] += max(total, 0) / len(set(listed.values()))
    return found


def _count(text: str) -> int:
    lines = (line.strip() for line in text.splitlines())
    return sum(1 for line in lines if line and not line.startswith("#"))


def spent(folder: Path) -> dict[str, dict[int, list[float]]]:
    """Minutes by lab and task that the packs in a folder report, for tasks that were passed."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    keys = {lab.key for lab in labs()}
    for path in sorted(folder.rglob("*.zip")):
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.getinfo(MANIFEST).file_size > 1_000_000:
                    continue
                data = json.loads(archive.read(MANIFEST))
            if data["lab"] in keys:
                for task, seconds in data["seconds"].items():
                    if 0 < float(seconds) < 1e6:
                        found[data["lab"]][int(task)].append(float(seconds) / 60)
        except (OSError, KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile):
            continue  # no pack, or one without times
    return found


def medians(folder: Path) -> dict[str, dict[int, tuple[float, int]]]:
    """Median minutes and number of students by lab and task."""
    return {
        key: {task: (statistics.median(times), len(times)) for task, times in sorted(tasks.items())}
        for key, tasks in sorted(spent(folder).items())
    }

"""The hidden scenarios of a lab: their sources, which travel with the work, and their tasks."""

from __future__ import annotations

import functools

from grader.course.lab_toml import Lab
from grader.course.paths import HIDDEN
from grader.sandbox.job import BoxError
from grader.sandbox.limits import Limits
from grader.sandbox.sandbox import Sandbox

REFERENCE_SECONDS = 300


def sources(lab: Lab) -> dict[str, str]:
    """The files of a lab's scenarios, which travel to the box with the work."""
    folder = HIDDEN / lab.key
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}


def listing(lab: Lab, sandbox: Sandbox) -> tuple[tuple[str, int], ...]:
    """Name and task of every scenario of a lab; BoxError where they cannot be loaded."""
    return _listing(lab.key, tuple(sources(lab).items()), sandbox)


@functools.lru_cache(32)
def _listing(
    key: str, texts: tuple[tuple[str, str], ...], sandbox: Sandbox
) -> tuple[tuple[str, int], ...]:
    task = {"kind": "listing", "lab": key, "sources": dict(texts)}
    answer = sandbox.trusted(task, Limits(), REFERENCE_SECONDS)
    found = tuple((e["scenario"], e["task"]) for e in answer.events if "scenario" in e)
    if not found:
        raise BoxError(f"the scenarios of {key} cannot be listed: {answer.ended or answer.events}")
    return found

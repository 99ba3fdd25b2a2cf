"""Where a preprocessor finds the class's folders, and a submission in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor


def course_directory(step: NbGraderPreprocessor) -> CourseDirectory:
    """The course directory of the conversion that a preprocessor is a step of."""
    owner: Any = step
    while owner is not None:
        found = getattr(owner, "coursedir", None)
        if isinstance(found, CourseDirectory):
            return found
        owner = getattr(owner, "parent", None)
    raise RuntimeError(f"{type(step).__name__} runs as a step of nbgrader's conversions only.")


def submission_of(course: CourseDirectory, student: str, assignment: str) -> Path:
    """What a student handed in: the pack where there is one, else the submitted folder."""
    folder = Path(course.format_path(course.submitted_directory, student, assignment))
    pack = folder / f"{assignment}.zip"
    return pack if pack.is_file() and not pack.is_symlink() else folder

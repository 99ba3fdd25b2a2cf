"""nbgrader's settings for this course; each one closes a trap or names a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbconvert.preprocessors import ClearMetadataPreprocessor
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    ClearOutput,
    DeduplicateIds,
    IgnorePattern,
    LimitOutput,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
)

from grader.classroom.boxed_execute import BoxedExecute
from grader.classroom.collect_uploads import PackCollector, PackExtractor
from grader.classroom.late_penalty import PolicyOfClass
from grader.classroom.module_points import ModuleGrades
from grader.classroom.restore_cells import RestoreGrading
from grader.classroom.sanitize_html import FILTERS
from grader.classroom.trim_outputs import TrimOutput
from grader.course.digest import IGNORED
from grader.course.lab_toml import labs
from grader.course.paths import NOTEBOOK_SOURCES, NOTEBOOKS, ROOT, find_commands

SECRET, RESULTS, GRADING = ".course-secret", "results.jsonl", "grading.toml"
CELL_SECONDS = 120


def configure(c: Any, folder: str | Path) -> None:
    """Set up nbgrader for a class whose submissions, grades and feedback are kept in `folder`."""
    find_commands()
    folder = Path(folder).resolve()
    c.CourseDirectory.root = str(folder)
    c.CourseDirectory.course_id = "nanovllm-labs"
    c.CourseDirectory.source_directory = str(NOTEBOOK_SOURCES)
    # A class of its own keeps its own release, the same files; `notebooks/` is the course's.
    c.CourseDirectory.release_directory = str(NOTEBOOKS if folder == ROOT else folder / "release")
    c.CourseDirectory.ignore = [*sorted(IGNORED), "*.pyc", ".*"]

    c.Autograde.sanitize_preprocessors = [
        RestoreGrading,
        ClearOutput,
        DeduplicateIds,
        OverwriteKernelspec,
        OverwriteCells,
        CheckCellMetadata,
    ]
    c.Autograde.autograde_preprocessors = [
        BoxedExecute,
        IgnorePattern,
        ClearMetadataPreprocessor,
        LimitOutput,
        TrimOutput,
        ModuleGrades,
        SaveAutoGrades,
        AssignLatePenalties,
        CheckCellMetadata,
    ]
    # What lies beside a source notebook never replaces what a student handed in.
    c.Autograde.exclude_overwriting = {lab.key: _beside_source(lab.key) for lab in labs()}
    c.OverwriteCells.add_missing_cells = True
    c.Execute.timeout = CELL_SECONDS
    c.BoxedExecute.timeout = CELL_SECONDS
    # A page is old once points or comments are new, which nbgrader does not see by itself.
    c.GenerateFeedback.force = True
    c.HTMLExporter.sanitize_html = True
    c.HTMLExporter.filters = FILTERS
    c.AssignLatePenalties.plugin_class = PolicyOfClass
    c.PolicyOfClass.settings_file = str(folder / GRADING)
    c.ModuleGrades.settings_file = str(folder / GRADING)
    c.ModuleGrades.secret_file = str(folder / SECRET)
    c.ModuleGrades.results_file = str(folder / RESULTS)

    c.ZipCollectApp.extractor_plugin = PackExtractor
    c.ZipCollectApp.collector_plugin = PackCollector
    c.FileNameCollectorPlugin.valid_ext = [".ipynb", ".zip"]


def _beside_source(assignment: str) -> list[str]:
    """The files of an assignment's source other than notebooks, and the pack in any case."""
    home = NOTEBOOK_SOURCES / assignment
    there = [path for path in home.rglob("*") if path.is_file() and path.suffix != ".ipynb"]
    return sorted({f"{assignment}.zip", *(path.relative_to(home).as_posix() for path in there)})

"""A class larger than one machine: the same work, handed to a Dask cluster.

Needs `pip install distributed` here and on the workers, and a copy of the course at the same
version and path on each of them, with the releases that are kept. Every worker has sandboxes of
its own; only plain data travels back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.course.paths import RELEASES
from grader.grading import student_seeds, submission
from grader.grading.batch import Graded
from grader.grading.class_submissions import HandedIn
from grader.grading.grade import grade_read
from grader.grading.grading_toml import Config
from grader.grading.journal import Journal
from grader.grading.kept_releases import is_unknown, made_with
from grader.grading.report import LabReport
from grader.grading.submission import Submission
from grader.sandbox.levels import LEVELS
from grader.sandbox.limits import Limits
from grader.sandbox.sandbox import shared

Work = tuple[Submission, Lab, str, bytes, Limits]


def grade_on_dask(
    address: str, class_: Sequence[HandedIn], lab: Lab, secret: bytes, config: Config,
    journal: Journal, releases: Path | None = RELEASES,
) -> Iterator[Graded]:  # fmt: skip
    """Grade on the workers of the scheduler at `address`; each result is journalled here."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise LabError("--dask needs one more package: `pip install distributed`.") from None
    with Client(address) as client:
        waiting = as_completed()
        whose = {}
        for handed_in in class_:
            found = submission.read(handed_in.path, lab, config.limits)
            own = made_with(lab, found.release, releases)
            unkept = releases is not None and is_unknown(found.release, releases)
            works: list[Work] = [
                (found, checks, handed_in.student, secret, config.limits)
                for checks in dict.fromkeys((own, lab))
            ]
            known = [report for work in works if (report := _known(work, journal)) is not None]
            if len(known) == len(works):
                yield _graded(handed_in, known, True, unkept)
                continue
            future = client.submit(_grade, works, pure=False, retries=1)
            whose[future.key] = handed_in, unkept
            waiting.add(future)
        for future in waiting:
            reports = [LabReport.from_json(report) for report in future.result()]
            for report in reports:
                if not report.lost:
                    journal.add(report)
            handed_in, unkept = whose[future.key]
            yield _graded(handed_in, reports, False, unkept)
            future.release()


def _graded(handed_in: HandedIn, reports: list[LabReport], known: bool, unkept: bool) -> Graded:
    """reports: by the checks it was made with and, where those are others, by today's."""
    today = reports[1] if len(reports) > 1 else None
    return Graded(handed_in, reports[0], known, today, unkept)


def _grade(works: list[Work]) -> list[dict[str, Any]]:
    """On a worker: grade in its own sandbox."""
    return [grade_read(*work, shared()).to_json() for work in works]


def _known(work: Work, journal: Journal) -> LabReport | None:
    """The result from an earlier run, whichever sandbox the worker had then."""
    tried = (student_seeds.result_key(*work, level) for level in LEVELS)
    return next((report for key in tried if (report := journal.get(key)) is not None), None)

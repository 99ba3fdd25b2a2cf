"""Grade a whole class: workers in parallel, each result journalled before it counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from grader.course.lab_toml import Lab
from grader.course.paths import RELEASES
from grader.grading import student_seeds, submission
from grader.grading.class_submissions import HandedIn
from grader.grading.grade import grade_read
from grader.grading.grading_toml import Config
from grader.grading.journal import Journal
from grader.grading.kept_releases import is_unknown, made_with
from grader.grading.report import LabReport
from grader.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class Graded:
    """A submission, its report by the checks it was made with, and whether that was known."""

    handed_in: HandedIn
    report: LabReport
    known: bool
    today: LabReport | None = None  # by today's checks, where the report is by those of its release
    unkept: bool = False  # the release that it was made with is not kept here


def grade_class(
    class_: Sequence[HandedIn], lab: Lab, secret: bytes, config: Config, sandbox: Sandbox,
    journal: Journal, jobs: int, releases: Path | None = RELEASES,
) -> Iterator[Graded]:  # fmt: skip
    """Grade in parallel and give each as it is done; at most 2 x jobs are held at a time.

    releases: where the checks of earlier releases are kept; None: today's checks for everybody.
    """

    def one(handed_in: HandedIn) -> Graded:
        found = submission.read(handed_in.path, lab, config.limits)
        own = made_with(lab, found.release, releases)
        reports, known = [], True
        for checks in dict.fromkeys((own, lab)):
            work = (found, checks, handed_in.student, secret, config.limits)
            key = student_seeds.result_key(*work, sandbox.probe(lab))
            known = known and key in journal
            reports.append(grade_read(*work, sandbox, journal, key))
        unkept = releases is not None and is_unknown(found.release, releases)
        today = reports[1] if len(reports) > 1 else None
        return Graded(handed_in, reports[0], known, today, unkept)

    waiting = iter(class_)
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(one, entry) for entry in islice(waiting, 2 * jobs)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(one, entry) for entry in islice(waiting, len(done))}
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

"""Grade a whole class: workers in parallel, each result journalled before it counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice

from grader.course.lab_toml import Lab
from grader.grading import seeds, submission
from grader.grading.class_submissions import HandedIn
from grader.grading.grade import grade_read
from grader.grading.grading_toml import Config
from grader.grading.journal import Journal
from grader.grading.report import LabReport
from grader.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class Graded:
    """A submission, its report, and whether the report was in the journal already."""

    handed_in: HandedIn
    report: LabReport
    known: bool


def grade_class(
    class_: Sequence[HandedIn], lab: Lab, secret: bytes, config: Config, sandbox: Sandbox,
    journal: Journal, jobs: int,
) -> Iterator[Graded]:  # fmt: skip
    """Grade in parallel and give each as it is done; at most 2 x jobs are held at a time."""

    def one(handed_in: HandedIn) -> Graded:
        found = submission.read(handed_in.path, lab, config.limits)
        work = (found, lab, handed_in.student, secret, config.limits)
        key = seeds.result_key(*work, sandbox.probe(lab))
        known = key in journal
        report = grade_read(*work, sandbox, journal, key)
        return Graded(handed_in, report, known)

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

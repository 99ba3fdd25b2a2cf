"""A class shared out to Dask workers earns the same points as on one machine."""

from __future__ import annotations

import sys
from pathlib import Path

import distributed
import pytest

from grader.grading import Sandbox
from grader.grading.batch import grade_class
from grader.grading.class_submissions import discover
from grader.grading.dask_cluster import grade_on_dask
from grader.grading.grading_toml import Config
from grader.grading.journal import Journal
from tests.grading_corpus import FULL, HONEST, LAB, LIMITS, SECRET, write_solved


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="macOS has resource limits alone")
def test_two_workers_give_the_same_points(tmp_path: Path) -> None:
    for name in ("ada", "bob", "cyd"):
        write_solved(tmp_path / "class" / name, "budget.py", *["request.py"] * (name == "bob"))
    class_, config = discover(tmp_path / "class"), Config(LIMITS)
    shared_out, alone = Journal(tmp_path / "shared.jsonl"), Journal(tmp_path / "alone.jsonl")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        address = cluster.scheduler_address
        first = list(grade_on_dask(address, class_, LAB, SECRET, config, shared_out))
        again = list(grade_on_dask(address, class_, LAB, SECRET, config, shared_out))
    assert [one.known for one in again] == [True] * 3
    with Sandbox.open() as box:
        here = list(grade_class(class_, LAB, SECRET, config, box, alone, 1))
    tasks = {one.handed_in.student: one.report.tasks for one in here}
    assert {one.handed_in.student: one.report.tasks for one in first} == tasks
    points = {one.handed_in.student: one.report.points for one in first}
    assert points == {"ada": HONEST, "bob": FULL, "cyd": HONEST}

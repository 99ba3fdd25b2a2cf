"""What a lab's checks and hidden scenarios take by themselves, without the grader.

One worker has everything imported, as the grader's has. For each submission a fork of it,
unboxed, runs the visible checks, the scenarios on the submission, and the scenarios on the
reference with the verdicts, once each in one process, and times the three: without the fork, the
reading of the submission, what is done again for a wrong one, and any report. As many run side by
side as the grader had jobs.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
import zipfile
from pathlib import Path
from typing import Any

from grader.checks import scenarios
from grader.checks.isolated_imports import World
from grader.checks.markers import collect_checks
from grader.course.lab_toml import Lab, find_lab
from grader.course.paths import ROOT
from grader.grading import scenario_list, student_seeds
from grader.sandbox import job_checks, job_scenarios
from grader.sandbox.hugepages import collapse
from grader.sandbox.preload import prepare

PARTS = ("checks", "scenarios", "verdicts")


def measure(lab: Lab, packs: list[Path], jobs: int, secret: bytes, folder: Path) -> None:
    """Leave one JSON file a submission in `folder`: seconds by part."""
    prepare(lab.key)
    os.chdir(ROOT)
    items = [check.id for check in collect_checks(lab)]
    drawn = [f"{one.name}#{i}" for one in scenarios.load(lab) for i in range(student_seeds.DRAWS)]
    work = {"lab": lab.key, "sources": scenario_list.sources(lab), "items": drawn}
    gc.collect()
    gc.freeze()
    collapse()
    running = 0
    for pack in packs:
        if running == jobs:
            os.wait()
            running -= 1
        if os.fork() == 0:
            seeds = student_seeds.seeds(secret, lab, pack.stem)
            _child(lab, pack, items, {**work, "seeds": seeds}, folder)
        running += 1
    for _ in range(running):
        os.wait()


def _child(lab: Lab, pack: Path, items: list[str], drawn: dict[str, Any], folder: Path) -> None:
    try:
        home = folder / pack.stem
        zipfile.ZipFile(pack).extractall(home)
        os.environ["NANOVLLM_CODE"], os.environ["NANOVLLM_MINE"] = lab.key, str(home / "nanovllm")
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(home / "hypothesis")
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (1, 2):
            os.dup2(null, standard)
        events: list[dict[str, Any]] = []
        clocks = [time.perf_counter()]
        job_checks.run({"items": items}, events.append)
        clocks.append(time.perf_counter())
        job_scenarios.run(drawn, events.append)
        clocks.append(time.perf_counter())
        observed = {event["item"]: event["data"] for event in events if "data" in event}
        World("reference").enter()
        job_scenarios.judge(
            {**drawn, "factors": 0, "observed": observed, "items": list(observed)}, events.append
        )
        clocks.append(time.perf_counter())
        found: dict[str, Any] = {"passed": sum(event.get("status") == "passed" for event in events)}
        for part, before, after in zip(PARTS, clocks, clocks[1:], strict=False):
            found[part] = after - before
    except BaseException:
        found = {"failed": traceback.format_exc()}
    (folder / f"{pack.stem}.json").write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)


if __name__ == "__main__":
    number, jobs, secret, folder, *packs = sys.argv[1:]
    measure(find_lab(number), list(map(Path, packs)), int(jobs), secret.encode(), Path(folder))

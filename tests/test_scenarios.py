"""Hidden scenarios: repeatable on the reference, different from seed to seed, caught on stubs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from grader.authoring.mistakes import bank
from grader.authoring.unseen import only_counted, sights
from grader.checks import observation_json, scenarios
from grader.checks.run_checks import fresh_processes
from grader.checks.scenarios import Scenario
from grader.checks.unwritten import stand_in
from grader.course.lab_toml import Lab, Task, find_lab
from grader.course.paths import HIDDEN
from grader.student.reset import plan_task
from tests.processes import lines_of
from tests.test_proof import all_needs

REFERENCE = """
import sys
import nanovllm
from grader.checks import scenarios
from grader.course.lab_toml import find_lab
for scenario in scenarios.load(find_lab(sys.argv[1])):
    first, again = scenario.observe(nanovllm, 7), scenario.observe(nanovllm, 7)
    found = scenarios.judge(again, first)
    assert found is None, f"{scenario.name} is not repeatable: {found}"
    assert scenarios.judge(scenario.observe(nanovllm, 8), first) is not None, (
        f"{scenario.name} observes the same for every seed"
    )
    print("ok", scenario.task, scenario.name)
"""
MANY = """
import json
import sys
import time
import nanovllm
from grader.checks import scenarios
from grader.course.lab_toml import find_lab
from grader.checks import observation_json
from grader.sandbox.limits import Limits
sent = 0
for scenario in scenarios.load(find_lab(sys.argv[1])):
    start = time.process_time()
    for seed in range(100, 100 + int(sys.argv[2])):
        data = observation_json.encode(scenario.observe(nanovllm, seed))
        if time.process_time() - start > 3:
            break
    sent += scenarios.DRAWS * len(json.dumps(data))
    print(scenario.name, len(json.dumps(data)), "bytes,", seed - 99, "seeds")
limit = Limits().output_mb << 20
assert sent < limit / 2, f"{sent} bytes of observations; a submission may send {limit}"
"""
STUBS = """
import sys
import nanovllm
from grader.checks import scenarios
from grader.course.lab_toml import find_lab
from grader.checks.unwritten import unwritten
lab = find_lab(sys.argv[1])
for scenario in scenarios.load(lab):
    try:
        scenario.observe(nanovllm, 7)
    except (NotImplementedError, ImportError, AttributeError) as error:
        absent = unwritten(error)
        assert absent and absent.lab == lab.key, error
        print("ok", scenario.task, scenario.name)
    else:
        raise AssertionError(f"{scenario.name} can be answered without the student's code")
"""


def run(program: str, lab: Lab, *words: str, **environment: str) -> list[str]:
    """Run a program in a process of its own; its lines."""
    return lines_of(program, lab.key, *words, env={**os.environ, **environment})


@pytest.mark.few(5)
def test_every_task_has_a_repeatable_scenario(lab: Lab) -> None:
    lines = run(REFERENCE, lab, NANOVLLM_CODE="reference")
    assert {int(line.split()[1]) for line in lines} == {task.id for task in lab.tasks}


@pytest.mark.proof
def test_whatever_the_seed_the_reference_answers_within_the_limits(lab: Lab) -> None:
    """Right code would lose points where the inputs break the reference, or are too large."""
    assert run(MANY, lab, "60", NANOVLLM_CODE="reference", TRITON_INTERPRET="1")


def test_scenarios_need_the_students_code(lab: Lab, stub_package: Path) -> None:
    lines = run(STUBS, lab, NANOVLLM_CODE=lab.key, NANOVLLM_MINE=str(stub_package))
    assert len(lines) == len(scenarios.load(lab))


CAPSTONE = ("lab14", 7)  # the reference's is built on other tasks; a student's need not be


@pytest.mark.proof
def test_a_task_stands_on_those_that_it_needs_alone(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With right code for these and stubs for the rest, all scenarios of the task agree."""
    work = []
    for task in lab.tasks:
        if (lab.key, task.id) == CAPSTONE:
            continue
        package = tmp_path / str(task.id)
        monkeypatch.setenv("NANOVLLM_MINE", str(package))
        write_alone(lab, task, package)
        work += [(lab.key, task.id, package), (lab.key, task.id, None)]
    seen = list(fresh_processes(observed, work))
    wrong = [
        f"task {task}, {name}: {difference.lines[0]}"
        for (_, task, _), got, right in zip(work[::2], seen[::2], seen[1::2], strict=True)
        for name in right
        if (difference := scenarios.judge(*map(observation_json.decode, (got[name], right[name]))))
    ]
    assert not wrong, "\n".join(wrong)


def write_alone(lab: Lab, task: Task, package: Path) -> None:
    """The reference of a task and of those that it needs, and stubs for the others."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(lab.reference, package / lab.package, ignore=ignored)
    for other in lab.tasks:
        if other.id not in {task.id, *all_needs(lab, task.id)}:
            for path, content in plan_task(lab, other).contents.items():
                path.write_bytes(content)


def observed(work: tuple[str, int, Path | None]) -> dict[str, Any]:
    """What the scenarios of a task see on a package (None: the reference), as JSON."""
    key, task, package = work
    code = {"NANOVLLM_CODE": key if package else "reference", "NANOVLLM_MINE": str(package or "")}
    os.environ |= {**code, "TRITON_INTERPRET": "1"}
    return {one.name: seen_by(one) for one in scenarios.load(find_lab(key)) if one.task == task}


def seen_by(one: Scenario) -> Any:
    """As behind the checks, which stand in for missing names when their files are loaded."""
    import nanovllm

    while True:
        try:
            return observation_json.encode(one.observe(nanovllm, 7))
        except Exception as error:
            if not stand_in(error):
                return f"raised {error!r}"


def test_judge_names_the_difference() -> None:
    assert scenarios.judge({"ids": [1, 2]}, {"ids": [1, 2]}) is None
    found = scenarios.judge({"ids": [1, 3]}, {"ids": [1, 2]})
    assert found is not None
    assert "got 3, expected 2" in found.lines[0]


@pytest.mark.parametrize("fake", [True, "1", None])
def test_judge_takes_no_lookalikes(fake: object) -> None:
    assert scenarios.judge(fake, 1) is not None


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_hides_no_error(half: torch.dtype) -> None:
    right = {"logits": [torch.linspace(-1, 1, 50)]}
    assert scenarios.judge({"logits": [right["logits"][0] * 1.01 + 0.002]}, right) is not None
    wrong = {"logits": [(right["logits"][0] * 1.01 + 0.002).to(half)]}
    assert scenarios.judge(wrong, right) is not None
    same = {"logits": [right["logits"][0].to(half)]}
    assert scenarios.judge(same, same) is None
    for other in {torch.float16, torch.bfloat16} - {half}:
        wrong = {"logits": [(right["logits"][0].to(half) * 1.03 + 0.02).to(other)]}
        assert scenarios.judge(wrong, {"logits": [right["logits"][0].to(half)]}) is not None
    finer = {"logits": [same["logits"][0].float()]}
    assert scenarios.judge(finer, same) is None
    assert scenarios.judge({"logits": [right["logits"][0].numpy()]}, right) is None


@pytest.mark.proof
@pytest.mark.parametrize("key", [path.name for path in sorted(HIDDEN.glob("lab*"))])
def test_scenarios_alone_see_every_known_mistake(key: str) -> None:
    """At ten draws; and at a student's own, 95 in a hundred of each task's."""
    lab = find_lab(key)
    found = list(sights(lab, 10))
    assert not [sight.mistake.name for sight in found if not sight.scenario]
    for task in lab.tasks:
        its = [sight.at_once for sight in found if sight.mistake.task == task.id]
        late = [s.mistake.name for s in found if s.mistake.task == task.id and not s.at_once]
        assert sum(its) >= 0.95 * len(its), late
    assert only_counted(lab).keys() <= {mistake.name for mistake in bank(lab)}

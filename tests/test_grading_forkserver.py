"""The processes of the box: one fork server a lab, its forks, and what happens when one is lost."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from grader.course.paths import ROOT
from grader.grading import Limits, Sandbox
from grader.grading.run_items import Rounds
from grader.sandbox.job import Answer, Work
from grader.sandbox.sandbox import KEPT, TRUSTED
from tests.grading_corpus import LAB, boxed

pytestmark = pytest.mark.xdist_group("forkserver")  # its box takes seconds to start
SOURCE = "from grader.checks.scenarios import scenario\none = scenario(1)(lambda nanovllm, rng: {})"
SMALL = [
    {"kind": "hidden", "lab": LAB.key, "items": ["<lambda>#0"], "seeds": [1],
     "sources": {"one.py": SOURCE.format(answer)}} for answer in (1, 2)
]  # fmt: skip
TWO = Work(LAB.key, SMALL)


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox.open() as sandbox:
        yield boxed(sandbox)


def test_the_tasks_of_one_process_come_one_after_the_other(box: Sandbox) -> None:
    answers = box.run(LAB, TWO, Limits(), 60)
    assert [answer.ended for answer in answers.of_tasks] == ["", ""]
    said = [[event.get("data", event) for event in one.events] for one in answers.of_tasks]
    assert said == [[{"start": "<lambda>#0"}, answer, {"done": True}] for answer in (1, 2)]


def test_workers_are_forks_of_one_server(box: Sandbox) -> None:
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: box.run(LAB, TWO, Limits(), 60), range(6)))
    assert all(not answers.of_tasks[-1].ended for answers in done)
    assert [key for key in box._servers if key != TRUSTED] == [f"bubblewrap {LAB.folder}"]


def test_a_lost_worker_and_a_lost_server_are_replaced(box: Sandbox) -> None:
    server = box._server(box.level, LAB)
    worker = server.take()
    server.give_back(worker)
    worker.link.close()  # it ends, and the next piece of work finds it gone
    assert not box.run(LAB, TWO, Limits(), 60).of_tasks[-1].ended
    assert box._server(box.level, LAB) is server
    while server._idle:
        server._idle.pop().close()
    server._link.shutdown(socket.SHUT_RDWR)  # so does the fork server
    server._process.wait(30)
    assert not box.run(LAB, TWO, Limits(), 60).of_tasks[-1].ended
    assert box._server(box.level, LAB) is not server


def test_what_one_process_had_does_not_count_when_it_may_be_spoilt() -> None:
    asked = []

    def work(items: list[str]) -> Answer:
        asked.append(items)
        return Answer([{"item": item, "data": 2} for item in items] + [{"done": True}])

    rounds = Rounds(work, str, str)
    among = Answer([{"item": "a", "data": 1}, {"start": "b"}], "it ended with exit status 1")
    rounds.run(rounds.keep(among, ["a", "b", "c"]))
    assert asked == [["b", "c"]]
    found = {item: result["data"] for item, result in rounds.results.items()}
    assert found == {"a": 1, "b": 2, "c": 2}
    assert not rounds.lost


def test_the_templates_of_few_labs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Idle:
        busy = 0

        def __init__(self, level: str, lab: object, user: object) -> None:
            self.name = lab.key

        def close(self) -> None:
            closed.append(self.name)

    monkeypatch.setattr("grader.sandbox.sandbox.ForkServer", Idle)
    sandbox = Sandbox()
    for number in range(KEPT + 2):
        sandbox._server("limits", dataclasses.replace(LAB, number=number))
    assert closed == ["lab00", "lab01"]
    assert len(sandbox._servers) == KEPT


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are Linux's")
def test_huge_pages_change_no_content() -> None:
    code = """
from grader.sandbox.hugepages import HUGE, collapse
mine = bytearray(range(256)) * (8 * HUGE // 256)
made = collapse()
sizes = [line.split()[1] for line in open("/proc/self/smaps_rollup") if "AnonHuge" in line]
print(made, int(sizes[0]) * 1024 // HUGE, mine == bytearray(range(256)) * (8 * HUGE // 256))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    made, there, same = done.stdout.split()
    assert same == "True"
    assert int(made) == 0 or int(there) >= 7, "a kernel that makes huge pages has made them"

"""Lab 14's race: right, broken and dishonest entries, places, and the page."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grader.checks import race_draws
from grader.checks.race_runs import Runs
from grader.checks.run_checks import fresh_processes
from grader.grading.class_submissions import discover
from grader.grading.race import LIMITS, MANY, MEMORY, ONE, TRACKS, Race, Result
from grader.grading.race_board import Interval, interval, page, standings, table
from grader.sandbox import process_rights
from grader.sandbox.job import Answer
from grader.sandbox.meter import Meter
from grader.sandbox.sandbox import Sandbox
from grader.sandbox.talk import Talk
from grader.student import race as of_student
from tests.race_class import BROKEN, CHEATS, LAB, RIGHT, write_entry
from tests.system_tools import require

SAID = {  # a part of the one sentence that each broken entry gets
    "crashes": "it was ended by SIGSEGV",
    "ends": "it ended the process",
    "grows": "more than 1024 MB of memory",
    "hangs": "it took more than 8 seconds",
    "no_python": "it raised SyntaxError",
    "raises": "it raised ValueError: no <b>such</b> luck",
    "wrong": "is another than the plain engine's",
}
REACHED = {  # what each cheat says when it has reached what it attacks
    "burning_thread": "turns",
    "cached_answers": "had 0",
    "cleared_counters": "a counter was cleared",
    "done_too_early": "it said that it is done",
    "forged_texts": "texts",
    "forked_helper": "a process was refused: ",
    "half_the_layers": "layers were left out",
    "hidden_thread": "the thread that was asked has used",
    "memory_in_files": "MB are in files",
    "named_like_memory": "it is called VmHWM:, its peak is not: ",
    "patched_clock": "the clock stands at 0.0",
    "precomputed_rounds": "answers were ready, 0 of",
    "reference_answers": "of the reference there is [], of other processes []",
    "wakes_itself": "a timer that wakes it: Function not implemented",
}
# Four rounds on a busy machine tell no smaller gain from none; cheats are after a multiple.
ALIKE = {MANY: 0.1, ONE: 0.1, MEMORY: 0.03}
OUT = {"done_too_early", "forged_texts", "half_the_layers"}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    require("bubblewrap")
    with Sandbox.open() as box:
        yield box


def result(name: str, many: float, one: float = 1.0, wide: float = 0.02) -> Result:
    ratios = {MANY: many, ONE: one, MEMORY: 1.0}
    spread = [-wide, -wide / 2, 0.0, wide / 2, wide]
    counts = {"operations": 100.0, "tokens": 9.0, "launches a step": 5.0}
    return Result(
        name, "it changes <i>this</i>", counts={**counts, "operations": 60.0}, plain=counts,
        names={"mm": 40, "add": 20}, plain_names={"mm": 60, "add": 20, "cat": 20},
        ratios={track: [[ratios[track] + d] * 3 for d in spread] for track in TRACKS},
    )  # fmt: skip


def test_intervals_that_overlap_share_a_place() -> None:
    board = standings(
        [result("d", 1.0), result("b", 1.21), result("a", 1.2), result("c", 1.1, wide=0.05),
         Result("e", problem="it fell")]
    )  # fmt: skip
    assert {one.result.student: one.places.get(MANY) for one in board} == {
        "a": 1, "b": 1, "c": 3, "d": 4, "e": None,
    }  # fmt: skip
    assert {one.places[ONE] for one in board if one.places} == {1}
    chain = standings([result("a", 1.04), result("b", 1.0, wide=0.08), result("c", 0.97)])
    assert {one.places[MANY] for one in chain} == {1}, "the second reaches both others"


def test_an_interval_holds_the_median_that_is_there_in_five_of_six_races() -> None:
    assert interval([[1.0] * 11] * 20) == Interval(0.9875, 1.0, 1.0125)
    draw, races = random.Random(1), 60
    rounds = [
        [[1.1 + shift + draw.gauss(0, 0.1) for _ in range(11)] for shift in shifts]
        for shifts in ([draw.gauss(0, 0.1) for _ in range(20)] for _ in range(races))
    ]
    found = [interval(one) for one in rounds]
    assert 0.75 < sum(one.low < 1.1 < one.high for one in found) / races < 0.95
    alone = [interval([[turn] for turns in one for turn in turns]) for one in rounds]
    assert sum(one.low < 1.1 < one.high for one in alone) / races < 0.6, "turns are not rounds"


def test_a_waterfall_leads_from_the_plain_engine_to_the_entry() -> None:
    (one,) = standings([result("a", 1.2)])
    assert [(name, text) for name, _, _, text in one.waterfall] == [
        ("plain engine", "100"), ("cat", "-20"), ("mm", "-20"), ("this entry", "60"),
    ]  # fmt: skip
    assert one.waterfall[1][2] == one.waterfall[0][2]
    assert one.waterfall[2][1] == one.waterfall[3][2]
    assert not one.doubted
    hidden = replace(one.result, counts={**one.result.counts, "operations": 1.0})
    assert standings([hidden])[0].doubted, "1 % of the operations in 83 % of the time"


def test_the_page_shows_everything_and_runs_nothing() -> None:
    about = {"machine": "two cores", "versions": "torch 9", "seed": "abc", "rounds": "5"}
    board = standings([result("<script>alert(1)</script>", 1.2), Result("out", problem="<b>fell")])
    text = page(board, about)
    assert "<script" not in text and "<b>fell" not in text and "<i>this" not in text
    for word in (*about.values(), "1.20 (1.19-1.21)", "it changes", "&lt;b&gt;fell", "cat", "-20"):
        assert word in text
    assert table(board).row_count == 2
    assert "0 entries in the race" in page(standings([]), about)


def test_no_turn_has_the_tokens_of_another() -> None:
    prompts = [
        tuple(one["ids"][:16])
        for turn in range(66)
        for task in (race_draws.many("s", turn), race_draws.one("s", turn))
        for one in task["requests"]
    ]
    assert len(set(prompts)) == 66 * (race_draws.GROUPS + 1)
    assert race_draws.gate("s") == race_draws.gate("s") != race_draws.gate("t")
    assert race_draws.timed("s")["weights"] != race_draws.timed("t")["weights"]
    families = {load["model"]["family"] for load, _ in race_draws.gate("s")}
    assert families == set(race_draws.FAMILIES)


def _in_a_process(code: str) -> dict[str, Any]:
    """Of the reference's engines: counts twice, a text judged by itself, one that is wrong."""
    os.environ["NANOVLLM_CODE"] = code
    runs, load = Runs(), race_draws.timed("s")
    one = {**race_draws.one("s", 0), "count": True}
    runs.do({**load, "entry": False})
    first = runs.do(one)
    runs.do({**load, "entry": False})
    text, ids = first["texts"]["0.0"], one["requests"][0]["ids"]
    ties = [{**load, "do": "ties", "ids": ids, "text": t} for t in (text, [*text[:-1], 3], [-1])]
    return {"counts": [first["counts"], runs.do(one)["counts"]], "texts": first["texts"],
            "near": [runs.do(task) for task in ties]}  # fmt: skip


def test_counts_are_the_same_again_and_a_text_is_judged_by_itself() -> None:
    (found,) = fresh_processes(_in_a_process, ["reference"])
    first, again = found["counts"]
    assert first == again
    assert first["tokens"] == 12 + 13 and first["steps"] == 14 and first["operations"] > 1000
    right, wrong, strange = found["near"]
    assert (right, wrong) == ({"near": True}, {"near": False})
    assert "raised" in strange


def test_a_text_must_be_the_plain_engines() -> None:
    load, run = race_draws.gate("s")[0]
    plain: dict = {"0.0": [4, 5], "1.0": [6], "2.0": None}
    judged: list[dict] = []

    def said(own: object, near: bool = False) -> str:
        return race_draws.disagreement(
            load, run, own, plain, lambda task: judged.append(task) or near
        )

    assert said(plain) == "" and not judged
    assert said({**plain, "0.0": [4, 6]}, near=True) == "" and judged[0]["text"] == [4, 6]
    assert said({**plain, "0.0": [4, 6]}) == (
        "request 0: token 2 of 2 is another than the plain engine's"
    )
    judged.clear()
    assert "token 1 of 1" in said({**plain, "1.0": [7]}, near=True), "it was sampled"
    assert not judged
    for own in (
        {},
        None,
        [1],
        {**plain, "2.0": [1]},
        {**plain, "0.0": [4]},
        {**plain, "0.0": "45"},
    ):
        assert "not as many tokens" in said(own, near=True)


def _alone(_: None) -> list[str]:
    process_rights.drop_rights("bubblewrap", alone=True)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    found = ["a thread"]
    starts = (
        os.fork,
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: os.execv("/bin/true", ["true"]),
    )
    for start in starts:
        try:
            start()
        except OSError as error:
            found.append(str(error.strerror))
    return found


def test_a_process_that_is_alone_starts_threads_and_no_process() -> None:
    refused = "Function not implemented"
    assert list(fresh_processes(_alone, [None])) == [["a thread", refused, refused, refused]]


def test_an_entry_that_cannot_race_gets_one_sentence(sandbox: Sandbox, tmp_path: Path) -> None:
    assert {path.stem for path in BROKEN} == set(SAID)
    for path in BROKEN:
        write_entry(tmp_path, path)
    (tmp_path / "empty" / "performance").mkdir(parents=True)
    (tmp_path / "empty" / "performance" / "moe.py").write_text("x = 1\n")
    race = Race(LAB, "s", sandbox, 4, replace(LIMITS, item_seconds=8))
    found = {one.student: race.run(one) for one in discover(tmp_path)}
    for name, part in {**SAID, "empty": "it holds no capstone.py"}.items():
        assert part in found[name].problem, (name, found[name].problem)
        assert "\n" not in found[name].problem and len(found[name].problem) < 400
    assert [one.places for one in standings(found.values())] == [{}] * len(found)


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_an_entry_that_does_not_stand_still_is_out(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes on beside the other's turn takes the processor from it."""
    write_entry(tmp_path, next(path for path in CHEATS if path.stem == "burning_thread"))
    [entry] = discover(tmp_path)
    monkeypatch.setattr(Meter, "stop", Meter.seconds)
    found = Race(LAB, "s", sandbox, 4).run(entry)
    assert found.problem == "round 1: it ran while the other had its turn"


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_lab_race_shows_where_a_student_stands(tmp_path: Path) -> None:
    wrong = next(path for path in BROKEN if path.stem == "wrong")
    found = of_student.stand(LAB, write_entry(tmp_path, wrong) / "nanovllm", "s")
    assert "is another than the plain engine's" in found.problem
    found = of_student.stand(LAB, write_entry(tmp_path) / "nanovllm", "s")
    assert found.problem == ""
    plain, own = found.counts["operations"]
    assert own < 0.9 * plain
    plain, own = found.counts["tokens"]
    assert own <= plain
    assert of_student.table(found).row_count == len(found.counts)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_cheats_of_lab14_earn_nothing(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {path.stem for path in CHEATS} == set(REACHED) and len(CHEATS) >= 10
    plain = next(path for path in RIGHT if path.stem == "as_is")
    for path in (*CHEATS, plain):
        write_entry(tmp_path, path)
    heard: list[str] = []

    def ask(self: Talk, task: dict, last: bool = False, _ask: Any = Talk.ask) -> Answer:
        answer = _ask(self, task, last)
        heard.extend(str(event["witness"]) for event in answer.events if "witness" in event)
        return answer

    monkeypatch.setattr(Talk, "ask", ask)
    race, results = Race(LAB, "s", sandbox, 4), []
    for entry in discover(tmp_path):
        heard.clear()
        results.append(race.run(entry))
        reached = REACHED.get(entry.student, "")
        assert not reached or any(reached in text for text in heard), (entry.student, heard[-3:])
    board = {one.result.student: one for one in standings(results)}
    assert {name for name, one in board.items() if one.result.problem} == OUT
    # The counters of torch are those of a thread.
    assert {name for name, one in board.items() if one.places and one.doubted} == {
        "cleared_counters", "hidden_thread",
    }  # fmt: skip
    for name, one in board.items():
        for track, found in one.intervals.items():
            # The peak of a process that computes in a thread is lower in truth.
            if (name, track) != ("hidden_thread", MEMORY):
                plain = max(1.0, board["as_is"].intervals[track].high)
                assert found.low <= plain + ALIKE[track], (name, track, found)

"""Task 7: escalation by evidence, and the judge of a run."""

import json
import random

import pytest

from grader import expect
from nanovllm.batching.events import Aborted, Failed
from nanovllm.generation.events import Completion, Finished
from nanovllm.resilience.checker import Transcript, complaints, ladder_complaints
from nanovllm.resilience.failures import ENTRY, Failure, Level, Rules, Rung
from nanovllm.resilience.ladder import Ladder, report


def climbs(ladder, failure, *moments):
    return [int(ladder.failed(now, failure)) for now in moments]


@pytest.mark.check(task=7, points=1, title="Each failure enters at its own level, and climbs")
def test_climb(seed):
    for failure, entry in ENTRY.items():
        ladder, tries = Ladder(Rules(tries=2, calm=60.0)), []
        for level in range(int(entry), 5):
            tries += [level] * 2
        expect(climbs(ladder, failure, *range(len(tries) + 4)), tries + [5] * 4,
               call=f"levels of {failure.value}, every second, with 2 tries",
               cause="each level has its tries, none is skipped, 5 is the last")  # fmt: skip
    ladder = Ladder(Rules(tries=1))
    found = [int(ladder.failed(float(i), f)) for i, f in enumerate(
        (Failure.CRASH, Failure.OUT_OF_MEMORY, Failure.CRASH, Failure.OUT_OF_MEMORY))]  # fmt: skip
    expect(found, [3, 1, 4, 2], call="levels of crash, memory, crash, memory, with 1 try",
           cause="each kind climbs on its own")  # fmt: skip


@pytest.mark.check(task=7, points=1, title="Down again")
def test_down(seed):
    rules = Rules(tries=1, calm=60.0)

    def after(seconds, times=3, failure=Failure.OUT_OF_MEMORY):
        ladder = Ladder(rules)
        climbs(ladder, failure, *[float(i) for i in range(times)])
        last = times - 1.0
        now = last + seconds
        return [int(ladder.level(now) or 0), int(ladder.failed(now, failure))]

    found = [after(s) for s in (59.9, 60.0, 119.9, 120.0, 180.0, 999.0)]
    expect(found, [[3, 4], [2, 2], [2, 2], [1, 1], [0, 1], [0, 1]],
           call="level before, and of, a failure after 59.9, 60, 119.9, 120, 180, 999 s at level 3",
           cause="one level for each whole minute, its tries begin anew; below its entry it enters "
           "anew")  # fmt: skip
    expect(after(1e9, times=5), [5, 5], call="after 30 years at level 5",
           cause="from there only a person brings it down")  # fmt: skip
    expect(after(60.0, 2, Failure.CRASH), [3, 3], call="60 s after a crash at level 4")
    expect(after(60.0, 1, Failure.CRASH), [0, 3], call="60 s after a crash at level 3")


@pytest.mark.check(task=7, points=1, title="Where it stands, and a person who has looked")
def test_level(seed):
    ladder = Ladder(Rules(tries=1))
    expect(ladder.level(0.0), None, call="level of a new ladder")
    climbs(ladder, Failure.TIMEOUT, 0.0, 1.0, 2.0, 3.0)
    climbs(ladder, Failure.NAN, 4.0)
    expect(int(ladder.level(5.0)), 5, call="level with a timeout at 5 and NaN at 3",
           cause="the highest of all kinds")  # fmt: skip
    ladder.reset(Failure.TIMEOUT)
    ladder.reset(Failure.HANG)
    expect(int(ladder.level(5.0)), 3, call="level after reset(TIMEOUT)")
    expect(climbs(ladder, Failure.TIMEOUT, 6.0), [2], call="level of the next timeout",
           cause="it enters anew")  # fmt: skip
    found = [[rung.time, rung.failure.value, int(rung.level)] for rung in ladder.history[-3:]]
    expect(found, [[3.0, "timeout", 5], [4.0, "NaN", 3], [6.0, "timeout", 2]],
           call="the last three of history")  # fmt: skip


@pytest.mark.check(task=7, points=1, title="A report for a person")
def test_report(seed):
    history = [Rung(5.0, Failure.HANG, Level.COMPONENT), Rung(9.0, Failure.HANG, Level.SYSTEM),
               Rung(7.0, Failure.TIMEOUT, Level.REQUEST)]  # fmt: skip
    wanted = {"failures": {"hang": 2, "timeout": 1}, "first": 5.0, "last": 9.0, "highest": "SYSTEM",
              "levels": {"COMPONENT": 1, "SYSTEM": 1, "REQUEST": 1}}  # fmt: skip
    expect(json.loads(json.dumps(report(history))), wanted, call="report(history), through JSON",
           given={"history": history},
           cause="the earliest and the latest time, in whatever order")  # fmt: skip
    found = report(history[::-1])
    expect([found["first"], found["last"]], [5.0, 9.0], call="first and last of report(reversed)")
    nothing = {"failures": {}, "levels": {}, "first": None, "last": None, "highest": None}
    expect(json.loads(json.dumps(report([]))), nothing, call="report([])")


def whole(tokens, text, index=0, reason="length", stop=None):
    return Completion(index, tuple(tokens), text, reason, stop)


TRUTH = {(0, 0): whole([5, 6, 7], "abc"), (1, 0): whole([8], "d", reason="stop", stop="x"),
         (1, 1): whole([9, 9], "ee", 1)}  # fmt: skip


def right():
    return {
        key: Transcript(list(c.token_ids), c.text, [Finished(key[0], key[1], c, 0.0)])
        for key, c in TRUTH.items()
    }


def judged(changes, spared=()):
    heard = right()
    for key, changed in changes.items():
        for name, value in changed.items():
            setattr(heard[key], name, value)
    return len(complaints(heard, TRUTH, spared))


def finished(*args, **more):
    return Finished(0, 0, whole(*args, **more), 0.0)


@pytest.mark.check(task=7, points=1, title="Every sample ends once, and tells the truth")
def test_complaints(seed):
    expect(judged({}), 0, call="complaints of a run that is right")
    end = right()[0, 0].ends
    for name, changed in {
        "that never ended": {"ends": []},
        "that ended twice": {"ends": end * 2},
        "that ended twice, once by failure": {"ends": [*end, Failed(0, 0, OSError(), 0.0)]},
        "that told another token": {"token_ids": [5, 6, 8]},
        "that told a token twice": {"token_ids": [5, 6, 6, 7]},
        "that left one out": {"token_ids": [5, 7]},
        "that did not tell the last": {"token_ids": [5, 6]},
        "that told one too many": {"token_ids": [5, 6, 7, 8]},
        "that told another text": {"text": "abd"},
        "that told half the text": {"text": "ab"},
        "that failed": {"ends": [Failed(0, 0, OSError(), 0.0)]},
        "that was given up": {"ends": [Aborted(0, 0, (5, 6, 7), "abc", 0.0)]},
        "whose completion is another": {"ends": [finished([5, 6, 8], "abc")]},
        "whose completion has another text": {"ends": [finished([5, 6, 7], "abd")]},
        "that stopped for another reason": {"ends": [finished([5, 6, 7], "abc", reason="stop")]},
        "with another stop string": {"ends": [finished([5, 6, 7], "abc", stop="y")]},
    }.items():
        expect(judged({(0, 0): changed}), 1, call=f"complaints about a sample {name}",
               given={"truth": TRUTH[0, 0], "changed": changed})  # fmt: skip
    heard = right()
    del heard[1, 1]
    expect(len(complaints(heard, TRUTH)), 1, call="complaints about a sample never heard of")
    heard = right() | {(7, 0): right()[0, 0]}
    found = complaints(heard, TRUTH)
    expect(len(found), 1, call="complaints about a sample that nobody asked for")
    expect.that("7" in found[0], "the sentence has the request's id", observed=found)
    for changed in ({"ends": []}, {"token_ids": [1]}, {"ends": [Failed(31, 0, OSError(), 0.0)]}):
        end = Finished(31, 0, TRUTH[0, 0], 0.0)
        one = Transcript(**{"token_ids": [5, 6, 7], "text": "abc", "ends": [end]} | changed)
        found = complaints({(31, 0): one}, {(31, 0): TRUTH[0, 0]})
        expect.that(len(found) == 1 and "31" in found[0], "each sentence has the request's id, 31",
                    observed=found, given={"changed": changed})  # fmt: skip
    both = {(0, 0): {"ends": []}, (1, 1): {"token_ids": [1]}}
    expect(judged(both), 2, call="complaints about two samples", cause="a sentence for each")


@pytest.mark.check(task=7, points=1, title="Those that may fail tell no lies")
def test_spared(seed):
    failed, gone = [Failed(0, 0, OSError(), 0.0)], [Aborted(0, 0, (5,), "a", 0.0)]
    for changed, wanted in (
        ({"ends": failed}, 0),
        ({"ends": gone, "token_ids": [5], "text": "a"}, 0),
        ({"ends": failed, "token_ids": [], "text": ""}, 0),
        ({"ends": []}, 1),
        ({"ends": failed * 2}, 1),
        ({"ends": failed, "token_ids": [5, 7]}, 1),
        ({"ends": failed, "token_ids": [5], "text": "b"}, 1),
        ({"ends": failed, "token_ids": [5], "text": "ax"}, 1),
        ({"ends": [finished([5], "a")], "token_ids": [5], "text": "a"}, 0),
    ):
        expect(judged({(0, 0): changed}, spared=[0]), wanted,
               call="complaints about a spared request", given={"changed": changed},
               cause="it ends once, and what it told is a beginning of the truth")  # fmt: skip
    expect(judged({(1, 1): {"ends": failed}}, spared=[0]), 1, call="another one that failed")
    heard = right() | {(0, 1): right()[0, 0]}
    expect(len(complaints(heard, TRUTH, spared=[0])), 1,
           call="complaints about a sample of a spared request that nobody asked for")  # fmt: skip
    expect(judged({(1, 1): {"ends": failed}, (1, 0): {"ends": failed}}, spared=iter([1])), 0,
           call="both samples of a spared request")  # fmt: skip


def walk(rng, rules, length=30):
    """A right history, by a slow model of the ladder."""
    now, at, history = 0.0, {}, []
    for _ in range(length):
        now += rng.choice([0.0, 1.0, rules.calm / 2, rules.calm, 2.5 * rules.calm])
        failure = rng.choice([Failure.TIMEOUT, Failure.CRASH, Failure.OUT_OF_MEMORY])
        level, tries, last = at.get(failure, (0, 0, now))
        down = int((now - last) // rules.calm)
        if level == 0:
            level, tries = int(ENTRY[failure]), 0
        elif level < 5 and down:
            level, tries = max(int(ENTRY[failure]), level - down), 0
        elif level < 5 and tries >= rules.tries:
            level, tries = level + 1, 0
        at[failure] = (level, tries + 1, now)
        history.append(Rung(now, failure, Level(level)))
    return history


@pytest.mark.check(task=7, points=1, title="The judge of a ladder")
def test_ladder_complaints(seed):
    timeout, two, three, four, five = Failure.TIMEOUT, *(Level(n) for n in (2, 3, 4, 5))
    for name, levels, gaps, wrong in (
        ("right", [two, two, three, three, four], [1] * 5, 0),
        ("that enters too high", [three], [0], 1),
        ("that enters too low", [Level.ADJUST], [0], 1),
        ("that skips a level", [two, two, four], [1] * 3, 1),
        ("that climbs too early", [two, three], [1] * 2, 1),
        ("that does not climb", [two, two, two], [1] * 3, 1),
        ("that comes down too early", [two, two, three, two], [1, 1, 1, 59], 1),
        ("that comes down", [two, two, three, two], [1, 1, 1, 60], 0),
        ("that does not come down", [two, two, three, three], [1, 1, 1, 60], 1),
        ("that comes down too far", [two, two, three, three, four, two], [1] * 5 + [60], 1),
        ("that begins anew", [two, two, two, two, three], [1, 1, 60, 1, 1], 0),
        ("that stays with a person", [two, two, three, three, four, four, five, five],
         [1] * 7 + [1e9], 0),
        ("that leaves a person", [two, two, three, three, four, four, five, two],
         [1] * 7 + [9999], 1),
        ("that goes back in time", [two, two], [5, -3], 1),
    ):  # fmt: skip
        now, history = 0.0, []
        for level, gap in zip(levels, gaps, strict=True):
            now += gap
            history.append(Rung(now, timeout, level))
        expect(min(1, len(ladder_complaints(history, Rules(2, 60.0)))), wrong,
               call=f"complaints of a history {name}, 2 tries, 60 s calm (1: some, 0: none)",
               given={"history": [[rung.time, rung.level.name] for rung in history]})  # fmt: skip
    expect(ladder_complaints([], Rules()), [], call="ladder_complaints([])")


@pytest.mark.check(task=7, points=1, title="A sentence for each wrong rung, and for no other")
def test_wrong_rungs(seed):
    two, three, four, five = (Level(n) for n in (2, 3, 4, 5))
    for levels, wrong in (
        ([three, three, four], 1),
        ([two, two, two, three], 1),
        ([two, two, four, four, five], 1),
        ([two, three, two, two], 2),
    ):
        history = [Rung(float(now), Failure.TIMEOUT, level) for now, level in enumerate(levels)]
        expect(len(ladder_complaints(history, Rules(2, 60.0))), wrong,
               call="number of complaints about a timeout each second, with 2 tries",
               given={"levels": [level.name for level in levels]},
               cause="each is judged by those before it, as they stand")  # fmt: skip


@pytest.mark.check(task=7, points=2, title="Random histories, yours and the judge's")
def test_random_ladders(seed):
    for number in range(20):
        rng = random.Random(seed + number)
        rules = Rules(rng.choice([1, 2, 3]), rng.choice([10.0, 60.0]))
        history = walk(rng, rules)
        expect(ladder_complaints(history, rules), [], call="complaints of a right history",
               given={"rules": rules})  # fmt: skip
        ladder = Ladder(rules)
        found = [int(ladder.failed(rung.time, rung.failure)) for rung in history]
        expect(found, [int(rung.level) for rung in history], call="failed, of the same failures",
               given={"rules": rules, "first": history[:4]})  # fmt: skip
        place = rng.randrange(len(history))
        rung = history[place]
        other = Level(rng.choice([n for n in range(1, 6) if n != rung.level]))
        bad = [*history[:place], Rung(rung.time, rung.failure, other), *history[place + 1 :]]
        expect.that(ladder_complaints(bad, rules), "a history with one wrong level is noticed",
                    given={"rules": rules, "wrong": bad[place]})  # fmt: skip

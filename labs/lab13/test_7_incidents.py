"""Task 7: the cause of an incident, and its first evidence."""

import random
import re
from dataclasses import replace

import pytest

from grader import expect
from nanovllm.observability.incidents import diagnose, first_held
from nanovllm.observability.recording import Second

BUSY = Second(5, 5, 0, 90, 8, 0, 0, 0.5)
IDLE = Second(0, 0, 0, 0, 0, 0, 0, 1.0)
SIGNS = {
    "hang": {"tokens": 0, "finished": 0},
    "leak": {"running": 0, "free": 0.89, "tokens": 0, "finished": 0},
    "thrash": {"preempted": 6},
    "errors": {"failed": 1},
}


def usual(seed, seconds=60):
    """A busy server with quiet moments; nothing is wrong."""
    draw = random.Random(seed)
    return [
        IDLE if draw.random() < 0.1 else replace(BUSY, running=draw.randint(6, 9),
                                                 waiting=draw.randint(0, 2))
        for _ in range(seconds)
    ]  # fmt: skip


def found(recording):
    finding = diagnose(recording)
    return [finding.cause, finding.second]


def plant(recording, cause, start, length=10):
    """The sign of a cause in these seconds."""
    recording = list(recording)
    for i in range(start, start + length):
        recording[i] = (
            replace(BUSY, waiting=20 + i) if cause == "overload" else replace(BUSY, **SIGNS[cause])
        )
    return recording


@pytest.mark.check(task=7, points=1, title="Ten in a row")
def test_held(seed):
    draw = random.Random(seed)
    for held in (1, 2, 3, 10):
        signs = [draw.random() < 0.7 for _ in range(40)]
        runs = [i for i in range(len(signs) - held + 1) if all(signs[i : i + held])]
        expect(
            first_held(signs, held),
            runs[0] if runs else None,
            call=f"first_held(signs, {held})",
            given={"signs": "".join("x" if sign else "." for sign in signs)},
            cause="the first second of the first run that is long enough",
        )
    expect(first_held([], 3), None, call="first_held([], 3)")


def one_cause(seed, cause):
    draw = random.Random(seed)
    for length in (10, 17):
        start = draw.randint(5, 40)
        recording = plant(usual(seed), cause, start, length)
        finding = diagnose(recording)
        expect(
            [finding.cause, finding.second],
            [cause, start],
            call=f"diagnose(recording) with {cause} from second {start} on, for {length} seconds",
            given={"second": recording[start]},
            cause="the first second of the ten that show the sign is the evidence",
        )
        numbers = re.findall(r"\d+\.?\d*", finding.evidence)
        expect.that(
            str(start) in numbers,
            "the evidence is a sentence with the second",
            observed=finding.evidence,
        )
        numbers.remove(str(start))
        now = recording[start]
        signs = {
            "hang": (now.running, now.waiting, now.tokens),
            "thrash": (now.preempted, now.finished),
            "errors": (now.failed, now.finished),
            "overload": (now.waiting, now.running, recording[start - 1].waiting),
        }[cause]
        expect.that(
            any(abs(float(number) - sign) < 1e-6 for number in numbers for sign in signs),
            "the evidence has a figure that shows the sign",
            observed=finding.evidence,
            given={"second": now},
        )
    short = plant(usual(seed), cause, 20, 9)
    expect(found(short)[0], "none", call=f"diagnose(recording) with {cause} for 9 seconds only",
           cause="a sign must hold for 10 seconds in a row")  # fmt: skip


@pytest.mark.check(task=7, points=1, title="A server that hangs, and says it is well")
def test_hang(seed):
    stuck = (replace(IDLE, waiting=3), replace(IDLE, running=1), replace(BUSY, tokens=0))
    nights = [
        [*usual(seed, 15), *[replace(second, healthy=healthy)] * 12]
        for second in stuck
        for healthy in (False, True)
    ]
    expect(
        [found(recording) for recording in nights],
        [["hang", 15]] * 6,
        call="diagnose of a server without progress: three kinds, each with a bad health check and "
        "a good one",
        given={"seconds": stuck},
        cause="whatever the health check says, work that waits while no token comes is a hang",
    )
    one_cause(seed, "hang")
    expect(found([IDLE] * 40)[0], "none", call="diagnose of a server without work",
           cause="who has nothing to do makes no tokens")  # fmt: skip


@pytest.mark.check(task=7, points=1, title="Blocks that nobody gives back")
def test_leak(seed):
    recording = [*usual(seed, 20), *[replace(IDLE, free=0.85)] * 12]
    expect(found(recording), ["leak", 20], call="diagnose, when nobody runs and 85 % are free")
    recording = [*usual(seed, 20), *[replace(IDLE, free=0.9)] * 12]
    expect(found(recording)[0], "none", call="diagnose, when nobody runs and 90 % are free")
    for leak in (replace(IDLE, free=0.899), replace(IDLE, free=0.85, waiting=3, tokens=2)):
        expect(
            found([*usual(seed, 20), *[leak] * 12]),
            ["leak", 20],
            call=f"diagnose, with {leak}",
            cause="nobody runs, and less than nine tenths are free: no more is asked",
        )
    recording = [*usual(seed, 20), *[replace(BUSY, free=0.05)] * 12]
    expect(found(recording)[0], "none", call="diagnose, when 5 % are free and 8 run",
           cause="blocks that are in use are no leak")  # fmt: skip


@pytest.mark.check(task=7, points=1, title="Thrashing and errors")
def test_thrash_and_errors(seed):
    one_cause(seed, "thrash")
    one_cause(seed, "errors")
    for finished, preempted, cause in ((5, 5, "none"), (0, 1, "thrash"), (0, 0, "none")):
        recording = [replace(BUSY, finished=finished, preempted=preempted)] * 15
        expect(found(recording)[0], cause,
               call=f"diagnose: {preempted} preempted, {finished} finished a second")  # fmt: skip
    for finished, failed, cause in (
        (19, 1, "none"),
        (18, 1, "errors"),
        (0, 1, "errors"),
        (0, 0, "none"),
    ):
        recording = [replace(BUSY, finished=finished, failed=failed)] * 15
        expect(found(recording)[0], cause,
               call=f"diagnose: {failed} failed and {finished} finished a second",
               cause="more than 5 in 100 of those that end, failed ones included")  # fmt: skip


@pytest.mark.check(task=7, points=2, title="Overload")
def test_overload(seed):
    one_cause(seed, "overload")
    growing = [replace(BUSY, waiting=9 + i) for i in range(11)]
    expect(found(growing), ["overload", 1], call="diagnose of a queue that grows from second 0 on",
           cause="second 0 has no second before it")  # fmt: skip
    expect(found(growing[:10])[0], "none", call="diagnose of ten seconds of a queue that grows")
    long = [replace(BUSY, waiting=50)] * 30
    expect(found(long)[0], "none", call="diagnose of a long queue that does not grow")
    small = [replace(BUSY, running=90, waiting=i) for i in range(30)]
    expect(found(small)[0], "none", call="diagnose of a queue shorter than the batch")
    equal = [replace(BUSY, running=5 + i, waiting=5 + i) for i in range(30)]
    expect(found(equal)[0], "none", call="diagnose of a queue as long as the batch")


@pytest.mark.check(task=7, points=2, title="What came first")
def test_first(seed):
    draw = random.Random(seed)
    order = ["hang", "leak", "thrash", "errors", "overload"]
    for _ in range(8):
        one, other = draw.sample(order, 2)
        recording = plant(plant(usual(seed, 80), one, 12), other, 40, 20)
        expect(found(recording), [one, 12],
               call=f"diagnose: {one} from second 12 on, {other} from second 40 on",
               cause="the sign that is seen first is the cause, others follow from it")  # fmt: skip
    both = [replace(BUSY, tokens=0, failed=3, finished=0, waiting=20 + i, preempted=4)
            for i in range(20)]  # fmt: skip
    expect(found([*usual(seed, 9), *both]), ["hang", 9], call="diagnose: all signs at once",
           cause="of signs that begin in one second, the first of the list")  # fmt: skip
    expect(
        found([*usual(seed, 9), *[replace(second, tokens=9) for second in both]]),
        ["thrash", 9],
        call="diagnose: thrash, errors and overload at once",
    )
    expect(found(usual(seed)), ["none", None], call="diagnose of a server that is well")
    expect(found([]), ["none", None], call="diagnose([])")

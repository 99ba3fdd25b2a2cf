"""Task 2: what is wrong, and whose remedy it is."""

import random

import pytest

from grader import expect
from nanovllm.resilience.progress import Monitors, Progress, health
from nanovllm.resilience.vitals import Alarm, Limits, Phase, Remedy, Vitals


def looks(story, patience=10.0):
    progress = Progress(patience)
    return [progress.hung(*look) for look in story]


@pytest.mark.check(task=2, points=2, title="Busy, and no progress")
def test_hang(seed):
    story = [(0.0, 3, 2), (9.9, 3, 2), (10.0, 3, 1), (50.0, 3, 5), (51.0, 4, 5), (60.0, 4, 5),
             (61.0, 4, 5)]  # fmt: skip
    expect(looks(story), [False, False, True, True, False, False, True],
           call="Progress(10).hung at looks (now, steps, work)", given={"looks": story},
           cause="steps that stand still for 10 seconds while work waits")  # fmt: skip
    fresh = [(7.0, 0, 1), (16.9, 0, 1), (17.0, 0, 1)]
    expect(looks(fresh), [False, False, True], call="Progress(10).hung, first look at 7 s",
           cause="nobody knows what was before the first look")  # fmt: skip


@pytest.mark.check(task=2, points=1, title="An idle engine is well")
def test_idle(seed):
    expect(looks([(t * 100.0, 5, 0) for t in range(9)]), [False] * 9,
           call="hung of an engine without work")  # fmt: skip
    story = [(0.0, 5, 0), (500.0, 5, 1), (509.0, 5, 1), (510.0, 5, 1)]
    expect(looks(story), [False, False, False, True], call="hung, with work after a long rest",
           given={"looks": story}, cause="the patience begins with the work")  # fmt: skip
    story = [(0.0, 5, 1), (8.0, 5, 0), (12.0, 5, 1), (21.9, 5, 1), (22.0, 5, 1)]
    expect(looks(story), [False, False, False, False, True], call="hung, with a rest in between",
           given={"looks": story})  # fmt: skip


@pytest.mark.check(task=2, points=1, title="A new engine counts from 0")
def test_fewer_steps(seed):
    story = [(0.0, 90, 1), (9.0, 0, 1), (18.0, 0, 1), (19.0, 0, 1)]
    expect(looks(story), [False, False, False, True], call="hung, where steps fall from 90 to 0",
           given={"looks": story}, cause="a change in either direction is progress")  # fmt: skip


@pytest.mark.check(task=2, points=1, title="Looking is no sign of life")
def test_random_looks(seed):
    for number in range(20):
        draw = random.Random(seed + number)
        patience = draw.choice([3.0, 8.0])
        now, steps, story, wanted, since, before = 0.0, 0, [], [], None, 0
        for _ in range(60):
            now += draw.choice([0.25, 1.0, 4.0])
            work = draw.choice([0, 1, 1, 1, 2, 7])
            moved = draw.random() < 0.2
            steps += moved
            if since is None or moved or before == 0:
                since = now
            before = work
            story.append((now, steps, work))
            wanted.append(work > 0 and now - since >= patience)
        expect(looks(story, patience), wanted, call=f"Progress({patience}).hung at 60 random looks",
               given={"looks": story[:12]}, cause="however often somebody looks")  # fmt: skip


@pytest.mark.check(task=2, points=2, title="Live and ready")
def test_health(seed):
    found = {(phase.value, hung): health(phase, hung) for phase in Phase for hung in (False, True)}
    live = {key: answer.live for key, answer in found.items()}
    wanted = {(p.value, h): not h or p in (Phase.STARTING, Phase.GIVEN_UP) for p, h in
              ((p, h) for p in Phase for h in (False, True))}  # fmt: skip
    expect(live, wanted, call="health(phase, hung).live",
           cause="False where a restart would help: it hangs, and does not start, and was not "
           "restarted in vain")  # fmt: skip
    ready = [key for key, answer in found.items() if answer.ready]
    expect(ready, [("serving", False)], call="phases that are ready",
           cause="new requests go to who serves, and does not hang")  # fmt: skip


def alarms(vitals, limits=None):
    found = Monitors(limits).look(vitals)
    return sorted((one.remedy.name, one.request_id) for one in found)


@pytest.mark.check(task=2, points=2, title="Five monitors, five remedies")
def test_monitors(seed):
    well = {"now": 1.0, "work": 3, "steps": 5, "oldest": 7, "age": 30.0, "free": 0.1,
            "fragmentation": 0.4}  # fmt: skip
    cases = [
        ({}, []),
        ({"free": 0.099}, [("SLOW_DOWN", None)]),
        ({"age": 30.01}, [("CANCEL", 7)]),
        ({"age": 30.01, "oldest": 0}, [("CANCEL", 0)]),
        ({"fragmentation": 0.41}, [("COMPACT", None)]),
        ({"bad_logits": True}, [("RELOAD", None)]),
        ({"free": 0.0, "age": 99.0, "oldest": 4, "fragmentation": 0.9},
         [("CANCEL", 4), ("COMPACT", None), ("SLOW_DOWN", None)]),
        ({"bad_logits": True, "free": 0.0, "age": 99.0}, [("RELOAD", None)]),
    ]  # fmt: skip
    for changed, wanted in cases:
        expect(alarms(Vitals(**well | changed)), wanted, call=f"Monitors().look with {changed}",
               given={"else": well}, cause="beyond a limit, not at it; each has its own "
               "remedy")  # fmt: skip
    limits = Limits(free=0.5, age=5.0, fragmentation=0.1)
    expect([name for name, _ in alarms(Vitals(**well), limits)], ["CANCEL", "COMPACT", "SLOW_DOWN"],
           call="Monitors(Limits(0.5, 5, fragmentation=0.1)).look")  # fmt: skip


@pytest.mark.check(task=2, points=1, title="An engine that hangs gets one remedy")
def test_rebuild(seed):
    monitors = Monitors(Limits(patience=4.0))
    story = []
    for now in (0.0, 3.0, 4.0, 9.0):
        sick = Vitals(now, free=0.01 if now else 1.0, steps=8, work=2, age=now, oldest=1)
        story.append(monitors.look(sick))
    slow = [Alarm(Remedy.SLOW_DOWN)]
    expect(story, [[], slow, [Alarm(Remedy.REBUILD)], [Alarm(Remedy.REBUILD)]],
           call="Monitors(Limits(patience=4)).look at 0, 3, 4 and 9 s, no step",
           cause="what is rebuilt begins empty: nothing else is to be done")  # fmt: skip
    nan = Vitals(10.0, steps=8, work=2, bad_logits=True)
    expect(monitors.look(nan), [Alarm(Remedy.RELOAD)], call="look at one that hangs, with NaN")
    moved = [monitors.look(Vitals(11.0 + i, steps=8 + i, work=2)) for i in range(1, 4)]
    expect(moved, [[], [], []], call="looks when it moves again")
    idle = Monitors(Limits(patience=4.0))
    for now, bad in ((0.0, False), (3.0, True), (5.0, False)):
        last = idle.look(Vitals(now, steps=1, work=1, bad_logits=bad))
    expect(last, [Alarm(Remedy.REBUILD)], call="a hang over three looks, one of them with NaN",
           cause="each look counts, whatever else it finds")  # fmt: skip
    moves = Monitors(Limits(patience=4.0))
    for now, steps, bad in ((0.0, 1, False), (3.0, 2, True), (5.0, 2, False), (7.0, 2, False)):
        last = moves.look(Vitals(now, steps=steps, work=1, bad_logits=bad))
    expect(last, [Alarm(Remedy.REBUILD)], call="look at 7 s, where it last moved by the look at "
           "3 s, which found NaN", cause="each look counts, whatever else it finds")  # fmt: skip

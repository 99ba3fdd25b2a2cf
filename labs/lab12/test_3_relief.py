"""Task 3: levels 1 and 2."""

import random
from math import ceil, log2

import pytest

from grader import expect
from nanovllm.batching.budget import FixedBudget
from nanovllm.generation.latency import ManualClock
from nanovllm.resilience.relief import (
    Brake,
    BrakedBudget,
    OpenRequest,
    expendable,
    fragmentation,
    isolate,
    overdue,
)


def state(brake, now):
    return [brake.factor(now), brake.closed(now), brake.exhausted(now)]


@pytest.mark.check(task=3, points=2, title="Less for a while, then all of it again")
def test_brake(seed):
    brake = Brake(share=0.6, hold=5.0, longest=30.0)
    expect(state(brake, 0.0), [1.0, False, False], call="factor, closed, exhausted of a new brake")
    brake.alarm(1.0)
    found = [state(brake, now) for now in (1.0, 5.9, 6.0, 90.0)]
    expect(found, [[0.6, True, False]] * 2 + [[1.0, False, False]] * 2,
           call="Brake(0.6, hold=5) at 1, 5.9, 6, 90 s after an alarm at 1 s",
           cause="everything is as before after `hold` seconds")  # fmt: skip
    brake.alarm(100.0)
    expect(state(brake, 100.0), [0.6, True, False], call="after a second time of need begins")


@pytest.mark.check(task=3, points=2, title="30 % once, not at each alarm")
def test_brake_once(seed):
    brake = Brake(share=0.7, hold=5.0, longest=30.0)
    found = []
    for now in (0.0, 1.0, 2.0, 6.5):
        brake.alarm(now)
        found.append(brake.factor(now))
    found += [brake.factor(11.4), brake.factor(11.5)]
    expect(found, [0.7] * 5 + [1.0], call="factor at alarms at 0, 1, 2, 6.5 s, then 11.4, 11.5 s",
           cause="a further alarm makes it longer, never smaller")  # fmt: skip


@pytest.mark.check(task=3, points=2, title="Bounded")
def test_brake_bounded(seed):
    brake, found = Brake(0.7, hold=5.0, longest=12.0), []
    for now in range(0, 20, 2):
        brake.alarm(float(now))
        found.append(state(brake, float(now)))
    expect(
        found,
        [[0.7, True, False]] * 6 + [[1.0, False, True]] * 4,
        call="Brake(0.7, hold=5, longest=12) with an alarm every 2 s",
        cause="over after `longest`, whatever comes; then somebody higher up has to help",
    )
    expect(state(brake, 23.0), [1.0, False, False], call="5 s after the last alarm, at 18 s")
    brake.alarm(24.0)
    expect(state(brake, 24.0), [0.7, True, False], call="a new time of need after that")
    for number in range(20):
        draw, now = random.Random(seed + number), 0.0
        hold, longest = draw.choice([3.0, 5.0]), draw.choice([8.0, 20.0])
        brake, first, last, times = Brake(0.7, hold, longest), None, None, []
        for _ in range(60):
            now += draw.choice([0.5, 1.0, 2.0, 5.0])
            if draw.random() < 0.6:
                brake.alarm(now)
                times.append(now)
                if last is None or now - last >= hold:
                    first = now
                last = now
            needy = last is not None and now - last < hold
            wanted = [
                0.7 if needy and now - first < longest else 1.0,
                needy and now - first < longest,
                needy and now - first >= longest,
            ]
            expect(state(brake, now), wanted, call=f"Brake(0.7, {hold}, {longest}) at {now} s",
                   given={"alarms": times[-8:]})  # fmt: skip


@pytest.mark.check(task=3, points=1, title="A budget behind the brake")
def test_budget(seed):
    clock = ManualClock()
    for limit, share, less in ((1, 0.7, 1), (2, 0.7, 1), (10, 0.7, 7), (90, 0.7, 63),
                               (512, 0.7, 358), (2047, 0.7, 1432), (101, 0.5, 50)):  # fmt: skip
        brake = Brake(share)
        budget = BrakedBudget(FixedBudget(limit), brake, clock)
        before = budget.limit
        brake.alarm(clock())
        pressed = budget.limit
        clock.advance(9.0)
        wanted = [limit, less, limit, limit]
        expect(
            [before, pressed, budget.limit, budget.highest],
            wanted,
            call=f"limit before, during, after an alarm, and highest, of {limit}, share {share}",
            cause="times the factor, rounded down (floats do not know 0.7), at least 1; highest is "
            "what a machine takes",
        )


def opened(seed, most=30):
    draw = random.Random(seed)
    numbers = draw.sample(range(100), draw.randint(1, most))
    return [OpenRequest(n, float(draw.randint(0, 9)), draw.randint(-1, 1)) for n in numbers]


@pytest.mark.check(task=3, points=1, title="Who is overdue")
def test_overdue(seed):
    for number in range(8):
        requests = opened(seed + number)
        late = sorted((one.arrived, one.request_id) for one in requests if one.arrived < 4)
        expect(overdue(iter(requests), 34.0, 30.0), [n for _, n in late],
               call="overdue(requests, 34, 30)", given={"requests": requests[:6]},
               cause="open for more than 30 s; the oldest first, then by id")  # fmt: skip
    expect(overdue([], 5.0, 1.0), [], call="overdue([], 5, 1)")


@pytest.mark.check(task=3, points=1, title="Whom to end when memory is short")
def test_expendable(seed):
    for number in range(20):
        requests = opened(seed + number)
        lowest = max(one.priority for one in requests)
        first = min((one.arrived, one.request_id) for one in requests if one.priority == lowest)
        expect(
            expendable(iter(requests)),
            first[1],
            call="expendable(requests)",
            given={"requests": requests[:6]},
            cause="the highest number of priority is the least urgent; of these the oldest",
        )
    expect(expendable([]), None, call="expendable([])")


@pytest.mark.check(task=3, points=1, title="Fragmentation")
def test_fragmentation(seed):
    draw = random.Random(seed)
    cases = [set(), {0}, {0, 1, 2}, {4}, {1, 3}, set(draw.sample(range(200), 50))]
    wanted = [0.0, 0.0, 0.0, 0.8, 0.5, 1 - 50 / (max(cases[-1]) + 1)]
    expect([fragmentation(held) for held in cases], wanted, call="fragmentation of six sets",
           given={"sets": cases[:5]}, rtol=1e-9,
           cause="of blocks 0 to the highest held one, the share that nobody holds")  # fmt: skip


@pytest.mark.check(task=3, points=1, title="Who is to blame")
def test_isolate(seed):
    for number in range(12):
        draw = random.Random(seed + number)
        batch = draw.sample(range(1000), draw.choice([1, 2, 3, 5, 8, 13, 64]))
        bad = set(draw.sample(batch, min(len(batch), draw.choice([0, 1, 1, 2, 3]))))
        asked = []

        def fails(part, bad=bad, asked=asked):
            asked.append(len(part))
            return bool(bad & set(part))

        found = isolate(batch, fails)
        expect(
            list(found),
            [one for one in batch if one in bad],
            call="isolate(batch, fails)",
            given={"batch": batch[:13], "to blame": bad},
            cause="all of them, in order",
        )
        expect.that(0 not in asked, "fails is never asked about nobody", observed=asked)
        most = 999 if bad else 1
        expect.that(len(asked) <= most, f"fails is asked at most {most} times for {len(batch)}, of "
                    f"whom {len(bad)} to blame", observed=len(asked))  # fmt: skip
    expect(list(isolate([], lambda part: True)), [], call="isolate([], fails)")


@pytest.mark.check(task=3, points=1, title="Found by halving")
def test_halving(seed):
    for many in (1, 2, 7, 8, 64):
        most = 2 * ceil(log2(many)) + 1
        for one in range(many):
            asked = []

            def fails(part, one=one, asked=asked):
                asked.append(len(part))
                return one in part

            expect(list(isolate(range(many), fails)), [one], call=f"isolate(range({many}), fails)")
            expect.that(len(asked) <= most, f"fails is asked at most {most} times for {many}, of "
                        f"whom {one} is to blame", observed=asked,
                        cause="halve the batch, and ask about no part twice")  # fmt: skip

"""Task 1: faults on purpose, in virtual time."""

import random
from itertools import count

import numpy as np
import pytest
import torch

from grader import expect
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.resilience.errors import SimulationError
from nanovllm.resilience.faults import FaultyEngine, draw_faults, shrink
from nanovllm.resilience.kinds import DEATHS, MILD, Fault, FaultError, Kind
from nanovllm.resilience.toy_engine import ToyEngine
from nanovllm.resilience.virtual_time import VirtualTime, Wire

NAMES = [kind.name for kind in Kind]


@pytest.mark.check(task=1, points=1, title="Faults of a seed")
def test_draw(seed):
    runs = [draw_faults(seed + number, 9, 4, MILD) for number in range(120)]
    expect([draw_faults(seed + number, 9, 4, MILD) for number in range(120)], runs,
           call="draw_faults, twice with 120 seeds", cause="a seed must replay")  # fmt: skip
    expect({len(found) for found in runs}, {0, 1, 2, 3, 4}, call="how many faults, of at most 4",
           cause="any number from 0 to `most`, both included")  # fmt: skip
    steps = [[fault.step for fault in found] for found in runs]
    expect(steps, [sorted(set(one)) for one in steps], call="steps of the faults",
           cause="different steps, in order")  # fmt: skip
    expect({step for one in steps for step in one}, set(range(9)), call="all steps that were hit",
           cause="every step below `steps` may be hit")  # fmt: skip
    expect({fault.kind for found in runs for fault in found}, set(MILD), call="all kinds drawn")
    mixed = any(len({fault.kind for fault in found}) > 1 for found in runs)
    expect.that(mixed, "the faults of a seed may be of different kinds",
                cause="each fault has a kind of its own")  # fmt: skip
    expect(max(len(draw_faults(number, 2, 50)) for number in range(99)), 2,
           call="most faults in 2 steps, of at most 50")  # fmt: skip
    expect(draw_faults(seed, 9, 0), (), call="draw_faults(seed, 9, most=0)")


@pytest.mark.check(task=1, points=1, title="A random generator of their own")
def test_own_generator(seed):
    random.seed(seed)
    np.random.seed(seed % 2**32)
    wanted = [random.random(), np.random.rand()]
    random.seed(seed)
    np.random.seed(seed % 2**32)
    one = draw_faults(seed, 30, 5)
    found = [random.random(), np.random.rand()]
    expect(found, wanted, call="what others draw after draw_faults",
           cause="faults must not change the requests of a run")  # fmt: skip
    random.seed(seed + 1)
    expect(draw_faults(seed, 30, 5), one, call="draw_faults after others have drawn")


def plan(seed, most=9):
    draw = random.Random(seed)
    return [Fault(step, draw.choice(DEATHS)) for step in range(draw.randint(3, most))]


@pytest.mark.check(task=1, points=1, title="Shrinking")
def test_shrink(seed):
    for number in range(8):
        faults = plan(seed + number)
        draw = random.Random(seed + number)
        culprits = sorted(draw.sample(faults, draw.randint(1, 2)), key=lambda fault: fault.step)
        asked = count()

        def fails(some, culprits=culprits, asked=asked):
            next(asked)
            return all(one in some for one in culprits)

        found = list(shrink(faults, fails))
        expect(
            found,
            culprits,
            call="shrink(faults, fails), which fails with these only",
            given={"faults": faults},
            cause="leave out each fault that is not needed",
        )
        most = len(faults) * (len(faults) + 1) // 2
        expect.that(next(asked) <= most, f"at most {most} simulations run for {len(faults)} faults")
    faults = [Fault(step, Kind.CRASH) for step in range(4)]
    pairs = [{0, 1}, {2, 3}]

    def parity(some):
        steps = {fault.step for fault in some}
        return any(pair <= steps for pair in pairs)

    found = shrink(faults, parity)
    steps = {fault.step for fault in found}
    expect.that(steps in pairs, "one of two pairs that fail is left", observed=found)
    late = shrink(faults, lambda some: len(some) != 3 and bool(some))
    expect.that(
        len(late) == 4 or len(late) == 1,
        "no fault of the result can be left out",
        observed=late,
        cause="ask again about faults that were needed before others left",
    )


@pytest.mark.check(task=1, points=1, title="Shrinking to nothing")
def test_shrink_to_nothing(seed):
    for number in (1, 2, 5):
        faults, asked = [Fault(step, Kind.SLOW) for step in range(number)], []

        def fails(some, asked=asked):
            asked.append(len(some))
            return True

        expect(tuple(shrink(faults, fails)), (), call=f"shrink of {number}, where every run fails",
               cause="it fails without any fault, too")  # fmt: skip
        most = number * (number + 1) // 2
        expect.that(len(asked) <= most, f"at most {most} simulations run for {number} faults",
                    observed=asked)  # fmt: skip
    found = shrink([Fault(step, Kind.SLOW) for step in range(3)], lambda some: len(some) in (0, 3))
    expect(tuple(found), (), call="shrink of 3, where a run fails with all of them, and with none",
           cause="ask first whether it fails without any")  # fmt: skip


@pytest.mark.check(task=1, points=1, title="Shrinking asks again")
def test_shrink_again(seed):
    faults = [Fault(step, Kind.SLOW) for step in range(3)]
    alone = [{0, 1, 2}, {0, 1}, {1}]

    def fails(some):
        return {fault.step for fault in some} in alone

    found = shrink(faults, fails)
    expect(list(found), [faults[1]], call="shrink, where fault 0 is needed until fault 2 has left",
           cause="leaving out one fault can make another one needless")  # fmt: skip


def faulty(faults, clock=None, start=0):
    steps = count(start)
    return FaultyEngine(ToyEngine(clock=clock), faults, steps, clock), steps


def texts(events):
    return [event.completion.text for event in events if hasattr(event, "completion")]


def loaded(kind, step=1, clock=None):
    engine, steps = faulty([Fault(step, kind)], clock)
    for number in range(2):
        engine.add_request([5 + number], SamplingParams(max_tokens=4, ignore_eos=True), seed=number)
    return engine, steps


def drained(engine, most=20):
    events = []
    for _ in range(most):
        if engine.has_unfinished:
            events += engine.step()
    return events


@pytest.mark.check(task=1, points=1, title="Steps that die")
def test_deaths(seed):
    story = []
    for kind in (Kind.CRASH, Kind.LOST, Kind.HANG):
        clock = ManualClock()
        engine, steps = loaded(kind, clock=clock)
        engine.step()
        for _ in range(2):
            expect.raises(FaultError, engine.step, call=f"step() at and after a {kind.name}",
                          cause="an engine that has died stays dead")  # fmt: skip
        story.append([kind.name, len(engine.running[0].output), clock(), next(steps)])
    expect(story, [["CRASH", 1, 0.0, 3], ["LOST", 2, 0.0, 3], ["HANG", 1, 3.0, 3]],
           call="kind, tokens computed, seconds passed, the next number of a step",
           cause="CRASH and HANG leave the engine as it was; LOST has run the step; a hang takes "
           "three seconds, once")  # fmt: skip


@pytest.mark.check(task=1, points=1, title="Steps that do badly")
def test_mild(seed):
    wanted = texts(drained(loaded(Kind.LATE)[0]))
    for kind, seconds in ((Kind.SLOW, 1.0), (Kind.CLOCK_JUMP, 100.0), (Kind.NO_START, 0.0)):
        clock = ManualClock()
        engine, _ = loaded(kind, clock=clock)
        events = drained(engine)
        expect([clock(), texts(events)], [seconds, wanted],
               call=f"seconds and texts of a run with {kind}")  # fmt: skip
        expect([event.time for event in events if hasattr(event, "token_id")][:4],
               [0.0, 0.0, seconds, seconds],
               call=f"times of the tokens of two steps, the second with {kind}",
               cause="first the clock is moved, then the step is run")  # fmt: skip
    clock = ManualClock()
    engine, _ = faulty([Fault(0, Kind.STORE_FULL)], clock)
    engine.add_request([5], SamplingParams(max_tokens=3, ignore_eos=True), seed=0)
    engine.step()
    expect([len(engine.running), clock()], [0, 0.0],
           call="requests in the batch, seconds passed, after STORE_FULL")  # fmt: skip
    expect(len(texts(drained(engine))), 1, call="requests that finish after it",
           cause="in this step only")  # fmt: skip


@pytest.mark.check(task=1, points=1, title="A step of NaN")
def test_nan_step(seed):
    class Seen(ToyEngine):
        def step(self):
            self.seen = self.execute(self.running)
            return super().step()

    clock = ManualClock()
    engine = FaultyEngine(Seen(clock=clock), [Fault(1, Kind.NAN)], count(), clock)
    for number in range(2):
        engine.add_request([5 + number], SamplingParams(max_tokens=4, ignore_eos=True), seed=number)
    engine.step()
    failed = [event for event in engine.step() if type(event).__name__ == "Failed"]
    expect([engine.seen.shape, bool(np.isnan(engine.seen).all())], [(2, 28), True],
           call="shape of what execute gave, whether all of it is NaN")  # fmt: skip
    expect([len(failed), clock()], [2, 0.0], call="requests of 2 that fail, seconds passed")
    engine.add_request([9], SamplingParams(max_tokens=2), seed=1)
    expect(len(texts(drained(engine))), 1, call="requests that finish in the steps after it",
           cause="NaN in this step only")  # fmt: skip

    class Tensors(ToyEngine):
        def execute(self, plan):
            return torch.ones(2, 3)

        def step(self):
            self.seen = self.execute([])
            return []

    engine = FaultyEngine(Tensors(), [Fault(0, Kind.NAN)], count())
    engine.step()
    found = engine.seen
    expect([type(found).__name__, list(found.shape), bool(np.isnan(np.asarray(found)).all())],
           ["Tensor", [2, 3], True],
           call="type and shape of what execute gave, where it is a tensor; whether all of it is "
           "NaN")  # fmt: skip


@pytest.mark.check(task=1, points=1, title="Virtual time")
def test_time(seed):
    draw = random.Random(seed)
    time, said = VirtualTime(), []
    moments = [0, 0.5, *(draw.randint(0, 5) for _ in range(28))]
    for number, moment in enumerate(moments):
        time.call_later(moment, lambda number=number: said.append((time(), number)))
    early = sorted((float(moment), number) for number, moment in enumerate(moments))
    time.run(until=0.5)
    expect(said, [one for one in early if one[0] <= 0.5], call="actions of run(until=0.5)")
    time.run(until=2)
    expect(said, [one for one in early if one[0] <= 2], call="actions of run(until=2)",
           cause="by moment, then as they were asked for; `until` included")  # fmt: skip
    expect(time(), 2.0, call="time after run(until=2)")
    time.run()
    expect(said, early, call="actions of run() after it")
    time.run(until=99)
    expect(time(), 99.0, call="time after run(until=99), with nothing to do")
    time.run(until=7)
    expect(time(), 99.0, call="time after run(until=7) at 99 s", cause="time never goes back")


@pytest.mark.check(task=1, points=1, title="Actions that ask for more")
def test_nested(seed):
    time, said = VirtualTime(), []

    def slow():
        said.append(("slow", time()))
        time.advance(5.0)
        time.call_later(-9.0, lambda: said.append(("past", time())))
        time.call_later(1.0, lambda: said.append(("later", time())))

    time.call_later(1.0, slow)
    time.call_later(2.0, lambda: said.append(("due", time())))
    time.run()
    wanted = [("slow", 1.0), ("due", 6.0), ("past", 6.0), ("later", 7.0)]
    expect(said, wanted, call="actions and their times, where the first takes 5 seconds",
           cause="what was due meanwhile runs late; the past counts as now; time never goes "
           "back")  # fmt: skip
    time, said = VirtualTime(), []
    time.call_later(1.0, lambda: time.advance(5.0))
    time.call_later(2.0, lambda: said.append(time()))
    time.run(until=3.0)
    expect([said, time()], [[6.0], 6.0],
           call="time of an action due at 2 s, and time, of run(until=3), where another took 5 s",
           cause="it was due by `until`, and runs late")  # fmt: skip


@pytest.mark.check(task=1, points=1, title="A simulation that never ends")
def test_endless(seed):
    time, runs = VirtualTime(), []

    def again():
        runs.append(1)
        time.call_later(0.0, again)

    time.call_later(0.0, again)
    expect.raises(SimulationError, lambda: time.run(most=50), call="run(most=50), without end")
    expect(len(runs), 50, call="actions that ran")
    time, runs = VirtualTime(), []
    for _ in range(50):
        time.call_later(0.0, lambda: runs.append(1))
    time.run(most=50)
    expect(len(runs), 50, call="run(most=50) of just 50 actions")
    time.call_later(0.0, lambda: runs.append(1))
    time.run(most=1)
    expect(len(runs), 51, call="actions after a further run(most=1)",
           cause="each call of run counts its own")  # fmt: skip


@pytest.mark.check(task=1, points=1, title="Messages lost, late, doubled")
def test_wire(seed):
    draw = random.Random(seed)
    kinds = {number: draw.choice([*NAMES, None]) for number in range(40)}
    kinds |= dict(enumerate(("LOST", "LATE", "DOUBLED")))
    faults = [Fault(number, Kind[name]) for number, name in kinds.items() if name]
    time, got = VirtualTime(), []
    wire = Wire(time, faults, delay=0.0625)
    wanted = []
    for number in range(40):
        start = float(number)
        sent = lambda number=number: wire.send(lambda m: got.append((time(), m)), number)  # noqa: E731
        time.call_later(start, sent)
        moments = {"LOST": [], "LATE": [2.0625], "DOUBLED": [0.0625, 2.0625]}
        wanted += [(start + after, number) for after in moments.get(kinds[number], [0.0625])]
    time.run()
    expect(sorted(got), sorted(wanted), call="time and number of each message that arrived",
           given={"kinds": kinds}, cause="by the number of the message; others are no affair of a "
           "wire's")  # fmt: skip
    expect(wire.sent, 40, call="wire.sent")

"""Task 5: an engine that dies, and requests that do not notice."""

import random
import tracemalloc
from itertools import count

import numpy as np
import pytest

from grader import expect
from nanovllm.batching.errors import DuplicateRequestError, RequestTooLargeError
from nanovllm.batching.events import Aborted, Failed, Preempted, Stepped
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.resilience.checksums import changed, checksums
from nanovllm.resilience.errors import GaveUpError, PoisonedRequestError
from nanovllm.resilience.restarts import RestartLimit
from nanovllm.resilience.supervisor import SupervisedEngine
from nanovllm.resilience.toy_engine import ToyEngine

LONG = SamplingParams(max_tokens=12, ignore_eos=True)
KINDS = ({"presence_penalty": 2.0, "frequency_penalty": 1.0}, {"repetition_penalty": 1.6},
         {"min_tokens": 8}, {"stop": ["e", "an", "q "]}, {"n": 3}, {"logprobs": 1}, {})  # fmt: skip


class Engines:
    """Makes engines whose steps die by plan; counts steps over all of them."""

    def __init__(self, crash=(), lost=(), nan=(), poison=(), seqs=3, places=90):
        self.crash, self.lost, self.nan, self.poison = set(crash), set(lost), set(nan), set(poison)
        self.clock, self.steps, self.made = ManualClock(), count(), []
        self.size = {"max_num_seqs": seqs, "places": places}

    def __call__(self):
        engine = Dying(self)
        self.made.append(engine)
        return engine

    def supervised(self, most=10**6, **more):
        return SupervisedEngine(self, RestartLimit(most=most), clock=self.clock, **more)


class Dying(ToyEngine):
    """Dies at the steps of its plan, and beside poisoned requests (by the first token)."""

    def __init__(self, plan):
        super().__init__(clock=plan.clock, **plan.size)
        self.plan, self.batches = plan, []

    def step(self):
        number = next(self.plan.steps)
        if number in self.plan.crash:
            raise RuntimeError("a crash on purpose")
        if number in self.plan.nan:
            self.bad = True
        try:
            events = super().step()
        finally:
            self.bad = False
        self.batches.append({one.request_id for one in self.running})
        if number in self.plan.lost:
            raise RuntimeError("a step's events are lost on purpose")
        if any(one.prompt[0] in self.plan.poison for one in self.running):
            raise RuntimeError("poison")
        return events

    def execute(self, plan):
        found = super().execute(plan)
        return found * np.nan if getattr(self, "bad", False) else found


def drained(engine, most=400):
    events = []
    for _ in range(most):
        if not engine.has_unfinished:
            return events
        events += engine.step()
    expect.that(False, f"has_unfinished is False after {most} steps")
    return events


def names(events):
    return [type(event).__name__ for event in events]


def asked_of(engine):
    return [one["request_id"] for one in engine.asked]


def steps(engine, many):
    return [event for _ in range(many) for event in engine.step()]


def ends_of(events):
    """How each request's first sample ended, each time."""
    return {number: [end if isinstance(end, str) else "Finished" for end in one[2]]
            for (number, index), one in told(events).items() if index == 0}  # fmt: skip


def asks(seed, many=4):
    draw = random.Random(seed)
    found = []
    for number in range(draw.randint(1, many)):
        kind = draw.choice(KINDS)
        params = SamplingParams(max_tokens=draw.randint(8, 12), seed=number, **kind)
        found.append(([draw.randrange(3, 27) for _ in range(draw.randint(1, 8))], params))
    return found


def told(events):
    """By sample: tokens, text, and how it ended, each time."""
    found = {}
    for event in events:
        kind = type(event)
        if kind in (TokenGenerated, Finished, Aborted, Failed):
            mine = found.setdefault((event.request_id, event.index), [[], "", []])
            if kind is TokenGenerated:
                mine[0].append(event.token_id)
                mine[1] += event.text
            else:
                mine[2].append(event.completion if kind is Finished else kind.__name__)
    return found


def truth(requests, places=90):
    engine = ToyEngine(places=places)
    for number, (prompt, params) in enumerate(requests):
        engine.add_request(prompt, params, seed=params.seed, request_id=number)
    return told(drained(engine))


def compare(seed, make, requests, cause=""):
    places = make.size["places"]
    engine = make.supervised()
    for prompt, params in requests:
        engine.add_request(prompt, params)
    expect(told(drained(engine)), truth(requests, places),
           call="tokens, text and ends of each sample",
           given={"prompt and params": requests, "deaths at": sorted(make.crash | make.lost)},
           cause=cause or "as one engine that never fails would tell")  # fmt: skip
    return engine


@pytest.mark.check(task=5, points=1, title="An engine that never dies")
def test_undisturbed(seed):
    requests = asks(seed)
    plain, make = ToyEngine(), Engines()
    engine = make.supervised()
    expect(engine.has_unfinished, False, call="has_unfinished of a new supervisor")
    ids = [engine.add_request(prompt, params) for prompt, params in requests]
    expect(ids, list(range(len(requests))), call="ids that add_request gives")
    for number, (prompt, params) in enumerate(requests):
        plain.add_request(prompt, params, seed=params.seed, request_id=number)
    expect(names(drained(engine)), names(drained(plain)), call="kinds of all events",
           cause="without a death it is the engine itself")  # fmt: skip
    expect([engine.restarts, len(make.made), engine.failure], [0, 1, None],
           call="restarts, engines made, failure")  # fmt: skip
    expect(engine.max_num_seqs, 3, call="max_num_seqs", cause="other attributes are the engine's")
    other = Engines()
    first = other()
    expect(other.supervised(engine=first).store is first.store, True,
           call="whether engine= is the first engine")  # fmt: skip
    expect(len(other.made), 1, call="engines made, where the first was given")

    class Stepping(ToyEngine):
        def step(self):
            return [*super().step(), Stepped((), 0, 0, 0, 0, 0.0, 0.0)]

    engine = SupervisedEngine(Stepping)
    for number in range(3):
        engine.add_request([5], LONG, seed=number)
    expect(names(engine.step())[-1], "Stepped", call="the last event of a step, if it is Stepped",
           cause="events of no request are told, too")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="A death at any step")
def test_death(seed):
    for number, kind in enumerate(KINDS):
        for step in (0, 1, 3, 6):
            draw = random.Random(seed + number)
            params = SamplingParams(max_tokens=12, seed=number, **kind)
            requests = [([draw.randrange(3, 27)] * 3, params) for _ in range(2)]
            engine = compare(seed, Engines(crash=[step]), requests)
            if step == 0:
                expect(engine.restarts, 1, call="restarts, where the first step died")


@pytest.mark.check(task=5, points=1, title="Any error is a death, also of an engine at rest")
def test_any_error(seed):
    for error in (ValueError("x"), OSError("cut"), KeyError(3), AssertionError(), MemoryError()):
        errors = [error]

        class Once(ToyEngine):
            def step(self, errors=errors):
                if errors:
                    raise errors.pop()
                return super().step()

        engine = SupervisedEngine(Once)
        engine.add_request([5], LONG, seed=1)
        expect([ends_of(drained(engine)), engine.restarts], [{0: ["Finished"]}, 1],
               call=f"ends and restarts, where a step raises {type(error).__name__}")  # fmt: skip
    make = Engines(crash=[0])
    engine = make.supervised()
    expect([engine.step(), engine.restarts, len(make.made)], [[], 1, 2],
           call="events, restarts, engines made; a step dies, nothing is open")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="Added again in the order in which they came")
def test_order(seed):
    make = Engines(crash=[0])
    engine = make.supervised()
    for number in (30, 7, 19, 2):
        engine.add_request([5], LONG, request_id=number)
    steps(engine, 2)
    expect(asked_of(make.made[1]), [30, 7, 19, 2], call="ids that the second engine got",
           cause="as they came, whatever their ids")  # fmt: skip
    make = Engines(crash=[1, 3], seqs=2)
    engine = make.supervised()
    for number in (9, 4, 6):
        engine.add_request([5], LONG, request_id=number)
    steps(engine, 5)
    expect(asked_of(make.made[2]), [9, 6], call="ids that the third engine got, of 9, 4 and 6",
           given={"deaths": "two, with 9 and 4 in the batch"},
           cause="the first suspect keeps its place, the second waits outside")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="What a new engine refuses, and ids in use")
def test_refused(seed):
    make = Engines(crash=[1])
    engine = make.supervised()
    engine.add_request([5] * 40, LONG, seed=1)
    engine.add_request([6], LONG, seed=2)
    make.size["places"] = 30
    events = drained(engine)
    expect(ends_of(events), {0: ["Failed"], 1: ["Finished"]}, call="ends of two requests, where "
           "the first one is too large for the second engine")  # fmt: skip
    [error] = [event.error for event in events if isinstance(event, Failed)]
    expect(type(error).__name__, RequestTooLargeError.__name__, call="type of its error")
    make = Engines(crash=[1, 3])
    engine = make.supervised()
    for first in (5, 6):
        engine.add_request([first], LONG, seed=1)
    events = steps(engine, 4)
    for number in (0, 1):
        expect.raises(DuplicateRequestError, lambda number=number: engine.add_request(
            [9], LONG, request_id=number), call=f"add_request(request_id={number}), two suspects",
            cause="the id of an open request is in use, wherever this is")  # fmt: skip
    events += drained(engine)
    expect(ends_of(events), {0: ["Finished"], 1: ["Finished"]}, call="ends of both after it")


@pytest.mark.check(task=5, points=1, title="A step whose events are lost")
def test_lost(seed):
    for number in range(12):
        make = Engines(lost=[number % 9, 9 + number])
        compare(seed, make, asks(seed + number), "what nobody heard is told by the next engine")


@pytest.mark.check(task=5, points=1, title="The same call of step makes the next engine")
def test_one_step(seed):
    make = Engines(crash=[2], seqs=2)
    engine = make.supervised()
    for first in (5, 6, 7):
        engine.add_request([first], LONG, seed=first)
    engine.step(), engine.step()
    events = engine.step()
    found = [event.request_id for event in events if isinstance(event, Preempted)]
    expect(sorted(found), [0, 1], call="requests told as Preempted by the step of a death, batch 2",
           cause="who was in the batch goes back; who waited, waits on")  # fmt: skip
    expect(
        [engine.restarts, len(make.made)], [1, 2], call="restarts, engines made, after this step"
    )
    expect(
        [one["request_id"] for one in make.made[1].asked],
        [0, 1, 2],
        call="requests that the new engine got",
        cause="in the order in which they came",
    )
    expect([event for event in events if not isinstance(event, Preempted)], [],
           call="other events of this step")  # fmt: skip
    make = Engines(crash=[2], seqs=2)
    engine = make.supervised()
    make.size["max_num_seqs"] = 3
    engine = make.supervised()
    engine.add_request([5], SamplingParams(n=4, max_tokens=9, ignore_eos=True), seed=1)
    found = [event.index for event in steps(engine, 3) if isinstance(event, Preempted)]
    expect(sorted(found), [0, 1, 2], call="samples told as Preempted, of four, three in the batch",
           cause="a sample that was not in the batch does not go back")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="A poisoned request fails alone")
def test_poisoned(seed):
    make = Engines(poison=[13], seqs=4)
    engine = make.supervised()
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    for first in (7, 13, 8, 9):
        engine.add_request([first, 4], params, seed=1)
    events = drained(engine)
    ends = {key: [end if isinstance(end, str) else "Finished" for end in one[2]]
            for key, one in told(events).items()}  # fmt: skip
    expect(
        ends,
        {(0, 0): ["Finished"], (1, 0): ["Failed"], (2, 0): ["Finished"], (3, 0): ["Finished"]},
        call="how four requests ended, one of them poisoned",
    )
    [error] = [event.error for event in events if isinstance(event, Failed)]
    expect(type(error).__name__, PoisonedRequestError.__name__, call="type of its error")
    expect.that(engine.restarts <= 5, "few engines were needed", observed=engine.restarts)
    expect(engine.has_unfinished, False, call="has_unfinished after it")
    make = Engines(poison=[13])
    engine = make.supervised()
    engine.add_request([13], SamplingParams(n=2, max_tokens=6, ignore_eos=True), seed=1)
    ends = {key: one[2] for key, one in told(drained(engine)).items()}
    expect(ends, {(0, 0): ["Failed"], (0, 1): ["Failed"]}, call="ends of a poisoned one with n=2")


@pytest.mark.check(task=5, points=1, title="Strikes are forgiven, for progress")
def test_forgiven(seed):
    params = SamplingParams(max_tokens=60, ignore_eos=True, seed=4)
    requests = [([5], params), ([6], params)]
    engine = compare(seed, Engines(crash=[9, 18, 27, 36, 45], places=200), requests,
                     "who has told 8 tokens since its last strike is blamed anew")  # fmt: skip
    expect(engine.restarts, 5, call="restarts")
    for gap, wanted in ((7, ["Failed"]), (8, ["Finished"])):
        make = Engines(crash=[(gap + 1) * n + gap for n in range(3)], places=200)
        engine = make.supervised()
        engine.add_request([5], params)
        [one] = told(drained(engine)).values()
        expect([end if isinstance(end, str) else "Finished" for end in one[2]], wanted,
               call=f"how one request ends, where each of three engines dies after {gap} tokens",
               cause="8 tokens or more since the last strike")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="A suspect that goes on well")
def test_suspect_forgiven(seed):
    params = SamplingParams(max_tokens=30, ignore_eos=True, seed=4)
    for deaths, wanted in (([1, 3, 12, 14], "Finished"), ([1, 3, 12, 14, 16], "Failed"),
                           ([1, 3, 11], "Failed")):  # fmt: skip
        engine = Engines(crash=deaths).supervised()
        engine.add_request([5], params)
        expect(ends_of(drained(engine)), {0: [wanted]}, call=f"its end, with deaths at {deaths}",
               cause="the strike after 8 tokens or more is the first one, of a suspect as well; "
               "the next one is the second")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="Who waits outside is not in the batch")
def test_outside(seed):
    make = Engines(crash=[1, 3, 5], seqs=4)
    engine = make.supervised()
    for first in (5, 6, 7):
        engine.add_request([first], LONG, seed=first)
    steps(engine, 4)
    young = engine.add_request([8], LONG, seed=8)
    engine.step()
    events = engine.step()
    found = sorted(event.request_id for event in events if isinstance(event, Preempted))
    expect(found, [0, young], call="requests told as Preempted at the third death",
           given={"in the batch": "a suspect, and a young one", "outside": "two suspects"},
           cause="once for each Admitted")  # fmt: skip
    engine.step()
    expect(asked_of(make.made[3]), [1, young], call="ids that the fourth engine got",
           cause="the next suspect; who is none does not wait")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="Suspects come one at a time")
def test_suspects(seed):
    make = Engines(crash=[1, 3], seqs=4)
    engine = make.supervised()
    for first in (5, 6, 7):
        engine.add_request([first], LONG, seed=first)
    events = [event for _ in range(4) for event in engine.step()]
    expect(engine.restarts, 2, call="restarts after two deaths")
    young = engine.add_request([8], LONG, seed=8)
    events += drained(engine)
    batches = [batch & {0, 1, 2} for batch in make.made[2].batches]
    expect.that(all(len(batch) <= 1 for batch in batches),
                "at most one of three suspects is in the engine", observed=batches)  # fmt: skip
    order = [next(iter(batch)) for batch in batches if batch]
    expect(list(dict.fromkeys(order)), [0, 1, 2], call="order of the suspects")
    together = [batch for batch in make.made[2].batches if young in batch and len(batch) == 2]
    expect.that(together, "who is no suspect is computed beside one",
                observed=make.made[2].batches)  # fmt: skip
    requests = [([first], SamplingParams(max_tokens=12, ignore_eos=True, seed=first))
                for first in (5, 6, 7, 8)]  # fmt: skip
    expect(told(events), truth(requests), call="tokens, text and ends of all four")


@pytest.mark.check(task=5, points=1, title="Blamed for the step in which it ends")
def test_blamed_at_its_end(seed):
    make = Engines(crash=[1, 3], lost=[6])
    engine = make.supervised()
    engine.add_request([5], SamplingParams(max_tokens=5, ignore_eos=True), seed=1)
    expect(ends_of(drained(engine)), {0: ["Failed"]}, call="its end, where its third death is the "
           "lost step in which the engine had finished it",
           cause="its Admitted was told, and no Preempted since: it was in the batch")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="The suspect is blamed, and nobody beside it")
def test_blame(seed):
    make = Engines(crash=[1, 3], seqs=4)
    engine = make.supervised()
    engine.add_request([13], LONG, seed=1)
    for _ in range(4):
        engine.step()  # two deaths: request 0 is a suspect
    for first in (5, 6):
        engine.add_request([first], LONG, seed=first)
    engine.step()
    make.lost = {6, 7, 8}
    events = []
    for _ in range(2):
        events += engine.step()
    ends = [(event.request_id, type(event).__name__) for event in events
            if isinstance(event, Failed)]  # fmt: skip
    expect(ends, [(0, "Failed")], call="who failed at the third death, a suspect beside two others")
    expect(engine.step() is not None, True, call="a step that dies with the two others")
    events = drained(engine)
    ends = {key[0]: one[2] for key, one in told(events).items()}
    expect({number: "Failed" in end for number, end in ends.items()}, {1: False, 2: False},
           call="whether the two others failed, after two deaths more",
           given={"deaths": "1, 3: of request 0 alone; 6: of all three; 7, 8: of 1 and 2"},
           cause="with a suspect in the batch nobody else is blamed")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="Given up while it begins anew")
def test_abort_anew(seed):
    for more in (0, 1):
        engine = Engines(crash=[3]).supervised()
        engine.add_request([5], SamplingParams(n=2, max_tokens=9, ignore_eos=True), seed=1)
        events = steps(engine, 4 + more)
        engine.abort(0)
        events += drained(engine)
        gone = {(e.request_id, e.index): [list(e.token_ids), e.text]
                for e in events if isinstance(e, Aborted)}  # fmt: skip
        expect(gone, {key: one[:2] for key, one in told(events).items()},
               call=f"token_ids and text of Aborted, {more} steps after a death at three tokens",
               cause="what the sample has told, not what the new engine knows of it")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="Given up, then a death")
def test_abort_dies(seed):
    engine = Engines(crash=[1, 3, 5]).supervised()
    for first in (5, 6):
        engine.add_request([first], LONG, seed=1)
    events = steps(engine, 5)
    engine.abort(1)
    events += [*engine.step(), *drained(engine)]
    expect(ends_of(events), {0: ["Failed"], 1: ["Aborted"]}, call="ends after the third death, "
           "where 1 waited outside and was given up", cause="a death swallows no end")  # fmt: skip
    engine = Engines(crash=[1, 3, 5]).supervised()
    engine.add_request([5], LONG, seed=1)
    events = steps(engine, 5)
    engine.abort(0)
    events += drained(engine)
    expect(ends_of(events), {0: ["Aborted"]}, call="its end, given up just before its third strike",
           cause="by Aborted, whatever becomes of the engine")  # fmt: skip
    make = Engines(crash=[1])
    engine = make.supervised()
    engine.add_request([5] * 40, LONG, seed=1)
    events = engine.step()
    engine.abort(0)
    make.size["places"] = 30
    events += drained(engine)
    expect(ends_of(events), {0: ["Aborted"]}, call="its end, given up before a death, where it is "
           "too large for the second engine", cause="by Aborted, as above")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="Given up, before and after a death")
def test_abort(seed):
    for when in ("before", "after", "held"):
        make = Engines(crash=[2, 4] if when == "held" else [2])
        engine = make.supervised()
        for first in (5, 6):
            engine.add_request([first], LONG, seed=first)
        events = [*engine.step(), *engine.step()]
        if when == "before":
            expect(engine.abort(1), True, call="abort(1) before the death")
        events += engine.step()
        if when == "held":
            events += [*engine.step(), *engine.step()]
            expect(engine.restarts, 2, call="restarts")
        if when != "before":
            expect(engine.abort(1), True, call=f"abort(1), {when}")
        if when == "held":
            soon = engine.step()
            expect(ends_of(soon).get(1), ["Aborted"], call="end of 1 in the step after abort(1), "
                   "where it waits outside", cause="it need not wait for its turn")  # fmt: skip
            events += soon
        events += drained(engine)
        mine = told(events)
        expect([mine[1, 0][2], len(mine[0, 0][2])], [["Aborted"], 1],
               call=f"ends of the one given up ({when}), number of ends of the other")  # fmt: skip
        [gone] = [event for event in events if isinstance(event, Aborted)]
        expect(
            [list(gone.token_ids), gone.text],
            mine[1, 0][:2],
            call=f"token_ids and text of Aborted ({when})",
            cause="what it has told",
        )
        expect(isinstance(mine[0, 0][2][0], str), False, call="whether the other was harmed")
        expect([engine.abort(1), engine.abort(0), engine.abort(99)], [False] * 3,
               call="abort of two that ended, and of nobody")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="Deadlines and priorities")
def test_deadline(seed):
    make = Engines(crash=[0, 1])
    engine = make.supervised()
    engine.add_request([5], LONG, seed=3, deadline=10.0, priority=-2)
    engine.add_request([6], LONG, seed=4)
    engine.add_request([7], LONG, seed=4, deadline=0.0)
    make.clock.advance(4.0)
    engine.step()
    make.clock.advance(50.0)
    engine.step()
    asked = [sorted(one.items()) for made in make.made for one in made.asked
             if one["request_id"] == 0]  # fmt: skip
    expect(
        [dict(one)["deadline"] for one in asked],
        [10.0, 6.0, 0.001],
        call="deadline that each engine got, 4 and 54 s later",
        cause="what is left of it",
    )
    expect([dict(one)["priority"] for one in asked], [-2] * 3, call="priority that each engine got")
    none = [one["deadline"] for made in make.made for one in made.asked if one["request_id"] == 2]
    expect(none, [0.0, 0.001, 0.001], call="deadline that each engine got, of deadline=0.0",
           cause="0.0 is a deadline; None is none")  # fmt: skip
    plain = [set(one) & {"deadline", "priority"} for made in make.made for one in made.asked
             if one["request_id"] == 1]  # fmt: skip
    expect(plain, [set()] * 3, call="deadline or priority of a request without",
           cause="what was not asked for is not passed on")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="One seed for all its lives, and refusals")
def test_seed(seed):
    make = Engines(crash=[1])
    engine = make.supervised()
    engine.add_request([5], LONG)
    engine.add_request([5], LONG, seed=77)
    engine.add_request([5], SamplingParams(max_tokens=3, seed=5), seed=77)
    found = [engine.add_request([5], LONG, request_id=40), engine.add_request([5], LONG, seed=0),
             engine.add_request([5], LONG, request_id=4),
             engine.add_request([5], SamplingParams(max_tokens=3, seed=0), seed=77)]  # fmt: skip
    expect(found, [40, 3, 4, 5], call="ids of the next four, the first and third of them named",
           cause="the lowest that was not given out, and that no open request has")  # fmt: skip
    engine.step(), engine.step()
    seeds = [[one["seed"] for one in made.asked] for made in make.made]
    expect(seeds[1], seeds[0], call="seeds in the second engine", cause="as in the first")
    expect(seeds[0][1:3], [77, 5], call="seed=77, and with params.seed=5",
           cause="that of the params comes first")  # fmt: skip
    expect([seeds[0][4], seeds[0][6]], [0, 0], call="seed=0, and seed=77 with params.seed=0",
           cause="0 is a seed; None is none")  # fmt: skip
    expect([None in seeds[0], seeds[0][0] == seeds[0][3]], [False, False],
           call="whether a seed is missing, whether two drawn seeds are equal")  # fmt: skip
    before = len(told(drained(engine)))
    expect.raises(RequestTooLargeError, lambda: engine.add_request([5] * 99, LONG),
                  call="add_request of what the engine refuses")  # fmt: skip
    expect([before, engine.has_unfinished], [7, False],
           call="samples that ended, has_unfinished after a refusal")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="A step of NaN is a death")
def test_nan(seed):
    make = Engines(nan=[2])
    engine = make.supervised()
    requests = [([first], SamplingParams(max_tokens=9, ignore_eos=True, seed=first))
                for first in (5, 6, 7)]  # fmt: skip
    for prompt, params in requests:
        engine.add_request(prompt, params)
    events = [*engine.step(), *engine.step(), *engine.step()]
    expect(
        [engine.restarts, [e for e in events if isinstance(e, Failed)]],
        [1, []],
        call="restarts, Failed events, after a step in which every row was NaN",
        cause="the model may be at fault: weights are loaded anew, nobody hears of it",
    )
    events += drained(engine)
    expect(told(events), truth(requests), call="tokens, text and ends of all three")

    class OneRow(Dying):
        def execute(self, plan):
            found = ToyEngine.execute(self, plan)
            for row, one in enumerate(plan):
                if one.prompt[0] == 13 and len(one.output) == 3:
                    found[row] = np.nan
            return found

    plan = Engines()
    engine = SupervisedEngine(lambda: OneRow(plan), RestartLimit(most=99), clock=plan.clock)
    for first in (5, 13):
        engine.add_request([first], LONG, seed=1)
    ends = {key[0]: one[2] for key, one in told(drained(engine)).items()}
    expect([engine.restarts, ends[1], len(ends[0])], [0, ["Failed"], 1],
           call="restarts, and ends, where one row of two was NaN",
           cause="the others have tokens, so the model is well: it fails alone")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="What else a step of NaN tells")
def test_nan_others(seed):
    make = Engines(nan=[0])
    engine = make.supervised()
    engine.add_request([5], LONG, seed=1)
    found = [names(engine.step()), names(engine.step())]
    wanted = [["Queued", "Admitted", "Preempted"], ["Admitted", "Prefilled", "TokenGenerated"]]
    expect(found, wanted, call="events of a first step of NaN, and of the next",
           cause="all is told but the Failed of NaN, then who goes back")  # fmt: skip

    class Picky(Dying):
        def step(self):
            gone = [one for one in self.arrived if one.prompt[0] == 13]
            self.arrived = [one for one in self.arrived if one not in gone]
            failed = [Failed(one.request_id, one.index, ValueError("13"), 0.0) for one in gone]
            return failed + super().step()

    plan = Engines(nan=[2])
    engine = SupervisedEngine(lambda: Picky(plan), RestartLimit(most=99), clock=plan.clock)
    engine.add_request([13], LONG)
    events = engine.step()
    expect([ends_of(events), engine.restarts], [{0: ["Failed"]}, 0],
           call="ends and restarts, where one fails by another error, and nobody has a token",
           cause="only NaN is the model's fault")  # fmt: skip
    engine.add_request([5], LONG, seed=1)
    events = engine.step()
    engine.add_request([13], LONG)
    found = [(type(event).__name__, event.request_id) for event in engine.step()]
    expect(found, [("Failed", 2), ("Preempted", 1)],
           call="events of a step of NaN, in which 2 fails by another error, and 1 by NaN",
           cause="this Failed is told; 1 goes on in the next engine")  # fmt: skip
    events += drained(engine)
    expect([ends_of(events), engine.restarts], [{1: ["Finished"]}, 1],
           call="ends and restarts after it")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="NaN beside a suspect, and the limit")
def test_nan_suspect(seed):
    make = Engines(crash=[1, 3], nan=[5])
    engine = make.supervised()
    engine.add_request([5], LONG, seed=1)
    events = steps(engine, 4)
    engine.add_request([6], LONG, seed=1)
    events += drained(engine)
    expect([ends_of(events), engine.restarts], [{0: ["Failed"], 1: ["Finished"]}, 3],
           call="ends and restarts, where a suspect and another one are NaN together",
           cause="two of two: the model may be at fault; the suspect gets the strike")  # fmt: skip
    [error] = [event.error for event in events if isinstance(event, Failed)]
    expect(type(error).__name__, PoisonedRequestError.__name__, call="type of the suspect's error")
    engine = Engines(nan=[0]).supervised(most=1)
    engine.add_request([5], LONG, seed=1)
    expect([ends_of(drained(engine)), engine.restarts], [{0: ["Finished"]}, 1],
           call="ends and restarts, one step of NaN, one restart allowed",
           cause="the limit is asked once a death")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="NaN again and again")
def test_nan_limits(seed):
    make = Engines(nan=range(99))
    engine = make.supervised()
    engine.add_request([5], LONG, seed=1)
    ends = [one[2] for one in told(drained(engine)).values()]
    expect([ends, engine.restarts], [[["Failed"]], 2],
           call="ends and restarts of one request that is NaN in every engine",
           cause="a suspect alone with NaN is to blame itself")  # fmt: skip
    make = Engines(nan=range(99))
    engine = make.supervised(most=0)
    for first in (5, 6):
        engine.add_request([first], LONG, seed=1)
    ends = [one[2] for one in told(drained(engine)).values()]
    expect([ends, engine.restarts, engine.failure], [[["Failed"]] * 2, 0, None],
           call="ends, restarts, failure where the limit allows no restart",
           cause="then the failures stand")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="Given up for good")
def test_for_good(seed):
    make = Engines(crash=[0])
    engine = make.supervised(most=0)
    engine.add_request([5], LONG, seed=seed)
    error = expect.raises(GaveUpError, engine.step, call="step, where no restart is allowed")
    make.clock.advance(1e6)
    for name, call in (("step", engine.step), ("add_request", lambda: engine.add_request([5]))):
        again = expect.raises(GaveUpError, call, call=f"{name} after it, 12 days later")
        expect(again is error, True, call=f"whether {name} raises this error again")
    expect([engine.failure is error, engine.restarts, len(make.made)], [True, 0, 1],
           call="whether `failure` is this error, restarts, engines made",
           cause="a person has to look at it")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="A crash loop ends")
def test_gave_up(seed):
    make = Engines(crash=range(99))
    engine = make.supervised(most=3)
    story = []

    def loop():
        for _ in range(9):
            engine.add_request([5], LONG)
            engine.step()
            story.append(engine.restarts)

    error = expect.raises(GaveUpError, loop, call="steps that die, at most 3 restarts")
    expect([story, len(make.made)], [[1, 2, 3], 4], call="restarts after each step, engines made")
    expect(engine.failure is error, True, call="whether `failure` is the error")
    make, story = Engines(crash=range(99)), []
    engine = SupervisedEngine(make, clock=make.clock)
    expect.raises(GaveUpError, loop, call="steps that die, without a limit given")
    expect(story, [1, 2, 3, 4, 5], call="restarts after each step, without a limit given",
           cause="then the limit is RestartLimit(), 5 in 60 s")  # fmt: skip
    make = Engines(crash=range(99))
    engine = SupervisedEngine(make, RestartLimit(most=1, window=60.0), clock=make.clock)
    for _ in range(3):
        engine.add_request([5], LONG)
        engine.step()
        make.clock.advance(60.0)
    expect(engine.restarts, 3, call="restarts, one a minute, where 1 in 60 s is allowed",
           cause="old ones are forgotten, by the supervisor's clock")  # fmt: skip
    ready = iter([Dying(Engines(crash=[0]))])
    engine = SupervisedEngine(lambda: next(ready))
    engine.add_request([5], LONG)
    error = expect.raises(GaveUpError, engine.step, call="step, where no new engine can be made")
    expect(engine.failure is error, True, call="whether `failure` is this error")

    class Unwritten(ToyEngine):
        def step(self):
            raise NotImplementedError("lab04 task 6")

    engine = SupervisedEngine(Unwritten)
    engine.add_request([5], LONG)
    try:
        engine.step()
        found = "nothing"
    except Exception as error:
        found = type(error).__name__
    expect(found, "NotImplementedError", call="what step raises, where the engine is not written",
           cause="a lab that is not written is no death")  # fmt: skip


@pytest.mark.check(task=5, points=1, title="Samples that begin anew end once")
def test_samples(seed):
    for number in range(40):
        draw = random.Random(seed + number)
        params = SamplingParams(max_tokens=12, n=4, seed=draw.randrange(99))
        requests = [([draw.randrange(3, 27)], params),
                    ([9], SamplingParams(max_tokens=20, seed=1, ignore_eos=True))]  # fmt: skip
        make = Engines(lost=[draw.randrange(1, 9)], seqs=draw.choice([2, 3, 9]))
        engine = compare(seed, make, requests, "an engine that begins anew tells again what was "
                         "told, and the end of what has ended")  # fmt: skip
        places = make.made[-1].store
        expect([engine.has_unfinished, places.free_tokens], [False, places.total_tokens],
               call="has_unfinished, free places at the end",
               cause="samples that ended before the death have no places for ever")  # fmt: skip


@pytest.mark.check(task=5, points=2, title="Random histories", stress=True)
def test_random(seed):
    for number in range(40):
        draw = random.Random(seed + number)
        deaths = draw.sample(range(30), 2)
        cut = draw.randint(0, 2)
        make = Engines(crash=deaths[:cut], lost=deaths[cut:], seqs=draw.choice([1, 2, 4]))
        engine, requests, events = make.supervised(), asks(seed + number, many=6), []
        for prompt, params in requests:
            engine.add_request(prompt, params)
            for _ in range(draw.randint(0, 3)):
                if engine.has_unfinished:
                    events += engine.step()
        events += drained(engine)
        expect(told(events), truth(requests), call="tokens, text and ends of each sample",
               given={"crash at": deaths[:cut], "lost at": deaths[cut:],
                      "requests": len(requests)})  # fmt: skip


@pytest.mark.check(task=5, points=1, title="How often a restart is allowed")
def test_limit(seed):
    limit = RestartLimit(most=2, window=60.0)
    found = [limit.allow(now) for now in (0.0, 30.0, 59.9, 60.0, 60.1, 89.9, 90.0)]
    expect(found, [True, True, False, True, False, False, True],
           call="RestartLimit(2, 60).allow at 0, 30, 59.9, 60, 60.1, 89.9, 90 s",
           cause="at most two in any minute; one that is refused does not count")  # fmt: skip
    expect(RestartLimit(most=0).allow(5.0), False, call="RestartLimit(0).allow(5)")


@pytest.mark.check(task=5, points=1, title="Weights that have changed")
def test_checksums(seed, tmp_path):
    draw = random.Random(seed)
    files = {"b.bin": draw.randbytes(3_000_000), "a.bin": b"", "c.bin": b"nanovllm"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    kept = checksums(tmp_path / name for name in files)
    expect(sorted(kept), ["a.bin", "b.bin", "c.bin"], call="names of checksums(files)")
    expect([kept["a.bin"][:16], kept["c.bin"][:16]], ["e3b0c44298fc1c14", "bbc449af733351e5"],
           call="the first digits for an empty file, and for b'nanovllm'")  # fmt: skip
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(16 << 20))
    tracemalloc.start()
    checksums([large])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    expect.that(most < 6 << 20, "checksums of a file of 16 MiB takes less than 6 MiB of memory",
                observed=most, cause="no more than PIECE bytes at once")  # fmt: skip
    (tmp_path / "other.txt").write_text("not asked for")
    expect(changed(kept, tmp_path), [], call="changed(kept, folder), nothing changed")
    data = bytearray(files["b.bin"])
    data[2_999_999] ^= 1
    (tmp_path / "b.bin").write_bytes(data)
    expect(changed(kept, tmp_path), ["b.bin"], call="changed, where the last bit of b.bin flipped")
    (tmp_path / "a.bin").unlink()
    try:
        found = changed(kept, tmp_path)
    except OSError as error:
        found = type(error).__name__  # its text has a folder's name
    expect(found, ["a.bin", "b.bin"], call="changed, where a.bin is gone, too")

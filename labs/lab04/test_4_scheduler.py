"""Task 4: the scheduler."""

import json
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from grader import expect
from grader.checks.scheduler_histories import picture, play, random_history
from nanovllm.batching.budget import AdaptiveBudget, FixedBudget
from nanovllm.batching.errors import ConfigError, InvariantError, RequestTooLargeError
from nanovllm.batching.events import ChunkRun, Preempted, Queued, Stepped
from nanovllm.batching.plan import Chunk
from nanovllm.batching.policies import FirstComeFirstServed, RoundRobin, make_policy
from nanovllm.batching.replay import Replay, first_difference
from nanovllm.batching.request import Priority, Request, Status
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import CountingStore, SimulatedSequence
from nanovllm.generation.latency import ManualClock

RECORDED = Path(__file__).with_name("recorded.json")  # what the rules make of random histories
WHAT_A_STEP_SAYS = {
    "chunks as [request, start, length]": 0,
    "the plan's budget": 1,
    "who was admitted": 2,
    "who was preempted": 3,
    "queue() after the step": 4,
    "free places": 5,
}


class Play:
    """Drives a scheduler without a model, and writes down what it planned."""

    def __init__(self, room=1000, budget=8, seats=4, policy=None, max_chunk=None, clock=None):
        self.clock = clock or ManualClock()
        self.store = CountingStore(room) if isinstance(room, int) else room
        self.budget = budget = FixedBudget(budget) if isinstance(budget, int) else budget
        self.scheduler = Scheduler(
            self.store,
            policy or FirstComeFirstServed(),
            budget,
            max_num_seqs=seats,
            max_chunk=max_chunk,
            clock=self.clock,
        )
        self.requests, self.steps, self.events = [], [], []

    def add(self, prompt, output, **more):
        number = len(self.requests)
        sequence = SimulatedSequence(number, prompt, output)
        request = Request(number, sequence, self.clock(), prompt + output - 1, **more)
        self.scheduler.add(request)
        self.requests.append(request)
        self.events.append(Queued(number, 0, self.clock()))
        return request

    def step(self):
        started = self.clock()
        plan = self.scheduler.schedule()
        self.clock.advance(1.0)
        self.scheduler.update(plan)
        self.scheduler.check()
        chunks = {c.request.number: (c.start, c.length) for c in plan.chunks}
        self.steps.append(chunks)
        self.events += [Preempted(r.number, 0, started) for r in plan.preempted]
        for chunk in plan.chunks:
            if chunk.completes:
                chunk.request.sequence.append()
                if chunk.request.sequence.finished:
                    self.scheduler.end(chunk.request, Status.FINISHED)
        runs = tuple(ChunkRun(n, 0, start, length) for n, (start, length) in chunks.items())
        running, waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        step = Stepped(runs, running, waiting, plan.budget, self.store.free_tokens, started, 0.0)
        self.events.append(step)
        self.scheduler.check()
        return plan

    def drain(self, most=300):
        while self.scheduler.has_work and len(self.steps) < most:
            self.step()
        return self.steps

    def picture(self, around=0):
        first = max(0, around - 20)
        return Replay(self.events).text(first, first + 60)


class OldestGoes(FirstComeFirstServed):
    """First come first served, but whoever came first also gives way first."""

    def victim(self, running, now):
        return min(running, key=lambda request: request.number)

    def displaced(self, first, running, now):
        return min(running, key=lambda request: request.number, default=None)


def expect_steps(play, expected, call, cause):
    """Compare plans step by step; a card shows the run up to where it goes another way."""
    at = first_difference(play.steps, expected)
    around = f"\nthe first step that differs is {at}" if at is not None else ""
    expect(
        [sorted(step.items()) for step in play.steps],
        [sorted(step.items()) for step in expected],
        call=f"{call}; a plan is {{request: (start, length)}}",
        given={"run": play.picture(at or 0) + around},
        cause=cause,
    )


@pytest.mark.check(task=4, points=1, title="Computed tokens chase the total, chunk by chunk")
def test_chunks():
    expect(
        [Chunk(None, 0, n, 8).completes for n in (7, 8)] + [Chunk(None, 5, 3, 8).completes],
        [False, True, True],
        call="completes of the chunks 0..6, 0..7 and 5..7 of 8 tokens",
        cause="a chunk completes when nothing is left to compute behind it",
    )
    for budget, max_chunk, want in (
        (4, None, [(0, 4), (4, 4), (8, 2), (10, 1), (11, 1)]),
        (5, None, [(0, 5), (5, 5), (10, 1), (11, 1)]),
        (64, 3, [(0, 3), (3, 3), (6, 3), (9, 1), (10, 1), (11, 1)]),
        (64, None, [(0, 10), (10, 1), (11, 1)]),
    ):
        play = Play(budget=budget, max_chunk=max_chunk)
        request = play.add(prompt=10, output=3)
        first = play.step()
        expect(
            [request.status.value, [r.number for r in first.admitted],
             [chunk.total for chunk in first.chunks]],
            ["running", [0], [10]],
            call="the status after the first step of a prompt of 10, who was admitted in it, and "
            "`total` of its chunks",
        )  # fmt: skip
        play.drain(most=9)
        expect_steps(
            play,
            [{0: chunk} for chunk in want],
            call=f"prompt of 10, 3 tokens of output, budget {budget}, max_chunk {max_chunk}",
            cause="each chunk begins where the last one ended; only the last of the prompt draws "
            "a token; the last token is never computed",
        )


@pytest.mark.check(task=4, points=2, title="Running requests first, decodes before prompts")
def test_mixed_batch():
    play = Play(budget=6, seats=4)
    play.add(prompt=3, output=6)
    play.add(prompt=11, output=3)
    play.step()
    play.add(prompt=2, output=4)
    play.drain()
    expect_steps(
        play,
        [
            {0: (0, 3), 1: (0, 3)},
            {0: (3, 1), 1: (3, 5)},
            {0: (4, 1), 1: (8, 3), 2: (0, 2)},
            {0: (5, 1), 1: (11, 1), 2: (2, 1)},
            {0: (6, 1), 1: (12, 1), 2: (3, 1)},
            {0: (7, 1), 2: (4, 1)},
        ],
        call="budget 6: prompts of 3 and 11, and one step later of 2",
        cause="every decode gets its token in every step, the rest of the budget goes to prompts",
    )
    tight = Play(budget=AdaptiveBudget(limit=1, lowest=1, highest=8), seats=4)
    for _ in range(3):
        tight.add(prompt=1, output=5)
    tight.step()
    tight.budget.limit = 8
    tight.step()
    tight.budget.limit = 1
    tight.drain()
    expect(
        [len(step) for step in tight.steps],
        [1, 3, 3, 3, 3, 2],
        call="requests in each step; the budget is 1, then 8, then 1 with three in decode",
        cause="a budget that fell under the number of decodes still lets each of them go on",
    )


@pytest.mark.check(
    task=4,
    points=1,
    title="Admission: in order, while there are places in the batch, room and tokens",
)
def test_admission():
    play = Play(budget=100, seats=2)
    for prompt in (4, 5, 6):
        play.add(prompt, output=2)
    play.drain()
    expect_steps(
        play,
        [{0: (0, 4), 1: (0, 5)}, {0: (4, 1), 1: (5, 1)}, {2: (0, 6)}, {2: (6, 1)}],
        call="at most two run, three requests",
        cause="at most max_num_seqs run; another may come in the step after somebody ended",
    )
    blocked = Play(room=20, budget=100, seats=9)
    for prompt in (12, 15, 2):
        blocked.add(prompt, output=2)
    blocked.drain()
    expect_steps(
        blocked,
        [{0: (0, 12)}, {0: (12, 1)}, {1: (0, 15), 2: (0, 2)}, {1: (15, 1), 2: (2, 1)}],
        call="room for 20 tokens; prompts of 12, 15, 2 in this order",
        cause="who is small is not let past who is first: that one might wait for ever",
    )
    short = Play(budget=100, seats=1, policy=make_policy("sjf"))
    for prompt in (9, 3, 6):
        short.add(prompt, output=1)
    short.drain()
    expect_steps(
        short,
        [{1: (0, 3)}, {2: (0, 6)}, {0: (0, 9)}],
        call="at most one runs, shortest job first, prompts of 9, 3, 6",
        cause="the policy says who goes first",
    )
    chunked = Play(budget=8, max_chunk=3)
    for prompt in (9, 4):
        chunked.add(prompt, output=1)
    chunked.drain()
    expect_steps(
        chunked,
        [{0: (0, 3), 1: (0, 3)}, {0: (3, 3), 1: (3, 1)}, {0: (6, 3)}],
        call="budget 8, max_chunk 3, prompts of 9 and 4",
        cause="a prompt that is not read to its end leaves tokens of the budget to the next",
    )


@pytest.mark.check(task=4, points=2, title="Preemption: the last one gives way and comes back")
def test_preemption():
    play = Play(room=24, budget=16, seats=4)
    requests = [play.add(prompt=6, output=8) for _ in range(3)]
    play.drain(most=40)
    expect_steps(
        play,
        [
            {0: (0, 6), 1: (0, 6), 2: (0, 4)},
            {0: (6, 1), 1: (6, 1), 2: (4, 2)},
            {0: (7, 1), 1: (7, 1), 2: (6, 1)},
            {0: (8, 1), 1: (8, 1)},
            {0: (9, 1), 1: (9, 1)},
            {0: (10, 1), 1: (10, 1)},
            {0: (11, 1), 1: (11, 1)},
            {0: (12, 1)},
            {1: (0, 13), 2: (0, 3)},
            {2: (3, 5)},
            *({2: (n, 1)} for n in range(8, 13)),
        ],
        call="room for 24: three requests of 6 + 8 tokens",
        cause="who came last gives way, waits until all its tokens fit, and computes them anew",
    )
    expect(
        [[r.num_preemptions, r.num_output_tokens, r.status.value] for r in requests],
        [[0, 8, "finished"], [1, 8, "finished"], [1, 8, "finished"]],
        call="preemptions, tokens generated and status of each at the end",
        cause="generated tokens are kept; each preemption is counted once",
    )
    other = Play(room=24, budget=16, seats=4, policy=OldestGoes())
    for _ in range(3):
        other.add(prompt=6, output=8)
    plans = [other.step() for _ in range(4)]
    expect(
        [[r.number for r in plans[3].preempted], other.steps[3]],
        [[0], {1: (8, 1), 2: (7, 1)}],
        call="who is preempted in step 3 of the same run, and its chunks as {request: (start, "
        "length)}, under a policy whose `victim` is the request of the smallest number",
        given={"run": other.picture()},
        cause="the policy says who gives way, whatever its order",
    )


@pytest.mark.check(task=4, points=2, title="A preempted chunk gives its tokens back to the budget")
def test_budget_returned():
    play = Play(room=15, budget=8, seats=4, policy=make_policy("sjf"))
    play.add(prompt=6, output=10)
    plans = [play.step()]
    play.add(prompt=5, output=4)
    plans += [play.step() for _ in range(3)]
    expect(
        [[{c.request.number: (c.start, c.length) for c in plan.chunks}, plan.budget,
          [r.number for r in plan.preempted]] for plan in plans],
        [
            [{0: (0, 6)}, 8, []],
            [{0: (6, 1), 1: (0, 5)}, 8, []],
            [{0: (7, 1), 1: (5, 1)}, 3, []],
            [{1: (6, 1)}, 2, [0]],
        ],
        call="chunks, budget and preempted of four steps: room 15, shortest first; 6 + 10, and a "
        "step later 5 + 4",
        given={"run": play.picture()},
        cause="in the last step request 0 had its chunk, and the last place, before request 1 "
        "needed one; the budget of that step is 2, one for each decode",
    )  # fmt: skip
    three = Play(room=22, budget=7, seats=4, policy=make_policy("sjf"))
    three.add(prompt=3, output=10)
    three.add(prompt=9, output=5)
    three.step()
    three.add(prompt=9, output=3)
    for _ in range(3):
        three.step()
    expect_steps(
        three,
        [
            {0: (0, 3), 1: (0, 4)},
            {0: (3, 1), 1: (4, 5), 2: (0, 1)},
            {0: (4, 1), 1: (9, 1), 2: (1, 5)},
            {1: (10, 1), 2: (6, 1)},
        ],
        call="room 22, budget 7, shortest first: 3 + 10, 9 + 5, and a step later 9 + 3",
        cause="in step 3 the budget is 2; request 0 leaves the plan, and its token is for request "
        "2, whose prompt is not read to its end",
    )

    kept = Play(Refusing(100), budget=4, policy=make_policy("sjf"))
    kept.add(prompt=2, output=20)
    kept.step()
    kept.store.refused = kept.add(prompt=9, output=1)
    kept.store.beside = kept.requests[0]
    kept.step()
    plan = kept.step()
    expect(
        [kept.steps[1:], [r.number for r in plan.preempted]],
        [[{0: (2, 1)}, {1: (0, 3)}], [0]],
        call="the last two of three steps: budget 4, shortest first; 2 + 20, and a step later 9 + "
        "1, for which there is no room before request 0 is preempted; who is preempted in the last",
        given={"run": kept.picture()},
        cause="room was asked for 3 tokens; the token of request 0 that came back changes nothing",
    )


@pytest.mark.check(task=4, points=2, title="No admission in a step that preempted")
def test_no_admission_after_preemption():
    play = Play(room=20, budget=50, seats=2, policy=make_policy("sjf"))
    play.add(prompt=8, output=6)
    play.add(prompt=9, output=9)
    play.step()
    play.add(prompt=3, output=2)
    play.drain(most=40)
    expect_steps(
        play,
        [
            {0: (0, 8), 1: (0, 9)},
            {0: (8, 1), 1: (9, 1)},
            {0: (9, 1)},
            {0: (10, 1), 2: (0, 3)},
            {0: (11, 1), 2: (3, 1)},
            {0: (12, 1)},
            {1: (0, 11)},
            *({1: (n, 1)} for n in range(11, 17)),
        ],
        call="at most two run, room for 20, shortest first: 8 + 6, 9 + 9, and a step later 3 + 2",
        cause="request 1 is preempted in step 2; request 2 may come in from step 3 on",
    )


@pytest.mark.check(task=4, points=1, title="What can never fit is refused at once")
def test_refusal():
    play = Play(room=20)
    for prompt, output in ((20, 2), (2, 20), (300, 1)):
        expect.raises(
            RequestTooLargeError,
            lambda prompt=prompt, output=output: play.add(prompt, output),
            match=str(prompt + output - 1),
            call=f"add(a prompt of {prompt} that may generate {output}) with room for 20",
            cause="all tokens but the last one have to be in the store at once",
        )
    expect(
        [len(play.scheduler.waiting), play.scheduler.has_work],
        [0, False],
        call="the queue after three refusals, and has_work",
        cause="a refused request leaves nothing behind",
    )
    play.add(prompt=20, output=1)
    play.add(prompt=2, output=19)
    expect(len(play.drain()), 22, call="steps for 20 + 1 and 2 + 19 tokens, which just fit")
    for wrong in ({"max_num_seqs": 0}, {"max_chunk": 0}):
        expect.raises(
            ConfigError,
            lambda wrong=wrong: Scheduler(CountingStore(9), **wrong),
            call=f"Scheduler(store, {wrong})",
            cause="nobody could ever run",
        )
    plain = Scheduler(CountingStore(9000))
    for number in range(20):
        sequence = SimulatedSequence(number, 33, 2)
        plain.add(Request(number, sequence, float(20 - number), 34))
    plan = plain.schedule()
    expect(
        [[(c.request.number, c.length) for c in plan.chunks], plan.budget, len(plain.waiting)],
        [[*((n, 33) for n in range(19, 4, -1)), (4, 17)], 512, 4],
        call="the first plan of Scheduler(store), 20 prompts of 33, of which the last arrived "
        "first; its budget, and how many wait",
        cause="without settings: first come first served, a budget of 512, 16 at a time",
    )
    plain.store.admit(new := Request(20, SimulatedSequence(20, 3, 2), 0.0, 4))
    expect.raises(
        InvariantError,
        plain.check,
        call=f"check() when the store holds {new}, of which the scheduler knows nothing",
        cause="the store must hold exactly those that run",
    )


@pytest.mark.check(task=4, points=2, title="A request can be ended anywhere, and leaves nothing")
def test_end_anywhere():
    for status in (Status.FINISHED, Status.FAILED):
        play = Play(room=24, budget=16, seats=3)
        requests = [play.add(prompt=6, output=8) for _ in range(5)]
        for _ in range(4):
            play.step()
        seen = []
        for number in (3, 2, 0, 1, 4):  # waiting, preempted, running, running, waiting
            was = requests[number].status.value
            play.scheduler.end(requests[number], status)
            play.scheduler.check()
            seen.append([number, was, requests[number].status is status,
                         len(play.scheduler.waiting), len(play.scheduler.running),
                         play.store.free_tokens])  # fmt: skip
        expect(
            seen,
            [
                [3, "waiting", True, 2, 2, 6],
                [2, "preempted", True, 1, 2, 6],
                [0, "running", True, 1, 1, 15],
                [1, "running", True, 1, 0, 24],
                [4, "waiting", True, 0, 0, 24],
            ],
            call=f"end(request, {status.name}) of five requests: number, status before, whether "
            "it has ended, then waiting, running, free places",
            given={"run": play.picture()},
            cause="the queue and the store must both let go",
        )
        expect(len(play.step().chunks), 0, call="how many chunks a plan with nobody to run has")


@pytest.mark.check(task=4, points=2, title="A turn ends, and nobody starves")
def test_turns():
    play = Play(budget=64, seats=1, policy=RoundRobin(quantum=2))
    for prompt, output in ((3, 5), (4, 3), (2, 1)):
        play.add(prompt, output)
    play.drain(most=30)
    expect_steps(
        play,
        [
            {0: (0, 3)},
            {0: (3, 1)},
            {1: (0, 4)},
            {1: (4, 1)},
            {2: (0, 2)},
            {0: (0, 5)},
            {0: (5, 1)},
            {1: (0, 6)},
            {0: (0, 7)},
        ],
        call="at most one runs, turns of 2 tokens: 3 + 5, 4 + 3, 2 + 1",
        cause="who has had its turn goes to the back; the next one is admitted in the same step",
    )
    roomy = Play(budget=64, seats=2, policy=RoundRobin(quantum=2))
    roomy.add(prompt=2, output=4)
    roomy.step()
    roomy.step()
    roomy.add(prompt=3, output=1)
    roomy.drain(most=9)
    expect_steps(
        roomy,
        [{0: (0, 2)}, {0: (2, 1)}, {0: (3, 1), 1: (0, 3)}, {0: (4, 1)}],
        call="two may run, turns of 2 tokens: 2 + 4, and two steps later 3 + 1",
        cause="the first of the queue can come in as it is: nobody has to make room",
    )
    back = Play(room=10, policy=RoundRobin(quantum=2), max_chunk=2)
    back.add(prompt=2, output=4)
    back.step()
    back.add(prompt=8, output=1)
    back.step()
    plan = back.step()
    expect(
        [[r.number for r in plan.preempted], sorted(r.number for r in plan.admitted),
         back.steps[-1]],
        [[0], [0, 1], {0: (0, 2), 1: (0, 2)}],
        call="who is preempted and who admitted in the third step, and its chunks as {request: "
        "(start, length)}: room 10, max_chunk 2, turns of 2; 2 + 4, and a step later 8 + 1",
        cause="request 0 makes room for request 1, and there is room for both; who made room may "
        "come in again at once",
    )  # fmt: skip
    oldest = Play(seats=2, policy=OldestGoes())
    for _ in range(3):
        oldest.add(prompt=2, output=9)
    oldest.step()
    expect(
        [r.number for r in oldest.step().preempted],
        [0],
        call="who is preempted when a third request finds both places taken, under a policy whose "
        "`displaced` is the request of the smallest number",
        cause="the policy says who makes room for the first of the queue",
    )
    for name in ("fcfs", "sjf", "round-robin", "priority-with-ageing", "size-queues"):
        busy = Play(room=60, budget=12, seats=4, policy=make_policy(name))
        for i in range(24):
            busy.add(prompt=1 + 7 * i % 31, output=1 + 5 * i % 13)
            busy.step()
        busy.drain(most=400)
        expect(
            [r.number for r in busy.requests if r.status is not Status.FINISHED],
            [],
            call=f"requests that have not ended after 400 steps ({name})",
            cause="24 requests of at most 43 tokens: none may wait for ever",
        )


@pytest.mark.check(
    task=4, points=1, title="Prompts that have filled the store do not wait for one another"
)
def test_no_deadlock():
    play = Play(room=12, budget=8, max_chunk=4)
    play.add(prompt=10, output=2)
    play.add(prompt=8, output=2)
    play.drain(most=12)
    expect_steps(
        play,
        [{0: (0, 4), 1: (0, 4)}, {0: (4, 4)}, {0: (8, 1)}, {0: (9, 1)}, {0: (10, 1)},
         {1: (0, 4)}, {1: (4, 4)}, {1: (8, 1)}],
        call="room for 12, budget 8, max_chunk 4: prompts of 10 + 2 and 8 + 2",
        cause="in step 2 no place is free: a budget of 1 makes request 1 give way",
    )  # fmt: skip


@pytest.mark.check(task=4, points=1, title="What the budget of a step counts, and when")
def test_budget_of_a_step():
    turns = Play(room=12, budget=64, policy=RoundRobin(quantum=2))
    turns.add(prompt=8, output=5)
    turns.step()
    turns.add(prompt=6, output=2)
    turns.step()
    plan = turns.step()
    expect(
        [turns.steps[-1], plan.budget, [r.number for r in plan.preempted]],
        [{1: (0, 6)}, 12, [0]],
        call="the third step: room 12, turns of 2; 8 + 5, and a step later 6 + 2",
        cause="the turn of request 0 is over; its places belong to this step's budget",
    )
    prompts = Play(budget=AdaptiveBudget(limit=8, lowest=1, highest=8), max_chunk=2)
    for _ in range(3):
        prompts.add(prompt=5, output=1)
    prompts.step()
    prompts.budget.limit = 1
    expect(
        [prompts.step().budget, prompts.steps[-1]],
        [1, {0: (2, 1)}],
        call="budget and chunks with three half-read prompts running, when the limit falls to 1",
        cause="unfinished prompts are no decodes: the limit may make them wait",
    )
    prompts.budget.limit, prompts.budget.highest = 8, 3
    expect(prompts.step().budget, 3, call="budget when the limit is 8 again, but `highest` is 3")
    pair = Play(Refusing(1000), AdaptiveBudget(limit=8, lowest=1, highest=8))
    pair.add(prompt=1, output=9)
    pair.step()
    pair.store.refused = pair.add(prompt=1, output=9)
    pair.step()
    pair.store.refused, pair.budget.limit = None, 1
    plan = pair.step()
    expect(
        [pair.steps[1:], plan.budget],
        [[{0: (1, 1)}, {0: (2, 1), 1: (0, 1)}], 2],
        call="chunks of two steps and the last one's budget: prompts of 1 token, of which the "
        "second is admitted in the first of these steps without a chunk; then the limit falls to 1",
        cause="whoever is in the batch with one token remaining is a decode",
    )
    store, budget = Refusing(1000), AdaptiveBudget(limit=4, lowest=1, highest=4)
    again = Play(store, budget, max_chunk=2)
    _, second = again.add(prompt=2, output=9), again.add(prompt=2, output=9)
    for _ in range(4):
        again.step()
    store.refused = second
    again.step()
    store.refused = None
    again.add(prompt=1, output=5)
    again.step()
    budget.limit = 2
    again.step()
    expect(
        again.steps[-3:],
        [{0: (5, 1)}, {0: (6, 1), 1: (0, 2), 2: (0, 1)}, {0: (7, 1), 2: (1, 1)}],
        call="three steps: the store refuses request 1, which has 4 tokens out, so that it is "
        "preempted; then one of 4 tokens and one of 2",
        given={"run": again.picture()},
        cause="who computes its tokens again is an unfinished prompt, though it has output",
    )


class Refusing(CountingStore):
    """It has no room for one of the requests, or only while another one is in."""

    refused = beside = None

    def reserve(self, request, num_tokens):
        full = request is self.refused and (self.beside is None or self.beside in self.reserved)
        return not full and super().reserve(request, num_tokens)


class Telling(CountingStore):
    """It has each prompt's first two tokens from the start, and notes who is told to go."""

    def __init__(self, room):
        super().__init__(room)
        self.told = []

    def admit(self, request):
        super().admit(request)
        self.reserved[request] = 2
        self.free_tokens -= 2
        return 2

    def suspend(self, request):
        self.told.append(f"suspend {request.number}, {request.num_computed_tokens} computed")
        CountingStore.release(self, request)

    def release(self, request):
        self.told.append(f"release {request.number}")
        super().release(request)

    def forget(self, request):
        self.told.append(f"forget {request.number}")


@pytest.mark.check(task=4, points=2, title="What the store has, and what it is told")
def test_store():
    play = Play(Telling(24), budget=16)
    requests = [play.add(prompt=6, output=8) for _ in range(3)]
    play.step()
    expect(
        play.steps[0],
        dict.fromkeys(range(3), (2, 4)),
        call="the first chunks of three prompts of 6, whose first 2 tokens are in the store",
        cause="tokens that the store has are not computed again",
    )
    while not play.store.told and len(play.steps) < 9:
        play.step()
    play.scheduler.end(requests[2], Status.FAILED)
    play.scheduler.end(requests[0], Status.FINISHED)
    expect(
        play.store.told,
        ["suspend 2, 8 computed", "forget 2", "release 0"],
        call="what the store is told: request 2 preempted, with its computed tokens by then, and "
        "ended; request 0 ended",
        cause="suspended: it comes back, and its tokens were there till now; forgotten: it will "
        "not; released: it leaves for good",
    )


@pytest.mark.check(task=4, points=1, title="Every move goes through move_to, when it happens")
def test_moves_are_booked():
    play = Play(budget=64, seats=1, policy=RoundRobin(quantum=2))
    requests = [play.add(prompt=3, output=5), play.add(prompt=4, output=2)]
    play.drain(most=20)
    states = [Status.WAITING, Status.SCHEDULED, Status.RUNNING, Status.PREEMPTED]
    expect(
        [[r.seconds.get(status, 0.0) for status in states] for r in requests],
        [[0.0, 2.0, 3.0, 2.0], [2.0, 1.0, 1.0, 0.0]],
        call="seconds waiting, scheduled, running, preempted: at most one runs; turns of 2",
        cause="admission, first chunk, preemption and end each go through move_to",
    )
    late = Play(budget=64, seats=1, policy=RoundRobin(quantum=3))
    late.add(prompt=3, output=6)
    late.step()
    late.step()
    late.add(prompt=4, output=1)
    late.drain(most=20)
    expect_steps(
        late,
        [{0: (0, 3)}, {0: (3, 1)}, {0: (4, 1)}, {1: (0, 4)}, {0: (0, 6)}, {0: (6, 1)}, {0: (7, 1)}],
        call="at most one runs, turns of 3 tokens: 3 + 6, and two steps later 4 + 1",
        cause="who is preempted queues up behind those who wait already",
    )

    class Ticking(ManualClock):
        def __call__(self):
            self.advance(0.5)
            return self.now

    ticking = Play(seats=1, policy=RoundRobin(quantum=1), clock=Ticking())
    gone, came = [ticking.add(prompt=2, output=3) for _ in range(2)]
    ticking.step()
    ticking.scheduler.schedule()
    expect(
        [gone.status.value, came.status.value, came.entered - gone.entered],
        ["preempted", "scheduled", 0.0],
        call="the status of two requests after a `schedule` that preempts one and admits the "
        "other, and the seconds between the two moves; each reading of the clock is 0.5 s later",
        cause="one reading of the clock holds for a whole plan",
    )


@pytest.mark.check(task=4, points=1, title="The queue, in the order of the policy now")
def test_queue():
    play = Play(budget=4, seats=1, policy=make_policy("priority-with-ageing"))
    play.add(prompt=9, output=3)
    play.step()
    for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.NORMAL):
        play.add(prompt=5, output=2, priority=priority)
    orders = []
    for hours in (0, 1):
        play.clock.advance(3600 * hours)
        orders.append([request.number for request in play.scheduler.queue()])
    play.scheduler.end(play.requests[2], Status.FINISHED)
    orders.append([request.number for request in play.scheduler.queue()])
    expect(
        [orders, sorted(r.number for r in play.scheduler.waiting)],
        [[[3, 2, 4, 1], [1, 2, 3, 4], [1, 3, 4]], [1, 3, 4]],
        call="queue() at once, after an hour, and when request 2 was given up; who waits",
        given={"priorities of 1, 2, 3, 4": "low, normal, high, normal"},
        cause="with time everybody is as urgent as the most urgent, and arrival decides",
    )
    held = play.scheduler.queue()
    held.clear()
    expect(
        [len(play.scheduler.queue()), len(held)],
        [3, 0],
        call="length of queue() after the list of an earlier call was emptied, and of that list",
    )
    due = Play(budget=64, seats=1, policy=make_policy("deadline"))
    due.add(prompt=2, output=2)
    due.step()
    for deadline in (9.0, 5.0, 7.0):
        due.add(prompt=2, output=1, deadline=deadline)
    due.add(prompt=2, output=1)
    due.drain()
    expect_steps(
        due,
        [{0: (0, 2)}, {0: (2, 1)}, {2: (0, 2)}, {3: (0, 2)}, {1: (0, 2)}, {4: (0, 2)}],
        call="at most one runs, earliest deadline first: four that come while one runs, due at "
        "9, 5, 7 and never",
        cause="a policy decides who comes next, not who runs now",
    )


@pytest.mark.check(task=4, points=3, title="Random histories, step by step as the rules say")
def test_random_histories():
    for name, number, expected in json.loads(RECORDED.read_text(encoding="utf-8")):
        history = random_history(name, number)
        found = play(history)
        at = first_difference(found["steps"], expected["steps"])
        step = slice(at, None if at is None else at + 1)
        drawn = {}
        if at is not None:
            drawn = {
                "your run": f"your run\n{picture(found)}\n\nby the rules\n{picture(expected)}\n"
                f"the first step that differs is {at}; who is preempted and comes back in one step "
                "has no x"
            }
        for part, place in WHAT_A_STEP_SAYS.items():
            expect(
                [said[place] for said in found["steps"][step]],
                [said[place] for said in expected["steps"][step]],
                call=f"{part}, in step {at} of: {history}",
                given=drawn,
            )
        expect(
            found["ends"],
            expected["ends"],
            call=f"status, preemptions and seconds in each status of each request: {history}",
            given={"run": picture(found)},
            cause="every move goes through move_to when it happens; each preemption counts once",
        )


class AgainstModel(RuleBasedStateMachine):
    """Any sequence of adds, steps and aborts, against the few rules a plan must keep."""

    alive = Bundle("alive")

    def __init__(self):
        super().__init__()
        self.play = None

    @rule(room=st.integers(15, 40), budget=st.integers(1, 12), seats=st.integers(1, 5),
          name=st.sampled_from(
              ["fcfs", "sjf", "round-robin", "priority-with-ageing", "size-queues"]
          ),
          max_chunk=st.sampled_from([None, 1, 3]))  # fmt: skip
    def begin(self, room, budget, seats, name, max_chunk):
        if self.play is None:
            policy = RoundRobin(3) if name == "round-robin" else make_policy(name)
            self.play = Play(room, max(budget, seats), seats, policy, max_chunk)
            self.computed = {}

    @rule(target=alive, prompt=st.integers(1, 12), output=st.integers(1, 4))
    def add(self, prompt, output):
        if self.play is None:
            self.begin(15, 4, 3, "fcfs", None)
        request = self.play.add(prompt, output)
        self.computed[request.number] = 0
        return request

    @rule(request=consumes(alive))
    def abort(self, request):
        if not request.ended:
            self.play.scheduler.end(request, Status.FINISHED)

    @rule(times=st.integers(1, 6))
    def step(self, times):
        for _ in range(times):
            if self.play is not None:
                self.one_step()

    def one_step(self):
        scheduler = self.play.scheduler
        decodes = {r.number for r in scheduler.running if r.remaining == 1}
        totals = {r.number: r.num_tokens for r in self.play.requests}
        plan = self.play.step()
        for request in plan.preempted:
            self.computed[request.number] = 0
        chunks = self.play.steps[-1]
        for number, (start, length) in chunks.items():
            seen = [start, 1 <= length <= totals[number] - start]
            expect(
                seen,
                [self.computed[number], True],
                call="the start of a chunk, and whether its length is within what remains",
                given=self.drawn(seen == [self.computed[number], True]),
                cause="every token is computed once, in order, unless a preemption lost it",
            )
            self.computed[number] += length
        out = {r.number for r in plan.preempted}
        expect(
            sorted(decodes - out - set(chunks)),
            [],
            call="requests in decode that got no token in a step and were not preempted",
            given=self.drawn(not decodes - out - set(chunks)),
            cause="decodes go first and must never wait for prompts",
        )
        most = max(self.play.budget.limit, len(decodes))
        expect.that(
            plan.num_tokens <= most,
            "a step computes no more than its budget",
            observed=plan.num_tokens,
            given=self.drawn(plan.num_tokens <= most),
        )

    def drawn(self, well):
        """The run as a picture, where something went wrong."""
        return {} if well else {"run": self.play.picture()}

    @invariant()
    def data_agree(self):
        if self.play is not None:
            self.play.scheduler.check()

    def teardown(self):
        if self.play is None:
            return
        idle = 0
        while self.play.scheduler.has_work and idle < 3 and len(self.play.steps) < 500:
            self.one_step()
            idle = 0 if self.play.steps[-1] else idle + 1
        expect(
            [len(self.play.scheduler.waiting), len(self.play.scheduler.running),
             self.play.store.free_tokens],
            [0, 0, self.play.store.total_tokens],
            call="waiting, running and free places after everything was run to its end",
            given=self.drawn(not self.play.scheduler.has_work),
            cause="everybody ends, and nobody leaves anything behind",
        )  # fmt: skip


@pytest.mark.check(task=4, points=2, title="Any sequence of adds, steps and aborts", stress=True)
def test_any_sequence(seed):
    play = Play()
    play.add(prompt=3, output=2)  # one plain run first, so that a slip shows without hypothesis
    play.drain(most=9)
    expect([len(play.steps)], [2], call="steps for a prompt of 3 that generates 2")
    run_state_machine_as_test(
        hypothesis.seed(seed)(AgainstModel),
        settings=settings(
            database=None,
            deadline=None,
            max_examples=60,
            stateful_step_count=12,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        ),
    )

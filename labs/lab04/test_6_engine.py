"""Task 6: the engine's step."""

import gc
import weakref

import pytest
import torch

from grader import expect
from grader.course.paths import ROOT
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import (
    ConfigError,
    DuplicateRequestError,
    InvariantError,
    RequestTooLargeError,
)
from nanovllm.batching.events import Aborted, Failed, Queued, Stepped
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.policies import RoundRobin
from nanovllm.batching.replay import Replay
from nanovllm.batching.request import Priority, Request, Status
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.slot_store import SlotStore
from nanovllm.generation.errors import (
    EmptyPromptError,
    PromptTooLongError,
    RequestError,
    TokenIdError,
)
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sampling import argmax_sampler, sample
from nanovllm.generation.sequence import Sequence
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model, load_model
from nanovllm.tokenization.tokenizer import Tokenizer

CONFIG = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 40, qk_norm=True, eos_token_ids=(2,))


def greedy(count, **more):
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **more)


def prompts_of(rng, count, longest=12):
    lengths = rng.permutation([1, longest, *rng.integers(2, longest, size=count - 2)])
    return [rng.integers(3, 47, size=int(n)).tolist() for n in lengths]


def alone(model, prompt, params, seed=0):
    """The tokens that lab 03's loop gives this request."""
    events = generate(model, prompt, params, seed=seed)
    return [list(e.completion.token_ids) for e in events if isinstance(e, Finished)]


def drive(engine, before=None, most=200, failures=False):
    """Step to the end and check the books after every step; all events."""
    events, steps = [], 0
    while steps < most:
        if before is not None:
            before(steps)
        if not engine.has_unfinished:
            break
        new = engine.step()
        engine.check()
        for event in new:
            if isinstance(event, Failed) and not failures:
                raise event.error
        events += new
        steps += 1
    stuck = [*engine.scheduler.waiting, *engine.scheduler.running] if steps >= most else []
    expect(
        [[r.sequence.request_id, r.num_output_tokens, r.num_computed_tokens] for r in stuck],
        [],
        call=f"requests that have not ended after {steps} steps: id, tokens generated, computed",
    )
    return events


def tokens_of(events, request_id):
    return [e.token_id for e in events
            if isinstance(e, TokenGenerated) and e.request_id == request_id]  # fmt: skip


def by_hand(engine):
    """What `drive` does, by the public parts of a step; every second plan is executed twice."""
    events = engine.step()  # reads the notes
    for number in range(200):
        if not engine.has_unfinished:
            break
        plan = engine.scheduler.schedule()
        logits = [engine.execute(plan) for _ in range(1 + number % 2)][-1]
        events += engine.update(plan, engine.draw(plan, logits))
        engine.check()
    return events


@pytest.mark.check(
    task=6, points=1, title="A plan becomes token ids, positions, and rows that need logits"
)
def test_prepare():
    model, given = dummy_model(CONFIG), []

    class Unread(SlotStore):
        def bind(self, plan):
            return None

    def forward(token_ids, positions, attend):
        given[:] = [token_ids, positions]
        return torch.arange(len(token_ids))[:, None].expand(-1, 32).float()

    model.forward, model.logits = forward, lambda hidden: hidden
    engine = Engine(model, store=Unread(CONFIG, 4, 40))
    shapes = (([11, 12, 13, 14], []), ([21, 22], [23, 24, 25]), ([31, 32, 33], [34]), ([41], []))
    requests = []
    for number, (prompt, output) in enumerate(shapes):
        sequence = Sequence(prompt, greedy(9), max_model_len=40, seed=0)
        sequence.output_token_ids += output
        requests.append(Request(number, sequence, 0.0, 12))
    chunks = [(0, 1, 2, 4), (1, 4, 1, 5), (2, 1, 3, 4), (3, 0, 1, 1)]
    plan = Plan(tuple(Chunk(requests[i], *rest) for i, *rest in chunks))
    rows = engine.execute(plan)[:, 0].long()
    expect(
        [*given, rows],
        [
            torch.tensor([12, 13, 25, 32, 33, 34, 41]),
            torch.tensor([1, 2, 4, 1, 2, 3, 0]),
            torch.tensor([2, 5, 6]),
        ],
        call="execute of: tokens 1..2 of 4; token 4 of 5; tokens 1..3 of 4, past the prompt's "
        "end; the only token of a prompt of 1: token ids and positions that the model gets, and "
        "the rows of its result whose logits come out",
        cause="tokens of the output follow those of the prompt; an unfinished chunk gets no logits",
    )


@pytest.mark.check(task=6, points=2, title="Every row gets the logits it gets alone")
def test_logits(rng, seed):
    model = dummy_model(CONFIG, seed=seed % 1000)
    prompts = prompts_of(rng, 4)
    seen = {i: [] for i in range(4)}

    def recording(logits, rows):
        for row, values in zip(rows, logits, strict=True):
            seen[prompts.index(list(row.prompt_token_ids))].append(values.clone())
        return argmax_sampler(logits, rows)

    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=5)
    engine = Engine(model, config, sampler=recording)
    for prompt in prompts:
        engine.add_request(prompt, greedy(5))
    events = drive(engine)
    for i, prompt in enumerate(prompts):
        expect(
            len(seen[i]),
            5,
            call=f"rows of logits that the sampler saw of request {i}, which has 5 tokens",
            cause="one row for each token, none for an unfinished chunk",
        )
        ids = torch.tensor(prompt + tokens_of(events, i))
        hidden = model(ids, torch.arange(len(ids)), RecomputeAttend(CONFIG))
        expect(
            torch.stack(seen[i]),
            model.logits(hidden[len(prompt) - 1 : -1]),
            call=f"the logits of request {i} among four, three at a time, five tokens a step",
            given={"prompt lengths": [len(p) for p in prompts]},
            atol=5e-4,
            cause="a neighbour's tokens or another position got into this row",
        )


class Moody(SlotStore):
    """A slot store that refuses room now and then, so that requests are preempted."""

    rng = None

    def reserve(self, request, num_tokens):
        moody = request.num_preemptions < 5 and self.rng.random() < 0.25
        return not moody and super().reserve(request, num_tokens)


SETTINGS = {
    "all at once": EngineConfig(),
    "two seats, three tokens a step": EngineConfig(max_num_seqs=2, max_num_batched_tokens=3),
    "chunks of two": EngineConfig(max_num_seqs=4, max_chunk=2),
    "one at a time, shortest first": EngineConfig(max_num_seqs=1, policy="sjf"),
    "turns of two tokens": EngineConfig(
        max_num_seqs=2, max_num_batched_tokens=7, policy=RoundRobin(2)
    ),
    "a store that refuses": EngineConfig(max_num_seqs=4, max_num_batched_tokens=9),
}


@pytest.mark.check(
    task=6,
    points=2,
    title="The same tokens for any order, budget, chunk size, policy, and preemption",
)
def test_metamorphic(rng, seed):
    model = dummy_model(CONFIG, seed=seed % 1000)
    prompts = prompts_of(rng, 6)
    params = [
        greedy(int(rng.integers(1, 8)))
        if i % 2
        else SamplingParams(temperature=1.0, top_k=20, max_tokens=int(rng.integers(2, 8)))
        for i in range(6)
    ]
    wanted = [alone(model, prompt, params[i], seed=i)[0] for i, prompt in enumerate(prompts)]
    for name, config in SETTINGS.items():
        store = None
        if name == "a store that refuses":
            store = Moody(CONFIG, config.max_num_seqs, CONFIG.max_position)
            store.rng = rng
        engine = Engine(model, config, store=store)
        order = [int(i) for i in rng.permutation(6)]
        if name == "chunks of two":  # a long prompt, and one that completes beside it
            by_length = sorted(range(6), key=lambda i: len(prompts[i]))
            order = [*by_length[1:5], by_length[0], by_length[5]]

        def arrive(step, engine=engine, order=order):
            while order and (step >= 2 * (5 - len(order)) or not engine.has_unfinished):
                i = order.pop()
                engine.add_request(prompts[i], params[i], seed=i, request_id=i)

        arrive(0)
        events = drive(engine, before=arrive)
        expect(
            [tokens_of(events, i) for i in range(6)],
            wanted,
            call=f"the tokens of six requests ({name}), against each alone",
            given={"run": Replay(events).text(0, 60)},
            cause="a request's tokens depend on nothing but the request",
        )
    engine = Engine(model, EngineConfig(max_num_seqs=3, max_num_batched_tokens=5))
    for i, prompt in enumerate(prompts):
        engine.add_request(prompt, params[i], seed=i)
    events = by_hand(engine)
    expect(
        [tokens_of(events, i) for i in range(6)],
        wanted,
        call="the tokens of six requests whose steps are made by hand: schedule, execute (every "
        "second time twice), draw, update",
        cause="these public methods are all that a step is made of, and to execute counts nothing",
    )
    params = SamplingParams(temperature=1.0, top_k=20, max_tokens=6, ignore_eos=True)
    (whole,) = alone(model, prompts[0], params, seed=7)
    engine.add_request(prompts[0], params, seed=7, request_id=9, output_token_ids=whole[:4])
    events = drive(engine)
    expect(
        [tokens_of(events, 9), *(list(e.completion.token_ids) for e in events
                                 if isinstance(e, Finished))],
        [whole[4:], whole],
        call="the tokens of a request with output_token_ids, the first 4 of its 6: those of its "
        "events, and those of its completion",
        given={"the 6": whole},
        cause="it goes on behind these tokens as if they were its own, and tells them in no event",
    )  # fmt: skip


@pytest.mark.check(
    task=6, points=1, title="The events of a step, in order; an idle step does nothing"
)
def test_events():
    calls = []

    def counting(logits, rows):
        calls.append(len(rows))
        return argmax_sampler(logits, rows)

    clock = ManualClock(5.0)
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=4)
    engine = Engine(dummy_model(CONFIG), config, sampler=counting, clock=clock)
    expect(
        [engine.step(), calls],
        [[], []],
        call="step() of an engine without requests, and calls of the sampler",
        cause="nobody to run is no error and no work",
    )
    seen = []
    first = engine.add_request([7, 8, 9], greedy(2))
    second = engine.add_request([5, 6], greedy(1))
    expect([first, second], [0, 1], call="the ids of two requests")
    for _ in range(3):
        clock.advance(1.0)
        seen.append([_short(event) for event in engine.step()])
    expect(
        seen,
        [
            ["Queued 0", "Queued 1", "Admitted 0", "Admitted 1", "Prefilled 0", "TokenGenerated 0",
             "Stepped [(0, 0, 3), (1, 0, 1)] of 4"],
            ["TokenGenerated 0", "Finished 0", "Prefilled 1", "TokenGenerated 1", "Finished 1",
             "Stepped [(0, 3, 1), (1, 1, 1)] of 4"],
            [],
        ],
        call="the events of three steps: prompts of 3 and 2 that generate 2 and 1, budget 4",
        cause="each request's events come in its own order, and the step's own event comes last",
    )  # fmt: skip
    expect(calls, [1, 2], call="rows that the sampler was given in each step that ran")
    samples = Engine(dummy_model(CONFIG), config, sampler=argmax_sampler)
    samples.add_request([7, 8], SamplingParams(n=2, max_tokens=2, ignore_eos=True))
    expect(
        [[_short(event) for event in samples.step()] for _ in range(2)],
        [
            ["Queued 0", "Queued 0.1", "Admitted 0", "Admitted 0.1", "Prefilled 0",
             "TokenGenerated 0", "TokenGenerated 0.1", "Stepped [(0, 0, 2), (0, 0, 2)] of 4"],
            ["TokenGenerated 0", "Finished 0", "TokenGenerated 0.1", "Finished 0.1",
             "Stepped [(0, 2, 1), (0, 2, 1)] of 4"],
        ],
        call="the events of two steps: one prompt of 2 with 2 samples, each generates 2",
        cause="a prompt is reported as read once, with the first token of sample 0",
    )  # fmt: skip
    turns = EngineConfig(max_num_seqs=1, policy=RoundRobin(1))
    engine = Engine(dummy_model(CONFIG), turns, sampler=argmax_sampler, clock=clock)
    for _ in range(2):
        engine.add_request([7], greedy(3))
    engine.step()
    engine.add_request([8], greedy(1))
    engine.abort(1)
    clock.advance(1.0)
    expect(
        [_short(event) for event in engine.step()],
        ["Queued 2", "Aborted 1", "Preempted 0", "Admitted 2", "Prefilled 2", "TokenGenerated 2",
         "Finished 2", "Stepped [(2, 0, 1)] of 40"],
        call="the events of a step: request 1, which waits, is given up, request 2 arrives, and "
        "the turn of request 0 is over; one runs at a time",
    )  # fmt: skip
    parts = []

    class Noting(Engine):
        """What it executes is for its own draw alone."""

        def execute(self, plan):
            parts.append("execute")
            return {"logits": super().execute(plan)}

        def draw(self, plan, executed):
            parts.append("draw")
            return super().draw(plan, executed["logits"])

        def update(self, plan, outcomes):
            parts.append("update")
            return super().update(plan, outcomes)

    engine = Noting(dummy_model(CONFIG), config, sampler=argmax_sampler)
    engine.add_request([7, 8, 9, 10, 11], greedy(1))  # a budget of 4: two steps
    told = [_short(event) for event in engine.run()][-2:]
    expect(
        [parts, told],
        [["execute", "draw", "update"] * 2, ["Finished 0", "Stepped [(0, 4, 1)] of 4"]],
        call="what two steps of a subclass of Engine call, and their last events; its execute "
        "returns something of its own, for its own draw",
        cause="a step is update(plan, draw(plan, execute(plan)))",
    )


def _short(event):
    if isinstance(event, Stepped):
        chunks = [(c.request_id, c.start, c.length) for c in event.chunks]
        return f"Stepped {chunks} of {event.budget}"
    sample = f".{event.index}" if getattr(event, "index", 0) else ""
    return f"{type(event).__name__} {event.request_id}{sample}"


@pytest.mark.check(task=6, points=1, title="Abort at any moment")
def test_abort(rng, seed):
    model = dummy_model(CONFIG, seed=seed % 1000)
    prompts = prompts_of(rng, 6)
    wanted = [alone(model, prompt, greedy(9))[0] for prompt in prompts]
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=30, policy=RoundRobin(2))

    def aborting(logits, rows):  # in the middle of a step
        if any(row.prompt_token_ids == tuple(prompts[2]) for row in rows):
            engine.abort(2)
        return argmax_sampler(logits, rows)

    engine = Engine(model, config, sampler=aborting)
    for prompt in prompts:
        engine.add_request(prompt, greedy(9))
    answers = [engine.abort(5), engine.abort(77)]
    events = []

    def give_up(step):
        if step == 1:
            answers.append(engine.abort(0))  # running
            engine.abort(0)  # once more, before a step could read the first note
        if step == 4:
            answers.append(engine.abort(1))  # preempted by now

    events = drive(engine, before=give_up)
    answers.append(engine.abort(3))  # finished
    after = engine.step()
    aborted = [e for e in events if isinstance(e, Aborted)]
    picture = Replay(events).text(0, 60)
    expect(
        [[e.request_id, len(e.token_ids)] for e in aborted],
        [[5, 0], [0, 1], [2, 1], [1, 3]],
        call="the Aborted events: request, tokens it had; aborted waiting, running (twice), in the "
        "middle of a step, preempted",
        given={"run": picture},
        cause="an abort ends a request once, wherever it is, and keeps what it had said",
    )
    expect(
        [answers, len(after), len(engine.scheduler.waiting), engine.store.free_tokens],
        [[True, False, True, True, False], 0, 0, engine.store.total_tokens],
        call="what abort returned, events of a step after the end, waiting, free places",
        cause="an abort of what is not there (any more) is False and no error",
    )
    expect(
        [tokens_of(events, i) for i in (3, 4)],
        [wanted[i] for i in (3, 4)],
        call="the tokens of the two requests that were not aborted",
        given={"run": picture},
        cause="nobody else is harmed",
    )


@pytest.mark.check(task=6, points=1, title="One failing request does not stop the loop")
def test_failures(rng, seed):
    model = dummy_model(CONFIG, seed=seed % 1000)
    plain = model.forward
    prompts = prompts_of(rng, 4)
    wanted = [alone(model, prompt, greedy(6, logit_bias={48: -100.0}))[0] for prompt in prompts]

    def touchy_model(token_ids, positions, attend):
        if (token_ids == 48).any():
            raise MemoryError("the model does not like 48")
        return plain(token_ids, positions, attend)

    def touchy_sampler(logits, rows):
        if any(row.params.min_tokens == 3 and len(row.output_token_ids) == 2 for row in rows):
            raise ArithmeticError("the sampler does not like this row")
        return sample(logits, rows)

    def touchy_append(step):
        for request in engine.scheduler.running:
            if request.sequence.request_id == 6 and request.num_output_tokens == 1:
                request.sequence.append = broken_append

    class Odd(Exception):
        pass

    def broken_append(sampled, now):
        raise Odd("no such token")

    plans = []

    class Noting(Scheduler):
        def schedule(self):
            plan = super().schedule()
            plans.append([chunk.request.sequence.request_id for chunk in plan.chunks])
            return plan

    model.forward, config = touchy_model, EngineConfig(max_num_seqs=6)
    engine = Engine(model, config, sampler=touchy_sampler, make_scheduler=Noting)
    for prompt in prompts:
        engine.add_request(prompt, greedy(6, logit_bias={48: -100.0}))
    engine.add_request([5, 48, 6], greedy(6))
    engine.add_request([7, 8], greedy(6, min_tokens=3, logit_bias={48: -100.0}))
    engine.add_request([9], greedy(6, logit_bias={48: -100.0}))
    events = drive(engine, before=touchy_append, failures=True)
    failed = [[e.request_id, type(e.error).__name__] for e in events if isinstance(e, Failed)]
    expect(
        failed,
        [[4, "MemoryError"], [5, "ArithmeticError"], [6, "Odd"]],
        call="the Failed events: the model raises for request 4, the sampler for request 5, the "
        "second `sequence.append` of request 6",
        cause="an error belongs to the request that causes it alone, others are tried again",
    )
    expect(
        [tokens_of(events, i) for i in range(4)],
        wanted,
        call="the tokens of the four other requests",
        given={"run": Replay(events).text(0, 60)},
        cause="they go on as if nothing had happened",
    )
    kinds = [type(event).__name__ for event in events]
    told = [e.request_id for e in events[: kinds.index("Stepped")]
            if isinstance(e, TokenGenerated | Failed)]  # fmt: skip
    expect(
        told,
        plans[0],
        call="the requests of TokenGenerated and Failed in the first step; request 4 fails",
        cause="the events come in the order of the plan's chunks, Failed like the others",
    )
    expect(
        [len(tokens_of(events, 5)), len(tokens_of(events, 6)), engine.store.free_tokens],
        [2, 1, engine.store.total_tokens],
        call="tokens of requests 5 and 6 before they failed, and free places at the end",
    )


@pytest.mark.check(
    task=6, points=1, title="An abort ends every sample, and keeps what each had said"
)
def test_abort_samples():
    folder = ROOT / "models" / "target"
    tokenizer = Tokenizer.from_pretrained(folder)
    engine = Engine(load_model(folder), tokenizer=tokenizer)
    params = SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True, n=3)
    for request_id, each in ((1, greedy(9)), (2, params)):
        engine.add_request(tokenizer.encode("Once upon a"), each, seed=4, request_id=request_id)
    samples = []
    said = dict.fromkeys(range(3), "")

    def give_up(step):
        if step == 5:
            samples.extend(r for r in engine.scheduler.running if r.sequence.request_id == 2)
            engine.abort(2)

    events = drive(engine, before=give_up)
    for event in events:
        if isinstance(event, TokenGenerated) and event.request_id == 2:
            said[event.index] += event.text
    expect(
        [[e.request_id, e.index, len(e.token_ids), e.text == said[e.index] != ""]
         for e in events if isinstance(e, Aborted)],
        [[2, index, 5, True] for index in range(3)],
        call="the Aborted events of a request of 3 samples after 5 steps: id, index, tokens, and "
        "whether their text is that of its TokenGenerated events",
        given={"texts": said},
        cause="each sample ends, under its own index, with what it had said",
    )  # fmt: skip
    expect(
        [[request.status.value for request in samples], len(tokens_of(events, 1))],
        [["finished"] * 3, 9],
        call="the status of the three samples, and the tokens of a request beside them",
        cause="an aborted request is FINISHED, not FAILED: nothing went wrong",
    )


@pytest.mark.check(task=6, points=1, title="What a step says about itself")
def test_step_report():
    clock, model = ManualClock(1.0), dummy_model(CONFIG)
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=8, adaptive_budget=True)
    forward, observed = model.forward, []

    class Slow(Scheduler):
        def add(self, request):
            clock.advance(0.125)
            super().add(request)

        def schedule(self):
            clock.advance(0.25)
            return super().schedule()

        def observe(self, seconds):
            observed.append(seconds)
            super().observe(seconds)

    def slow_forward(*args):
        clock.advance(0.5)
        return forward(*args)

    model.forward = slow_forward
    engine = Engine(model, config, sampler=argmax_sampler, clock=clock, make_scheduler=Slow)
    for _ in range(3):
        engine.add_request([5, 6], greedy(1))
    clock.advance(1.0)
    events = engine.step()
    queued = [e.time for e in events if isinstance(e, Queued)]
    steps = [e for e in events if isinstance(e, Stepped)]
    expect(
        [queued, [[e.started, e.time, e.running, e.waiting, e.budget] for e in steps]],
        [[1.0] * 3, [[2.0, 3.125, 2, 1, 8]]],
        call="three requests that arrive at 1.0 with two seats; a step at 2.0 that adds each to "
        "the scheduler for 0.125 s, plans for 0.25 s, computes for 0.5 s, and ends two of them: "
        "times of Queued; started, time, running, "
        "waiting, budget of Stepped",
        cause="a request was queued when it arrived; a step starts before it collects, and counts "
        "those that ran in it, also those that it ended",
    )
    expect(
        [engine.store.free_tokens, observed, engine.scheduler.budget.limit],
        [engine.store.total_tokens, [1.125], 6],
        call="free places, the seconds observed, and the limit of 8 after this step",
        cause="the scheduler observes the seconds of each step, and tells the budget",
    )

    class Stubborn(SlotStore):
        def reserve(self, request, num_tokens):
            return not request.num_computed_tokens and super().reserve(request, num_tokens)

    store = Stubborn(CONFIG, 2, 40)
    engine = Engine(dummy_model(CONFIG), config, store=store, clock=clock, make_scheduler=Slow)
    engine.add_request([5, 6], greedy(3))
    engine.step()
    observed.clear()
    expect(
        [[type(event).__name__ for event in engine.step()], observed],
        [["Preempted"], []],
        call="the events of a step in which the only request is preempted, and the seconds that "
        "the scheduler observes",
        cause="nothing was computed, so there is no Stepped and nothing to observe, but what "
        "happened is reported",
    )


@pytest.mark.check(
    task=6,
    points=1,
    title="A failed chunk is not counted, an unfinished one can fail, Ctrl+C goes through",
)
def test_failed_chunks():
    model, config = dummy_model(CONFIG), EngineConfig(max_num_seqs=2, max_num_batched_tokens=4)
    plain = model.forward

    def touchy_model(token_ids, positions, attend):
        if (token_ids == 48).any():
            raise MemoryError("the model does not like 48")
        return plain(token_ids, positions, attend)

    model.forward = touchy_model
    committed, admitted = [], {}

    class Noting(SlotStore):
        def admit(self, request):
            admitted[request.sequence.request_id] = request
            return super().admit(request)

        def commit(self, plan):
            committed.extend(
                [c.request.sequence.request_id, c.length, c.request.num_computed_tokens]
                for c in plan.chunks
            )
            super().commit(plan)

    engine = Engine(model, config, store=Noting(CONFIG, 2, 40), sampler=argmax_sampler)
    engine.add_request([7], greedy(1), request_id=1)
    engine.add_request([5, 48, 6, 7, 8, 9], greedy(2), request_id=0)
    events = drive(engine, failures=True)
    failed = [[e.request_id, type(e.error).__name__] for e in events if isinstance(e, Failed)]
    expect(
        [failed, committed, admitted[0].num_computed_tokens],
        [[[0, "MemoryError"]], [[1, 1, 0]], 0],
        call="Failed events, what is committed (request, length, computed tokens before it is "
        "counted), and what request 0 has computed: the model raises for the first 3 of its 6 "
        "tokens",
        cause="the request fails at once, by a chunk that would draw no token; it never was "
        "computed, so neither store nor counters take it in; what was computed is committed first, "
        "then counted",
    )

    def ctrl_c(logits, rows):
        raise KeyboardInterrupt

    stopped = Engine(dummy_model(CONFIG), config, sampler=ctrl_c, clock=lambda: 1.0)
    stopped.add_request([5], greedy(1))
    expect.raises(
        KeyboardInterrupt,
        stopped.step,
        call="step() when Ctrl+C is pressed while the sampler runs",
        cause="an interrupt is no request's error",
    )

    def unwritten(logits, rows):
        raise NotImplementedError("not written yet")

    stopped = Engine(dummy_model(CONFIG), config, sampler=unwritten, clock=lambda: 1.0)
    stopped.add_request([5], greedy(1))
    try:
        events = stopped.step()
    except NotImplementedError:
        events = None
    expect.that(
        events is None,
        "a NotImplementedError goes through",
        observed=events,
        call="step() when the sampler is a task that is not written yet",
    )


@pytest.mark.check(task=6, points=1, title="A row of logits is drawn with its own request")
def test_draw():
    shown = []

    def showing(logits, rows):
        shown.append([[row.params.max_tokens for row in rows], logits.argmax(dim=-1).tolist()])
        return argmax_sampler(logits, rows)

    requests = []
    for number in range(5):
        sequence = Sequence([5] * 6, greedy(number + 1), max_model_len=40, seed=number)
        requests.append(Request(number, sequence, 0.0, 12))
    lengths = (3, 6, 2, 6, 6)  # requests 1, 3 and 4 are read to their end
    chunks = tuple(Chunk(r, 0, n, 6) for r, n in zip(requests, lengths, strict=True))
    engine = Engine(dummy_model(CONFIG), sampler=showing)
    logits = torch.eye(50)[[11, 12, 13]]
    for plan, rows in ((Plan(chunks), logits), (Plan(chunks[::-1]), logits.flip(0))):
        outcomes = engine.draw(plan, rows)
        found = [None if outcome is None else outcome.token_id for outcome in outcomes]
        numbers = [chunk.request.number for chunk in plan.chunks]
        expect(
            sorted(zip(numbers, found, strict=True)),
            [(0, None), (1, 11), (2, None), (3, 12), (4, 13)],
            call="the tokens that draw gives to five chunks, of which three complete",
            given={"chunks in the plan (request, length of 6)": list(zip(numbers, [
                chunk.length for chunk in plan.chunks], strict=True))},
            cause="there is a row of logits for each chunk that completes, and for no other",
        )  # fmt: skip
    unfinished = engine.draw(Plan((chunks[0], chunks[2])), torch.empty(0, 50))
    expect(unfinished, [None, None], call="draw of two chunks that do not complete")
    expect(
        [[n for n, _ in sorted(zip(*batch, strict=True), key=lambda pair: pair[1])]
         for batch in shown if batch[0]],
        [[2, 4, 5]] * 2,
        call="max_tokens of the rows that the sampler was shown, in the order of their tokens",
        given={"max_tokens of requests 0 to 4": [1, 2, 3, 4, 5]},
        cause="a row of logits goes with the settings and the seed of the chunk that completes",
    )  # fmt: skip


@pytest.mark.check(
    task=6, points=1, title="A row without a finite largest logit fails its request alone"
)
def test_nan_row(rng, seed):
    model = dummy_model(CONFIG, seed=seed % 1000)
    prompts = prompts_of(rng, 3)
    params = greedy(6, logit_bias={49: -100.0})
    wanted = [alone(model, prompt, params)[0] for prompt in prompts]
    model.embed_tokens.weight.data[49] = torch.nan
    engine = Engine(model, EngineConfig(max_num_seqs=2))
    engine.add_request([5, 49, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], params, request_id=99)
    for prompt in prompts:
        engine.add_request(prompt, params)
    events = drive(engine, failures=True)
    expect(
        [[e.request_id, type(e.error).__name__] for e in events if isinstance(e, Failed)],
        [[99, "NonFiniteLogitsError"]],
        call="the Failed events when one of four requests gets NaN from the model",
        cause="that request fails, and says why",
    )
    expect(
        [tokens_of(events, i) for i in (99, 0, 1, 2)],
        [[], *wanted],
        call="the tokens of the request with NaN, and of the three others",
        cause="no token is drawn from NaN, and its slot does no harm to the next owner",
    )
    inf, shown = torch.inf, []

    def showing(logits, rows):
        shown.append(logits.clone())
        return argmax_sampler(logits, rows)

    sequences = [Sequence([5], greedy(2), max_model_len=40, seed=0) for _ in range(5)]
    chunks = tuple(Chunk(Request(i, s, 0.0, 2), 0, 1, 1) for i, s in enumerate(sequences))
    logits = torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [inf, 1.0], [-inf, 1.0], [-inf, -inf]])
    outcomes = Engine(model, sampler=showing).draw(Plan(chunks), logits)
    expect(
        [[type(outcome).__name__ for outcome in outcomes], torch.cat(shown).tolist()],
        [
            ["Sampled", *["NonFiniteLogitsError"] * 2, "Sampled", "NonFiniteLogitsError"],
            [[0.0, 1.0], [-inf, 1.0]],
        ],
        call="draw of the rows [0, 1], [nan, 1], [inf, 1], [-inf, 1], [-inf, -inf]: the outcomes, "
        "and the rows that the sampler saw",
        cause="a largest logit that is not finite is no choice; a single -inf is",
    )


@pytest.mark.check(
    task=6, points=1, title="Bad requests are refused when they are added, and leave nothing"
)
def test_refusals():
    store = SlotStore(CONFIG, num_slots=2, capacity=10)
    engine = Engine(dummy_model(CONFIG), store=store)
    engine.add_request([5], greedy(2), request_id=3)
    for error, prompt, params, request_id in (
        (EmptyPromptError, [], greedy(2), None),
        (PromptTooLongError, [5] * 40, greedy(2), None),
        (TokenIdError, [5, 50], greedy(2), None),
        (RequestTooLargeError, [5] * 8, greedy(4), None),
        (DuplicateRequestError, [5], greedy(2), 3),
    ):
        expect.raises(
            error,
            lambda p=prompt, q=params, r=request_id: engine.add_request(p, q, request_id=r),
            call=f"add_request(a prompt of {len(prompt)}, max_tokens={params.max_tokens})",
            cause="a request that can never be answered is refused at once",
        )
    expect.raises(
        RequestError,
        lambda: engine.add_request([5], greedy(2), priority=-1),
        call="add_request([5], priority=-1), where the policy is fcfs",
        cause="a number that the policy does not read is refused; a member of Priority is not",
    )
    events = drive(engine)
    expect(
        [sorted({e.request_id for e in events if not isinstance(e, Stepped)}), len(events)],
        [[3], 8],
        call="the requests that appear in the events afterwards, and how many events there are",
        cause="a refused request leaves nothing behind",
    )
    expect.raises(
        ConfigError,
        lambda: Engine(dummy_model(CONFIG), EngineConfig(max_model_len=41)),
        call="Engine(model, EngineConfig(max_model_len=41)), of a model for 40 tokens",
        cause="positions that the model has never seen",
    )


@pytest.mark.check(task=6, points=1, title="A request keeps its number, its urgency, its deadline")
def test_settings():
    model, clock = dummy_model(CONFIG), ManualClock(5.0)
    small = Engine(model, EngineConfig(max_num_seqs=3, max_model_len=12), clock=clock)
    found = [small.config.max_num_seqs, small.max_model_len, small.store.num_blocks]
    expect(
        [*found, small.store.block_size, Engine(model).max_model_len],
        [3, 12, 3, 12, 40],
        call="config.max_num_seqs, max_model_len, blocks of the store and places in each, with "
        "EngineConfig(max_num_seqs=3, max_model_len=12); max_model_len without a config",
        cause="a slot for each request that may run, as long as the longest may become",
    )
    ids = [small.add_request([5], greedy(2), request_id=1), small.add_request([5], greedy(2))]
    ids.append(small.add_request([5], greedy(2)))
    events = list(small.run())
    expect(
        [ids, [_short(event) for event in events[:3]], small.has_unfinished, small.step()],
        [[1, 0, 2], [f"Queued {i}" for i in ids], False, []],
        call="the ids of a request that asks for 1, and of two that ask for none; the first events "
        "of run(), and what is left after it",
        cause="the smallest number that was neither given out nor is in use",
    )
    orders = []
    for policy in ("priority-with-ageing", "deadline"):
        engine = Engine(model, EngineConfig(max_num_seqs=1, policy=policy), clock=clock)
        urgent = [(Priority.LOW, 4.0), (Priority.HIGH, None), (Priority.NORMAL, 2.5)]
        for priority, deadline in urgent:
            engine.add_request([5], greedy(1), priority=priority, deadline=deadline)
            clock.advance(1.0)
        ended = [event.request_id for event in engine.run() if isinstance(event, Finished)]
        orders.append(ended)
    expect(
        orders,
        [[1, 2, 0], [0, 2, 1]],
        call="the order in which three requests end by priority, and by deadline; one runs at a "
        "time, and one comes each second",
        given={"(priority, deadline)": [(p.name, d) for p, d in urgent]},
        cause="a deadline is counted from the moment of add_request; without one, all others go "
        "first",
    )
    for moment in ("let go of a request", "got a request"):
        engine = Engine(model, EngineConfig(max_num_seqs=1))
        engine.add_request([5], greedy(3))
        engine.step()
        (request,) = engine.scheduler.running
        if moment == "got a request":
            engine.scheduler.add(Request(9, request.sequence, 0.0, 3))
        else:
            engine.scheduler.end(request, Status.FAILED)
        expect.raises(
            InvariantError,
            engine.check,
            call=f"engine.check() when the scheduler alone has {moment}",
            cause="those that wait or run must be those that have not ended for their callers",
        )


@pytest.mark.check(
    task=6, points=1, title="Requests of all kinds on the bundled model; nothing grows"
)
def test_bundled_model():
    folder = ROOT / "models" / "target"
    model, tokenizer = load_model(folder), Tokenizer.from_pretrained(folder)
    texts = ["Once upon a time", "The", "Mia's code is 7342.", "Tom went to", "2 + 3 =", "In"]
    prompts = [tokenizer.encode(text) for text in texts]
    config, alive, sizes = (
        EngineConfig(max_num_seqs=3, max_num_batched_tokens=8),
        weakref.WeakSet(),
        [],
    )

    class Noting(SlotStore):
        def admit(self, request):
            alive.add(request)
            return super().admit(request)

    store = Noting(model.config, config.max_num_seqs, model.config.max_position)
    engine = Engine(model, config, tokenizer=tokenizer, store=store)
    for _ in range(2):
        for i, prompt in enumerate(prompts):
            engine.add_request(prompt, REQUESTS[i], seed=i, request_id=i)
        events = drive(engine)
        gc.collect()
        sizes.append(len(alive))
    together = [
        sorted((e.completion for e in events if isinstance(e, Finished) and e.request_id == i),
               key=lambda completion: completion.index)
        for i in range(6)
    ]  # fmt: skip
    for i, params in enumerate(REQUESTS):
        events = generate(model, prompts[i], params, tokenizer=tokenizer, seed=i)
        single = [event.completion for event in events if isinstance(event, Finished)]
        expect(
            [[c.token_ids, c.text, c.finish_reason] for c in together[i]],
            [[c.token_ids, c.text, c.finish_reason] for c in single],
            call=f"the completions of request {i} of 6: {texts[i]!r}",
            cause="a request's answer must not depend on its batch mates",
        )
    expect(
        sizes[1],
        sizes[0],
        call="requests still in memory when six have ended, and when twelve have",
        cause="nothing may remember requests that have ended",
    )


REQUESTS = [
    SamplingParams(temperature=0, max_tokens=12),
    SamplingParams(temperature=1.0, top_k=20, seed=3, max_tokens=15, n=2),
    SamplingParams(temperature=0.8, top_p=0.9, max_tokens=9, logprobs=2),
    SamplingParams(temperature=0, max_tokens=20, stop=[" a", "the"]),
    SamplingParams(temperature=1.2, min_p=0.05, max_tokens=6, repetition_penalty=1.3),
    SamplingParams(temperature=0, max_tokens=18, logit_bias={2: 100.0}, min_tokens=4),
]

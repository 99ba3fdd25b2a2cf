"""Hidden scenarios of lab 04: other traces, sizes and mixtures than those of the visible checks."""

from grader.checks.scenarios import scenario


def _request(number, prompt, output, arrival=0.0, priority=0):
    from nanovllm.batching.request import Request
    from nanovllm.batching.simulated import SimulatedSequence

    sequence = SimulatedSequence(number, prompt, output)
    return Request(number, sequence, arrival, prompt + output - 1, priority)


def _config(**more):
    from nanovllm.model.config import ModelConfig

    sizes = {"vocab_size": 60, "hidden_size": 24, "num_layers": 2, "num_heads": 6}
    sizes |= {"num_kv_heads": 3, "head_dim": 4, "intermediate_size": 40, "max_position": 48}
    return ModelConfig("qwen3", **{**sizes, "qk_norm": True, "eos_token_ids": (2,), **more})


@scenario(task=1)
def a_random_life(nanovllm, rng):
    from nanovllm.batching.errors import IllegalTransitionError
    from nanovllm.batching.request import Status

    request, now, story = _request(0, int(rng.integers(2, 9)), 9), 0.0, []
    states = list(Status)[:4]
    for _ in range(40):
        now += float(rng.uniform(0.1, 2.0))
        wanted = states[int(rng.integers(4))]
        try:
            request.move_to(wanted, now)
            story.append(wanted.value)
        except IllegalTransitionError:
            story.append("refused")
        request.num_computed_tokens = int(rng.integers(0, request.num_tokens))
        story.append(request.remaining)
        if rng.random() < 0.3:
            request.sequence.append()
    last = [Status.FINISHED, Status.FAILED][int(rng.integers(2))]
    request.move_to(last, now + 1.0)
    for wanted in Status:
        try:
            request.move_to(wanted, now + 2.0)
            story.append(wanted.value)
        except IllegalTransitionError:
            story.append("refused")
    return {
        "story": [*story, request.status.value],
        "times": [request.time_in(status, now + 3.0) for status in Status],
        "waited": request.waited(now + 3.0),
    }


@scenario(task=2)
def a_random_queue(nanovllm, rng):
    from nanovllm.batching.policies import POLICIES, PriorityWithAging, RoundRobin, SizeQueues
    from nanovllm.batching.request import Priority, Status

    found = {}
    kinds = [kind() for kind in POLICIES] + [SizeQueues(20, 40, 30.0), RoundRobin(3)]
    # with so much patience some are in a lower queue still, and the seconds of each stay matter
    kinds += [SizeQueues(20, 40, 600.0), PriorityWithAging(patience=480.0, size=512.0)]
    for number, policy in enumerate(kinds):
        requests = []
        for i in range(20):
            arrival = 15.0 * int(rng.integers(0, 14))  # quarters of a minute: scores are exact
            priority = list(Priority)[int(rng.integers(3))]
            prompt, output = int(rng.integers(1, 60)), int(rng.integers(1, 9))
            request = _request(i, prompt, output, arrival, priority)
            if rng.random() < 0.5:
                request.deadline = float(rng.integers(200, 220))
            if rng.random() < 0.4:  # it has run, and is back in the queue
                request.move_to(Status.SCHEDULED, 210.0)
                request.move_to(Status.RUNNING, 225.0)
                request.move_to(Status.PREEMPTED, 240.0 + 15 * int(rng.integers(3)))
            request.num_computed_tokens = int(rng.integers(0, prompt))
            request.turn_start = int(rng.integers(0, 3))
            for _ in range(int(rng.integers(0, 6))):
                request.sequence.append()
            requests.append(request)
        some = [requests[int(i)] for i in rng.choice(20, size=8, replace=False)]
        name = f"{policy.name} {number}"
        if policy.name != PriorityWithAging.name:  # equal scores may differ in rounding
            ranked = sorted(requests, key=lambda request, p=policy: p.rank(request, 300.0))
            found[f"{name}: order"] = [request.number for request in ranked]
            found[f"{name}: victim"] = policy.victim((r for r in some), 285.0).number
        found[f"{name}: keys"] = [policy.key(request, 1005.0) for request in requests]
        found[f"{name}: turns over"] = [policy.turn_is_over(request) for request in requests]
    return found


@scenario(task=3)
def a_restless_machine(nanovllm, rng):
    from numbers import Integral

    from nanovllm.batching.budget import AdaptiveBudget, token_budget

    budget = AdaptiveBudget(
        limit=int(rng.integers(20, 400)), lowest=int(rng.integers(1, 20)), highest=500
    )
    limits = []
    for _ in range(80):
        budget.observe(float(rng.uniform(0.0, 0.1)), float(rng.uniform(0.0, 0.6)))
        limits.append([budget.limit, isinstance(budget.limit, Integral)])
    other = AdaptiveBudget(int(rng.integers(9, 90)), 1, 100, slow=0.5, fast=0.25, scarce=0.375)
    edges = []
    for seconds, free in rng.integers(0, 8, size=(80, 2)).tolist():  # often just at a mark
        other.observe(seconds / 8, free / 8)
        edges.append(other.limit)
    draws = rng.integers(0, 100, size=(30, 4)).tolist()
    names = ("hardware", "compute", "memory", "decodes")
    return {
        "limits": limits,
        "at the marks": edges,
        "budgets": [token_budget(**dict(zip(names, draw, strict=True))) for draw in draws],
    }


@scenario(task=4)
def random_histories(nanovllm, rng):
    from grader.checks.scheduler_histories import POLICIES, play, random_history

    seeds = rng.integers(1000, 1 << 30, size=(len(POLICIES), 12)).tolist()
    return {
        f"{name} {seed}": play(random_history(name, seed))
        for name, some in zip(POLICIES, seeds, strict=True)
        for seed in some
    }


@scenario(task=4)
def a_store_that_remembers(nanovllm, rng):
    """Suspended tokens are kept until forgotten; a policy takes its victims from a list."""
    from types import SimpleNamespace

    from nanovllm.batching.errors import RequestTooLargeError
    from nanovllm.batching.policies import ShortestJobFirst
    from nanovllm.batching.request import Status
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore
    from nanovllm.generation.latency import ManualClock

    class Keeping(CountingStore):
        def __init__(self, room):
            super().__init__(room)
            self.kept, self.refused, self.unless = {}, None, None

        def admit(self, request):
            super().admit(request)
            stored = min(self.kept.pop(request.number, 0), request.num_tokens - 1, self.free_tokens)
            self.reserved[request] = stored
            self.free_tokens -= stored
            return stored

        def reserve(self, request, num_tokens):
            stubborn = request.number == self.refused and (
                self.unless is None or self.unless in [one.number for one in self.reserved]
            )
            return not stubborn and super().reserve(request, num_tokens)

        def suspend(self, request):
            self.kept[request.number] = request.num_computed_tokens
            self.free_tokens += self.reserved.pop(request)

        def forget(self, request):
            self.kept.pop(request.number, None)

    class Listed(ShortestJobFirst):
        """Its victims come from a list; who waits as one of the `pushy` sends somebody away."""

        def victim(self, running, now):
            return max(running, key=lambda request: wish[request.number])

        def displaced(self, first, running, now):
            last = max(running, key=lambda request: wish[request.number], default=None)
            return last if first.number in pushy else None

    def ticking():
        clock.advance(0.0625)
        return clock.now

    def add(prompt, output):
        request = _request(len(requests), prompt, output, float(len(requests)))
        try:
            scheduler.add(request)
            requests.append(request)
        except RequestTooLargeError:
            steps.append("too large")

    def step(limit, highest=99, refused=None, unless=None):
        budget.limit, budget.highest = limit, highest
        store.refused, store.unless = refused, unless
        plan = scheduler.schedule()
        moments = {one.entered for one in (*plan.admitted, *plan.preempted)}
        scheduler.update(plan)
        for chunk in plan.chunks:
            if chunk.completes:
                chunk.request.sequence.append()
                if chunk.request.sequence.finished:
                    scheduler.end(chunk.request, Status.FINISHED)
        scheduler.check()
        steps.append(
            [
                sorted([c.request.number, c.start, c.length] for c in plan.chunks),
                plan.budget,
                sorted(request.number for request in plan.admitted),
                sorted(request.number for request in plan.preempted),
                len(moments) < 2,  # one reading of the clock
                [request.number for request in scheduler.queue()],
                store.free_tokens,
                sorted(store.kept.items()),
            ]
        )

    steps = []
    for _ in range(4):
        clock, store = ManualClock(), Keeping(int(rng.integers(60, 90)))
        budget = SimpleNamespace(limit=1, highest=1, observe=lambda *_: None)
        seats, requests, pushy = int(rng.integers(3, 6)), [], {3}
        wish = [9, 8, 0, -1, *(int(x) for x in rng.permutation(16))]
        scheduler = Scheduler(store, Listed(), budget, max_num_seqs=seats, clock=ticking)
        limit = int(rng.integers(8, 14))
        add(int(rng.integers(1, 4)), 9)
        add(int(rng.integers(4, 6)), 20)
        add(91, 1)
        step(limit)
        add(4 * limit, int(rng.integers(2, 5)))
        step(limit)
        step(limit, refused=1, unless=0)  # request 0 has its chunk, and gives way to a decode
        step(limit, refused=2, unless=1)  # request 1 gives way to a chunk that the budget cut
        for _ in range(3):
            step(limit - 1, int(rng.integers(3, 8)))
        while len(scheduler.running) < seats and len(requests) < 9:
            add(1, int(rng.integers(3, 7)))
            step(limit, refused=len(requests) - 1)  # it is admitted, and waits for a place
            step(1)  # as many tokens as decodes
        pushy = set(range(20))
        while not scheduler.waiting and len(requests) < 12:
            add(int(rng.integers(1, 3)), 9)
            step(limit)
        step(limit)  # the first of the queue comes in, or sends somebody away
        step(limit)
        pushy = set(range(int(rng.integers(4, 7)), 20))
        for _ in range(3):
            add(int(rng.integers(1, 9)), int(rng.integers(1, 9)))
        for number in range(8):
            step(int(rng.integers(1, 9)), refused=int(rng.integers(0, 12)))
            some = [one for one in requests if not one.ended]
            if some and number % 2:
                gone = some[int(rng.integers(len(some)))]
                scheduler.end(gone, [Status.FINISHED, Status.FAILED][number % 4 // 2])
        while scheduler.has_work and len(steps) < 400:
            waiting = scheduler.queue()
            scheduler.end(waiting[0], Status.FINISHED) if waiting else step(9)
        steps.append([[r.num_preemptions, r.status.value] for r in requests])
        steps.append(sorted(store.kept))
    return {"steps": steps}


@scenario(task=5)
def slots_of_random_plans(nanovllm, rng):
    import torch

    from nanovllm.batching.plan import Chunk, Plan
    from nanovllm.batching.slot_store import SlotStore

    config = _config(windows=(int(rng.integers(1, 6)), None))
    num_slots = int(rng.integers(9, 14))
    store = SlotStore(config, num_slots, int(rng.integers(14, 20)))
    live, results, free, number = [], [], [], 0
    for step in range(14):
        while store.can_admit(request := _request(number, 5, 9)):
            store.admit(request)
            live.append(request)
            number += 1
        chunks = []
        for request in live:
            length = 1 if rng.random() < 0.5 else int(rng.integers(2, 5))
            if store.reserve(request, length) and store.reserve(request, length):  # once is enough
                start = request.num_computed_tokens
                chunks.append(Chunk(request, start, length, start + length))
        chunks = [chunks[int(i)] for i in rng.permutation(len(chunks))]
        if chunks:
            plan = Plan(tuple(chunks))
            attend = store.bind(plan)
            for layer in range(2):
                shapes = ((config.num_heads, 4), (config.num_kv_heads, 4), (config.num_kv_heads, 4))
                q, k, v = (
                    torch.from_numpy(rng.normal(size=(plan.num_tokens, *shape)).astype("float32"))
                    for shape in shapes
                )
                if step % 3 == 0:  # computed twice, as after an error
                    attend(layer, q, -k, -v)
                results.append(attend(layer, q, k, v))
            stored = [store.free_tokens]
            store.commit(plan)
            free.append([*stored, store.free_tokens])  # before anybody else counts
            for chunk in chunks:
                chunk.request.num_computed_tokens = chunk.end
        while live and (not chunks or rng.random() < 0.6):
            gone = live.pop(int(rng.integers(len(live))))
            if rng.random() < 0.5:  # it goes wrong: written, not committed
                start, room = gone.num_computed_tokens, store.block_size
                if start < room and store.reserve(gone, room - start):
                    wrong = torch.full((room - start, config.num_kv_heads, 4), torch.nan)
                    attend = store.bind(Plan((Chunk(gone, start, room - start, room),)))
                    for layer in range(2):
                        attend(layer, torch.ones(room - start, config.num_heads, 4), wrong, wrong)
            leave = store.suspend if rng.random() < 0.5 else store.release
            leave(gone)
            chunks = chunks or [gone]
        store.check(live)
        free.append([store.free_tokens, store.can_admit(_request(number, 5, 9))])
    return {"attended": results, "free": free, "blocks": [store.num_blocks, store.total_tokens]}


def _through(engine):
    """The name of what goes through a step, or what the step says."""
    try:
        return [type(event).__name__ for event in engine.step()]
    except (KeyboardInterrupt, NotImplementedError) as error:
        return type(error).__name__


def _sample_of(event):
    """Request and sample of an event; Stepped, which has none, is the last of a step."""
    return getattr(event, "request_id", 1 << 62), getattr(event, "index", 0)


def _by_sample(events):
    """A step's events, those of a sample in their order: whose come first in a plan is open."""
    return sorted(events, key=_sample_of)


@scenario(task=6)
def a_busy_engine(nanovllm, rng):
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.batching.events import Failed
    from nanovllm.generation.events import TokenGenerated
    from nanovllm.generation.latency import ManualClock
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sampling import sample
    from nanovllm.model.loader import dummy_model

    raised = None

    def touchy(logits, rows):
        if raised is not None:
            raise raised
        for row in rows:
            if row.params.min_tokens == 2 and len(row.output_token_ids) == 1:
                raise ValueError("not this one")
            if len(row.output_token_ids) == row.params.max_tokens - 1:
                engine.abort(ids[row.prompt_token_ids])  # in the step in which it ends
        return sample(logits, rows)

    model = dummy_model(_config(), seed=int(rng.integers(1000)))
    config = EngineConfig(
        max_num_seqs=int(rng.integers(2, 5)),
        max_num_batched_tokens=int(rng.integers(8, 20)),
        max_chunk=int(rng.integers(2, 5)),  # what completes may stand behind what does not
        policy=["fcfs", "sjf", "round-robin"][int(rng.integers(3))],
    )
    engine = Engine(model, config, sampler=touchy, clock=ManualClock())
    tokens, failed, steps, ids = {}, [], [], {}
    for number in range(12):
        params = SamplingParams(
            temperature=float(rng.integers(2)),
            max_tokens=int(rng.integers(3, 9)),
            min_tokens=2 if number == 5 else 0,
        )
        prompt = rng.integers(3, 60, size=int(rng.integers(1, 20))).tolist()
        ids[tuple(prompt)] = engine.add_request(prompt, params, seed=number)
        if number == 7:
            engine.abort(gone := int(rng.integers(8)))
            engine.abort(gone)  # before a step has read the first note
        steps.append(engine.step())
    while engine.has_unfinished and len(steps) < 300:
        steps.append(engine.step())
        engine.check()
    for event in (event for step in steps for event in step):
        if isinstance(event, TokenGenerated):
            tokens.setdefault(str(event.request_id), []).append(event.token_id)
        elif isinstance(event, Failed):
            failed.append([event.request_id, type(event.error).__name__])
    crowd = Engine(model, EngineConfig(max_chunk=1), sampler=sample)
    for number, size in enumerate((4, 1, 3, 1, 2)):  # what completes is not the first
        prompt = rng.integers(3, 60, size=size).tolist()
        crowd.add_request(prompt, SamplingParams(temperature=1.0, max_tokens=4), seed=number)
    told = [event for event in _by_sample([*crowd.run()]) if isinstance(event, TokenGenerated)]
    through = []
    for error in (KeyboardInterrupt(), NotImplementedError("a task")):
        engine = Engine(model, config, sampler=touchy, clock=ManualClock())
        for _ in range(3):
            engine.add_request([int(rng.integers(3, 60))], SamplingParams(max_tokens=4))
        raised = error
        through.append(_through(engine))
        raised = None
    return {
        "tokens": tokens,
        "failed": failed,
        "through": through,
        "crowd": [[event.request_id, event.token_id] for event in told],
        "events": [[type(event).__name__ for event in _by_sample(step)] for step in steps],
        "free": engine.store.free_tokens,
    }


@scenario(task=6)
def trouble_of_every_kind(nanovllm, rng):
    """Samples, urgency, chunks, a clock that moves, a tight store; errors of model and sequence."""
    import torch

    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.batching.errors import DuplicateRequestError
    from nanovllm.batching.events import Failed, Queued, Stepped
    from nanovllm.batching.policies import (
        EarliestDeadline,
        PriorityWithAging,
        RoundRobin,
        SizeQueues,
    )
    from nanovllm.batching.request import Priority
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.slot_store import SlotStore
    from nanovllm.generation.events import TokenGenerated
    from nanovllm.generation.latency import ManualClock
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sampling import sample
    from nanovllm.model.loader import dummy_model

    clock, model = ManualClock(float(rng.integers(9))), dummy_model(_config())
    model.embed_tokens.weight.data[57] = torch.nan
    plain, sulky = model.forward, rng.integers(0, 12, size=40).tolist()
    sulky[6] = sulky[7] = 12  # it refuses everybody
    known, observed, committed, planned, in_order = [], [], [], [], []

    def forward(token_ids, positions, attend):
        if (token_ids == 58).any():
            raise MemoryError("not this token")
        return plain(token_ids, positions, attend)

    class Slow(Scheduler):
        def add(self, request):
            clock.advance(0.015625)
            known.append(request)
            super().add(request)

        def schedule(self):
            clock.advance([0.015625, 0.0625][len(steps) % 2])
            plan = super().schedule()
            sequences = [chunk.request.sequence for chunk in plan.chunks]
            planned[:] = [(sequence.request_id, sequence.index) for sequence in sequences]
            return plan

        def observe(self, seconds):
            observed.append(seconds)
            super().observe(seconds)

    class Sulky(SlotStore):
        def reserve(self, request, num_tokens):
            wanted = request.sequence.request_id % 12
            if request.num_preemptions < 3 and sulky[len(steps) % 40] in (wanted, 12):
                return False
            return super().reserve(request, num_tokens)

        def commit(self, plan):
            for chunk in plan.chunks:
                counted = chunk.request.num_computed_tokens - chunk.start
                who = chunk.request.sequence.request_id, chunk.request.sequence.index
                committed.append([*who, chunk.start, chunk.length, counted])
            super().commit(plan)

    def step():
        """A step, and whether what became of its chunks is told in the order of the plan."""
        steps.append(engine.step())
        told = [e for e in steps[-1] if isinstance(e, TokenGenerated | Failed)]
        places = [planned.index(_sample_of(event)) for event in told]
        in_order.append(places == sorted(places))
        engine.check()

    model.forward = forward
    config = EngineConfig(
        max_num_seqs=int(rng.integers(3, 6)),
        max_num_batched_tokens=int(rng.integers(6, 20)),
        max_chunk=[None, 2, 5][int(rng.integers(3))],
        policy=[
            PriorityWithAging(patience=9.594),
            EarliestDeadline(),
            SizeQueues(small=8, medium=14, patience=2.0),
            RoundRobin(2),
        ][int(rng.integers(4))],
        adaptive_budget=True,
    )
    store = Sulky(model.config, config.max_num_seqs, 40)
    steps, said = [], []
    engine = Engine(model, config, store=store, sampler=sample, clock=clock, make_scheduler=Slow)
    bias = {57: -100.0, 58: -100.0, 2: float(rng.integers(0, 3))}
    for number in range(14):
        prompt = rng.integers(3, 57, size=int(rng.integers(1, 14))).tolist()
        if number % 5 == 3:
            prompt[len(prompt) // 2] = 57 + number // 5 % 2
        params = SamplingParams(
            temperature=1.0,
            max_tokens=int(rng.integers(1, 9)),
            n=int(rng.integers(1, 4)),
            logit_bias=bias,
        )
        try:
            newest = engine.add_request(
                prompt,
                params,
                seed=number,
                request_id=[None, 20 + int(rng.integers(9))][number % 2],
                priority=list(Priority)[int(rng.integers(3))],
                deadline=[None, float(rng.integers(1, 9))][int(rng.integers(2))],
            )
        except DuplicateRequestError:
            said.append(f"{number} is refused")
        clock.advance(0.5)
        if number in (4, 10):
            said.append(engine.abort(newest))
        if rng.random() < 0.4:
            said.append(engine.abort(20 * int(rng.integers(2)) + int(rng.integers(9))))
        for _ in range(int(rng.integers(1, 4))):
            step()
            for request in engine.scheduler.running:
                if request.sequence.request_id % 5 == 2 and request.num_output_tokens == 2:
                    request.sequence.append = None  # so that calling it raises
    while engine.has_unfinished and len(steps) < 300:
        step()

    def told(event, failed):
        if isinstance(event, Stepped):  # whether it counts chunks that failed is left open
            chunks = sorted([c.request_id, c.index, c.start, c.length] for c in event.chunks)
            chunks = [chunk for chunk in chunks if chunk[:2] not in failed]
            numbers = [event.running, event.waiting, event.budget, event.free_tokens]
            return [chunks, numbers, event.started, event.time]
        words = [type(event).__name__, event.request_id]
        if hasattr(event, "index"):
            words.append(event.index)
        if isinstance(event, Failed):
            words.append(type(event.error).__name__)
        if isinstance(event, Queued):
            words.append(event.time)
        if isinstance(event, TokenGenerated):
            words.append(event.token_id)
        return words

    return {
        "said": said,
        "observed": observed,
        "committed": sorted(committed),
        "in the plan's order": in_order,
        "ends": [[r.status.value, r.num_preemptions] for r in known],
        "events": [
            [
                told(event, [[e.request_id, e.index] for e in step if isinstance(e, Failed)])
                for event in _by_sample(step)
            ]
            for step in steps
        ],
        "left": [store.free_tokens, len(engine.scheduler.waiting), len(engine.scheduler.running)],
    }


@scenario(task=7)
def random_traces_replayed(nanovllm, rng):
    from nanovllm.batching.budget import AdaptiveBudget, FixedBudget
    from nanovllm.batching.events import Queued, Stepped
    from nanovllm.batching.policies import PriorityWithAging, RoundRobin, SizeQueues, make_policy
    from nanovllm.batching.request import Priority
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore
    from nanovllm.batching.simulator import StepCost, jain_fairness, simulate, simulate_static
    from nanovllm.batching.traces import Arrival
    from nanovllm.generation.latency import ManualClock

    trace = [
        Arrival(
            [float(rng.integers(0, 30)), float(rng.uniform(0, 9))][int(rng.integers(2))],
            int(rng.integers(1, 40)),
            int(rng.integers(1, 15)),
            list(Priority)[int(rng.integers(3))],
            float(rng.integers(1, 40)),
        )
        for _ in range(25)
    ]
    cost = StepCost(*rng.uniform(0.01, 0.1, size=3).tolist())
    found = {"fairness": jain_fairness(rng.uniform(0, 5, size=9).tolist())}
    policies = [
        *(make_policy(name) for name in ("fcfs", "sjf", "deadline")),
        RoundRobin(3),
        PriorityWithAging(patience=9.594),  # no two scores are nearly equal
        SizeQueues(small=10, medium=25, patience=5.0),
    ]
    for number, policy in enumerate(policies):
        scheduler = Scheduler(
            CountingStore(int(rng.integers(60, 200))),
            policy,
            AdaptiveBudget(24, slow=1.0, fast=0.5, highest=40) if number % 2 else FixedBudget(24),
            max_num_seqs=int(rng.integers(1, 6)),
            clock=ManualClock(),
        )
        run = simulate(trace, scheduler, cost)
        found[policy.name] = [line.token_times for line in run.timelines]
        found[f"{policy.name}: arrivals and sums"] = [run.arrivals, run.tokens_computed]
        found[f"{policy.name}: events"] = [
            [type(e).__name__, *([e.time] if isinstance(e, Queued) else [])]
            + ([e.started, e.time, e.budget, e.free_tokens] if isinstance(e, Stepped) else [])
            for e in run.events
        ]
    for seats in (1, 5):
        run = simulate_static(trace, seats, cost)
        found[f"static {seats}"] = [line.token_times for line in run.timelines]
        found[f"static {seats}: computed"] = run.tokens_computed
    return found


@scenario(task=7)
def a_store_that_takes_its_time(nanovllm, rng):
    """Steps without chunks, commits, what the budget hears, and arrivals after long pauses."""
    from nanovllm.batching.budget import FixedBudget
    from nanovllm.batching.policies import make_policy
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore
    from nanovllm.batching.simulator import StepCost, simulate
    from nanovllm.batching.traces import Arrival
    from nanovllm.generation.latency import ManualClock

    class Slow(CountingStore):
        """It lets somebody in at every third moment, and after `closes` at none."""

        computed = 0

        def can_admit(self, request):
            now = round(clock.now / base)
            asked.append(now)
            return now % 3 == 2 and now < closes and super().can_admit(request)

        def commit(self, plan):
            self.computed = plan.num_tokens
            if plan.chunks:
                counted = sum(c.request.num_computed_tokens - c.start for c in plan.chunks)
                heard.append(["commit", clock.now, plan.num_tokens, counted])

    class Watching(FixedBudget):
        def observe(self, seconds, free_share):
            if store.computed:  # whether it hears of other steps is left open
                heard.append(["observe", seconds, free_share])
            store.computed = 0

    found = {}
    for name in ("open", "closes"):
        closes = 3 * int(rng.integers(4, 12)) if name == "closes" else 10_000
        clock, base, asked, heard = ManualClock(), 0.25 * int(rng.integers(1, 9)), [], []
        store = Slow(int(rng.integers(40, 60)))
        scheduler = Scheduler(
            store,
            make_policy("fcfs"),
            Watching(9),
            max_num_seqs=int(rng.integers(1, 3)),
            clock=clock,
        )
        trace = [
            Arrival(
                base * int(rng.integers(0, 40)), int(rng.integers(1, 20)), int(rng.integers(1, 5))
            )
            for _ in range(14)
        ]
        trace += [Arrival(0.0, 1, 1), Arrival(0.0, 3, 2), Arrival(200.0 * base, 2, 1)]
        try:
            run = simulate(trace, scheduler, StepCost(base, 0.0, 0.0))
            found[name] = [[line.token_times for line in run.timelines], run.tokens_computed]
        except RuntimeError:
            found[name] = "RuntimeError"
        found[f"{name}: heard"], found[f"{name}: last asked"] = heard, max(asked)
    found["after pauses"] = []  # the clock stands at an arrival itself, whatever rounds
    for early, late in rng.uniform((0.01, 3.0), (0.5, 9.0), size=(80, 2)).tolist():
        alone = Scheduler(CountingStore(9), clock=ManualClock())
        run = simulate([Arrival(early, 1, 1), Arrival(late, 1, 1)], alone, StepCost(1.1, 0.1, 0.2))
        found["after pauses"].append([line.token_times for line in run.timelines])
    return found


@scenario(task=8)
def random_lives_by_urgency(nanovllm, rng):
    """Requests that waited and ran at random: their order, and the level of who gives way."""
    from grader.checks.urgent_histories import level
    from nanovllm.batching.errors import ConfigError
    from nanovllm.batching.request import Status
    from nanovllm.batching.urgent_first import UrgentFirst

    found = {}
    for patience in (0.0, float("nan"), -float(rng.integers(1, 9)), -float("inf")):
        try:
            UrgentFirst(patience=patience)
        except ConfigError:
            found[f"made with {patience}"] = "ConfigError"
    for patience in (float(rng.integers(1, 9)), 0.75, float("inf")):
        policy, requests = UrgentFirst(patience=patience), []
        found["reads"] = [policy.name, *map(bool, (policy.ages, policy.reads_priority))]
        found["reads"].append(bool(policy.reads_deadline))
        for number in range(16):
            now = float(rng.integers(0, 12))
            request = _request(number, 4, 8, now, int(rng.integers(-3, 4)))
            request.deadline = [float("inf"), float(rng.integers(20, 24))][int(rng.integers(2))]
            for _ in range(int(rng.integers(0, 3))):
                for state in (Status.SCHEDULED, Status.RUNNING, Status.PREEMPTED):
                    now += float(rng.integers(0, 9)) / 4
                    request.move_to(state, now)
                request.num_preemptions += 1
            requests.append(request)
        answers = []
        for now in (40.0, 40.75, 55.5):
            ranked = sorted(requests, key=lambda r, p=policy, now=now: p.rank(r, now))
            some = [requests[int(i)] for i in rng.choice(16, size=6, replace=False)]
            gone = [policy.displaced(request, some, now) for request in requests]
            levels = [r and level(r, now, patience) for r in gone]
            numbers = [request.number for request in ranked]
            answers.append([numbers, policy.victim(iter(some), now).number, levels])
        found[f"patience {patience}"] = answers
    return found


@scenario(task=8)
def two_engines_one_policy(nanovllm, rng):
    """Histories with aborts, tight and roomy, under one policy object; which rule is broken."""
    from dataclasses import replace

    from grader.checks.urgent_histories import play, urgent_history
    from nanovllm.batching.urgent_first import UrgentFirst

    found = {}
    for patience in (float(rng.integers(2, 9)), float(rng.integers(30, 50))):
        policy = UrgentFirst(patience=patience)
        for number in range(8):
            history = urgent_history(int(rng.integers(1 << 30)), tight=number % 2 == 0)
            history = replace(
                history,
                patience=patience,
                seats=int(rng.integers(1, 6)),
                ends=tuple((int(rng.integers(0, 25)), i) for i in range(0, len(history.coming), 3)),
            )
            played = play(history, policy)
            # with little patience some may go on sending each other away, or not
            done = patience < 30 or all(request.ended for request in played.requests)
            found[str(history)] = [played.broken or "nothing is broken", done]
    return found

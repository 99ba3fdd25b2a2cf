"""Hidden scenarios of lab 04: other traces, sizes and mixtures than those of the visible checks."""

from grader.checks.scenarios import scenario


def _request(number, prompt, output, arrival=0.0, priority=None):
    from nanovllm.batching.request import Priority, Request
    from nanovllm.batching.simulated import SimulatedSequence

    sequence = SimulatedSequence(number, prompt, output)
    return Request(number, sequence, arrival, prompt + output - 1, priority or Priority.NORMAL)


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
    return {"story": story, "times": [request.time_in(status, now + 1.0) for status in Status]}


@scenario(task=2)
def a_random_queue(nanovllm, rng):
    from nanovllm.batching.policies import POLICIES, RoundRobin, SizeQueues
    from nanovllm.batching.request import Priority, Status

    found = {}
    kinds = [kind() for kind in POLICIES] + [SizeQueues(20, 40, 30.0), RoundRobin(3)]
    for number, policy in enumerate(kinds):
        requests = []
        for i in range(20):
            arrival = float(rng.integers(0, 200))
            priority = list(Priority)[int(rng.integers(3))]
            prompt, output = int(rng.integers(1, 60)), int(rng.integers(1, 9))
            request = _request(i, prompt, output, arrival, priority)
            if rng.random() < 0.5:
                request.deadline = float(rng.integers(200, 220))
            if rng.random() < 0.4:  # it has run, and is back in the queue
                request.move_to(Status.SCHEDULED, 210.0)
                request.move_to(Status.RUNNING, 212.0)
                request.move_to(Status.PREEMPTED, 230.0 + int(rng.integers(3)))
            request.turn_start = int(rng.integers(0, 3))
            for _ in range(int(rng.integers(0, 6))):
                request.sequence.append()
            requests.append(request)
        some = [requests[int(i)] for i in rng.choice(20, size=8, replace=False)]
        name = f"{policy.name} {number}"
        ranked = sorted(requests, key=lambda request, p=policy: p.rank(request, 300.0))
        found[f"{name}: order"] = [request.number for request in ranked]
        found[f"{name}: victim"] = policy.victim(some, 250.0).number
        found[f"{name}: keys"] = [policy.key(request, 1000.0) for request in requests]
        found[f"{name}: turns over"] = [policy.turn_is_over(request) for request in requests]
    return found


@scenario(task=3)
def a_restless_machine(nanovllm, rng):
    from nanovllm.batching.budget import AdaptiveBudget, token_budget

    budget = AdaptiveBudget(
        limit=int(rng.integers(20, 400)), lowest=int(rng.integers(1, 20)), highest=500
    )
    limits = []
    for _ in range(80):
        budget.observe(float(rng.uniform(0.0, 0.1)), float(rng.uniform(0.0, 0.6)))
        limits.append(budget.limit)
    draws = rng.integers(0, 100, size=(30, 4)).tolist()
    names = ("hardware", "compute", "memory", "decodes")
    return {
        "limits": limits,
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


@scenario(task=5)
def slots_of_random_plans(nanovllm, rng):
    import torch

    from nanovllm.batching.plan import Chunk, Plan
    from nanovllm.batching.slot_store import SlotStore

    config = _config(windows=(None, int(rng.integers(2, 6))))
    store = SlotStore(config, num_slots=3, capacity=int(rng.integers(14, 20)))
    live, results, number = [], [], 0
    for _ in range(14):
        while len(live) < 3 and store.can_admit(None):
            request = _request(number, 5, 9)
            store.admit(request)
            live.append(request)
            number += 1
        chunks = []
        for request in live:
            length = 1 if rng.random() < 0.5 else int(rng.integers(2, 5))
            if store.reserve(request, length):
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
                results.append(attend(layer, q, k, v))
            store.commit(plan)
            for chunk in chunks:
                chunk.request.num_computed_tokens = chunk.end
        if not chunks or rng.random() < 0.3:
            gone = live.pop(int(rng.integers(len(live))))
            store.release(gone)
        store.check(live)
    return {"attended": results, "free": store.free_tokens}


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

    def touchy(logits, rows):
        if any(row.params.min_tokens == 2 and len(row.output_token_ids) == 1 for row in rows):
            raise ValueError("not this one")
        return sample(logits, rows)

    model = dummy_model(_config(), seed=int(rng.integers(1000)))
    config = EngineConfig(
        max_num_seqs=int(rng.integers(2, 5)),
        max_num_batched_tokens=int(rng.integers(5, 20)),
        policy=["fcfs", "sjf", "round-robin"][int(rng.integers(3))],
    )
    engine = Engine(model, config, sampler=touchy, clock=ManualClock())
    tokens, failed, steps = {}, [], []
    for number in range(12):
        params = SamplingParams(
            temperature=float(rng.integers(2)),
            max_tokens=int(rng.integers(3, 9)),
            min_tokens=2 if number == 5 else 0,
        )
        prompt = rng.integers(3, 60, size=int(rng.integers(1, 20))).tolist()
        engine.add_request(prompt, params, seed=number)
        if number == 7:
            engine.abort(int(rng.integers(8)))
        steps.append(engine.step())
    while engine.has_unfinished and len(steps) < 300:
        steps.append(engine.step())
        engine.check()
    for event in (event for step in steps for event in step):
        if isinstance(event, TokenGenerated):
            tokens.setdefault(str(event.request_id), []).append(event.token_id)
        elif isinstance(event, Failed):
            failed.append([event.request_id, type(event.error).__name__])
    return {
        "tokens": tokens,
        "failed": failed,
        "events": [[type(event).__name__ for event in step] for step in steps],
        "free": engine.store.free_tokens,
    }


@scenario(task=7)
def random_traces_replayed(nanovllm, rng):
    from nanovllm.batching.budget import FixedBudget
    from nanovllm.batching.policies import make_policy
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore
    from nanovllm.batching.simulator import StepCost, jain_fairness, simulate, simulate_static
    from nanovllm.batching.traces import Arrival
    from nanovllm.generation.latency import ManualClock

    trace = [
        Arrival(float(rng.uniform(0, 9)), int(rng.integers(1, 40)), int(rng.integers(1, 15)))
        for _ in range(25)
    ]
    cost = StepCost(*rng.uniform(0.01, 0.1, size=3).tolist())
    found = {"fairness": jain_fairness(rng.uniform(0, 5, size=9).tolist())}
    for name in ("fcfs", "sjf"):
        scheduler = Scheduler(
            CountingStore(200),
            make_policy(name),
            FixedBudget(24),
            max_num_seqs=5,
            clock=ManualClock(),
        )
        run = simulate(trace, scheduler, cost)
        found[name] = [line.token_times for line in run.timelines]
    run = simulate_static(trace, 5, cost)
    found["static"] = [line.token_times for line in run.timelines]
    found["computed"] = run.tokens_computed
    return found

# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 04: Continuous batching
#
# The handout is `labs/lab04/README.md`; your code is in `nanovllm/batching/`. Here you look at who runs
# when: first with prices in place of a model, then on your own engine. You write three experiments. A
# cell that needs a task you have not written says so: write the task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.** Put a number in the place of
# the dots.

# %%
from grader.student.notebook import answer
from grader.student.notebook import needs
from grader.student.notebook import plots_of
from grader.student.notebook import predict
from grader.course.paths import MODELS
from nanovllm.batching.policies import POLICIES, Policy, make_policy
from nanovllm.batching.request import Priority, Request, Status
from nanovllm.batching.simulated import CountingStore, SimulatedSequence
from nanovllm.batching.simulator import StepCost, report, simulate, simulate_static

plots = plots_of("04")
COST = StepCost(base=0.004, per_token=0.0002, per_place=0.000001)

# %% [markdown]
# ## 1. A life
#
# **Predict.** A request is admitted, preempted, and admitted again. In which of the six states has it
# been, and for how long?

# %%
with needs("04", 1):
    request = Request(0, SimulatedSequence(0, 5, 9), arrival=0.0, limit=13)
    moves = {2.0: "SCHEDULED", 2.5: "RUNNING", 4.0: "PREEMPTED", 9.0: "SCHEDULED"}
    for now, name in moves.items():
        request.move_to(Status[name], now)
    print({status.value: request.time_in(status, 10.0) for status in Status})

# %% nbgrader={"grade": true, "grade_id": "lab04-task-1", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=1
from grader.student.notebook import check_task

check_task("04", 1)

# %% [markdown]
# ## 2. Who comes first, as time goes by
#
# **Predict.** A low, a normal and a high request of 80 tokens wait; the lower score goes first. After
# how many minutes is the low one as urgent as the high one?


# %%
def score(name: str, minutes: float) -> float:
    waiting = Request(0, SimulatedSequence(0, 60, 21), 0.0, 80, Priority[name.upper()])
    return make_policy("priority-with-ageing").score(waiting, 60 * minutes)


with needs("04", 1, 2):
    plots.aging(score)

# %% nbgrader={"grade": true, "grade_id": "lab04-task-2", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=2
from grader.student.notebook import check_task

check_task("04", 2)

# %% [markdown]
# ## 3. A budget that follows the machine
#
# The machine below computes 10 tokens in a millisecond; after 40 steps it becomes less than half as
# fast. **Predict** where the limit settles before and after. What does it do without the gap?

# %%
from nanovllm.batching.budget import AdaptiveBudget, FixedBudget

with needs("04", 3):
    lines = {"30 to 50 ms": [], "no gap": []}
    for name, fast in (("30 to 50 ms", 0.030), ("no gap", 0.050)):
        budget = AdaptiveBudget(limit=1500, lowest=16, highest=2048, fast=fast)
        for step in range(80):
            budget.observe(budget.limit / (10_000 if step < 40 else 4_700), free_share=0.5)
            lines[name].append(budget.limit)
    plots.controller(lines, change=40)

# %% nbgrader={"grade": true, "grade_id": "lab04-task-3", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=3
from grader.student.notebook import check_task

check_task("04", 3)

# %% [markdown]
# ## 4. Static against continuous
#
# Twelve requests, four at a time, the same prices. **Predict** which requests gain most, and questions
# (a) and (c) of the handout.


# %%
def scheduler_of(policy: str | Policy = "fcfs", room=4096, budget=128, seqs=8):
    """A scheduler over a store that only counts, at time 0."""
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.generation.latency import ManualClock

    policy = make_policy(policy) if isinstance(policy, str) else policy
    budget, clock = FixedBudget(budget), ManualClock()
    return Scheduler(CountingStore(room), policy, budget, max_num_seqs=seqs, clock=clock)


# %%
guesses = predict("04", "a", ...), predict("04", "c", ...)
with needs("04", 1, 2, 3, 4, 7):
    continuous = simulate(plots.FEW, scheduler_of(seqs=4, budget=64), COST)
    static = simulate_static(plots.FEW, 4, COST)
    plots.lives({"static": static, "continuous": continuous})
    answer("04", "a"), answer("04", "c")

# %% nbgrader={"grade": true, "grade_id": "lab04-task-4", "locked": true, "points": 26, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=4
from grader.student.notebook import check_task

check_task("04", 4)

# %% [markdown]
# ## 5. The budget and the time between tokens
#
# Eight requests are generating when a prompt of 1,000 tokens arrives. **Predict** (d). Then move the
# budget, and see what you pay for which wait. Dotted: your guess.

# %%
guess = predict("04", "d", ...)
with needs("04", 1, 2, 3, 4, 7):
    plots.explore(
        lambda budget: simulate(plots.LONG_PROMPT, scheduler_of(budget=budget, seqs=16), COST),
        guess,
    )
    answer("04", "d")

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab04-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** Choose a budget for a chat service from the picture above, and say which of TTFT and inter-token
# latency you traded for which. What does a smaller budget cost beyond the long request's own TTFT?

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab04-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# A budget of 128: the eight others wait 31 ms for a token while the long prompt is read, not 207 ms
# as with 2,048, and its own first token comes after 0.26 s, not 0.21 s. So inter-token latency of
# those that run is bought with the TTFT of the one that comes; 32 (12 ms, 0.47 s) goes further.
#
# A smaller budget means more steps, and each has its base cost (the weights are read again): the
# throughput of all falls.
#
# - 2 points: names the trade: a larger budget shortens the long prompt's TTFT and stretches the gaps
#   of all running requests.
# - 2 points: a smaller budget means more steps, each with its base cost (weights read again), so
#   throughput falls.
# - 1 point: gives a budget with a reason from the picture's numbers.
# ### END SOLUTION

# %% [markdown]
# ### Experiment 1: the knee of a batch
#
# Write `measure(size)`: `size` requests with prompts of 200 tokens and 50 tokens of output come at
# once, and all run: the budget is so large that the first step reads all prompts. Return the tokens
# generated a second, and the milliseconds between two tokens of the last request. **Predict** where a
# larger batch stops to pay.


# %% nbgrader={"grade": false, "grade_id": "lab04-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def measure(size: int) -> tuple[float, float]:
    """(tokens a second, milliseconds between tokens) with `size` requests at once."""
    ### BEGIN SOLUTION
    from nanovllm.batching.traces import Arrival

    trace = [Arrival(0.0, 200, 50)] * size
    run = simulate(trace, scheduler_of(room=250 * size, budget=200 * size, seqs=size), COST)
    gaps = run.timelines[-1].inter_token_latencies
    return report(run).throughput, 1000 * sum(gaps) / len(gaps)
    ### END SOLUTION


# %%
with needs("04", 1, 2, 3, 4, 7):
    plots.knee(measure)

# %% [markdown]
# Both curves rise. Which of them bends, and what is the weight of `base` in it?

# %% [markdown]
# ## 6. Policies under load
#
# Three traces, all policies, and static batches. **Predict** which has the lowest median latency, which
# the longest wait, and which computes tokens twice.

# %%
with needs("04", 1, 2, 3, 4, 7):
    reports = {}
    for name, trace in plots.TRACES.items():
        reports[name, "static"] = report(simulate_static(trace, 6, COST))
        for kind in POLICIES:
            run = simulate(trace, scheduler_of(kind.name, room=2048, seqs=6), COST)
            reports[name, kind.name] = report(run)
    plots.policies(reports)
    print("preempted:", {key: r.preemptions for key, r in reports.items() if r.preemptions})

# %% [markdown]
# ### Experiment 2: beat the given policies
#
# Each request of these traces has a deadline. Write a policy of your own that misses fewer than
# `deadline` does: what is the slack of a request, and what should become of one that is too late
# anyway? A policy whose keys change with time says `ages = True`.
#
# **Predict** first: of 240 requests (three traces of 80), how many fewer deadlines will your policy miss
# than "deadline"?


# %% nbgrader={"grade": false, "grade_id": "lab04-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
class Mine(Policy):
    """Smaller keys go first."""

    name = "mine"
    ages = True

    def key(self, request: Request, now: float) -> float:
        ### BEGIN SOLUTION
        slack = request.deadline - now - 0.006 * (request.limit - request.num_tokens)
        return slack if slack > 0 else 1e6 + request.work_left  # too late: behind all others
        ### END SOLUTION


# %%
def met(policy: str | Policy, seed: int) -> int:
    trace = plots.with_deadlines(seed)
    run = simulate(trace, scheduler_of(policy, room=2048, seqs=6), COST)
    pairs = zip(run.timelines, trace, strict=True)
    return sum(line.token_times[-1] <= arrival.deadline for line, arrival in pairs)


with needs("04", 1, 2, 3, 4, 7):
    names = [kind.name for kind in POLICIES]
    found = {name: [met(name, seed) for seed in (1, 4, 5)] for name in names}
    plots.deadlines(found | {"mine": [met(Mine(), seed) for seed in (1, 4, 5)]}, of=80)

# %% nbgrader={"grade": true, "grade_id": "lab04-task-7", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=7
from grader.student.notebook import check_task

check_task("04", 7)

# %% [markdown]
# ## 7. Your engine
#
# The slot store first (task 5), then the loop around it.

# %% nbgrader={"grade": true, "grade_id": "lab04-task-5", "locked": true, "points": 11, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=5
from grader.student.notebook import check_task

check_task("04", 5)

# %% [markdown]
# Sixteen requests on the bundled model, four at a time, 24 tokens a step. **Predict** how much of the
# budget the last steps use.


# %%
def answered(store=None, model=None):
    """The events of sixteen requests on your engine."""
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.offline import generate_continuous
    from nanovllm.generation.params import SamplingParams

    prompts = [[40 + i, 41, 42] * (1 + 3 * (i % 4)) for i in range(16)]
    lengths = [4 + 5 * i % 23 for i in range(16)]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    config, events = EngineConfig(max_num_seqs=4, max_num_batched_tokens=24), []
    generate_continuous(model, prompts, params, config, store=store, on_event=events.append)
    return events


# %%
with needs("04", 1, 2, 3, 4, 5, 6):
    from nanovllm.batching.replay import LEGEND, Replay
    from nanovllm.model.loader import load_model

    model = load_model(MODELS / "target")
    events = answered(model=model)
    print(Replay(events).text(0, 90), LEGEND, sep="\n")
    plots.steps(events, budget=24)

# %% [markdown]
# ### Experiment 3: when the store runs out
#
# `plots.tight_store(model, slots, places)` is your slot store with so many places in all. Write
# `again(places)`: how many preemptions the sixteen requests meet in it. **Predict** (b) first, and from
# how many places on nobody is preempted.

# %%
guess = predict("04", "b", ...)


# %% nbgrader={"grade": false, "grade_id": "lab04-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def again(places: int) -> int:
    """Preemptions of the sixteen requests with room for `places` tokens."""
    ### BEGIN SOLUTION
    from nanovllm.batching.events import Preempted

    events = answered(plots.tight_store(model, 4, places), model)
    return sum(isinstance(event, Preempted) for event in events)
    ### END SOLUTION


# %%
with needs("04", 1, 2, 3, 4, 5, 6, 7):
    for places in (60, 75, 100, 200):
        print(f"room for {places}: {again(places)} preemptions")
    print(Replay(answered(plots.tight_store(model, 4, 60), model)).text(0, 90))
    answer("04", "b")

# %% nbgrader={"grade": true, "grade_id": "lab04-task-6", "locked": true, "points": 16, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=6
from grader.student.notebook import check_task

check_task("04", 6)

# %% [markdown]
# ## 8. How long the unimportant wait
#
# A request waits beside a stream of requests of priority 0, each with a deadline, that keeps one place
# busy. **Predict** for your policy of task 8: how long does it wait with priority 0, and how much longer
# for each number more? What is the slope with twice the patience?


# %%
def waits(priority: int, patience: float) -> float:
    """Seconds until the request comes in."""
    from nanovllm.batching.traces import Arrival
    from nanovllm.batching.urgent_first import UrgentFirst

    stream = [Arrival(3.0 * i, 2, 3, 0, 3.0 * i + 4.0) for i in range(100)]
    scheduler = scheduler_of(UrgentFirst(patience), seqs=1)
    run = simulate([Arrival(0.0, 2, 5, priority), *stream], scheduler, StepCost(1.0, 0.0, 0.0))
    return run.timelines[0].token_times[0] - 1.0


with needs("04", 1, 2, 3, 4, 7, 8):
    plots.bounds(waits, priorities=range(7), patiences=(10.0, 20.0, 40.0))

# %% [markdown]
# Dotted is the handout's bound. Why do the points lie on it, and not below? What would they do without
# the deadlines of the stream?

# %% nbgrader={"grade": true, "grade_id": "lab04-task-8", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=8
from grader.student.notebook import check_task

check_task("04", 8)

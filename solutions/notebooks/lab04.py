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
# The handout is `labs/lab04/README.md`; your code is in `nanovllm/batching/`. This notebook draws who
# runs when: first with prices instead of a model, then on your own engine. A cell that needs a task
# you have not written says so: write the task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.**

# %%
import matplotlib.pyplot as plt
import torch

from grader.student.notebook import needs
from grader.student.notebook import style
from grader.course.paths import MODELS
from nanovllm.batching.budget import AdaptiveBudget, FixedBudget
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.events import Stepped
from nanovllm.batching.policies import POLICIES, Policy, PriorityWithAging, RoundRobin, make_policy
from nanovllm.batching.replay import LEGEND, Replay
from nanovllm.batching.request import Priority, Request, Status
from nanovllm.batching.simulated import CountingStore, SimulatedSequence
from nanovllm.batching.simulator import (
    StepCost,
    jain_fairness,
    report,
    simulate,
    simulate_static,
)
from nanovllm.batching.traces import Arrival, bursty, heavy_tailed, steady
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.model.loader import load_model
from nanovllm.tokenization.tokenizer import Tokenizer

torch.set_num_threads(1)
style()

# %% [markdown]
# ## 1. A life
#
# **Predict.** A request is admitted, preempted, and admitted again. In how many of the six states has
# it been, and which numbers of the last line below are larger than zero?

# %%
with needs("04", 1):
    request = Request(0, SimulatedSequence(0, 5, 9), arrival=0.0, limit=13)
    for status, now in (
        (Status.SCHEDULED, 2.0),
        (Status.RUNNING, 2.5),
        (Status.PREEMPTED, 4.0),
        (Status.SCHEDULED, 9.0),
    ):
        request.move_to(status, now)
        print(f"{now:>4}  {status.value}")
    print({status.value: request.time_in(status, 10.0) for status in Status})

# %% nbgrader={"grade": true, "grade_id": "lab04-task-1", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=1
from grader.student.notebook import check_task

check_task("04", 1)

# %% [markdown]
# ## 2. Who comes first, as time goes by
#
# **Predict.** A low, a normal and a high request of 80 tokens wait. After how many minutes does the
# low one stand level with the high one?

# %%
with needs("04", 1, 2):
    minutes = [m / 4 for m in range(100)]
    figure, axis = plt.subplots(figsize=(6.5, 3.2))
    for priority, color in zip(Priority, ("C1", "C4", "C0"), strict=True):
        waiting = Request(0, SimulatedSequence(0, 60, 21), 0.0, 80, priority)
        scores = [PriorityWithAging().score(waiting, 60 * m) for m in minutes]
        axis.plot(minutes, scores, color=color, label=priority.name.lower())
    axis.set(
        xlabel="minutes waited", ylabel="score", title="Aging: up to the highest class, not above"
    )
    axis.legend()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab04-task-2", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=2
from grader.student.notebook import check_task

check_task("04", 2)

# %% [markdown]
# ## 3. A budget that follows the machine
#
# The machine below computes 10 tokens in a millisecond; after 40 steps it becomes less than half as fast.
# **Predict** where the limit settles before and after. What would it do without the gap between
# 30 and 50 ms?

# %%
with needs("04", 3):
    figure, axis = plt.subplots(figsize=(6.5, 3.2))
    for name, fast, color in (("30 to 50 ms", 0.030, "C0"), ("no gap", 0.050, "C1")):
        budget = AdaptiveBudget(limit=1500, lowest=16, highest=2048, fast=fast)
        limits = []
        for step in range(80):
            budget.observe(budget.limit / (10_000 if step < 40 else 4_700), free_share=0.5)
            limits.append(budget.limit)
        axis.step(range(80), limits, where="post", color=color, label=name, lw=1.2)
    axis.axvline(40, color="black", lw=0.8, ls=":")
    axis.set(xlabel="step", ylabel="limit, in tokens", title="The controller", ylim=(0, None))
    axis.legend()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab04-task-3", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=3
from grader.student.notebook import check_task

check_task("04", 3)

# %% [markdown]
# ## 4. Static against continuous
#
# Twelve requests, four at a time, the same prices. Each bar is a request from its first to its last
# token; what is left of it is waiting. **Predict** which requests gain most.

# %%
COST = StepCost(base=0.004, per_token=0.0002, per_place=0.000001)


def scheduler_of(
    policy: str | Policy = "fcfs", room: int = 4096, budget: int = 128, seats: int = 8
):
    """A scheduler over a store that only counts, at time 0."""
    from nanovllm.batching.scheduler import Scheduler

    policy = make_policy(policy) if isinstance(policy, str) else policy
    return Scheduler(
        CountingStore(room), policy, FixedBudget(budget), max_num_seqs=seats, clock=ManualClock()
    )


with needs("04", 1, 2, 3, 4, 7):
    sizes = [(20, 40), (90, 6), (12, 12), (40, 8), (10, 30), (120, 5), (16, 9), (30, 50), (8, 8),
             (60, 12), (24, 20), (14, 6)]  # fmt: skip
    few = [Arrival(0.02 * i, *size) for i, size in enumerate(sizes)]
    runs = {
        "static": simulate_static(few, 4, COST),
        "continuous": simulate(few, scheduler_of(seats=4, budget=64), COST),
    }
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), sharex=True, sharey=True)
    for axis, (name, run) in zip(axes, runs.items(), strict=True):
        for i, line in enumerate(run.timelines):
            first, last = line.token_times[0], line.token_times[-1]
            axis.barh(i, first - line.arrival, left=line.arrival, color="lightgray")
            axis.barh(i, max(last - first, 0.004), left=first, color="C0")
        axis.set(xlabel="seconds", title=f"{name}: {run.tokens_computed:,} tokens computed")
    axes[0].invert_yaxis()
    axes[0].set_ylabel("request")
    figure.suptitle("gray: until the first token, blue: from the first to the last", fontsize=8)
    figure.tight_layout()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab04-task-4", "locked": true, "points": 32, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=4
from grader.student.notebook import check_task

check_task("04", 4)

# %% [markdown]
# ## 5. The budget and the time between tokens
#
# Eight requests are writing when a prompt of 1,000 tokens arrives. **Predict** how long the others
# wait for their next token with a budget of 32, 128 and 2,048.

# %%
with needs("04", 1, 2, 3, 4, 7):
    trace = [Arrival(0.0, 8, 120) for _ in range(8)] + [Arrival(0.1, 1000, 20)]
    figure, axis = plt.subplots(figsize=(7, 3.4))
    for budget, color in ((32, "C0"), (128, "C4"), (2048, "C1")):
        run = simulate(trace, scheduler_of(budget=budget, seats=16), COST)
        line = run.timelines[0]
        gaps = [1000 * gap for gap in line.inter_token_latencies]
        name = f"budget {budget}: first token of the long one after {run.timelines[8].ttft:.2f} s"
        axis.plot(line.token_times[1:], gaps, ".-", ms=3, lw=0.8, color=color, label=name)
    axis.set(xlabel="seconds", ylabel="ms between tokens of request 0", yscale="log")
    axis.set_yticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
    axis.minorticks_off()
    axis.set_title("One step for the whole prompt stops everybody; small chunks slow it down")
    axis.legend(fontsize=7)
    plt.show()

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
# ## 6. Policies under load
#
# Three traces, five policies, and static batches. **Predict** which policy has the lowest median
# latency, which the longest wait, and which computes tokens twice.

# %%
TRACES = {
    "steady": steady(seed=1, count=60, rate=28.0),
    "bursty": bursty(seed=1, count=60, rate=28.0),
    "heavy tail": heavy_tailed(seed=3, count=60, rate=28.0, longest=400),
}
with needs("04", 1, 2, 3, 4, 7):
    reports = {}
    for trace_name, trace in TRACES.items():
        reports[trace_name, "static"] = report(simulate_static(trace, 6, COST))
        for kind in POLICIES:
            run = simulate(trace, scheduler_of(kind.name, room=2048, seats=6), COST)
            reports[trace_name, kind.name] = report(run)
    names = ["static", *(kind.name for kind in POLICIES)]
    columns = ("tok/s", "TTFT p50", "TTFT p99", "latency p50", "p99", "Jain", "computed")
    print(f"{'':<24}" + "".join(f"{column:>13}" for column in columns))
    for (trace_name, name), r in reports.items():
        times = (r.ttft_p50, r.ttft_p99, r.latency_p50, r.latency_p99)
        cells = [f"{r.throughput:.0f}", *(f"{t:.2f}" for t in times)]
        cells += [f"{r.fairness:.2f}", f"{r.tokens_computed:,}"]
        print(f"{trace_name + ', ' + name:<24}" + "".join(f"{cell:>13}" for cell in cells))
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8))
    for axis, (trace_name, _) in zip(axes, TRACES.items(), strict=True):
        for number, (name, marker) in enumerate(zip(names, "xosD^v", strict=True)):
            r = reports[trace_name, name]
            shape = {"marker": marker, "ms": 8, "mew": 1.8, "mfc": "none", "ls": ""}
            axis.plot(r.latency_p50, r.longest_wait, color=f"C{number}", label=name, **shape)
        axis.set(title=trace_name, xlabel="median latency, s")
        axis.set(xlim=(0, 1.08 * axis.get_xlim()[1]), ylim=(0, 1.08 * axis.get_ylim()[1]))
    axes[0].set_ylabel("longest wait for a first token, s")
    entries = axes[0].get_legend_handles_labels()
    figure.legend(*entries, loc="lower center", ncols=6, frameon=False)
    figure.suptitle("down and to the left is better", fontsize=9)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    plt.show()

# %% [markdown]
# Fairness in one number: Jain's index of what each request gets. **Predict** it for ten requests of
# which one gets everything.

# %%
with needs("04", 7):
    for shares in ([1.0] * 10, [2.0] * 5 + [0.0] * 5, [1.0] + [0.0] * 9):
        print(f"{jain_fairness(shares):.2f}  {shares}")

# %% [markdown]
# ### The quantum of round robin
#
# In an operating system a turn costs a context switch. **Predict** what a turn costs here, and what a
# quantum of 2 tokens does to the throughput.

# %%
with needs("04", 1, 2, 3, 4, 7):
    quanta = (1, 2, 4, 8, 16, 32, 64)
    found = [
        report(simulate(TRACES["bursty"], scheduler_of(RoundRobin(q), seats=6), COST))
        for q in quanta
    ]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    left.plot(quanta, [r.tokens_computed for r in found], "o-", color="C1")
    left.set(xlabel="quantum, in tokens", ylabel="tokens computed", xscale="log", ylim=(0, None))
    right.plot(quanta, [r.longest_wait for r in found], "o-", label="longest wait")
    right.plot(quanta, [r.latency_p50 for r in found], "s-", label="median latency")
    right.set(xlabel="quantum, in tokens", ylabel="seconds", xscale="log", ylim=(0, None))
    right.legend()
    for axis in (left, right):
        axis.set_xticks(quanta, [str(q) for q in quanta])
        axis.minorticks_off()
    figure.tight_layout()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab04-task-7", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=7
from grader.student.notebook import check_task

check_task("04", 7)

# %% [markdown]
# ## 7. Your engine
#
# The slot store first (task 5), then the loop around it.

# %% nbgrader={"grade": true, "grade_id": "lab04-task-5", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=5
from grader.student.notebook import check_task

check_task("04", 5)

# %% [markdown]
# Sixteen requests on the bundled model, four at a time, 24 tokens a step. Below: the run as text, then how
# full each step was. **Predict** how much of the budget the last steps use.

# %%
with needs("04", 1, 2, 3, 4, 5, 6):
    from nanovllm.batching.offline import generate_continuous

    model = load_model(MODELS / "target")
    tokenizer = Tokenizer.from_pretrained(MODELS / "target")
    texts = ["Once upon a time", "Tom has a red ball. " * 3, "Mia's code is 7342.", "The dog"] * 4
    params = [
        SamplingParams(temperature=0, max_tokens=4 + 5 * i % 23, ignore_eos=True) for i in range(16)
    ]
    events = []
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=24)
    result = generate_continuous(
        model, [tokenizer.encode(text) for text in texts], params, config, on_event=events.append
    )
    print(Replay(events).text(0, 90))
    print(LEGEND)
    steps = [event for event in events if isinstance(event, Stepped)]
    decodes = [sum(c.length for c in step.chunks if c.length == 1) for step in steps]
    prompts = [sum(c.length for c in step.chunks if c.length > 1) for step in steps]
    figure, axis = plt.subplots(figsize=(9, 2.8))
    axis.bar(range(len(steps)), decodes, color="C0", label="decode", width=1.0)
    axis.bar(range(len(steps)), prompts, bottom=decodes, color="C4", label="prompt", width=1.0)
    axis.plot([step.waiting for step in steps], color="black", lw=1, label="requests waiting")
    axis.axhline(24, color="gray", lw=0.8, ls=":")
    axis.set(xlabel="step", title="What each step computed; dotted: the budget")
    axis.set_ylabel("tokens (bars), requests (line)")
    axis.legend(fontsize=7)
    plt.show()

# %% [markdown]
# The same run to scale, as a page of its own (open it in a browser; hover over a chunk):

# %%
with needs("04", 1, 2, 3, 4, 5, 6):
    import tempfile
    from pathlib import Path

    page = Replay(events).save(Path(tempfile.gettempdir()) / "lab04-notebook-replay.html")
    print(page)

# %% nbgrader={"grade": true, "grade_id": "lab04-task-6", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="04" nanovllm_task=6
from grader.student.notebook import check_task

check_task("04", 6)

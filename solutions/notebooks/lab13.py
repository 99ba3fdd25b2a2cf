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
# # Lab 13: Observability and traces
#
# The handout is `labs/lab13/README.md`; your code is in `nanovllm/observability/`. Here you look at what
# real traces are like, what they ask for, and how trouble shows. You write three experiments. A cell that
# needs a task you have not written says so: write the task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.** Put a number in the place of
# the dots.

# %%
from grader.student.notebook import answer, needs, plots_of, predict

plots = plots_of("13")

# %% [markdown]
# ## 1. How requests arrive
#
# Half an hour of each of your three traces. Move the window. **Predict**: which of the three looks calm
# in windows of one second, and which in windows of three minutes?

# %%
with needs("13", 1):
    traces = plots.traces()
    plots.arrivals({name: [r.time for r in trace] for name, trace in traces.items()})

# %% nbgrader={"grade": true, "grade_id": "lab13-task-1", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="13" nanovllm_task=1
from grader.student.notebook import check_task

check_task("13", 1)

# %% [markdown]
# ## 2. How long requests are
#
# Output lengths, and as a dashed line the lognormal that has the same median and p90. **Predict** (a):
# which percentage of all output tokens belongs to the longest 1 % of the answers of the code trace?

# %%
predict("13", "a", ...)

# %%
with needs("13", 1, 2):
    from nanovllm.observability.analysis import ccdf

    outputs = {name: [r.output for r in trace] for name, trace in plots.traces().items()}
    plots.tails({name: ccdf(values) for name, values in outputs.items()})
    answer("13", "a")

# %% [markdown]
# For the conversations the dashed line is far too long at the right. What would a planner do who
# believed it?
#
# ### Experiment 1: at which time scale is it bursty?
#
# Poisson arrivals have an index of dispersion of 1 in every window. Write `poisson(times, seed)`: as many
# moments in the same time, independent of one another, in order. `plots.dispersion` draws your
# `dispersion` of both. **Predict** (b): the coefficient of variation of the code trace's gaps. And: does
# its index of dispersion grow or fall with longer windows?

# %%
predict("13", "b", ...)


# %% nbgrader={"grade": false, "grade_id": "lab13-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def poisson(times: list[float], seed: int = 0) -> list[float]:
    """As many moments between 0 and the last of `times`, at random and in order."""
    ### BEGIN SOLUTION
    import random

    draw = random.Random(seed)
    return sorted(draw.uniform(0, times[-1]) for _ in times)
    ### END SOLUTION


# %%
with needs("13", 1, 2):
    from functools import partial

    from nanovllm.observability.analysis import dispersion

    lines = {name: [r.time for r in trace] for name, trace in plots.traces().items()}
    lines["code, as Poisson"] = poisson(lines["code"])
    windows = [0.1, 0.3, 1, 3, 10, 30, 100]
    plots.dispersion({name: partial(dispersion, times) for name, times in lines.items()}, windows)
    answer("13", "b")

# %% [markdown]
# Mooncake's line has a knee at three seconds. Where does it come from: from the users, or from whoever
# wrote the trace down?
#
# What a prefix cache can reach on Mooncake's shape, by the number of blocks that it keeps. **Predict**:
# how many blocks are enough for half of what endless memory would hit?

# %%
with needs("13", 1, 2):
    from nanovllm.observability.analysis import prefix_hits

    mooncake = plots.traces()["Mooncake"]
    reach, total = prefix_hits(mooncake)
    sizes = [300, 1000, 3000, 10_000, 30_000, 100_000]
    curve = {size: prefix_hits(mooncake, size)[0] / total for size in sizes}
    plots.cache({"least recently used": curve}, reach / total)

# %% nbgrader={"grade": true, "grade_id": "lab13-task-2", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="13" nanovllm_task=2
from grader.student.notebook import check_task

check_task("13", 2)

# %% [markdown]
# ## 3. Replicas
#
# ### Experiment 2: what one more replica brings
#
# `plots.REPLICA` is Llama 3.1 8B on an H100. Write `ttft_by_replicas(trace, numbers)`: for each number of
# replicas the TTFT p99 that your `simulate_replicas` measures. **Predict** (c): the Poisson line needs
# 2 or 3 replicas; how many does the trace need?

# %%
guess = predict("13", "c", ...)


# %% nbgrader={"grade": false, "grade_id": "lab13-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def ttft_by_replicas(trace: list, numbers: list[int]) -> dict[int, float]:
    """TTFT p99 in seconds, for each number of replicas."""
    ### BEGIN SOLUTION
    from nanovllm.observability.capacity import simulate_replicas

    return {n: simulate_replicas(trace, plots.REPLICA, n).ttft_p99 for n in numbers}
    ### END SOLUTION


# %%
with needs("13", 1, 3):
    from dataclasses import replace

    code = plots.code()
    calm = [replace(r, time=t) for r, t in zip(code, poisson([r.time for r in code]), strict=True)]
    numbers = [1, 2, 3, 4, 6, 8, 10]
    found = {"Poisson": calm, "the trace": code}
    plots.replicas({k: ttft_by_replicas(t, numbers) for k, t in found.items()}, 1.0, guess)
    answer("13", "c")

# %% [markdown]
# From one replica to two, the Poisson line falls far; from two to ten hardly. The line of the trace falls
# slowly all the way. Why do replicas help against a burst as little as this? (The plan asks for more than
# the picture shows, for it keeps the TPOT, too.)

# %% nbgrader={"grade": true, "grade_id": "lab13-task-3", "locked": true, "points": 30, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="13" nanovllm_task=3
from grader.student.notebook import check_task

check_task("13", 3)

# %% [markdown]
# ## 4. Where a request's time goes
#
# The spans of your builder, for a few requests in a burst of the code trace on one replica; prompts
# stand at the left. **Predict**: of the request that waits longest, is most of the time queue, prefill or
# decode?

# %%
with needs("13", 1, 4):
    from nanovllm.observability.trace import between

    code = plots.code()
    start = max(range(len(code) - 14), key=lambda i: code[i].time - code[i + 13].time)
    plots.waterfall(plots.burst(between(code, code[start].time, code[start].time + 6)))

# %% [markdown]
# The bars of prefill end together in groups. What is one such group? Which of them would you make
# shorter first: queue, prefill or decode?

# %% nbgrader={"grade": true, "grade_id": "lab13-task-4", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="13" nanovllm_task=4
from grader.student.notebook import check_task

check_task("13", 4)

# %% [markdown]
# ## 5. A quantile of two replicas
#
# **Predict** (d): one replica answers 100 requests within 100 ms, the other 400 within 0.1 to 1 s. What
# does `histogram_quantile` say of the median of both?

# %%
predict("13", "d", ...)

# %%
with needs("13", 5):
    from nanovllm.observability.queries import histogram_quantile

    fast, slow = {"0.1": 100, "1": 100, "+Inf": 100}, {"0.1": 0, "1": 400, "+Inf": 400}
    both = {le: fast[le] + slow[le] for le in fast}
    medians = [1000 * histogram_quantile(0.5, one) for one in (fast, slow, both)]
    print("median of each {:.0f} and {:.0f} ms, of both {:.0f} ms".format(*medians))
    print(f"the mean of the two medians is {(medians[0] + medians[1]) / 2:.0f} ms")
    answer("13", "d")

# %% nbgrader={"grade": true, "grade_id": "lab13-task-5", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="13" nanovllm_task=5
from grader.student.notebook import check_task

check_task("13", 5)

# %% [markdown]
# ## 6. Alerts on two windows
#
# ### Experiment 3: when does it fire, and when does it stop?
#
# `shares` has the share of errors in each minute; all minutes have equal traffic. Write
# `fires(shares, minute, long, short, limit)`: whether the mean share of the last `long` minutes before
# `minute` and that of the last `short` are both above the limit. The picture shows half an hour of
# trouble, an objective of 99 %, and when each alert is on. **Predict** (e), then: for how long does the
# alert with one window go on when all is well again?

# %%
predict("13", "e", ...)


# %% nbgrader={"grade": false, "grade_id": "lab13-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def fires(shares: list[float], minute: int, long: int, short: int, limit: float) -> bool:
    """Whether both windows that end at `minute` are above the limit."""
    ### BEGIN SOLUTION
    means = [sum(shares[minute - n : minute]) / n for n in (long, short)]
    return min(means) > limit
    ### END SOLUTION


# %%
with needs("13", 6):
    from nanovllm.observability.alerts import Objective, burn_alerts
    from nanovllm.observability.promql import metric

    objective = Objective("Ttft", metric("slow_total"), metric("all_total"), 0.99)
    print("yours:", burn_alerts(objective, "runbooks")[0].to_dict()["expr"])
    plots.alarm(fires)
with needs("13", 5):
    answer("13", "e")

# %% [markdown]
# With a factor of 14, when does the alert begin, compared with a factor of 2? What would you lose with
# the five minutes alone?

# %% nbgrader={"grade": true, "grade_id": "lab13-task-6", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="13" nanovllm_task=6
from grader.student.notebook import check_task

check_task("13", 6)

# %% [markdown]
# ## 7. A server that says it is well
#
# Two minutes around midnight. **Predict**: which of the four lines shows the trouble first,
# and which one never?

# %%
with needs("13", 7):
    from nanovllm.observability.incidents import diagnose

    recording = plots.midnight()
    plots.night(recording, diagnose(recording))

# %% nbgrader={"grade": true, "grade_id": "lab13-task-7", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="13" nanovllm_task=7
from grader.student.notebook import check_task

check_task("13", 7)

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab13-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** A team plans a chat service. They have a week of another team's logs, take its
# mean request and its mean rate, add 30 %, and order cards. On the first Monday the first token takes
# 20 seconds at the 99th percentile, and the cards are busy for 35 % of the day. No alert fired: theirs
# looks at the mean TTFT of each replica, over an hour. Name what was wrong with the plan and with the
# alert, what you would measure in the logs, and what you would change first, without ordering cards.

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab13-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# Means say how much work comes, not when. A replica that is busy for 35 % of the day and keeps people
# waiting for 20 seconds has bursts: in them work comes much faster than it is done, and the queue is as
# long as the burst is large. So the plan should replay the logs' own arrivals and lengths, pooled over
# replicas, and ask for the p99. In the logs: peak to mean in windows from a second to minutes, index of
# dispersion, CCDF of prompts and outputs, sessions and how much of the prompts is shared. The alert: a mean
# hides the slow 1 %, a mean over replicas hides the slow replica, and an hour hides a burst. Count requests
# that are slower than the objective, over all requests, and alert on two windows of its burn rate; alert
# on silence besides. Without cards: smaller steps or a token budget (decodes do not wait for whole
# prompts), a router that looks at the queues and not in turn, a prefix cache where turns come back,
# admission with an honest 503, or moving what can wait (batch jobs) out of the bursts.
#
# - 1 point: bursts, not the mean, make the wait; low use is no contradiction.
# - 1 point: replay of real arrivals and lengths, percentile over all requests.
# - 1 point: measures of burstiness and of tails by name.
# - 1 point: alert on the share of slow requests, pooled, two windows.
# - 1 point: a change that lowers the wait without cards, with its reason.
# ### END SOLUTION

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
# # Lab 14: Performance engineering
#
# The handout is `labs/lab14/README.md`; your code is in `nanovllm/performance/`. Here you look at where a
# step's time goes, at what each optimisation takes away, and at who visits which expert. You write four
# experiments. A cell that needs a task you have not written says so: write the task, restart the kernel,
# run again.
#
# **Before you run a cell that asks a question, write your guess down.** Put a number in the place of
# the dots.

# %%
from grader.student.notebook import answer, needs, plots_of, predict

plots = plots_of("14")

# %% [markdown]
# ## 1. Under the roof
#
# Four operations of a decode on an H100 (989 TFLOP/s, 3.35 TB/s), with times as published kernels reach
# them. **Predict**: which of them has its limit in compute?

# %%
with needs("14", 1):
    from nanovllm.performance.interval import Interval
    from nanovllm.performance.profile import roofline_point

    E, PEAK, BANDWIDTH = 4096, 989e12, 3.35e12
    points = {}
    for rows, microseconds in ((1, 14), (64, 15), (512, 26), (4096, 190)):
        work = {"flops": 2 * rows * E * E, "bytes": 2 * (E * E + 2 * rows * E)}
        product = Interval("mm", 0.0, microseconds * 1e-6, **work)
        points[f"batch {rows}"] = roofline_point(product, PEAK, BANDWIDTH)
    plots.roofline(points, PEAK, BANDWIDTH)

# %% nbgrader={"grade": true, "grade_id": "lab14-task-1", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="14" nanovllm_task=1
from grader.student.notebook import check_task

check_task("14", 1)

# %% [markdown]
# ## 2. What fusion takes away
#
# ### Experiment 1: which operations are left?
#
# Write `most_common(step)`: run `step()` in inference mode under `CountOps`, and give the names of its
# operations with their counts, as a dictionary. **Predict** (a): which percentage of the operations is
# left after fusion?

# %%
guess = predict("14", "a", ...)


# %% nbgrader={"grade": false, "grade_id": "lab14-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def most_common(step) -> dict[str, int]:
    """Operations of a call, by name."""
    ### BEGIN SOLUTION
    import torch

    from nanovllm.performance.counting import CountOps

    with torch.inference_mode(), CountOps() as ops:
        step()
    return dict(ops.by_name)
    ### END SOLUTION


# %%
with needs("14", 2):
    import torch

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.performance.fusion import FusedTransformer

    config = ModelConfig("qwen3", 40, 16, 4, 4, 2, 8, 24, 64, qk_norm=True)
    model = dummy_model(config)
    ids, places = torch.tensor([1, 2]), torch.arange(2)
    steps = {"plain": model, "fused": FusedTransformer(model)}
    found = {name: most_common(lambda one=one: one(ids, places, lambda layer, q, k, v: q))
             for name, one in steps.items()}  # fmt: skip
    plots.waterfall({name: sum(ops.values()) for name, ops in found.items()}, guess)
    print(found["fused"])
    answer("14", "a")

# %% [markdown]
# Which of the operations that are left could a kernel of lab 06 take away?

# %% nbgrader={"grade": true, "grade_id": "lab14-task-2", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="14" nanovllm_task=2
from grader.student.notebook import check_task

check_task("14", 2)

# %% [markdown]
# ## 3. Padding
#
# ### Experiment 2: what do buckets cost?
#
# Write `padded(count)`: the share of a decode's rows that is padding, for so many sequences and your
# buckets for up to 128. **Predict** (b): of all rows of batches of 1 to 64, which share?

# %%
predict("14", "b", ...)


# %% nbgrader={"grade": false, "grade_id": "lab14-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def padded(count: int) -> float:
    """The share of rows that nobody wants."""
    ### BEGIN SOLUTION
    from nanovllm.performance.buckets import batch_buckets, bucket_for

    return 1 - count / bucket_for(count, batch_buckets(128))
    ### END SOLUTION


# %%
with needs("14", 3):
    plots.padding(padded)
    answer("14", "b")

# %% [markdown]
# Where is the share largest, and what would another list of buckets cost in exchange?

# %% nbgrader={"grade": true, "grade_id": "lab14-task-3", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="14" nanovllm_task=3
from grader.student.notebook import check_task

check_task("14", 3)

# %% [markdown]
# ## 4. The waterfall, and the wait
#
# The demo's four engines, on your code. **Predict** (c): two requests decode for six steps and for four;
# how many rows are launched ahead?

# %%
predict("14", "c", ...)

# %%
with needs("14", 2, 3, 4):
    demo, target = plots.demo(), plots.target()
    costs = {name: demo.measure(make, target) for name, make in demo.STAGES.items()}
    plots.waterfall({name: cost.launches for name, cost in costs.items()})
    print({name: f"{cost.idle_waits} idle waits" for name, cost in costs.items()})
    answer("14", "c")

# %% [markdown]
# ### Experiment 3: one step ahead
#
# A host that needs 3 for a step, and a device that needs 4. Without running ahead they wait for each other:
# four steps take 28. Write `ahead(host, device, steps)`, with the seconds that each needs for a step. It
# returns the `Interval`s of the host and those of the device, one for each step, named "0", "1", and so on.
# The device begins a step when the host has prepared it and the step before has ended. The host begins a
# step when its own last one has ended, but not before the device has ended the step two before: it is one
# step ahead, and no more. **Predict**: how long are four steps now? And what does a host that needs 5
# change?


# %% nbgrader={"grade": false, "grade_id": "lab14-ahead", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def ahead(host: float, device: float, steps: int) -> tuple[list, list]:
    """When the host and the device are busy, with the host one step ahead."""
    ### BEGIN SOLUTION
    from nanovllm.performance.interval import Interval

    hosts, devices = [], []
    for i in range(steps):
        start = max(hosts[-1].end if i else 0, devices[i - 2].end if i > 1 else 0)
        hosts.append(Interval(f"{i}", start, start + host))
        start = max(hosts[i].end, devices[-1].end if i else 0)
        devices.append(Interval(f"{i}", start, start + device))
    return hosts, devices
    ### END SOLUTION


# %%
with needs("14", 1):
    from nanovllm.performance.interval import Interval

    lines = {
        "host": [Interval(f"{i}", 7 * i, 7 * i + 3) for i in range(4)],
        "device": [Interval(f"{i}", 7 * i + 3, 7 * i + 7) for i in range(4)],
    }
    lines["host, ahead"], lines["device, ahead"] = ahead(3, 4, 4)
    plots.timeline(lines)
    end = lines["device, ahead"][-1].end
    print(f"four steps end at {end}" if end == 19 else f"four steps should end at 19, not at {end}")
    print(f"four steps of a host that needs 5 end at {ahead(5, 4, 4)[1][-1].end}")

# %% nbgrader={"grade": true, "grade_id": "lab14-task-4", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="14" nanovllm_task=4
from grader.student.notebook import check_task

check_task("14", 4)

# %% [markdown]
# ## 5. Who visits whom
#
# ### Experiment 4: how many experts does a step read?
#
# Write `experts_read(tokens, k)`: for so many tokens with random logits over 64 experts, how many
# experts have at least one visit, by your `route` and `sort_by_expert`. **Predict**: with k = 8, how many
# tokens until all 64 are read? And (d): eight of 128 probabilities, 4, 3 and zeros as logits: which
# percentage do they add up to?

# %%
predict("14", "d", ...)


# %% nbgrader={"grade": false, "grade_id": "lab14-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def experts_read(tokens: int, k: int) -> float:
    """Experts with a visit, of 64."""
    ### BEGIN SOLUTION
    import torch

    from nanovllm.performance.moe import route, sort_by_expert

    logits = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(tokens))
    _, experts = route(logits, k, normalize=False)
    return int((sort_by_expert(experts, 64).counts > 0).sum())
    ### END SOLUTION


# %%
with needs("14", 5):
    plots.experts_read(experts_read)
    answer("14", "d")

# %% [markdown]
# At which batch size does a sparse layer read as much as a dense one of the same weights?

# %% nbgrader={"grade": true, "grade_id": "lab14-task-5", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="14" nanovllm_task=5
from grader.student.notebook import check_task

check_task("14", 5)

# %% [markdown]
# ## 6. Hot experts
#
# 64 experts, the i-th visited in proportion to 1 / i, on 8 ranks. **Predict** (e): the busiest rank's work
# over the mean, with ten slots a rank.

# %%
guess = predict("14", "e", ...)

# %%
with needs("14", 6):
    from nanovllm.performance.placement import place_experts, replicas

    load = [round(10_000 / (expert + 1)) for expert in range(64)]
    work = {"in order": [sum(load[8 * rank : 8 * rank + 8]) for rank in range(8)]}
    for slots in (8, 10):
        copies = replicas(load, 8 * slots)
        held = place_experts(load, 8, slots).ranks
        work[f"placed, {slots} slots"] = [sum(load[e] / copies[e] for e in one) for one in held]
    plots.ranks(work, guess)
    answer("14", "e")

# %% [markdown]
# Placing alone brings rank 0 from 4.6 to about 1.9 times the mean. Why can no placement without copies
# bring it below about 1.7?

# %% nbgrader={"grade": true, "grade_id": "lab14-task-6", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="14" nanovllm_task=6
from grader.student.notebook import check_task

check_task("14", 6)

# %% [markdown]
# ## 7. Your idea
#
# Operations and tokens of your engine on the demo's requests, over the plain engine's. **Predict**, before
# you run it: how many percent of the operations are left?

# %%
with needs("14", 7):
    from nanovllm.performance.capstone import make_engine
    from nanovllm.performance.counting import CountOps

    demo, target, counts = plots.demo(), plots.target(), []

    def mine(model, store):
        return make_engine(model, demo.CONFIG, store=store)

    for make in (demo.plain, mine):
        with CountOps() as ops:
            demo.measure(make, target)
        counts.append({"operations": ops.total, "tokens": ops.tokens})
    plots.capstone({name: counts[1][name] / counts[0][name] for name in counts[0]})

# %% nbgrader={"grade": true, "grade_id": "lab14-task-7", "locked": true, "points": 30, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="14" nanovllm_task=7
from grader.student.notebook import check_task

check_task("14", 7)

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab14-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** Your page of evidence. Which optimisation did you choose for the capstone, and
# what in a profile or in the counts made you choose it? Give the count before, your guess, and the count
# after. What does it cost (memory, code, cases that it does not cover), and for which model, batch or
# prompt does it not help? How do you know that the texts stayed?

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab14-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# An example: a plain decode step of a Qwen3 starts about 51 operations a layer besides attention, 24 of
# them in norms that are one operation of torch. Guess: half is left. After merged products, norms in one
# operation and RoPE for q and k at once it is 38 %, and with angles from a table a few fewer. It costs no
# weights (the parts are views of the merged ones), a table of positions times D numbers, and code that
# must follow each change of lab 02's block; GPT-2 and experts are not covered. Where products are large
# (prompts, batches of hundreds) launches are few beside the work, and nothing is gained. The texts were
# compared with the plain engine's for four families, greedy and sampled, with preemption and aborts.
#
# - 1 point: chosen by a measurement, named.
# - 1 point: a guess before the count, and both numbers after.
# - 1 point: what it costs.
# - 1 point: when it does not help, with the reason.
# - 1 point: how equality was shown, and on more than one model and request.
# ### END SOLUTION

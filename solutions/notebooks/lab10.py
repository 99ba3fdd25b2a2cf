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
# # Lab 10: Parallelism
#
# The handout is `labs/lab10/README.md`; your code is in `nanovllm/parallel/`. Here you see what ranks
# have, what they send, and when it pays. Ranks are threads. You write three experiments. A cell that
# needs a task you have not written says so: write the task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.** Put a number in the place of
# the dots.

# %%
from grader.student.notebook import answer, needs, plots_of, predict

plots = plots_of("10")

# %% [markdown]
# ## 1. The ring
#
# ### Experiment 1: who sends which run when
#
# Four ranks, four runs; in each of six steps every rank sends one run to the next rank. In steps 0 to 2
# the other rank adds what comes to its own, in steps 3 to 5 it takes it as it is. Write
# `sent(rank, step, size)`: the number of the run. At the end all 16 runs must be whole sums, and rank r
# must have the sum of run r first. **Predict** (a): four ranks all-reduce 1 MiB; how many KiB does each
# rank send? And is that more or less than with two ranks?

# %%
guess = predict("10", "a", ...)


# %% nbgrader={"grade": false, "grade_id": "lab10-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def sent(rank: int, step: int, size: int) -> int:
    """Which run this rank sends in this step of a ring all-reduce."""
    ### BEGIN SOLUTION
    if step < size - 1:  # reduce-scatter: a run ends at the rank that has its number
        return (rank - 1 - step) % size
    return (rank - (step - (size - 1))) % size
    ### END SOLUTION


# %%
with needs("10"):
    plots.ring(sent)
with needs("10", 1):
    answer("10", "a")

# %% [markdown]
# In which order are the numbers of run 2 added? Is it the same order for run 3? Why do all ranks get the
# same bits all the same?

# %% nbgrader={"grade": true, "grade_id": "lab10-task-1", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="10" nanovllm_task=1
from grader.student.notebook import check_task

check_task("10", 1)

# %% [markdown]
# ## 2. Who holds which slice
#
# The weights of a layer with 8 query heads and 4 key/value heads, coloured by rank. Move the number of
# ranks. **Predict** (c), which asks about 16 query heads in place of 8; then: from how many ranks on is a
# part of the layer on several ranks? Which?

# %%
predict("10", "c", ...)

# %%
with needs("10", 2):
    from nanovllm.parallel.shards import kv_heads, query_heads, share

    plots.slices(query_heads, kv_heads, share)
    answer("10", "c")

# %% nbgrader={"grade": true, "grade_id": "lab10-task-2", "locked": true, "points": 13, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="10" nanovllm_task=2
from grader.student.notebook import check_task

check_task("10", 2)

# %% nbgrader={"grade": true, "grade_id": "lab10-task-3", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="10" nanovllm_task=3
from grader.student.notebook import check_task

check_task("10", 3)

# %% [markdown]
# ## 3. What a step sends
#
# ### Experiment 2: bytes from a formula
#
# `plots.SMALL` has the shape of the bundled model: 4 layers, E = 256, V = 2,048; numbers are float32.
# Write `bytes_sent(ranks, tokens)`: what one rank sends in a step over so many tokens that needs logits
# of one row. `counted` below is what your own transformer sends. **Predict** (b): how many all-reduces
# are that on 8 ranks? And what grows faster: bytes with ranks, or bytes with tokens?

# %%
guess = predict("10", "b", ...)


# %% nbgrader={"grade": false, "grade_id": "lab10-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def bytes_sent(ranks: int, tokens: int) -> float:
    """Bytes that a rank sends in a step of `plots.SMALL` with one row of logits."""
    ### BEGIN SOLUTION
    all_reduces = (2 * 4 + 1) * 2 * (ranks - 1) / ranks * tokens * 256 * 4
    gather = (ranks - 1) / ranks * 2048 * 4
    return all_reduces + gather
    ### END SOLUTION


# %%
def counted(ranks: int, tokens: int) -> float:
    """What rank 0 sends in such a step of your transformer."""
    import torch

    from nanovllm.model.attend import RecomputeAttend
    from nanovllm.parallel.threads import run_ranks
    from nanovllm.parallel.transformer import ParallelTransformer

    @torch.inference_mode()
    def work(comm):
        model, ids = ParallelTransformer(plots.SMALL, comm), torch.arange(tokens)
        model.logits(model(ids, ids, RecomputeAttend(model.config))[-1:])
        return comm.counts.bytes

    return run_ranks(ranks, work)[0]


# %%
with needs("10", 1, 2, 3, 4):
    places = [(ranks, tokens) for ranks in (2, 4, 8) for tokens in (1, 8, 64)]
    plots.traffic(bytes_sent, {place: counted(*place) for place in places})
    answer("10", "b")

# %% nbgrader={"grade": true, "grade_id": "lab10-task-4", "locked": true, "points": 15, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="10" nanovllm_task=4
from grader.student.notebook import check_task

check_task("10", 4)

# %% [markdown]
# ## 4. The poorest rank decides
#
# The bundled model on your executor, in three layouts; each rank has 16 MB. Block ids must mean the same
# on all ranks, so all have as many blocks as the one with the least room. **Predict**: four layers on three
# stages: which rank decides? And which layout has the most K and V **per card**?

# %%
with needs("10", 1, 2, 3, 4, 5, 6):
    card = 16_000_000
    layouts = {"TP 2": (2, 1), "TP 4": (4, 1), "PP 3": (1, 3)}
    plots.memory({name: plots.rows_of(*sizes, card) for name, sizes in layouts.items()}, card)

# %% nbgrader={"grade": true, "grade_id": "lab10-task-5", "locked": true, "points": 30, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="10" nanovllm_task=5
from grader.student.notebook import check_task

check_task("10", 5)

# %% [markdown]
# ## 5. The pipeline and its bubble
#
# A row is a stage, a colour a micro-batch. Move both numbers. **Predict** (d): how long does a stage wait
# with four stages and eight micro-batches? How many micro-batches would you need to wait less than 5 %?
# (The slider has 64.)

# %%
predict("10", "d", ...)

# %%
with needs("10", 6):
    from nanovllm.parallel.pipeline import schedule

    plots.pipeline(schedule)
    answer("10", "d")

# %% [markdown]
# A step that decodes reads all weights of a stage for every micro-batch. What do its ticks then look
# like with 16 micro-batches in place of one?

# %% nbgrader={"grade": true, "grade_id": "lab10-task-6", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="10" nanovllm_task=6
from grader.student.notebook import check_task

check_task("10", 6)

# %% [markdown]
# ## 6. When it pays
#
# ### Experiment 3: the latency of the link
#
# `plots.cluster(Link(latency, 450e9))` are nodes of eight H100 whose link has the bandwidth of NVLink and
# this latency; `plots.LLAMA_8B` is the model. Write `speedup(latency, ranks, tokens)`: the seconds of a
# step on one card, divided by those with TP `ranks`. The step has one row of logits, and reads 2,048
# places for one token, `tokens` places for a prompt. **Predict** (e): how fast are eight cards with
# NVLink? And: which curve bends first, TP 2 or TP 8?

# %%
guess = predict("10", "e", ...)


# %% nbgrader={"grade": false, "grade_id": "lab10-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def speedup(latency: float, ranks: int, tokens: int) -> float:
    """How many times as fast as one card TP `ranks` is, over a link of this latency."""
    ### BEGIN SOLUTION
    from nanovllm.parallel.costs import Layout, ParallelCost
    from nanovllm.parallel.hardware import Link

    cluster, places = plots.cluster(Link(latency, 450e9)), 2048 if tokens == 1 else tokens
    one, many = (
        ParallelCost(plots.LLAMA_8B, cluster, Layout(tp)).seconds(tokens, places, 1)
        for tp in (1, ranks)
    )
    return one / many
    ### END SOLUTION


# %%
with needs("10", 7):
    plots.latency(speedup, guess)
    answer("10", "e")

# %% [markdown]
# At a latency near 0, one request gains about 7 on eight cards, the prompt less than 4. What holds the
# prompt back?
#
# Now the map: `best_layout` by your costs, for eight H100 in a node, by step and link. **Predict**: in which row
# does a pipeline win, and why not for one request?

# %%
with needs("10", 7):
    from nanovllm.parallel.costs import ParallelCost, best_layout

    steps = {"one request": (1, 2048, 1), "32 requests": (32, 65536, 32), "prompt": (4096, 4096, 1)}
    found = {name: {} for name in steps}
    for name, step in steps.items():
        for link in plots.NAMES:
            near = plots.cluster(link)
            layout = best_layout(plots.LLAMA_8B, near, 8, *step)
            one = ParallelCost(plots.LLAMA_8B, near).seconds(*step)
            many = ParallelCost(plots.LLAMA_8B, near, layout).seconds(*step)
            found[name][link] = layout.tp, layout.pp, one / many
    plots.best(found)

# %% [markdown]
# ## 7. Overlap
#
# The first four phases of a step on eight H100 with NVLink, whole and in two halves. **Predict**: for 64
# tokens, are two halves faster than the whole? For 4,096?

# %%
with needs("10", 7):
    from nanovllm.parallel.costs import Layout, ParallelCost
    from nanovllm.parallel.overlap import halves, timeline

    cost, lines = ParallelCost(plots.LLAMA_8B, plots.cluster("nvlink"), Layout(8)), {}
    for tokens in (64, 4096):
        whole = [[cost.phase(tokens, tokens)] * (2 * cost.layers)]
        lines[f"{tokens} tokens"] = timeline(whole)
        lines[f"{tokens} tokens, two halves"] = timeline(halves(cost, tokens, tokens))
    plots.overlap(lines)

# %% [markdown]
# With 64 tokens, a half computes as long as the whole. Why?

# %% nbgrader={"grade": true, "grade_id": "lab10-task-7", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="10" nanovllm_task=7
from grader.student.notebook import check_task

check_task("10", 7)

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab10-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** A team serves a model of 70 billion weights in 16 bits on two machines with
# four cards of 80 GB each. Inside a machine the cards have NVLink, between the machines there is 100 Gbit
# Ethernet. They run TP 8 over both machines. Chats are slow, though all cards are said to be busy.
# Which layout would you try, and why? What does your change do to one token of one chat, to a long prompt,
# and to the number of chats that fit? Name one thing that you would measure first.

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab10-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# With TP 8 over two machines each of the 161 all-reduces of a step goes over Ethernet: 14 messages one
# after another, 56 microseconds each of latency alone, 9 ms a step beside the 5 ms in which eight cards
# read their share. Try TP 4 inside a machine and PP 2 between them: all-reduces stay on NVLink (161 times
# 6 messages of 1.9 microseconds, 1.8 ms), and between the machines goes one hidden state a micro-batch.
# One token of one chat: the stages wait for each other, so it reads a quarter of the weights at a time,
# 10.5 ms, and not an eighth; still no slower than before in latency, and far less exposed to Ethernet.
# A long prompt gains most: in micro-batches both stages compute at the same time, and its large
# all-reduces leave the slow link. Two copies with TP 4 instead (one a machine) would need 35 GB of
# weights a card, which fits, and need no Ethernet at all: best for many chats, but half the room for K and
# V. The number of chats: weights take 17.6 GB a card either way, K and V are shared by layers in place of
# heads: the same room. "Busy" is what a card says that waits in a collective: measure how much of a step
# is spent in all-reduces.
#
# - 1 point: all-reduces over Ethernet, two for each layer, are the cause; latency counts for one token.
# - 1 point: TP inside a machine, PP (or copies) between machines.
# - 1 point: one token: PP does not make it faster by itself; a step has fewer or faster messages.
# - 1 point: prompt gains by micro-batches; room for K and V is about the same (with copies: less).
# - 1 point: seconds of a step in collectives, or the link's latency and bandwidth; busy is no measure.
# ### END SOLUTION

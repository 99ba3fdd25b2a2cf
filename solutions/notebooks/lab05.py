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
# # Lab 05: Paging
#
# The handout is `labs/lab05/README.md`; your code is in `nanovllm/paging/`. Here you look at memory: who
# holds which part of it, what stays empty, and what is shared. You write three experiments. A cell that
# needs a task you have not written says so: write the task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.** Put a number in the place of
# the dots.

# %%
from grader.student.notebook import answer
from grader.student.notebook import needs
from grader.student.notebook import plots_of
from grader.student.notebook import predict

plots = plots_of("05")

# %% [markdown]
# ## 1. Where memory goes
#
# A request has a prompt of 40 tokens, and its answer will have 30. Nobody knows that before. So who wants
# one piece reserves the prompt and 256 places for the answer. **Predict** how many places first fit,
# buddies and blocks of 16 reserve for it.

# %%
with needs("05", 1):
    from nanovllm.paging.fragmentation import Blocks, Buddy, FirstFit
    from nanovllm.paging.occupancy import occupancy

    KINDS = {"first fit": FirstFit, "buddies": Buddy, "blocks of 16": Blocks}
    plots.reservations(KINDS)

# %% [markdown]
# Now a trace of 200 such requests, most of them short, in room for 8,192 tokens. **Predict** (d): the
# share of the reserved places that holds a token. Which of the three is done first?

# %%
predict("05", "d", ...)  # your guess in place of the dots

# %%
with needs("05", 1):
    memories = {name: kind(8192) for name, kind in KINDS.items()}
    runs = {name: occupancy(m, plots.TRACE, plots.LONGEST) for name, m in memories.items()}
    plots.running(runs)
    for name, run in runs.items():
        external = max(moment.external for moment in run.moments)
        print(
            f"{name:<13} {len(run.moments):>5} steps, external fragmentation up to {external:.0%}"
        )
    answer("05", "d")

# %% [markdown]
# ### Experiment 1: capacity gained
#
# Write `peak(kind, room)`: the most requests that run at once, when the trace `plots.TRACE` is served
# in `room` places by one of the `KINDS`. Look at `occupancy` in `occupancy.py`; the longest answer is
# `plots.LONGEST`. **Predict** (e): in 8,192 places, how many times as many requests fit into blocks as
# into one piece each? Does that change with the size of memory?

# %%
guess = predict("05", "e", ...)


# %% nbgrader={"grade": false, "grade_id": "lab05-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def peak(kind: str, room: int) -> int:
    """The most requests of the trace that run at once in so many places."""
    ### BEGIN SOLUTION
    return occupancy(KINDS[kind](room), plots.TRACE, plots.LONGEST).peak_running
    ### END SOLUTION


# %%
with needs("05", 1):
    plots.capacity(peak, guess)
    answer("05", "e")

# %% [markdown]
# ### Experiment 2: the size of a block
#
# Small blocks waste less. Write `waste(block_size)`: the share of the reserved places that holds no
# token over the whole trace, in 8,192 places of blocks of one size. **Predict** (f), for blocks of 16.

# %%
guess = predict("05", "f", ...)


# %% nbgrader={"grade": false, "grade_id": "lab05-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def waste(block_size: int) -> float:
    """The share of the reserved places that holds no token, over the trace."""
    ### BEGIN SOLUTION
    return 1 - occupancy(Blocks(8192, block_size), plots.TRACE, plots.LONGEST).utilisation
    ### END SOLUTION


# %%
with needs("05", 1):
    plots.waste(waste, guess)
    answer("05", "f")

# %% [markdown]
# Where does the waste come from? Move the size of a block over eight requests. **Predict** first: how
# much of a request's last block stays empty, on average?

# %%
with needs("05", 3):
    from nanovllm.paging.block_table import blocks_for

    plots.explore([9, 16, 23, 37, 50, 64, 81, 98], blocks_for)

# %% nbgrader={"grade": true, "grade_id": "lab05-task-1", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=1
from grader.student.notebook import check_task

check_task("05", 1)

# %% nbgrader={"grade": true, "grade_id": "lab05-task-2", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=2
from grader.student.notebook import check_task

check_task("05", 2)

# %% [markdown]
# ## 2. A fork, step by step
#
# Two samples of one request, P = 4, a prompt of 6 tokens; both write three tokens of their own.
# **Predict** the two tables after every token, and (c): how many blocks would be copied for three samples.

# %%
predict("05", "c", ...)


# %%
def two_tables():
    """A pool, and two tables that share the blocks of 6 tokens."""
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.block_table import BlockTable
    from nanovllm.paging.sharing import fork

    pool, first = BlockPool(8), BlockTable(4, num_tokens=6)
    first.grow(pool, 6)
    return pool, first, fork(pool, first, 6)


# %%
with needs("05", 2, 3, 5):
    from nanovllm.paging.sharing import reserve

    pool, first, second = two_tables()
    story, copies = [plots.moment("after the fork", first, second)], []
    for token in range(6, 9):
        for name, table in (("first", first), ("second", second)):
            reserve(pool, table, token, token + 1, copies)
            line = f"{name} writes token {token} ({len(copies)} copied so far)"
            story.append(plots.moment(line, first, second))
    plots.fork_steps(story)
    answer("05", "c")

# %% nbgrader={"grade": true, "grade_id": "lab05-task-3", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=3
from grader.student.notebook import check_task

check_task("05", 3)

# %% nbgrader={"grade": true, "grade_id": "lab05-task-5", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=5
from grader.student.notebook import check_task

check_task("05", 5)

# %% [markdown]
# ## 3. The block map
#
# Your engine on the bundled model: 14 requests that begin alike, a pool of 24 blocks, eight at a time.
# Each column is a step, each row a block. **Predict** which rows become black (shared), and when. And
# which of the two runs has grey blocks (kept: free, but still findable)?

# %%
with needs("05", 2, 3, 4, 5, 6, 7):
    from nanovllm.paging.store import PagedStore

    model, prompts, params = plots.load()
    config = model.config
    cached = plots.serve(model, prompts, params, PagedStore(config, 24))
    store = PagedStore(config, 24, enable_prefix_caching=False)
    plain = plots.serve(model, prompts, params, store)
    plots.block_map({"with a prefix cache": cached, "without": plain})
    print("the same answers:", cached.answers == plain.answers)

# %% nbgrader={"grade": true, "grade_id": "lab05-task-4", "locked": true, "points": 16, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=4
from grader.student.notebook import check_task

check_task("05", 4)

# %% [markdown]
# ## 4. Hit rate
#
# ### Experiment 3: under shared prompts
#
# The block manager needs no model, so the hit rate can be measured in milliseconds.
# `plots.alike(shared)` makes 14 requests of 96 tokens, of which the first `shared` are the same for
# all. `plots.compute(manager, request, found)` commits the tokens of an admitted request of which
# `found` were there. Write `hit_rate(shared)`: give the requests to a manager of 160 blocks of 16, two
# at a time. Admit both, compute both, release both. **Predict** (g): the hit rate when all 96 tokens
# are shared. Why is it not 13 of 14?

# %%
predict("05", "g", ...)


# %% nbgrader={"grade": false, "grade_id": "lab05-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def hit_rate(shared: int) -> float:
    """Of all the tokens asked for, the share that was in the prefix cache."""
    ### BEGIN SOLUTION
    from nanovllm.paging.manager import BlockManager

    manager, requests = BlockManager(160, 16), plots.alike(shared)
    for pair in zip(requests[::2], requests[1::2], strict=True):
        found = [manager.admit(request) for request in pair]
        for request, tokens in zip(pair, found, strict=True):
            plots.compute(manager, request, tokens)
        for request in pair:
            manager.release(request)
    return manager.prefix_stats.hit_rate
    ### END SOLUTION


# %%
with needs("05", 2, 3, 5, 6, 7):
    plots.hit_rate(hit_rate, shared=[0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96], of=96)
    answer("05", "g")

# %% [markdown]
# The steps are as wide as a block. How many of the 14 find anything, and how many of their 96 tokens?
# What can the two that come first find?

# %% nbgrader={"grade": true, "grade_id": "lab05-task-6", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=6
from grader.student.notebook import check_task

check_task("05", 6)

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab05-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** A service answers questions about a manual of 6,000 tokens that stands at the beginning of every
# prompt. Say what the prefix cache saves, in which of TTFT, inter-token latency and memory it shows,
# and name one change to the prompt that would make the cache useless.

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab05-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# The manual is computed once and then found: the TTFT of every later request falls to that of its
# question alone, and requests that run are no longer slowed down by long prefills in their steps. The
# manual's blocks are shared, so its 6,000 tokens are held once, not once a request. Today's date, or a
# user's name, in front of the manual would end that: a block's key holds all that came before it.
#
# - 2 points: the manual's prefill is computed once; TTFT falls, and so does the load on decodes that
#   share the steps with prefills.
# - 1 point: memory: all requests share the manual's blocks, so more of them fit.
# - 2 points: anything that varies placed before the manual (a date, a user name), because a block's key
#   holds all that came before it.
# ### END SOLUTION

# %% [markdown]
# ## 5. Too small a pool
#
# The same 14 requests, with ever fewer blocks and no prefix cache. **Predict** what happens to the number
# of computed tokens with recompute, and with swap; and whether any answer changes.


# %%
def in_pool(size: int, kind: str):
    """The requests in so many blocks."""
    from nanovllm.paging.store import PagedStore

    more = {"preemption": kind, "num_host_blocks": 64, "enable_prefix_caching": False}
    return plots.serve(model, prompts, params, PagedStore(config, size, **more))


# %%
with needs("05", 2, 3, 4, 5, 6, 7):
    found, answers = {"recompute": [], "swap": []}, []
    for kind, rows in found.items():
        for size in (8, 10, 12, 16, 24):
            run = in_pool(size, kind)
            rows.append((size, run.preemptions, run.computed))
            answers.append(run.answers)
    plots.small_pools(found)
    print("the same answers everywhere:", all(one == answers[0] for one in answers))

# %% nbgrader={"grade": true, "grade_id": "lab05-task-7", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=7
from grader.student.notebook import check_task

check_task("05", 7)

# %% [markdown]
# ## 6. Compaction
#
# Five requests were admitted to a pool of 24 blocks of 4, and the second one has ended. **Predict** how
# many blocks move, and how many blocks the pool needs afterwards.

# %%
with needs("05", 2, 3, 5, 6, 7, 8):
    from nanovllm.paging.compaction import compact
    from nanovllm.paging.manager import BlockManager

    manager = BlockManager(24, 4, enable_prefix_caching=False)
    live = plots.admitted(manager, {"A": 12, "B": 30, "C": 7, "D": 20, "E": 9})
    manager.release(live.pop("B"))
    before = {name: manager.block_ids(request) for name, request in live.items()}
    compact(manager)
    after = {name: manager.block_ids(request) for name, request in live.items()}
    plots.compaction(before, after)

# %% nbgrader={"grade": true, "grade_id": "lab05-task-8", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=8
from grader.student.notebook import check_task

check_task("05", 8)

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
# The handout is `labs/lab05/README.md`; your code is in `nanovllm/paging/`. This notebook draws memory:
# who holds which part of it, what lies idle, and what is shared. A cell that needs a task you have not
# written says so: write the task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.**

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

from grader.student.notebook import answer
from grader.student.notebook import needs
from grader.student.notebook import predict
from grader.student.notebook import style
from grader.course.paths import MODELS
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Preempted, Stepped
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.batching.traces import heavy_tailed
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.loader import load_model
from nanovllm.tokenization.tokenizer import Tokenizer

torch.set_num_threads(1)
style()
TARGET = MODELS / "target"
model, tokenizer = load_model(TARGET), Tokenizer.from_pretrained(TARGET)

# %% [markdown]
# ## 1. Where memory goes
#
# 200 requests, most of them short, in room for 8,192 tokens. Nobody knows how long an answer will be, so
# who wants one piece reserves prompt + 256. **Predict**: which share of the reserved places holds a token,
# for one piece a request, for pieces of a power of two, and for blocks of 16? And how many requests run
# at once?

# %%
predict("05", "d", ...)  # your guess in place of the dots

# %%
with needs("05", 1):
    from nanovllm.paging.fragmentation import Blocks, Buddy, FirstFit
    from nanovllm.paging.occupancy import occupancy

    trace = heavy_tailed(seed=3, count=200, rate=30.0, longest=400)
    memories = {"first fit": FirstFit(8192), "buddies": Buddy(8192), "blocks of 16": Blocks(8192)}
    runs = {name: occupancy(memory, trace, 256) for name, memory in memories.items()}
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2))
    for name, run in runs.items():
        left.plot([moment.running for moment in run.moments], lw=1, label=name)
        shares = [moment.stored / moment.reserved for moment in run.moments]
        right.plot(shares, lw=1, label=f"{name}: {run.utilisation:.0%} over the run")
    left.set(xlabel="step", ylabel="requests", title="Running at once")
    right.set(
        xlabel="step", ylabel="stored / reserved", title="Use of what is reserved", ylim=(0, 1.05)
    )
    names = right.get_legend_handles_labels()
    figure.legend(*names, loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    plt.show()
    for name, run in runs.items():
        external = max(moment.external for moment in run.moments)
        print(f"{name:<14} peak {run.peak_running:>3} requests, {len(run.moments)} steps, ", end="")
        print(f"external fragmentation up to {external:.0%}, {run.preemptions} preemptions")

# %% [markdown]
# What that is worth in requests: the same trace in more and in less memory. **Predict**: how many times
# as many requests fit at once into blocks as into one piece each? Does the factor change with memory?

# %%
with needs("05", 1):
    rooms = [2048, 4096, 8192, 16384]
    kinds = {"first fit": FirstFit, "buddies": Buddy, "blocks of 16": Blocks}
    figure, axis = plt.subplots(figsize=(7, 3))
    for side, (name, kind) in enumerate(kinds.items()):
        peaks = [occupancy(kind(room), trace, 256).peak_running for room in rooms]
        bars = axis.bar(np.arange(4) + 0.27 * (side - 1), peaks, 0.25, label=name)
        axis.bar_label(bars, fontsize=8)
    axis.set_xticks(range(4), [f"{room:,}" for room in rooms])
    axis.set(xlabel="memory, in tokens", ylabel="requests at once, at most")
    axis.set_title(f"Capacity gained, for a trace of {len(trace)} requests")
    axis.grid(axis="x", visible=False)
    axis.legend(frameon=False)
    plt.show()

# %% [markdown]
# **Experiment.** Small blocks waste less. Write the function: the share of the reserved places that is
# empty on this trace, for blocks of one size. **Predict** it for blocks of 1, 16 and 128.


# %% nbgrader={"grade": false, "grade_id": "lab05-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def waste(block_size: int) -> float:
    """The share of 8,192 places, given out in blocks, that holds no token over the trace."""
    ### BEGIN SOLUTION
    return 1 - occupancy(Blocks(8192, block_size), trace, 256).utilisation
    ### END SOLUTION


# %%
with needs("05", 1):
    answer("05", "d")
    sizes = [1, 2, 4, 8, 16, 32, 64, 128]
    plt.plot(sizes, [waste(size) for size in sizes], "o-")
    plt.xscale("log", base=2)
    plt.xlabel("tokens a block")
    plt.ylabel("share of the places that is empty")
    plt.show()

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
# **Predict** the two tables after every token, and how many blocks are copied.

# %%
with needs("05", 2, 3, 5):
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.block_table import BlockTable
    from nanovllm.paging.sharing import copy_on_write, fork, needs_copy

    pool = BlockPool(8)
    first = BlockTable(4)
    first.grow(pool, 6)
    first.num_tokens = 6
    second = fork(pool, first, 6)
    print(f"{'after the fork':<34}{first.block_ids!s:<12}{second.block_ids}")
    for token in range(6, 9):
        for name, table in (("first", first), ("second", second)):
            did = "writes in place"
            if needs_copy(pool, table, token):
                move = copy_on_write(pool, table, token)
                did = f"copies block {move.old} to {move.new}"
            elif table.num_missing(token + 1):
                table.grow(pool, token + 1)
                did = "takes a new block"
            table.num_tokens = token + 1
            line = f"token {token}: {name} {did}"
            print(f"{line:<34}{first.block_ids!s:<12}{second.block_ids}")

# %% nbgrader={"grade": true, "grade_id": "lab05-task-3", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=3
from grader.student.notebook import check_task

check_task("05", 3)

# %% nbgrader={"grade": true, "grade_id": "lab05-task-5", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=5
from grader.student.notebook import check_task

check_task("05", 5)

# %% [markdown]
# ## 3. The block map
#
# Your engine on the bundled model: 14 requests that begin alike, a pool of 24 blocks. Each column is a
# step, each row a block, each colour a request with its number; black is shared by several, grey is free but
# still findable, white is free.
# **Predict** which rows become black, and when.

# %%
SHARED = "Mia's code is 7342. Tom's code is 1589. Ben has a red ball. "
ASKED = ("Mia's code is", "Tom's code is", "Ben has a red", "Once upon a time")
prompts = [tokenizer.encode(SHARED + ASKED[i % 4]) for i in range(14)]
params = [
    SamplingParams(temperature=0, max_tokens=6 + 11 * i % 37, ignore_eos=True) for i in range(14)
]


def serve(store, seats: int = 8) -> tuple[dict, list, np.ndarray]:
    """Answers, events, and who held each block after each step: -1 free, -2 shared, -3 cached [B, steps]."""
    engine = Engine(model, EngineConfig(max_num_seqs=seats, max_num_batched_tokens=96), store=store)
    for number, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(prompt, one, request_id=number)
    answers, events, columns = {}, [], []
    while engine.has_unfinished:
        for event in engine.step():
            events.append(event)
            if isinstance(event, Finished):
                answers[event.request_id] = event.completion.token_ids
        owners = store.manager.owners()
        cached = set(store.cached_blocks())
        held = [owners.get(block, []) for block in range(store.num_blocks)]
        columns.append(
            [
                (-3 if block in cached else -1)
                if not h
                else -2
                if len(h) > 1
                else h[0].sequence.request_id
                for block, h in enumerate(held)
            ]
        )
    return answers, events, np.array(columns).T


def draw(grid: np.ndarray, axis: plt.Axes, title: str) -> None:
    """One colour a request; black shared, grey cached, white free."""
    picture = np.ones((*grid.shape, 3))
    picture[grid == -2] = 0.1
    picture[grid == -3] = 0.85
    for number in range(14):
        picture[grid == number] = plt.cm.tab20(number)[:3]
    axis.imshow(picture, aspect="auto", interpolation="nearest", origin="lower")
    for block, row in enumerate(grid):
        ends = [*(np.flatnonzero(np.diff(row)) + 1), len(row)]
        for start, end in zip([0, *ends], ends, strict=False):
            if row[start] >= 0 and end - start >= 4:
                middle = (start + end - 1) / 2
                axis.text(middle, block, row[start], ha="center", va="center", fontsize=7)
    axis.set(xlabel="step", ylabel="block", title=title)
    axis.grid(False)


with needs("05", 2, 3, 4, 5, 6, 7):
    from nanovllm.paging.store import PagedStore

    stores = {
        "with prefix cache": PagedStore(model.config, 24, 16),
        "without": PagedStore(model.config, 24, 16, enable_prefix_caching=False),
    }
    results = {name: serve(store) for name, store in stores.items()}
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), sharey=True)
    for axis, (name, (_, events, grid)) in zip(axes, results.items(), strict=True):
        computed = sum(c.length for e in events if isinstance(e, Stepped) for c in e.chunks)
        gone = sum(isinstance(e, Preempted) for e in events)
        draw(grid, axis, f"{name}: {computed} tokens computed, {gone} preemptions")
    figure.tight_layout()
    plt.show()
    with_cache, without = (result[0] for result in results.values())
    print("the same answers:", with_cache == without)

# %% nbgrader={"grade": true, "grade_id": "lab05-task-4", "locked": true, "points": 16, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=4
from grader.student.notebook import check_task

check_task("05", 4)

# %% [markdown]
# ## 4. Hit rate
#
# Fourteen prompts of 96 tokens, more and more of each shared. **Predict** the hit rate when all are equal:
# why is it not 13 of 14?

# %%
with needs("05", 2, 3, 4, 5, 6, 7):
    from nanovllm.paging.store import PagedStore

    base = tokenizer.encode(SHARED * 6)[:96]
    assert len(base) == 96
    rates, shares = [], [0, 16, 32, 48, 64, 80, 96]
    for shared in shares:
        store = PagedStore(model.config, 160, 16)
        engine = Engine(model, EngineConfig(max_num_seqs=2), store=store)
        for number in range(14):
            own = [(7 * number + 11 * i) % 300 + 20 for i in range(96 - shared)]
            engine.add_request(
                base[:shared] + own, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
            )
        for _ in engine.run():
            pass
        rates.append(store.prefix_stats.hit_rate)
    figure, axis = plt.subplots(figsize=(6, 3))
    axis.plot(shares, rates, "o-", label="measured")
    axis.plot(shares, [share / 96 for share in shares], ":", color="gray", label="what is shared")
    axis.set(
        xlabel="tokens shared, of 96", ylabel="hit rate, in tokens", ylim=(0, 1), xticks=shares,
        title="14 prompts, two at a time",
    )  # fmt: skip
    axis.legend()
    plt.show()

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
# The same requests, with ever fewer blocks. **Predict** what happens to the number of computed tokens
# with recompute, and what with swap; and whether any answer changes.

# %%
with needs("05", 2, 3, 4, 5, 6, 7):
    from nanovllm.paging.store import PagedStore

    sizes = [8, 9, 10, 12, 16, 24, 32]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.2))
    same = True
    for kind, color, width in (("recompute", "C1", 4), ("swap", "C0", 1.5)):
        computed, gone = [], []
        for size in sizes:
            answers, events, _ = serve(
                PagedStore(
                    model.config,
                    size,
                    16,
                    preemption=kind,
                    num_host_blocks=64,
                    enable_prefix_caching=False,
                )
            )
            same &= answers == with_cache
            gone.append(sum(isinstance(e, Preempted) for e in events))
            steps = [e for e in events if isinstance(e, Stepped)]
            computed.append(sum(c.length for e in steps for c in e.chunks))
        left.plot(sizes, gone, "o-", color=color, lw=width, label=kind)
        right.plot(sizes, computed, "o-", color=color, lw=width, label=kind)
    left.set(xlabel="blocks in the pool", ylabel="preemptions", title="As often with both")
    right.set(
        xlabel="blocks in the pool", ylabel="tokens computed", ylim=(0, None),
        title="Only recompute pays in tokens",
    )  # fmt: skip
    left.legend()
    figure.tight_layout()
    plt.show()
    print("the same answers everywhere:", same)

# %% nbgrader={"grade": true, "grade_id": "lab05-task-7", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=7
from grader.student.notebook import check_task

check_task("05", 7)

# %% [markdown]
# ## 6. Compaction
#
# A pool after some comings and goings. **Predict** how many blocks move, and how many blocks the pool
# needs afterwards.

# %%
with needs("05", 2, 3, 5, 6, 7, 8):
    from nanovllm.paging.compaction import compact, span
    from nanovllm.paging.manager import BlockManager

    manager = BlockManager(24, 4, enable_prefix_caching=False)
    live = {}
    for number, (name, size) in enumerate((("A", 12), ("B", 30), ("C", 7), ("D", 20), ("E", 9))):
        live[name] = Request(number, SimulatedSequence(number, size, 9), 0.0, size + 8)
        manager.admit(live[name])
    manager.release(live.pop("B"))

    def show(axis: plt.Axes, when: str) -> None:
        """A cell a block: colour and letter of the table that holds it, and its place there."""
        for number, (name, request) in enumerate(live.items()):
            for place, block in enumerate(manager.block_ids(request)):
                axis.bar(block, 1, 0.94, color=f"C{number}", alpha=0.55)
                axis.text(block, 0.5, f"{name}{place}", ha="center", va="center", fontsize=8)
        needed = span(manager)
        axis.axvline(needed - 0.5, color="black", lw=1.2, ls=":")
        axis.set(xlim=(-0.6, 23.6), ylim=(0, 1), yticks=[], xticks=range(24))
        axis.set_title(f"{when}: needs {needed} blocks (dotted)")
        axis.grid(False)

    figure, (before, after) = plt.subplots(2, 1, figsize=(9, 2.6), sharex=True)
    show(before, "before")
    moved = compact(manager)
    show(after, f"after {moved} moves")
    after.set_xlabel("block")
    figure.tight_layout()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab05-task-8", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="05" nanovllm_task=8
from grader.student.notebook import check_task

check_task("05", 8)

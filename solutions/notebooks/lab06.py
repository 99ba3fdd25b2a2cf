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
# # Lab 06: Triton kernels
#
# The handout is `labs/lab06/README.md`, and your code is in `nanovllm/kernels/`. This notebook watches
# your kernels at work. In Triton's interpreter every load and store can be recorded, so the pictures show
# what your code does, and not what it should do. A cell that needs a task you have not written says so:
# write the task, restart the kernel, and run again.
#
# There are three experiments in which you write a function, and places for your guesses. **Guess before
# you run the next cell.**

# %%
import os

os.environ["TRITON_INTERPRET"] = (
    "1"  # accesses are recorded in the interpreter, on a GPU machine too
)

import torch
from torch.nn.functional import silu

from grader.student.notebook import answer
from grader.student.notebook import needs
from grader.student.notebook import plots_of
from grader.student.notebook import predict
from nanovllm.kernels.traffic import torch_bytes, traced

plots = plots_of("06")
torch.set_num_threads(1)
torch.manual_seed(0)

# %% [markdown]
# ## 1. Who adds what
#
# Two vectors of 50 elements, blocks of 16. **Predict** how many numbers your kernel reads. Lanes that are
# masked read nothing.

# %%
predict("06", "a", ...)  # your guess in place of the dots

# %%
with needs("06", 1):
    from nanovllm.kernels.add import add

    x, out = torch.randn(50), torch.zeros(50)
    with traced() as trace:
        add(x, x, out, block=16)
    plots.elements_by_program(trace, out)
    answer("06", "a")

# %% [markdown]
# Softmax as a row of separate operations reads and writes the matrix again and again. How many times
# as many bytes as your kernel?


# %%
def softmax_by_steps(scores):
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


with needs("06", 1):
    from nanovllm.kernels.softmax import softmax

    scores = torch.randn(64, 500)
    with traced() as trace:
        softmax(scores)
    print(f"separate operations {torch_bytes(lambda: softmax_by_steps(scores)):>8,} bytes")
    print(f"your kernel         {trace.nbytes:>8,} bytes")

# %% nbgrader={"grade": true, "grade_id": "lab06-task-1", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=1
from grader.student.notebook import check_task

check_task("06", 1)

# %% [markdown]
# ## 2. Experiment: what fusion saves
#
# The residual add and the RMSNorm, E = 256, bfloat16: once as separate operations of torch, once by your
# kernel. `torch_bytes(function)` counts the bytes that torch's operations in a function read and write;
# `with traced() as trace:` records your kernels, and `trace.nbytes` is their sum.
#
# **Predict** how many times fewer bytes your kernel moves, and whether this depends on the number of
# tokens.

# %%
guess = predict("06", "b", ...)  # your guess in place of the dots


# %% nbgrader={"grade": false, "grade_id": "lab06-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def traffic(tokens: int) -> tuple[int, int]:
    """Bytes of add + RMSNorm on [tokens, 256] bfloat16: by torch's operations, by your kernel."""
    ### BEGIN SOLUTION
    from nanovllm.kernels.rms_norm import fused_add_rms_norm_

    x, residual = torch.randn(2, tokens, 256).bfloat16()
    weight = torch.ones(256).bfloat16()

    def separate():
        total = (x + residual).float()
        mean = total.square().mean(-1, keepdim=True)
        return (total * torch.rsqrt(mean + 1e-6)).bfloat16() * weight

    unfused = torch_bytes(separate)
    with traced() as trace:
        fused_add_rms_norm_(x, residual, weight, 1e-6)
    return unfused, trace.nbytes
    ### END SOLUTION


# %%
with needs("06", 2):
    plots.fused_bytes(traffic, guess)
    answer("06", "b")

# %% nbgrader={"grade": true, "grade_id": "lab06-task-2", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=2
from grader.student.notebook import check_task

check_task("06", 2)

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab06-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** From the picture: what is the least traffic that any program for
# "add + RMSNorm" on 8 tokens of width 256 in bfloat16 can have, and what does your kernel read beyond
# it? Would fusing the norm into the matrix product behind it save more?

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab06-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# - 2 points: x, residual in, both out: 4 x 8 x 256 x 2 = 16,384 bytes, plus the weight once (512).
# - 1 point: the kernel reads the weight once a token (8 x 512 = 4,096); caches hide most of that.
# - 2 points: it would save writing and reading x again (8,192 bytes), but the sum over the row has to
#   be known before the product, so the product would have to wait or rescale its result.
# ### END SOLUTION

# %% [markdown]
# ## 3. A slice of a fused projection
#
# q, k and v of a token lie side by side: 4 query heads, 2 key heads, 2 value heads of 6. **Predict**
# which columns stay white when only q and k are turned. A colour is a program of your grid: whether it
# has a whole token or one head of it is your choice.

# %%
with needs("06", 3):
    from nanovllm.kernels.rope import rope_

    qkv = torch.randn(6, 8, 6)
    with traced() as trace:
        rope_(qkv[:, :4], qkv[:, 4:6], torch.randn(6, 3), torch.randn(6, 3))
    plots.fused_projection(trace, qkv, ["q0", "q1", "q2", "q3", "k0", "k1", "v0", "v1"])

# %% nbgrader={"grade": true, "grade_id": "lab06-task-3", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=3
from grader.student.notebook import check_task

check_task("06", 3)

# %% [markdown]
# ## 4. Work per program
#
# One row of 448 columns, cut by `block`. A GPU wants many programs, so that all its SMs have work; a
# program wants many elements, so that its start-up is worth it. **Predict** the number of programs of
# one row for blocks of 32, 64, 128 and 512. The picture counts programs that wrote into the row, whatever
# the shape of your grid.

# %%
with needs("06", 4):
    from nanovllm.kernels.silu import silu_and_mul

    runs, outs = {}, {block: torch.zeros(2, 448) for block in (32, 64, 128, 512)}
    for block, out in outs.items():
        with traced() as runs[block]:
            silu_and_mul(torch.randn(2, 896), out, block=block)
    plots.row_parts(runs, outs)

# %% [markdown]
# All three small kernels together, on 8 tokens of the bundled model's sizes in bfloat16. **Predict**
# which gains most, and why SiLU gains least.


# %%
def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


with needs("06", 2, 3, 4):
    q, k, angle = (
        torch.randn(8, 8, 32).bfloat16(),
        torch.randn(8, 4, 32).bfloat16(),
        torch.randn(8, 16),
    )
    wide, gate_up = angle[:, None].bfloat16(), torch.randn(8, 1536).bfloat16()
    counts = {"add + RMSNorm": traffic(8)}
    with traced() as trace:
        rope_(q, k, angle, angle)
    counts["RoPE"] = (
        torch_bytes(lambda: (turned(q, wide, wide), turned(k, wide, wide))),
        trace.nbytes,
    )
    with traced() as trace:
        silu_and_mul(gate_up)
    counts["SiLU and multiply"] = (
        torch_bytes(lambda: silu(gate_up[:, :768]) * gate_up[:, 768:]),
        trace.nbytes,
    )
    plots.three_kernels(counts)

# %% nbgrader={"grade": true, "grade_id": "lab06-task-4", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=4
from grader.student.notebook import check_task

check_task("06", 4)

# %% [markdown]
# ## 5. Scattered into blocks
#
# Seven tokens with the slots 9, 10, 11, -1, 2, -1, 17, blocks of 4. **Predict** which cells of the
# cache are written, and with which token's key.

# %%
with needs("06", 5):
    from nanovllm.kernels.store_kv import store_kv

    k, v = torch.randn(2, 7, 2, 8)
    k_cache, v_cache = torch.zeros(2, 6, 4, 2, 8)
    with traced() as trace:
        store_kv(k, v, k_cache, v_cache, torch.tensor([9, 10, 11, -1, 2, -1, 17]))
    plots.cache_by_token(trace, k_cache, k)

# %% nbgrader={"grade": true, "grade_id": "lab06-task-5", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=5
from grader.student.notebook import check_task

check_task("06", 5)

# %% [markdown]
# ## 6. Experiment: online softmax by hand
#
# Before you trust the kernel, write the recurrence of task 6 for one row in plain Python. Your function
# returns the running maximum and the running total after each tile.
#
# **Predict**: where does the total fall? And does the last total depend on the size of the tiles?


# %% nbgrader={"grade": false, "grade_id": "lab06-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def online(scores: torch.Tensor, tile: int) -> list[tuple[float, float]]:
    """(maximum, total) after each tile of `scores`; totals are relative to the maximum so far."""
    ### BEGIN SOLUTION
    maximum, total, line = -torch.inf, 0.0, []
    for part in scores.split(tile):
        larger = max(maximum, float(part.max()))
        shrink = float(torch.tensor(maximum - larger).exp())
        total = total * shrink + float((part - larger).exp().sum())
        maximum = larger
        line.append((maximum, total))
    return line
    ### END SOLUTION


# %%
with needs("06", 6):
    generator = torch.Generator().manual_seed(4)
    rising = torch.randn(96, generator=generator) + torch.linspace(0, 3, 96)
    plots.running_softmax(online, rising)
    want = float((rising - rising.max()).exp().sum())
    print(f"all at once: {want:.4f}; yours by tiles of 8: {online(rising, 8)[-1][1]:.4f}")

# %% [markdown]
# ## 7. Which program touches which block
#
# Three sequences of 7, 21 and 12 tokens, blocks of 4 in random order, two key heads. **Predict** what
# is white: which blocks, and which positions in the last block of a sequence? A colour at the left is the
# sequence that has the block in its table. A colour at the right is a program, numbered within its
# sequence; how many a sequence has is your choice.


# %%
def pages(contexts, heads=4, groups=2, size=4, queries=None):
    """Queries, caches, block tables and lengths of some sequences, their blocks in random order."""
    lens = torch.tensor(contexts).int()
    widths = -(-lens // size)
    tables = torch.zeros(len(contexts), int(widths.max())).int()
    order = torch.randperm(int(widths.sum()) + 4).int().split([*widths.tolist(), 4])
    for row, blocks in zip(tables, order[:-1], strict=True):
        row[: len(blocks)] = blocks
    caches = torch.randn(2, int(widths.sum()) + 4, size, groups, 16)
    return torch.randn(queries or len(contexts), heads, 16), *caches, tables, lens


def positions_read(trace, k_cache, tables, lens):
    """((launch, program), sequence) -> the positions whose keys it read."""
    size, found = k_cache.shape[1], {}
    owner = {int(b): (n, j * size) for n, row in enumerate(tables)
             for j, b in enumerate(row[: -(-int(lens[n]) // size)])}  # fmt: skip
    for access, elements in trace.elements(k_cache):
        for slot in set((elements // k_cache[0, 0].numel()).tolist()):
            sequence, first = owner[slot // size]
            program = access.launch, access.program
            found.setdefault((program, sequence), set()).add(first + slot % size)
    return found


# %%
with needs("06", 6):
    from nanovllm.kernels.paged_decode import paged_decode

    q, k_cache, v_cache, tables, lens = pages([7, 21, 12])
    with traced() as trace:
        paged_decode(q, k_cache, v_cache, tables, lens)
    plots.blocks_by_program(trace, k_cache, tables, lens)
    reads = sum(len(elements) for _, elements in trace.elements(k_cache))
    print(f"{reads:,} numbers of K read; {int(lens.sum()) * 2 * 16:,} are needed")

# %% nbgrader={"grade": true, "grade_id": "lab06-task-6", "locked": true, "points": 22, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=6
from grader.student.notebook import check_task

check_task("06", 6)

# %% [markdown]
# ## 8. A long context beside a short one
#
# One sequence of 400 tokens and one of 60, one key head. Each bar is a program; the number beside it
# says how many keys it read. **Predict** how many of the programs read nothing with 4 splits.

# %%
with needs("06", 6, 7):
    from nanovllm.kernels.split_decode import choose_splits, split_decode

    q, k_cache, v_cache, tables, lens = pages([400, 60], heads=2, groups=1, size=16)
    reads = {}
    for splits in (1, 2, 4):
        with traced() as trace:
            split_decode(q, k_cache, v_cache, tables, lens, splits)
        reads[splits] = positions_read(trace, k_cache, tables, lens)
    plots.parts_of_contexts(reads, [400, 60])

# %% [markdown]
# ## 9. Experiment: how many splits fill a GPU?
#
# An H100 has 132 SMs. Say that each SM runs one program at a time, and that reading one key takes one
# unit of time. With `users` sequences of 8,192 keys and 8 key heads there are `users * 8 * splits`
# programs. They run in waves of 132, and each reads 8,192 / splits keys.
#
# **Predict** (c): into how many parts your `choose_splits` cuts one user's context, in a model with 4 key
# heads. And is more always better? In the picture, dashed: all 132 SMs busy from start to end; both axes
# are logarithmic.

# %%
predict("06", "c", ...)  # your guess in place of the dots


# %% nbgrader={"grade": false, "grade_id": "lab06-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def step_time(users: int, splits: int) -> float:
    """Keys that are read one after another in a decode step: waves times keys of a program."""
    ### BEGIN SOLUTION
    programs = users * 8 * splits
    waves = -(-programs // 132)
    return waves * 8192 / splits
    ### END SOLUTION


# %%
with needs("06", 7):
    from nanovllm.kernels.split_decode import choose_splits

    plots.explore(step_time)
    answer("06", "c")
    for users in (1, 8, 64):
        splits = choose_splits(users * 8, 132, 8192, 64)
        print(f"{users:>3} users: {splits:>2} splits, {users * 8 * splits} programs for 132 SMs")

# %% [markdown]
# Look at 16 and 17 splits for one user: 128 programs are one wave, 136 are two. What would you change in
# `choose_splits` if this model were all that counts, and what does the model leave out?

# %% nbgrader={"grade": true, "grade_id": "lab06-task-7", "locked": true, "points": 18, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=7
from grader.student.notebook import check_task

check_task("06", 7)

# %% [markdown]
# ## 10. What a causal kernel skips
#
# A prompt of 320 tokens, one head; then the same with a window of 80. Each row is a program; a dark cell
# is a key that it read. **Predict** how many keys are loaded for each query of a prompt of 400, on
# average.

# %%
predict("06", "d", ...)  # your guess in place of the dots

# %%
with needs("06", 6, 8):
    from nanovllm.kernels.paged_prefill import paged_prefill

    reads, starts = {}, torch.tensor([0, 320]).int()
    q, k_cache, v_cache, tables, lens = pages([320], heads=1, groups=1, size=16, queries=320)
    for window in (None, 80):
        with traced() as trace:
            paged_prefill(q, k_cache, v_cache, tables, lens, starts, 320, window=window)
        reads[f"window {window}"] = positions_read(trace, k_cache, tables, lens)
    plots.causal(reads, 320)
    answer("06", "d")

# %% nbgrader={"grade": true, "grade_id": "lab06-task-8", "locked": true, "points": 16, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=8
from grader.student.notebook import check_task

check_task("06", 8)

# %% [markdown]
# ## 11. Bandwidth against size
#
# A kernel that moves n bytes takes at least n / bandwidth, and a launch costs some microseconds whatever
# n is. The curves are this model with the H100's data sheet and 5 microseconds a launch; they are not
# measured. **Predict** from how many bytes on a kernel reaches half of the bandwidth. Grey: the same work
# as eight separate kernels.

# %%
plots.bandwidth()

# %% [markdown]
# ## 12. Your engine
#
# The bundled model; K and V are stored and attended to by your kernels, one numpy call at a time. Is the
# text the same to the letter?

# %%
with needs("06", 5, 6, 7, 8):
    from grader.course.paths import MODELS
    from nanovllm import LLM, SamplingParams

    for backend in ("torch", "triton"):
        os.environ["NANOVLLM_ATTENTION"] = backend
        llm = LLM(MODELS / "target", enforce_eager=True)
        params = SamplingParams(temperature=0, max_tokens=8)
        done = llm.generate(["Mia's code is 7342. What is Mia's code?"], params)
        print(f"{backend:<7}{done[0].outputs[0].text!r}")
    print("(in Triton's interpreter: not verified on a GPU)")

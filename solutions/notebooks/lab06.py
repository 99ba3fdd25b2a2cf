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
# The handout is `labs/lab06/README.md`; your code is in `nanovllm/kernels/`. This notebook watches your
# kernels at work: in Triton's interpreter every load and store can be written down, so the pictures
# below show what your code does, not what it should do. A cell that needs a task you have not written
# says so: write the task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.**

# %%
import os

os.environ["TRITON_INTERPRET"] = "1"  # the pictures are of recorded accesses, also on a GPU machine

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from torch.nn.functional import silu

from grader.student.notebook import COLOURS
from grader.student.notebook import needs
from grader.student.notebook import style
from grader.course.paths import MODELS
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.offline import generate_continuous
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.roofline import H100
from nanovllm.kernels.add import add
from nanovllm.kernels.attention import TritonPagedCache, triton_paged_attention
from nanovllm.kernels.paged_decode import paged_decode
from nanovllm.kernels.paged_prefill import paged_prefill
from nanovllm.kernels.rms_norm import fused_add_rms_norm_
from nanovllm.kernels.rope import rope_
from nanovllm.kernels.silu import silu_and_mul
from nanovllm.kernels.softmax import softmax
from nanovllm.kernels.split_decode import choose_splits, split_decode
from nanovllm.kernels.store_kv import store_kv
from nanovllm.kernels.traffic import torch_bytes, traced
from nanovllm.model.loader import load_model
from nanovllm.model.norms import rms_norm
from nanovllm.model.rope import apply_rope
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.store import PagedStore
from nanovllm.tokenization.tokenizer import Tokenizer

torch.set_num_threads(1)
torch.manual_seed(0)
style(grid=False)


def owners(trace, tensor, number, stores=False):
    """For each element of a tensor the program that touched it: number(program), -1 for nobody."""
    found = np.full(tensor.numel(), -1)
    for access, elements in trace.elements(tensor):
        if access.is_store == stores:
            found[elements] = number(access.program)
    return found.reshape(tensor.shape)


def show_owners(axis, found, title, name):
    """A map of who touched what, with a legend: `name` and a number; white: nobody."""
    axis.imshow(np.ma.masked_less(found, 0), aspect="auto", cmap=ListedColormap(COLOURS),
                vmin=-0.5, vmax=len(COLOURS) - 0.5, interpolation="nearest")  # fmt: skip
    entries = [Patch(color=f"C{n}", label=f"{name} {n}") for n in np.unique(found[found >= 0])]
    axis.legend(handles=entries, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axis.set_title(title, fontsize=9)
    axis.set_facecolor("white")


# %% [markdown]
# ## 1. Who adds what
#
# 50 elements, blocks of 16. **Predict** the number of programs, and how many lanes of the last one are
# idle.

# %%
with needs("06", 1):
    x, out = torch.randn(50), torch.zeros(50)
    with traced() as trace:
        add(x, x, out, block=16)
    figure, axis = plt.subplots(figsize=(9, 0.9))
    found = owners(trace, out, lambda p: p[0], stores=True)
    show_owners(axis, found[None], "who stored which element of out", "program")
    axis.set(yticks=[], xlabel="element")
    plt.show()
    programs = 1 + max(access.program[0] for access in trace.accesses)
    print(f"{programs} programs, {16 * programs - 50} idle lanes in the last")
    print(f"{trace.bytes_read} bytes read, {trace.bytes_written} written")

# %% [markdown]
# Softmax as a row of separate operations reads and writes the matrix again and again. **Predict** how
# many times as many bytes as your kernel.

# %%
with needs("06", 1):
    scores = torch.randn(64, 500)

    def by_steps():
        shifted = scores - scores.amax(-1, keepdim=True)
        weights = shifted.exp()
        return weights / weights.sum(-1, keepdim=True)

    with traced() as trace:
        softmax(scores)
    print(f"separate operations {torch_bytes(by_steps):>8,} bytes")
    print(f"your kernel         {trace.nbytes:>8,} bytes")

# %% nbgrader={"grade": true, "grade_id": "lab06-task-1", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=1
from grader.student.notebook import check_task

check_task("06", 1)

# %% [markdown]
# ## 2. Fusing saves memory traffic
#
# One layer's small operations on 8 tokens of the bundled model's sizes (E 256, H 8, G 4, D 32, I 768),
# in bfloat16. torch's bytes are those of every operation's inputs and outputs. **Predict** which of the
# three gains most, and why SiLU gains least.

# %%
with needs("06", 2, 3, 4):
    def half(*shape):
        return torch.randn(shape).to(torch.bfloat16)

    hidden, residual, weight = half(8, 256), half(8, 256), half(256)
    q, k, angle = half(8, 8, 32), half(8, 4, 32), torch.randn(8, 16)
    gate_up = half(8, 1536)
    cases = {
        "add + RMSNorm": (
            lambda: rms_norm(hidden + residual, weight, 1e-6),
            lambda: fused_add_rms_norm_(hidden, residual, weight, 1e-6),
        ),
        "RoPE": (
            lambda: (apply_rope(q, angle, angle), apply_rope(k, angle, angle)),
            lambda: rope_(q, k, angle, angle),
        ),
        "SiLU and multiply": (
            lambda: silu(gate_up[:, :768]) * gate_up[:, 768:],
            lambda: silu_and_mul(gate_up),
        ),
    }
    unfused = [torch_bytes(by_torch) for by_torch, _ in cases.values()]
    fused = []
    for _, by_kernel in cases.values():
        with traced() as trace:
            by_kernel()
        fused.append(trace.nbytes)
    figure, axis = plt.subplots(figsize=(7, 2.8))
    rows = np.arange(len(cases))
    axis.barh(rows - 0.2, np.array(unfused) / 1024, 0.38, color="gray", label="torch, by steps")
    axis.barh(rows + 0.2, np.array(fused) / 1024, 0.38, color="C2", label="your kernel")
    for row, (a, b) in enumerate(zip(unfused, fused, strict=True)):
        axis.text(a / 1024 + 0.5, row - 0.2, f"{a:,}", va="center", fontsize=8)
        axis.text(
            b / 1024 + 0.5, row + 0.2, f"{b:,}   {a / b:.1f} times fewer", va="center", fontsize=8
        )
    axis.set_yticks(rows, cases)
    axis.invert_yaxis()
    axis.set(xlabel="KiB read and written", xlim=(0, 1.25 * max(unfused) / 1024))
    axis.legend(loc="lower right")
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab06-task-2", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=2
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
# q, k and v of a token lie side by side: [T, H + 2G, D] with H 4, G 2, D 6. **Predict** which columns
# stay white when only q and k are turned.

# %%
with needs("06", 3):
    fused_qkv = torch.randn(6, 8, 6)
    with traced() as trace:
        rope_(fused_qkv[:, :4], fused_qkv[:, 4:6], torch.randn(6, 3), torch.randn(6, 3))
    found = owners(trace, fused_qkv, lambda p: p[0], stores=True).reshape(6, 48)
    figure, axis = plt.subplots(figsize=(8, 1.8))
    show_owners(axis, found, "stored by which program", "program")
    axis.set(xlabel="element of the token: q (0-23), k (24-35), v (36-47)", ylabel="token")
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab06-task-3", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=3
from grader.student.notebook import check_task

check_task("06", 3)

# %% nbgrader={"grade": true, "grade_id": "lab06-task-4", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=4
from grader.student.notebook import check_task

check_task("06", 4)

# %% [markdown]
# ## 4. Slots
#
# Seven tokens, slots 9, 10, 11, -1, 2, -1, 17; blocks of 4. **Predict** how many of the 24 rows of the
# cache are written.

# %%
with needs("06", 5):
    k, v = torch.randn(2, 7, 2, 8)
    k_cache, v_cache = torch.zeros(2, 6, 4, 2, 8)
    slots = torch.tensor([9, 10, 11, -1, 2, -1, 17])
    with traced() as trace:
        store_kv(k, v, k_cache, v_cache, slots)
    figure, axis = plt.subplots(figsize=(5, 2.4))
    found = owners(trace, k_cache, lambda p: p[0], stores=True)[..., 0, 0]
    show_owners(axis, found.T, "the key cache: written by which token", "token")
    axis.set(xlabel="block", ylabel="position")
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab06-task-5", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=5
from grader.student.notebook import check_task

check_task("06", 5)

# %% [markdown]
# ## 5. Online softmax, tile by tile
#
# The running maximum and the running total of one query over 96 keys, in tiles of 8. The total is
# rescaled whenever the maximum moves. **Predict** where the total drops.

# %%
scores = torch.randn(96, generator=torch.Generator().manual_seed(4)) * 2 + torch.linspace(0, 3, 96)
maximum, total, line = -torch.inf, 0.0, []
for tile in scores.split(8):
    larger = max(maximum, float(tile.max()))
    total = total * float(np.exp2(maximum - larger)) + float(torch.exp2(tile - larger).sum())
    maximum = larger
    line.append((maximum, total))
figure, axis = plt.subplots(figsize=(7, 2.6))
axis.step(range(12), [m for m, _ in line], where="mid", color="C1", label="maximum")
axis.plot(range(12), [t for _, t in line], "o-", color="C0", label="total, relative to it")
axis.set(xlabel="tile", ylabel="value", title="What online_softmax carries from tile to tile")
axis.legend()
plt.show()

# %% [markdown]
# ## 6. Which program touches which block
#
# Three sequences of 7, 21 and 12 tokens, blocks of 4 in random order, two key heads. Left: the
# key cache, coloured by sequence, white where nobody read. **Predict** what is white.


# %%
def pages(contexts, lengths=None, heads=4, groups=2, dim=16, size=4, seed=1):
    """q, both caches, block tables, contexts and starts of a random batch."""
    lengths = lengths or [1] * len(contexts)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed)).int()
    widths = [-(-context // size) for context in contexts]
    tables = torch.zeros(len(contexts), max(widths), dtype=torch.int32)
    for row, width, end in zip(tables, widths, np.cumsum(widths), strict=True):
        row[:width] = order[end - width : end]
    q, caches = torch.randn(sum(lengths), heads, dim), torch.randn(2, 20, size, groups, dim)
    starts = torch.tensor([0, *np.cumsum(lengths)]).int()
    return q, *caches, tables, torch.tensor(contexts).int(), starts


with needs("06", 6):
    q, k_cache, v_cache, tables, contexts, _ = pages([7, 21, 12])
    with traced() as trace:
        paged_decode(q, k_cache, v_cache, tables, contexts, tile=16)
    by_sequence = owners(trace, k_cache, lambda p: p[0])[..., 0, 0]
    by_head = owners(trace, k_cache, lambda p: p[1])[:, 0, :, 0]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 2.4), width_ratios=(2, 1))
    show_owners(left, by_sequence.T, "key cache, head 0: read by which sequence", "sequence")
    left.set(xlabel="block", ylabel="position in the block", xticks=range(20))
    show_owners(right, by_head.T, "position 0: read by which key head's program", "head")
    right.set(xlabel="block", ylabel="key head", yticks=(0, 1))
    figure.tight_layout()
    plt.show()
    reads = sum(len(elements) for _, elements in trace.elements(k_cache))
    needed = int(contexts.sum()) * 2 * 16
    print(f"{reads:,} elements of K read, {needed:,} needed: each one once, for both query heads")

# %% nbgrader={"grade": true, "grade_id": "lab06-task-6", "locked": true, "points": 18, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=6
from grader.student.notebook import check_task

check_task("06", 6)

# %% [markdown]
# ## 7. Splitting a long context
#
# One sequence of 40 tokens and one of 6, one key head. Rows are programs; a dark cell is a position that
# the program read. **Predict** how many of the programs of the last picture read nothing.

# %%
with needs("06", 6, 7):
    q, k_cache, v_cache, tables, contexts, _ = pages([40, 6], heads=2, groups=1)
    figure, axes = plt.subplots(1, 3, figsize=(11, 2.4))
    for axis, splits in zip(axes, (1, 2, 3), strict=True):
        with traced() as trace:
            split_decode(q, k_cache, v_cache, tables, contexts, splits, tile=16)
        read = np.zeros((2 * splits, 40))
        place_of = {int(b) * 4 + i: (n, j * 4 + i) for n, row in enumerate(tables)
                    for j, b in enumerate(row[: -(-int(contexts[n]) // 4)]) for i in range(4)}  # fmt: skip
        for access, elements in trace.elements(k_cache):
            for slot in set((elements // 16).tolist()):
                sequence, position = place_of[slot]
                read[sequence * splits + access.program[2], position] = 1 + sequence
        axis.imshow(read, aspect="auto", cmap="Blues", vmax=2.5, interpolation="nearest")
        labels = [f"sequence {n}, split {s}" for n in range(2) for s in range(splits)]
        axis.set_yticks(range(2 * splits), labels, fontsize=7)
        axis.set(xlabel="position", title=f"{splits} split{'s' if splits > 1 else ''}")
    figure.tight_layout()
    plt.show()
    for batch in (1, 8, 64, 256):
        splits = choose_splits(batch * 8, 132, 8192, 64)
        print(f"batch {batch:>3}, 8 key heads, 8,192 tokens: {batch * 8 * splits:>5} programs "
              f"for 132 processors ({splits} splits)")  # fmt: skip

# %% nbgrader={"grade": true, "grade_id": "lab06-task-7", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=7
from grader.student.notebook import check_task

check_task("06", 7)

# %% [markdown]
# ## 8. What a causal kernel skips
#
# A chunk of 48 queries behind 16 cached tokens, 16 queries a program, tiles of 16 keys; then the same
# with a window of 20. A cell is dark where a program read the key. **Predict** the share of the 3 x 64
# cells that is white in each.

# %%
with needs("06", 6, 8):
    figure, axes = plt.subplots(1, 2, figsize=(9, 1.9))
    for axis, window in zip(axes, (None, 20), strict=True):
        q, k_cache, v_cache, tables, contexts, starts = pages([64], [48], heads=1, groups=1)
        with traced() as trace:
            paged_prefill(
                q, k_cache, v_cache, tables, contexts, starts, 48, window=window, rows=16, tile=16
            )
        read = np.zeros((3, 64))
        position_of = {int(b) * 4 + i: j * 4 + i for j, b in enumerate(tables[0]) for i in range(4)}
        for access, elements in trace.elements(k_cache):
            for slot in set((elements // 16).tolist()):
                read[access.program[0], position_of[slot]] = 1
        axis.imshow(read, aspect="auto", cmap="Blues", vmax=1.5, interpolation="nearest")
        axis.set(xlabel="key position", ylabel="program", yticks=range(3))
        axis.set_title(f"window {window}: {1 - read.mean():.0%} never read", fontsize=9)
    figure.tight_layout()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab06-task-8", "locked": true, "points": 16, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="06" nanovllm_task=8
from grader.student.notebook import check_task

check_task("06", 8)

# %% [markdown]
# ## 9. Bandwidth against size
#
# A kernel that moves n bytes takes at least n / bandwidth, and a launch costs some microseconds
# whatever n is. The curve is that model with the H100's data sheet and 5 microseconds a launch, not a
# measurement. **Predict** from how many bytes on an add reaches half of the bandwidth.

# %%
sizes = np.logspace(3, 9.5, 60)
overhead = 5e-6
seconds = overhead + sizes / H100.bytes_per_second
figure, axis = plt.subplots(figsize=(6.5, 2.8))
axis.plot(sizes, sizes / seconds / H100.bytes_per_second, color="C0", label="one launch")
axis.plot(sizes, sizes / (8 * overhead + sizes * 4 / H100.bytes_per_second) / H100.bytes_per_second,
          color="gray", label="8 operations that move 4 times the bytes")  # fmt: skip
axis.axvline(overhead * H100.bytes_per_second, color="black", lw=0.8, ls=":")
axis.set(xscale="log", xlabel="bytes that have to move", ylabel="share of bandwidth that is of use")
axis.set_title("A model: small kernels wait for their launch")
axis.legend()
plt.show()

# %% [markdown]
# ## 10. Your engine
#
# The bundled model, K and V stored and attended to by your kernels, one numpy call at a time.
# **Predict** whether the text is the same to the letter.

# %%
with needs("06", 5, 6, 7, 8):
    model = load_model(MODELS / "target")
    tokenizer = Tokenizer.from_pretrained(MODELS / "target")
    prompt = tokenizer.encode("Mia's code is 7342. What is Mia's code?")
    for name, options in (
        ("torch  ", {"attention": paged_attention}),
        ("kernels", {"attention": triton_paged_attention,
                     "cache": TritonPagedCache(model.config, 8)}),
    ):  # fmt: skip
        store = PagedStore(model.config, 8, **options)
        params = SamplingParams(temperature=0, max_tokens=6)
        done = generate_continuous(
            model, [prompt], params, EngineConfig(max_num_seqs=1), tokenizer=tokenizer, store=store
        )
        print(f"{name}  {done.completions[0][0].text!r}")
    print("(in Triton's interpreter: not verified on a GPU)")

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
# # Lab 02: KV cache
#
# The handout is `labs/lab02/README.md`; your code is in `nanovllm/model/`. This notebook draws what
# you build there, on the bundled model. A cell that needs a task you have not written says so: write
# the task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.**

# %%
import time

import matplotlib.pyplot as plt
import tokenizers
import torch

from grader.notebook import needs, style
from grader.paths import MODELS
from nanovllm.model.accounting import (
    generation_flops,
    kv_bytes_per_token,
    matmul_parameters,
    tokens_computed,
)
from nanovllm.model.attention import RecomputeAttend, causal_mask, masked_softmax
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import load_model
from nanovllm.model.norms import rms_norm
from nanovllm.model.rope import apply_rope, inverse_frequencies, rotation_angles

torch.set_num_threads(1)
style()
model = load_model(MODELS / "target")
tokenizer = tokenizers.Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))
model.config

# %% [markdown]
# ## 1. Norms
#
# **Predict.** A token's vector is multiplied by 1000 before RMSNorm. What happens to the result?

# %%
with needs("02", 1):
    x = torch.tensor([[0.3, -0.1, 0.8, 0.2]])
    for factor in (1, 1000, 1e-3):
        print(f"x * {factor:<6}", rms_norm(factor * x, torch.ones(4), eps=1e-6))

# %% nbgrader={"grade": true, "grade_id": "lab02-task-1", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=1
from grader.notebook import check_task

check_task("02", 1)

# %% [markdown]
# ## 2. RoPE
#
# **Predict.** The same query and the same key stand at positions 10 and 7, then at 1010 and 1007.
# In which of the two cases is their score larger?

# %%
with needs("02", 2):
    head_dim = 64
    frequencies = inverse_frequencies(head_dim, theta=10_000.0)
    ones = torch.ones(1, 1, head_dim)

    def turned(position):
        """A head of ones, turned to a position."""
        return apply_rope(ones, *rotation_angles(torch.tensor([position]), frequencies))[0, 0]

    for a, b in ((10, 7), (1010, 1007)):
        print(f"positions {a} and {b}: score {turned(a) @ turned(b):.3f}")

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    positions = torch.arange(0, 200)
    cos, _ = rotation_angles(positions, frequencies)
    for pair in (0, 8, 16, 24):
        left.plot(positions, cos[:, pair], label=f"pair {pair}")
    left.set(xlabel="position", ylabel="cosine of the angle", title="Fast pairs and slow pairs")
    left.legend(loc="lower right", ncols=2, fontsize=7)
    scores = [float(turned(0) @ turned(int(distance))) for distance in positions]
    right.plot(positions, scores, color="C1")
    right.set(xlabel="distance of query and key", ylabel="score of equal vectors")
    right.set_title("The score depends on the distance alone")
    figure.tight_layout()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab02-task-2", "locked": true, "points": 15, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=2
from grader.notebook import check_task

check_task("02", 2)

# %% [markdown]
# ## 3. Attention
#
# **Predict.** Three new tokens attend over eight. How many squares of the mask are dark?

# %%
with needs("02", 3):
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8))
    for axis, (queries, keys, window) in zip(
        axes, ((8, 8, None), (3, 8, None), (8, 8, 3)), strict=True
    ):
        mask = causal_mask(queries, keys, window=window)
        axis.imshow(mask, cmap="Blues", vmin=0, vmax=1.4, aspect="equal")
        title = f"causal_mask({queries}, {keys}" + (f", window={window})" if window else ")")
        axis.set(xlabel="key", ylabel="query")
        axis.set_title(f"{title}\n{int(mask.sum())} pairs", fontsize=9)
        axis.set(xticks=range(keys), yticks=range(queries))
        axis.grid(False)
    figure.tight_layout()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab02-task-3", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=3
from grader.notebook import check_task

check_task("02", 3)

# %% nbgrader={"grade": true, "grade_id": "lab02-task-4", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=4
from grader.notebook import check_task

check_task("02", 4)

# %% nbgrader={"grade": true, "grade_id": "lab02-task-5", "locked": true, "points": 15, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=5
from grader.notebook import check_task

check_task("02", 5)

# %% [markdown]
# ## 4. What the bundled model looks at
#
# `attend` is the seam between the model and its memory, so it is also the place to look in: the one
# below answers as `RecomputeAttend` does and keeps the weights of every layer.
#
# **Predict.** The text ends with the word "red". Which earlier words will the model look at to find
# out what follows?

# %%
class WatchingAttend(RecomputeAttend):
    """Attention without a cache that keeps each layer's weights [H, T, T]."""

    def __init__(self, config):
        super().__init__(config)
        self.weights = []

    def __call__(self, layer, q, k, v):
        keys = k.repeat_interleave(self.config.group_size, dim=1)
        scores = torch.einsum("thd,shd->hts", q, keys) * self.config.head_dim**-0.5
        self.weights.append(masked_softmax(scores, causal_mask(len(q), len(k))))
        return super().__call__(layer, q, k, v)


with needs("02", 1, 2, 3, 4, 5):
    text = "Mia has a red ball. Tom has a blue kite. Mia plays with the red"
    encoding = tokenizer.encode(text)
    words = [tokenizer.decode([i]) for i in encoding.ids]
    watching = WatchingAttend(model.config)
    hidden = model(torch.tensor(encoding.ids), torch.arange(len(words)), watching)
    best = model.logits(hidden[-1:]).topk(3).indices[0].tolist()
    print(text, "->", [tokenizer.decode([token]) for token in best])

    weights = torch.stack(watching.weights)  # [L, H, T, T]
    # The two heads whose last row looks back most at single words that are neither first nor last.
    peaks = weights[:, :, -1, 1:-1].amax(-1)
    chosen = [divmod(int(i), weights.shape[1]) for i in peaks.flatten().topk(2).indices]
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 4.4))
    pictures = [("mean of all layers and heads", weights.mean((0, 1)))]
    pictures += [(f"layer {layer}, head {head}", weights[layer, head]) for layer, head in chosen]
    for axis, (title, picture) in zip(axes, pictures, strict=True):
        axis.imshow(picture, cmap="magma", vmin=0, vmax=float(picture[1:, 1:].max()))
        axis.set_xticks(range(len(words)), words, rotation=90, fontsize=7)
        axis.set_yticks(range(len(words)), words, fontsize=7)
        axis.set(title=title, xlabel="looked at")
        axis.grid(False)
    axes[0].set_ylabel("looking")
    figure.tight_layout()
    plt.show()

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab02-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** Choose one head of the picture above. Say what it looks at, and
# explain why the part of the picture right of the diagonal is black. Then explain why the K and V of
# an early token may be kept while later tokens arrive: which property of that black part makes it
# right?

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab02-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# - 2 points: describes a pattern that is there (itself, the token before, the first token, an
#   earlier use of the same word).
# - 1 point: black because the mask is causal.
# - 2 points: a token's hidden state in every layer depends on itself and earlier tokens alone, so
#   later tokens cannot change its K and V; they may be stored.
# ### END SOLUTION

# %% [markdown]
# ## 5. With and without a cache
#
# **Predict.** One prompt of 4 tokens, then 128 new ones. How many tokens pass the model without a
# cache, and how many with one?

# %%
with needs("02", 7):
    for cached in (False, True):
        count = tokens_computed(prompt=4, generated=128, cached=cached)
        print(f"{'with' if cached else 'without'} a cache: {count:,} tokens")

    lengths = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    llama = ModelConfig("llama", 128_256, 4096, 32, 32, 8, 128, 14_336, 131_072)
    figure, axis = plt.subplots(figsize=(6, 3.6))
    for cached, color in ((False, "C1"), (True, "C0")):
        flops = [generation_flops(llama, 128, n, cached) for n in lengths]
        name = "with a cache" if cached else "without a cache"
        axis.loglog(lengths, flops, "o-", ms=3, color=color, label=name)
        axis.annotate(f"{flops[-1]:.1e}", (lengths[-1], flops[-1]), xytext=(4, 0),
                      textcoords="offset points", va="center", color=color)  # fmt: skip
    axis.set(xlabel="tokens generated after a prompt of 128", ylabel="operations",
             title="Llama-3.1-8B: operations of a whole generation")  # fmt: skip
    axis.set_xlim(right=16_000)
    axis.legend()
    plt.show()

# %% [markdown]
# Now measured on your own engine. **Predict** the shape of both curves before you run it.

# %%
def seconds_of_steps(step, prompt, count):
    """How long each greedy step takes as the sequence grows."""
    tokens, seconds = list(prompt), []
    while len(seconds) < count:
        start = time.perf_counter()
        hidden = step(torch.tensor(tokens))
        tokens.append(int(model.logits(hidden[-1:]).argmax()))
        seconds.append(time.perf_counter() - start)
    return torch.tensor(seconds)


with needs("02", 1, 2, 3, 4, 5, 6):
    prompt, count = tokenizer.encode("Once upon a time").ids, 144
    attend = RecomputeAttend(model.config)
    cache = ContiguousCache(model.config, capacity=len(prompt) + count)
    forward_cached(model, cache, torch.tensor(prompt))  # warm up
    cache.reset()
    cached = seconds_of_steps(
        lambda ids: forward_cached(model, cache, ids[cache.length :]), prompt, count
    )
    plain = seconds_of_steps(lambda ids: model(ids, torch.arange(len(ids)), attend), prompt, count)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(2, 1))
    for seconds, name, color in (
        (plain, "without a cache", "C1"),
        (cached, "with a cache", "C0"),
    ):
        calm = seconds.unfold(0, 9, 1).median(-1).values  # other programs disturb single steps
        left.plot(1000 * calm, color=color, label=name)
    left.set(xlabel="tokens generated", ylabel="ms for one more", ylim=(0, None))
    left.set_title("Time of a step (median of nine)")
    left.legend()
    rates = [float(count / seconds.sum()) for seconds in (plain, cached)]
    drawn = right.bar(["without", "with"], rates, color=["C1", "C0"])
    right.bar_label(drawn, fmt="%.0f")
    right.set(ylabel="tokens/s", title=f"{count} tokens, one thread")
    right.grid(axis="x")
    figure.tight_layout()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab02-task-6", "locked": true, "points": 18, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=6
from grader.notebook import check_task

check_task("02", 6)

# %% [markdown]
# ## 6. Breaking it on purpose
#
# **Predict.** The cache is right, but each new token is told that it stands one position too late.
# Does the text change at once, later, or not at all?

# %%
def continue_text(prompt, count, shift):
    """Greedy text whose decode steps are told positions that are `shift` too high."""
    ids, tokens = tokenizer.encode(prompt).ids, []
    cache = ContiguousCache(model.config, capacity=len(ids) + count)
    hidden = forward_cached(model, cache, torch.tensor(ids))
    while len(tokens) < count:
        tokens.append(int(model.logits(hidden[-1:]).argmax()))
        position = torch.tensor([cache.length + shift])
        hidden = model(torch.tensor(tokens[-1:]), position, cache.attend)
        cache.advance(1)
    return tokenizer.decode(tokens)


with needs("02", 1, 2, 3, 4, 5, 6):
    for shift in (0, 1, 8, 64):
        text = continue_text("Once upon a time, there was a", 40, shift)
        print(f"shift {shift:>2}: {text!r}")

# %% [markdown]
# RoPE sees distances. New tokens that are all shifted alike keep their distances to one another; only
# those to the prompt are wrong, by the shift. So a small error leaves the text fluent and is easy to
# miss: the checks compare logits, never text. Which words of the text go wrong first?
#
# ## 7. What the cache costs
#
# **Predict.** Llama-2-70B has ten times the weights of Llama-2-7B. Which of them needs more cache
# for one token?

# %%
REAL = {  # family, V, E, L, H, G, D, intermediate size, positions
    "Llama-2-7B": ModelConfig("llama", 32_000, 4096, 32, 32, 32, 128, 11_008, 4096),
    "Llama-2-70B": ModelConfig("llama", 32_000, 8192, 80, 64, 8, 128, 28_672, 4096),
    "Llama-3.1-8B": ModelConfig("llama", 128_256, 4096, 32, 32, 8, 128, 14_336, 131_072),
    "Qwen3-0.6B": ModelConfig("qwen3", 151_936, 1024, 28, 16, 8, 128, 3072, 40_960),
    "GPT-2": ModelConfig("gpt2", 50_257, 768, 12, 12, 12, 64, 3072, 1024),
    "bundled model": model.config,
}
with needs("02", 7):
    sizes = {name: kv_bytes_per_token(config) for name, config in REAL.items()}
    print("                bytes of cache for a token    as much as the layers' weights at")
    for name, config in REAL.items():
        size = sizes[name]
        even = 2 * matmul_parameters(config) // size
        print(f"{name:<15} {size:>10,} = {size / 1024:>5.0f} KiB {even:>26,} tokens")
    figure, axis = plt.subplots(figsize=(7, 4))
    tokens = [2**i for i in range(7, 18)]
    for name, config in REAL.items():
        gib = [n * kv_bytes_per_token(config) / 2**30 for n in tokens]
        shown = [(n, g) for n, g in zip(tokens, gib, strict=True) if n <= config.max_position]
        (line,) = axis.loglog(*zip(*shown, strict=True), label=name)
        axis.loglog(tokens, gib, ":", lw=0.8, color=line.get_color())
    axis.axhline(80, color="black", lw=0.8)
    axis.annotate("80 GiB: a large GPU, all of it", (130, 90), va="bottom")
    axis.set(xlabel="tokens kept, all requests together", ylabel="GiB of K and V in 2 bytes",
             ylim=(1e-4, 400), title="Solid: within one sequence's limit")  # fmt: skip
    axis.legend(fontsize=7, loc="lower right")
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab02-task-7", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=7
from grader.notebook import check_task

check_task("02", 7)

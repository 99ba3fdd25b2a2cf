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
# The handout is `labs/lab02/README.md`; your code is in `nanovllm/model/`. Here you run experiments
# on what you build there. A cell that needs a task you have not written says so: write the task,
# restart the kernel, run again.
#
# **Where you read "Predict", guess first.** Write the number in place of `...` and run the cell.
# `answer` then compares it with your own code, once the task passes. Three cells wait for a function
# of yours; the cell after each of them draws it.

# %%
from functools import cache

import tokenizers
import torch

from grader.student.notebook import answer
from grader.student.notebook import movable
from grader.student.notebook import needs
from grader.student.notebook import plots_of
from grader.student.notebook import predict
from grader.course.paths import MODELS
from nanovllm.model.config import ModelConfig

torch.set_num_threads(1)
plots = plots_of("02")
tokenizer = tokenizers.Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))


@cache
def bundled():
    """The bundled model, in your code."""
    from nanovllm.model.loader import load_model

    return load_model(MODELS / "target")


# %% [markdown]
# ## 1. Norms
#
# **Predict.** A token's vector is multiplied by 1000 before RMSNorm. What happens to the result? And
# if it is multiplied by 0.001?

# %%
with needs("02", 1):
    from nanovllm.model.norms import rms_norm

    x = torch.tensor([[0.3, -0.1, 0.8, 0.2]])
    for factor in (1, 1000, 1e-3):
        print(f"x * {factor:<6}", rms_norm(factor * x, torch.ones(4), eps=1e-6))

# %% nbgrader={"grade": true, "grade_id": "lab02-task-1", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=1
from grader.student.notebook import check_task

check_task("02", 1)

# %% [markdown]
# Why is the last line smaller than the others? Look for the eps.
#
# ## 2. RoPE
#
# **Predict.** A head of 64 numbers has 32 pairs. Over 200 positions, how many turns does pair 0 make?
# And does pair 24 make even one?

# %%
with needs("02", 2):
    from nanovllm.model.rope import apply_rope, inverse_frequencies, rotation_angles

    plots.frequencies(rotation_angles, inverse_frequencies(64, theta=10_000.0))

# %% [markdown]
# The same vector is used as query and as key. Their score depends on the distance alone.
#
# **Predict.** With a larger theta, does the score fall faster or more slowly with the distance? Which
# theta would you choose for a context of 100,000 tokens? Then move it.


# %%
def draw_distances(axes, theta):
    angles = rotation_angles(torch.arange(400), inverse_frequencies(64, theta))
    turned = apply_rope(torch.full((400, 1, 64), 64**-0.5), *angles)[:, 0]
    plots.score_by_distance(axes, (turned @ turned[0]).tolist())


with needs("02", 2):
    from nanovllm.model.rope import apply_rope, inverse_frequencies, rotation_angles

    movable(draw_distances, theta=[100, 1000, 10_000, 100_000, 1_000_000])

# %% nbgrader={"grade": true, "grade_id": "lab02-task-2", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=2
from grader.student.notebook import check_task

check_task("02", 2)

# %% [markdown]
# ## 3. How sharp is attention?
#
# The scores of a random query and random keys have a standard deviation of about sqrt(D) before the
# division. **Predict**: with 64 keys and D = 64, how much weight does the largest score get with the
# division, and without it?

# %%
guess = {"with": predict("02", "f", ...), "without": predict("02", "g", ...)}

# %% [markdown]
# Write the experiment. To read a single weight off your own `attention`, give the key that interests
# you a value of 1, and all others 0. `scale=1.0` leaves the division out.


# %% nbgrader={"grade": false, "grade_id": "lab02-sharpness", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def largest_weight(D: int, divide: bool, keys: int = 64, repeats: int = 200) -> float:
    """Mean weight of the best of random keys for a random query."""
    ### BEGIN SOLUTION
    total = 0.0
    for _ in range(repeats):
        q, k, v = torch.randn(1, 1, D), torch.randn(keys, 1, D), torch.zeros(keys, 1, D)
        v[(k @ q[0, 0]).argmax()] = 1.0
        total += attention(q, k, v, scale=None if divide else 1.0)[0, 0, 0].item()
    return total / repeats
    ### END SOLUTION


# %%
with needs("02", 3):
    from nanovllm.model.attention import attention

    plots.sharpness(largest_weight, guess)

# %%
for key in ("f", "g"):
    answer("02", key)
# %% [markdown]
# What would happen to training if you forgot the division? Which point of your curves is a model with
# D = 128 at?

# %% nbgrader={"grade": true, "grade_id": "lab02-task-3", "locked": true, "points": 24, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=3
from grader.student.notebook import check_task

check_task("02", 3)

# %% nbgrader={"grade": true, "grade_id": "lab02-task-4", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=4
from grader.student.notebook import check_task

check_task("02", 4)

# %% nbgrader={"grade": true, "grade_id": "lab02-task-5", "locked": true, "points": 16, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=5
from grader.student.notebook import check_task

check_task("02", 5)

# %% [markdown]
# ## 4. What the bundled model looks at
#
# `attend` is the seam between the model and its memory, so it is also the place to look in: the one
# below answers as `RecomputeAttend` does, and keeps the weights of every layer.
#
# **Predict.** The text ends with "Mia's code is 73". Which earlier tokens help to write "42"? Does a
# head of the last word look at one of them?

# %%
with needs("02", 1, 2, 3, 4, 5):
    from nanovllm.model.attend import RecomputeAttend

    model = bundled()

    class WatchingAttend(RecomputeAttend):
        def __call__(self, layer, q, k, v):
            weights.append(plots.weights_of(attention, q, k))
            return super().__call__(layer, q, k, v)


# %%
with needs("02", 1, 2, 3, 4, 5):
    model = bundled()
    weights, text = [], "Mia's code is 7342. Ben's code is 1805. Mia's code is 73"
    ids = tokenizer.encode(text).ids
    hidden = model(torch.tensor(ids), torch.arange(len(ids)), WatchingAttend(model.config))
    best = model.logits(hidden[-1:]).topk(3).indices[0].tolist()
    print(text, "->", [tokenizer.decode([token]) for token in best])
    plots.looked_at(weights, [tokenizer.decode([token]) for token in ids])

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab02-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** Choose one head of the picture above (the first panel is a mean, not a
# head). Say what it looks at, and why the weights right of the diagonal are exactly 0. Then explain
# why it follows that the K and V of an early token may be kept while later tokens arrive.

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab02-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# - 2 points: describes a pattern that is there (itself, the token before, the first token, an
#   earlier use of the same word).
# - 1 point: 0 because the mask is causal.
# - 2 points: a token's hidden state in every layer depends on itself and earlier tokens alone, so
#   later tokens cannot change its K and V; they may be stored.
# ### END SOLUTION

# %% [markdown]
# ## 5. With and without a cache
#
# **Predict.** How many tokens pass the model for 20 new tokens after a prompt of 5: without a cache,
# and with one?

# %%
guess_b = predict("02", "b", ...)
guess_c = predict("02", "c", ...)
# %% [markdown]
# Write the experiment: generate 100 tokens greedily after `PROMPT`, and note how many tokens pass the
# model in each step. Two calls are all you need of the model:
# `model(ids, positions, RecomputeAttend(model.config))` and `forward_cached(model, cache, ids)`.

# %% nbgrader={"grade": false, "grade_id": "lab02-rows-of-steps", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
PROMPT = "Once upon a time, there was a"


def rows_of_steps(cached: bool, count: int = 100) -> list[int]:
    """How many tokens pass the model in each of `count` greedy steps."""
    ### BEGIN SOLUTION
    ids, rows = tokenizer.encode(PROMPT).ids, []
    cache = ContiguousCache(model.config, capacity=len(ids) + count)
    while len(rows) < count:
        new = torch.tensor(ids[cache.length :] if cached else ids)
        if cached:
            hidden = forward_cached(model, cache, new)
        else:
            hidden = model(new, torch.arange(len(new)), RecomputeAttend(model.config))
        rows.append(len(new))
        ids.append(int(model.logits(hidden[-1:]).argmax()))
    return rows
    ### END SOLUTION


# %%
with needs("02", 1, 2, 3, 4, 5, 6):
    from nanovllm.model.attend import RecomputeAttend
    from nanovllm.model.cache import ContiguousCache, forward_cached

    model = bundled()
    plots.steps(rows_of_steps)

# %%
for key in ("b", "c"):
    answer("02", key)
# %% [markdown]
# The same for a large model, by your accounting. Both axes are logarithmic. **Predict**: what is the slope
# of each curve at its right end, and why is the one with a cache flat at its left?

# %%
with needs("02", 7):
    from nanovllm.model.accounting import generation_flops

    llama = ModelConfig("llama", 128_256, 4096, 32, 32, 8, 128, 14_336, 131_072)
    lengths = [2**i for i in range(13)]
    without, with_ = (
        [generation_flops(llama, 128, n, cached) for n in lengths] for cached in (False, True)
    )
    plots.flops(lengths, without, with_)

# %% nbgrader={"grade": true, "grade_id": "lab02-task-6", "locked": true, "points": 18, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=6
from grader.student.notebook import check_task

check_task("02", 6)

# %% [markdown]
# ## 6. Breaking it on purpose
#
# The cache is right, but each new token is told that it stands too late. **Predict**: one position too
# late, how many of its choices for the next token change? And 64 positions too late?
#
# Write the experiment: read the first 20 tokens of `STORY` through a cache, then feed the others one
# by one, each `shift` positions too late. Compare with the model at the right positions: in how many
# places is the best next token the same, and by how much do the logits differ?

# %% nbgrader={"grade": false, "grade_id": "lab02-damage", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
STORY = (
    "One cold morning, a kind cat named Felix woke up early. Felix was afraid of high places. He did "
    "not tell anyone. One night, there was a big storm. Felix wanted to run away."
)


def damage(shift: int) -> tuple[float, float]:
    """From place 20 on: share of next tokens that stay the same, mean change of a logit."""
    ### BEGIN SOLUTION
    ids = torch.tensor(tokenizer.encode(STORY).ids)
    right = model(ids, torch.arange(len(ids)), RecomputeAttend(model.config))
    wanted = model.logits(right)
    cache, same, change = ContiguousCache(model.config, len(ids)), [], []
    forward_cached(model, cache, ids[:20])
    for place in range(20, len(ids)):
        position = torch.tensor([place + shift])
        hidden = model(ids[place : place + 1], position, cache.attend)
        cache.advance(1)
        logits = model.logits(hidden)[0]
        same.append(float(logits.argmax() == wanted[place].argmax()))
        change.append((logits - wanted[place]).abs().mean().item())
    return sum(same) / len(same), sum(change) / len(change)
    ### END SOLUTION


# %%
with needs("02", 1, 2, 3, 4, 5, 6):
    model = bundled()
    plots.damage(damage)

# %% [markdown]
# RoPE sees distances. New tokens that are all shifted alike keep their distances to one another; only
# those to the first 20 tokens are wrong. So a small error leaves the text fluent and is easy to miss.
# The checks compare logits, never text.
#
# ## 7. What the cache costs
#
# **Predict.** Llama-2-70B has ten times the weights of Llama-2-7B. Which of them needs more cache for
# one token? And (a): how much does a token of Llama-3-8B take?

# %%
guess_a = predict("02", "a", ...)
REAL = {  # family, V, E, L, H, G, D, intermediate size, positions
    "Llama-2-7B": ModelConfig("llama", 32_000, 4096, 32, 32, 32, 128, 11_008, 4096),
    "Llama-2-70B": ModelConfig("llama", 32_000, 8192, 80, 64, 8, 128, 28_672, 4096),
    "Llama-3-8B": ModelConfig("llama", 128_256, 4096, 32, 32, 8, 128, 14_336, 8192),
    "Llama-2-13B": ModelConfig("llama", 32_000, 5120, 40, 40, 40, 128, 13_824, 4096),
    "Qwen3-4B": ModelConfig(
        "qwen3", 151_936, 2560, 36, 32, 8, 128, 9728, 40_960, tie_embeddings=True
    ),
    "Qwen3-0.6B": ModelConfig(
        "qwen3", 151_936, 1024, 28, 16, 8, 128, 3072, 40_960, tie_embeddings=True
    ),
}

# %%
with needs("02", 7):
    from nanovllm.model.accounting import kv_bytes_per_token, weight_count

    answer("02", "a")
    for name, config in REAL.items():
        print(f"{name:<12} {kv_bytes_per_token(config) / 1024:>5.0f} KiB of cache for a token")

# %% [markdown]
# **Predict.** A GPU of 80 GiB, and 8 requests at the same time: which of these models reaches 32,000
# tokens for each? Then move the model and the number of requests.


# %%
def draw_memory(axes, model, requests):
    config = REAL[model]
    plots.memory(axes, 2 * weight_count(config), kv_bytes_per_token(config), requests)


with needs("02", 7):
    from nanovllm.model.accounting import kv_bytes_per_token, weight_count

    movable(draw_memory, model=list(REAL), requests=[1, 4, 8, 32, 128])

# %% [markdown]
# ## 8. The same model in training
#
# **Predict.** Llama-2-13B decodes token 4,096 with 27.4 GiB. How much does a training step over 4,096
# tokens need, and what takes most of it? And (d, e): how many operations?

# %%
guess_d = predict("02", "d", ...)
guess_e = predict("02", "e", ...)
# %%
with needs("02", 7):
    from nanovllm.model.accounting import kv_bytes_per_token, training_bytes, weight_count

    llama = REAL["Llama-2-13B"]
    bars = {
        "training": vars(training_bytes(llama, 4096)),
        "with checkpointing": vars(training_bytes(llama, 4096, checkpointed=True)),
        "decoding": {"weights": 2 * weight_count(llama), "cache": 4096 * kv_bytes_per_token(llama)},
    }
    plots.training(bars)

# %%
for key in ("d", "e"):
    answer("02", key)
# %% nbgrader={"grade": true, "grade_id": "lab02-task-7", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="02" nanovllm_task=7
from grader.student.notebook import check_task

check_task("02", 7)

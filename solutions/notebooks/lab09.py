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
# # Lab 09: Quantization
#
# The handout is `labs/lab09/README.md`; your code is in `nanovllm/quantization/`. Here you look at what
# few bits do to weights, activations and the KV cache of the bundled model. You write three experiments.
# A cell that needs a task you have not written says so: write the task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.** Put a number in the place of
# the dots.

# %%
import os
from copy import deepcopy

os.environ["TRITON_INTERPRET"] = "1"  # loads are counted in the interpreter, on a GPU machine too

from grader.student.notebook import answer, needs, plots_of, predict

plots = plots_of("09")
model = plots.load()
exact = plots.loss(model)  # on four rows of text held out

# %% [markdown]
# ## 1. Bits and groups
#
# ### Experiment 1: what a bit buys
#
# Smaller groups have smaller steps, but more scales to store. Write `stored_and_loss(bits, group_size)`:
# round the weight of every linear (`linears(model)` gives names and modules) on a copy of the model, put
# a `GroupedLinear` in its place, and return two numbers: the bits stored for each weight of the linears,
# and `plots.loss` of the copy. **Predict** (a): how many bits does a weight of 4 bits take in groups of
# 32? Then: you have 3.2 bits a weight. Do you take 3 bits with one scale a row, or 2 bits in groups
# of 16?

# %%
guess = predict("09", "a", ...)


# %% nbgrader={"grade": false, "grade_id": "lab09-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def stored_and_loss(bits: int, group_size: int | None) -> tuple[float, float]:
    """Bits stored for a weight of the linears, and the loss, with every linear rounded."""
    ### BEGIN SOLUTION
    from nanovllm.quantization.grids import round_to_nearest
    from nanovllm.quantization.grouped import GroupedLinear
    from nanovllm.quantization.linear import linears, replace_linear
    from nanovllm.quantization.scheme import Scheme

    rounded, stored, weights = deepcopy(model), 0, 0
    for name, linear in list(linears(rounded)):
        weight = round_to_nearest(linear.weight.detach(), Scheme(bits, group_size))
        replace_linear(rounded, name, GroupedLinear(weight, linear.bias))
        stored += rounded.get_submodule(name).stored_bits
        weights += linear.weight.numel()
    return stored / weights, plots.loss(rounded)
    ### END SOLUTION


# %%
def curve(bits: int) -> dict[str, tuple[float, float]]:
    """Bits stored and loss above that of exact weights, for three group sizes."""
    sizes = {"16": 16, "64": 64, "row": None}
    found = {name: stored_and_loss(bits, size) for name, size in sizes.items()}
    return {name: (stored, loss - exact) for name, (stored, loss) in found.items()}


# %%
with needs("09", 1, 2):
    plots.sweep({bits: curve(bits) for bits in (2, 3, 4)}, guess)
    answer("09", "a")

# %% [markdown]
# Which buys more, a bit or a smaller group? Four rows of text are few: their loss is off by 0.005 or
# so. Which differences mean nothing?
#
# (b) shows why groups help at all. **Predict** how many weights beside an outlier become 0.

# %%
predict("09", "b", ...)

# %%
with needs("09", 1):
    answer("09", "b")

# %% nbgrader={"grade": true, "grade_id": "lab09-task-1", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="09" nanovllm_task=1
from grader.student.notebook import check_task

check_task("09", 1)

# %% [markdown]
# ## 2. Where a weight lies in a file
#
# A weight of 16 x 16 codes of 4 bits is 32 words. Three programs lay them out in three ways. A shade is
# a word (darker: later in the file), a number is the place in its word (0: the lowest four bits), and
# the frame shows the first word. **Predict**: which two have the same words, in another order? Take the
# places in the third's first word from your own worked example.

# %%
with needs("09", 2):
    from nanovllm.quantization.layouts import to_awq, to_gptq, to_pack_quantized
    from nanovllm.quantization.scheme import Scheme

    scheme = Scheme(bits=4, group_size=None)
    layouts = {
        "compressed-tensors": lambda weight: to_pack_quantized(weight, scheme)["weight_packed"],
        "GPTQ": lambda weight: to_gptq(weight)["qweight"],
        "AWQ": lambda weight: to_awq(weight)["qweight"],
    }
    plots.words(layouts)

# %% nbgrader={"grade": true, "grade_id": "lab09-task-2", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="09" nanovllm_task=2
from grader.student.notebook import check_task

check_task("09", 2)

# %% [markdown]
# ## 3. GPTQ: the error walks
#
# ### Experiment 2: one column
#
# `walked` has one linear of the model: `walked.grid`, and U as `walked.upper`, from the inputs of real
# text. Write `round_column(weights, column)`: the column gets the values of its nearest codes, and the
# columns behind it make up for the error, in place; the formula is task 3's.
# `nearest_values(weights, column)` in the cell below yours gives the column's new values. RTN is given: it
# changes its own column only. **Predict** (c): with made-up inputs, what percentage of RTN's error does
# GPTQ leave? And in the picture, where weight and inputs are others: do all columns behind help in the
# same way?

# %%
predict("09", "c", ...)


# %% nbgrader={"grade": false, "grade_id": "lab09-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def round_column(weights, column: int) -> None:
    """Round one column of weights [N, K]; those behind it make up for its error."""
    ### BEGIN SOLUTION
    upper = walked.upper
    error = (weights[:, column] - nearest_values(weights, column)) / upper[column, column]
    weights[:, column:] -= error[:, None] * upper[column, column:]
    ### END SOLUTION


# %%
def nearest_values(weights, column: int):
    """What the nearest codes of one column stand for [N]."""
    from nanovllm.quantization.grid import QuantizedWeight
    from nanovllm.quantization.grids import nearest_codes

    codes = nearest_codes(weights, walked.grid)
    return QuantizedWeight(codes, walked.grid).dequantize()[:, column]


# %%
def round_only(weights, column: int) -> None:
    """RTN: a column's error stays where it is."""
    weights[:, column] = nearest_values(weights, column)


# %%
with needs("09", 1, 3):
    from nanovllm.quantization.gptq import gptq
    from nanovllm.quantization.grids import fit_grid
    from nanovllm.quantization.scheme import Scheme

    walked = plots.Walk(model, lambda weight: fit_grid(weight, Scheme(bits=3, group_size=64)))
    runs = {"RTN": walked.run(round_only), "GPTQ": walked.run(round_column)}
    plots.walk(walked, runs)
    yours = gptq(walked.weight, walked.hessian, walked.grid).dequantize()
    print(f"farthest from your gptq: {(yours - runs['GPTQ'][-1]).abs().max():.1e}")
    answer("09", "c")

# %% [markdown]
# Inputs 0 to 31 of this linear come from one head of attention, 32 to 63 from the next. Why does the
# error of a column stay in its head? And why does GPTQ's curve grow faster towards the end?

# %% nbgrader={"grade": true, "grade_id": "lab09-task-3", "locked": true, "points": 13, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="09" nanovllm_task=3
from grader.student.notebook import check_task

check_task("09", 3)

# %% [markdown]
# ## 4. AWQ: what is a large channel worth?
#
# The bundled model has no outlier channels; `plant_outliers` gives it four that are 30 times as large,
# and it computes what it did before. Left: one linear's error with each ratio r of the search, for both.
# Right: the sizes of its channels, and the scale that your search finds. **Predict**: where does the
# search gain more? Which r does it take if all channels have the same size?

# %%
with needs("09", 1, 4):
    from nanovllm.quantization.awq import search_scale
    from nanovllm.quantization.grids import round_to_nearest
    from nanovllm.quantization.plant_outliers import plant_outliers
    from nanovllm.quantization.scheme import Scheme

    scheme, planted = Scheme(bits=3, group_size=64), deepcopy(model)
    plant_outliers(planted, 30)
    plots.ratios(
        {"as it is": model, "four channels x 30": planted},
        lambda weight: round_to_nearest(weight, scheme).dequantize(),
        lambda weight, inputs: search_scale([weight], inputs, plots.channels(weight), scheme),
    )

# %% nbgrader={"grade": true, "grade_id": "lab09-task-4", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="09" nanovllm_task=4
from grader.student.notebook import check_task

check_task("09", 4)

# %% [markdown]
# ## 5. SqueezeLLM: levels where weights are
#
# A row of real weights. Move bits and group size: RTN's levels (blue) follow the groups, those of your
# table (orange) are the same for the whole row. One weight lies far below all others. **Predict**: what
# does it do to RTN's levels, by group size, and how many of its eight levels does the table spend on it?
# From which group size on is RTN better, and how many bits does it then store?

# %%
with needs("09", 1, 5):
    from nanovllm.quantization.grids import round_to_nearest
    from nanovllm.quantization.held_out import calibration_rows
    from nanovllm.quantization.kmeans import weighted_kmeans
    from nanovllm.quantization.scheme import Scheme
    from nanovllm.quantization.squeezellm import fisher_diagonal

    name, row = plots.ROW
    fisher = fisher_diagonal(model, calibration_rows(4))[name][row : row + 1]
    weight = model.get_submodule(name).weight.detach()[row : row + 1]
    rounded = lambda w, bits, size: round_to_nearest(w, Scheme(bits, size))  # noqa: E731
    plots.levels(weight, fisher, rounded, weighted_kmeans)

# %% nbgrader={"grade": true, "grade_id": "lab09-task-5", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="09" nanovllm_task=5
from grader.student.notebook import check_task

check_task("09", 5)

# %% [markdown]
# ## 6. What each method buys
#
# RTN's curves come from experiment 1. The others are calibrated on four rows; SqueezeLLM has its sparse
# part and is at 2 bits only, to save time. **Predict** the order of the methods at 2 bits, and again at 3.
# Would you rather store smaller groups, or run a better method?

# %%
with needs("09", 1, 2, 3, 4, 5):
    from nanovllm.quantization.held_out import calibration_rows
    from nanovllm.quantization.methods import quantize
    from nanovllm.quantization.scheme import Scheme

    curves = {f"RTN, {bits} bits": curve(bits) for bits in (2, 3)}
    for method, tried in {"AWQ": (2, 3), "GPTQ": (2, 3), "SqueezeLLM": (2,)}.items():
        for bits in tried:
            done = quantize(deepcopy(model), method.lower(), Scheme(bits, 64), calibration_rows(4))
            point = plots.stored_bits(done), plots.loss(done) - exact
            curves.setdefault(method, {})[bits] = point
    plots.methods(curves)

# %% [markdown]
# ## 7. W4A16: when it pays
#
# Fewer bytes help while a step waits for memory. The picture is computed for an H100 (3,350 GB/s,
# 989 TFLOP/s), as if every load went to memory; how often a word is loaded comes from your kernel, in the
# interpreter. **Predict**: up to how many rows are 4 bits faster than 16? And from where on does your
# kernel load words more than once?

# %%
guess = ...  # your guess in place of the dots, in rows


# %%
def loads(rows: int) -> float:
    """How often your kernel loads a word of the weight, for so many rows of x."""
    import torch

    from nanovllm.kernels.traffic import traced
    from nanovllm.quantization.grids import round_to_nearest
    from nanovllm.quantization.grouped import GroupedLinear
    from nanovllm.quantization.scheme import Scheme
    from nanovllm.quantization.w4a16 import w4a16

    linear = GroupedLinear(round_to_nearest(torch.randn(32, 128), Scheme(4, 64)))
    with traced() as trace:
        w4a16(torch.randn(rows, 128), linear.words, linear.scales, linear.zeros, linear.group_of)
    return sum(len(numbers) for _, numbers in trace.elements(linear.words)) / linear.words.numel()


# %%
with needs("09", 1, 2, 6):
    plots.gain_of_w4a16(loads, None if guess is ... else guess)

# %% nbgrader={"grade": true, "grade_id": "lab09-task-6", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="09" nanovllm_task=6
from grader.student.notebook import check_task

check_task("09", 6)

# %% [markdown]
# ## 8. Int8 activations
#
# Four channels are now 100 times as large. A token's scale follows its largest value, so all other
# channels get few codes. **Predict** (d): how many codes are left beside an outlier of 40? And what
# does SmoothQuant do to the channels of the weights?

# %%
predict("09", "d", ...)

# %%
with needs("09", 1, 3, 4, 7):
    from nanovllm.quantization.at_load import quantize_linears
    from nanovllm.quantization.held_out import calibration_rows
    from nanovllm.quantization.methods import BY_CHANNEL, quantize
    from nanovllm.quantization.plant_outliers import plant_outliers

    planted = deepcopy(model)
    plant_outliers(planted, 100)
    ways = {
        "int8 weights": quantize_linears(deepcopy(planted), "int8"),
        "W8A8": quantize_linears(deepcopy(planted), "w8a8"),
        "smoothed": quantize(deepcopy(planted), "smoothquant", BY_CHANNEL, calibration_rows(2)),
    }
    costs = {name: plots.loss(way) - exact for name, way in ways.items()}
    plots.smoothed(ways["W8A8"], ways["smoothed"], costs)
    answer("09", "d")

# %% nbgrader={"grade": true, "grade_id": "lab09-task-7", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="09" nanovllm_task=7
from grader.student.notebook import check_task

check_task("09", 7)

# %% [markdown]
# ## 9. KV cache
#
# K and V of one row of text: a line for each token, a column for each channel, four heads side by side.
# **Predict**: where are the large values of K, and where are those of V? What should share a scale?

# %%
plots.keys_and_values(model)

# %% [markdown]
# ### Experiment 3: the place of the scale
#
# Write `as_codes(x, bits, dims)`: x, K or V, as a cache would give it back. All values along the
# dimensions `dims` share a scale and a zero point; the grid is the asymmetric one of task 1, without
# rounding to float16. `x.amin(dims, keepdim=True)` is a start. **Predict**: 2 bits for K or 2 bits for V,
# which costs more? And which of the three places is best?


# %% nbgrader={"grade": false, "grade_id": "lab09-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def as_codes(x, bits: int, dims: tuple[int, ...]):
    """K or V of any shape after a trip through codes of so many bits."""
    ### BEGIN SOLUTION
    low = x.amin(dims, keepdim=True).clamp(max=0)
    high = x.amax(dims, keepdim=True).clamp(min=0)
    step = (high - low) / (2**bits - 1)
    zero = (-low / step).round()
    return ((x / step).round() + zero).clamp(0, 2**bits - 1).sub(zero) * step
    ### END SOLUTION


# %%
with needs("09", 8):
    losses = {}
    for place, dims in plots.PLACES.items():
        coded = lambda x, dims=dims: as_codes(x, 2, dims)  # noqa: E731
        ways = (coded, plots.same), (plots.same, coded), (coded, coded)
        losses[place] = [plots.loss_with(model, on_k, on_v) for on_k, on_v in ways]
    plots.scales_of_cache(losses, bits=2)

# %% [markdown]
# Two of the three places store the same number of scales. Why can a cache that grows token by token not
# simply take the better one?
#
# Now your own cache. **Predict** (e): how many bytes does a token take in it with int4?

# %%
guess = predict("09", "e", ...)

# %%
with needs("09", 8):
    from nanovllm.quantization.kv_cache import QuantizedCache

    found = {"float32": (4096, 0.0)}
    for kind in ("int8", "fp8", "int4"):
        size = QuantizedCache.bytes_per_token(model.config, kind)
        found[kind] = size, plots.loss_in_cache(model, QuantizedCache, kind)
    plots.capacity(found, guess)
    answer("09", "e")

# %% nbgrader={"grade": true, "grade_id": "lab09-task-8", "locked": true, "points": 30, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="09" nanovllm_task=8
from grader.student.notebook import check_task

check_task("09", 8)

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab09-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** A chat service runs a model of 8 billion weights in 16 bits on a card of 24 GB.
# Alone a request is slow, and only a dozen long requests fit at once. A colleague proposes three steps:
# weights of 4 bits by GPTQ, an int8 KV cache, and int8 activations. Say for each step what it makes
# faster or makes room for, with one request and with many. Which step may change answers most, and how
# do you notice it before your users do?

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab09-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# Weights: 16 GB become about 5 (embedding and head stay). One request waits for memory, so it gets about
# three times as fast. Many requests wait for arithmetic, which is the same in 16 bits, with unpacking on
# top: no gain, perhaps a loss. But 11 GB more are free for the KV cache, so more requests fit. KV cache:
# half the bytes a token, so twice the tokens in the same memory; attention over long texts reads half.
# One short request hardly notices. Activations: products in int8 are faster where arithmetic is what a
# step waits for, with many requests and in prompts; one request gains nothing. They need weights as int8
# for the product, so weights of 4 bits are widened to 8. Activations carry the largest risk if channels
# have outliers (smooth them first), then 4 bits for weights; int8 K and V with a scale a token and head
# are nearly exact. Compare with the 16-bit model: the loss on texts of the service's own kind that were
# not used for calibration, and answers to questions whose answers are known, rare facts and numbers
# among them; not whether texts are equal.
#
# - 1 point: weights: faster alone, not in a large batch; or the room that they leave for K and V.
# - 1 point: KV cache: more tokens or requests at once, and less to read for long ones.
# - 1 point: int8 activations help where arithmetic limits: large batches, prompts.
# - 1 point: activations (outliers) or 4-bit weights as the largest risk, with a reason; int8 K/V least.
# - 1 point: loss or known answers, on held-out text of one's own kind, beside the 16-bit model.
# ### END SOLUTION

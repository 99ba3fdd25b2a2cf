# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 03: Prefill and decode
#
# The handout is `labs/lab03/README.md`; your code is in `nanovllm/generation/`. This notebook
# looks at what that code does. Cells that need a task you have not written say so and go on.
#
# After changing your code, restart the kernel: Python keeps what it has imported.

# %%
import itertools
import time

import matplotlib.pyplot as plt
import numpy as np
import torch

from grader.student.notebook import check_task
from grader.student.notebook import needs
from grader.student.notebook import style
from grader.course.paths import ROOT
from nanovllm.generation.beam import BeamSearchParams, beam_search
from nanovllm.generation.chunked import prefill_cost
from nanovllm.generation.events import Prefilled, TokenGenerated
from nanovllm.generation.latency import summarize, timelines
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.roofline import H100, bound_by, least_seconds, step_work
from nanovllm.generation.sampling import SamplingRow, argmax_sampler, draw, truncate_logits
from nanovllm.generation.static_batch import generate_static
from nanovllm.model.attention import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import load_model
from nanovllm.tokenization.tokenizer import Tokenizer

torch.set_num_threads(1)
TARGET = ROOT / "models" / "target"
model = load_model(TARGET)
tokenizer = Tokenizer.from_pretrained(TARGET)
BLUE, GREEN, RED, GREY = "C0", "C2", "C1", "#9aa0a6"
style(grid=False)

# %% [markdown]
# ## 1. One request in slow motion
#
# A prompt of 127 tokens, then 24 new ones. **Predict first**: how many decode steps take
# as long as reading the whole prompt? Write your guess into the cell below, then run it.

# %%
my_guess = 20  # decode steps that take as long as the prefill

# %%
with needs("03", 1):
    story = (
        "Once upon a time there was a kind girl named Mia. Mia's code is 7342. She lived in a "
        "small town near the hills. One day she went to the lake with her friend Leo. "
    ) * 3
    prompt = tokenizer.encode(story)
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    list(generate(model, prompt, greedy, sampler=argmax_sampler))  # warm up
    arrival = time.perf_counter()
    events = list(generate(model, prompt, greedy, sampler=argmax_sampler))
    read = 1e3 * (next(e.time for e in events if isinstance(e, Prefilled)) - arrival)
    moments = [1e3 * (e.time - arrival) for e in events if isinstance(e, TokenGenerated)]
    gaps = np.diff(moments)

    figure, axis = plt.subplots(figsize=(9, 1.9))
    axis.barh(0, read, color=BLUE, height=0.5, label=f"prefill, {len(prompt)} tokens")
    for i, (start, end) in enumerate(itertools.pairwise(moments)):
        axis.barh(
            0, end - start, left=start, color=GREEN, height=0.5, edgecolor="white",
            label="decode, 1 token each" if i == 0 else None,
        )
    axis.plot(moments, [0.33] * len(moments), "v", color="black", ms=4, label="a token comes out")
    axis.annotate("TTFT", (moments[0], -0.42), ha="center", fontsize=9)
    axis.set(yticks=[], xlabel="milliseconds since arrival", ylim=(-0.55, 0.5), xlim=(0, None))
    axis.spines["left"].set_visible(False)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.42), ncol=3, frameon=False, fontsize=9)
    plt.show()
    print(f"prefill {read:.1f} ms, median decode step {np.median(gaps):.2f} ms:")
    print(f"the prompt took as long as {read / np.median(gaps):.1f} steps; you said {my_guess}.")
    print(f"a prompt token cost {read / len(prompt):.2f} ms, a new one {np.median(gaps):.2f} ms.")

# %% nbgrader={"grade": true, "grade_id": "lab03-task-1", "locked": true, "points": 22, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=1
check_task("03", 1)

# %% [markdown]
# ## 2. What each sampler leaves
#
# The bundled model's distribution after "Mia went to the", the 14 likeliest tokens, under
# one setting each. Grey is the model's own distribution. **Predict first**: which of the five
# settings can change *which* token is the likeliest?

# %%
with needs("03", 2):
    ids = torch.tensor(tokenizer.encode("Mia went to the"))
    with torch.inference_mode():
        attend = RecomputeAttend(model.config)
        hidden = model(ids, torch.arange(len(ids)), attend)
        logits = model.logits(hidden[-1:]).float()
    own = logits.softmax(-1)[0]
    top = own.topk(14).indices
    labels = [repr(tokenizer.decode([int(t)]))[1:-1] for t in top]
    settings = {
        "temperature 0.5": {"temperature": 0.5},
        "temperature 1.8": {"temperature": 1.8},
        "top_k 4": {"top_k": 4},
        "top_p 0.6": {"top_p": 0.6},
        "min_p 0.5": {"min_p": 0.5},
    }
    figure, axes = plt.subplots(1, 5, figsize=(13, 4.2), sharey=True, sharex=True)
    for axis, (name, given) in zip(axes, settings.items(), strict=True):
        row = SamplingRow(SamplingParams(**given), ids.tolist(), [], seed=0)
        shaped = truncate_logits(logits, [row]).softmax(-1)[0]
        axis.barh(range(14), own[top], color="#d5d8dc", height=0.85, label="the model's own")
        axis.barh(range(14), shaped[top], color=BLUE, height=0.45, label="after the setting")
        axis.set(title=name, xlabel="probability")
        axis.text(0.97, 0.05, f"{int((shaped > 0).sum())} ids left", ha="right",
                  transform=axis.transAxes, fontsize=9)
    axes[0].set_yticks(range(14), labels)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=2, frameon=False)
    plt.tight_layout(rect=(0, 0, 1, 0.94))
    plt.show()

# %% [markdown]
# No generator was used: `draw` is a pure function of logits, seed and position. Is it still
# random enough? 3,000 keys, one distribution, and the chi-square test that the check uses.
# **Predict first**: how far from its probability of 0.4 is the share of token 0 in 3,000 draws?

# %%
with needs("03", 2):
    from scipy import stats

    probs = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    count = 3000
    table = torch.from_numpy(np.log(probs)).float().repeat(count, 1)
    tokens = draw(table, torch.full((count,), 2024), torch.arange(count))
    seen = torch.bincount(tokens, minlength=6).numpy()
    figure, axis = plt.subplots(figsize=(6, 2.6))
    axis.bar(np.arange(6) - 0.2, probs, 0.4, color=GREY, label="probability")
    axis.bar(np.arange(6) + 0.2, seen / count, 0.4, color=BLUE, label=f"share of {count} draws")
    axis.set(xlabel="token id", ylabel="share", title="The draws follow the probabilities")
    axis.legend(frameon=False)
    plt.show()
    print(f"chi-square p = {stats.chisquare(seen, probs * count).pvalue:.2f}")

# %% nbgrader={"grade": true, "grade_id": "lab03-task-2", "locked": true, "points": 32, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=2
check_task("03", 2)

# %% [markdown]
# ## 3. Beams against greedy
#
# Beam search looks for a likelier *whole text*. **Predict first**: by how much is the sum of
# log-probabilities of 20 tokens larger with width 4 than with width 1? And which of the two texts
# is ahead after the first word?

# %%
with needs("03", 3):
    start = tokenizer.encode("Mia went to the")
    widths = (1, 2, 3, 4, 8)
    best = {}
    for width in widths:
        params = BeamSearchParams(beam_width=width, max_tokens=20)
        best[width] = beam_search(model, start, params)[0]
        text = tokenizer.decode(list(best[width].token_ids))
        print(f"width {width}: {best[width].logprob:7.2f}  {text}")

    def running_sum(token_ids) -> torch.Tensor:
        """The log-probability of the first 1, 2, ... of these tokens behind the prompt."""
        ids = torch.tensor([*start, *token_ids])
        with torch.inference_mode():
            hidden = model(ids, torch.arange(len(ids)), RecomputeAttend(model.config))
            logprobs = model.logits(hidden[len(start) - 1 : -1]).float().log_softmax(-1)
        return logprobs.gather(1, ids[len(start) :, None])[:, 0].cumsum(0)

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3))
    left.plot(widths, [best[width].logprob for width in widths], "o-", color=BLUE)
    left.set(xlabel="beam width", ylabel="log-probability of the best text", xticks=widths,
             title="Wider finds likelier texts")
    for width, colour, mark in ((1, RED, "s"), (4, BLUE, "o")):
        sums = running_sum(best[width].token_ids)
        name = "width 1: greedy" if width == 1 else f"width {width}"
        right.plot(range(1, len(sums) + 1), sums, f"{mark}-", ms=4, color=colour, label=name)
    right.set(xlabel="tokens written", ylabel="log-probability so far", xticks=range(1, 21, 2),
              title="Greedy leads first, and pays later")
    right.legend(frameon=False)
    plt.tight_layout()
    plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab03-task-3", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=3
check_task("03", 3)

# %% [markdown]
# ## 4. What chunks change, and what they do not
#
# A prompt of 4,096 tokens. The tokens computed are the same for every chunk size; the memory that
# one step's attention scores need is not. **Predict first**: with chunks of 256, what share of the
# one-pass peak is left?

# %%
with needs("03", 4):
    sizes = [4096, 2048, 1024, 512, 256, 128, 64]
    costs = [prefill_cost(4096, size) for size in sizes]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
    left.bar(range(7), [c.peak_score_elements / 1e6 for c in costs], color=BLUE)
    left.set(ylabel="scores of the largest step\n(millions a head)")
    right.bar(range(7), [c.steps for c in costs], color=GREEN)
    right.set(ylabel="steps: each reads all weights")
    left.set_title("What one step has to hold")
    right.set_title("What the chunks cost")
    for axis in (left, right):
        axis.set_xticks(range(7), sizes)
        axis.set_xlabel("chunk size")
    plt.tight_layout()
    plt.show()
    share = costs[4].peak_score_elements / costs[0].peak_score_elements
    print(f"chunks of 256: {share:.1%} of the peak, {costs[4].steps} steps,", end=" ")
    print(f"{costs[4].tokens_computed} tokens as before")

# %% nbgrader={"grade": true, "grade_id": "lab03-task-4", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=4
check_task("03", 4)

# %% [markdown]
# ## 5. What padding wastes
#
# Eight prompts in one static batch. Every cell is a token that goes through the model. **Predict
# first**: which share of the rectangle is computed for nobody?

# %%
with needs("03", 1, 2, 5):
    texts = [
        "Once upon a time", "The", "One day Clara and Leo went to the lake near the old town.",
        "Mia's code is 7342. What is Mia's code?", "It was late,", "Umar", "In the hills there was",
        "Paula had a hole in her boat and asked her uncle for help.",
    ]  # fmt: skip
    prompts = [tokenizer.encode(text) for text in texts]
    lengths = [6, 30, 12, 4, 40, 18, 9, 25]
    each = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    result = generate_static(model, prompts, each, sampler=argmax_sampler)
    width = max(map(len, prompts))
    grid = np.zeros((8, width + max(lengths) - 1))
    for row, (tokens, new) in enumerate(zip(prompts, lengths, strict=True)):
        grid[row, width - len(tokens) : width] = 1
        grid[row, width : width + new - 1] = 2
    figure, axis = plt.subplots(figsize=(10, 2.6))
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ListedColormap([RED, BLUE, GREEN])
    axis.pcolormesh(grid, cmap=colours, vmin=0, vmax=2, edgecolors="white", linewidth=0.4)
    axis.axvline(width, color="black", lw=1)
    axis.set(xlabel="column", ylabel="row", yticks=[])
    axis.invert_yaxis()
    axis.legend(
        handles=[Patch(color=BLUE, label="prompt"), Patch(color=GREEN, label="generated"),
                 Patch(color=RED, label="computed for nobody")],
        loc="upper center", bbox_to_anchor=(0.5, 1.22), ncol=3, frameon=False, fontsize=9,
    )  # fmt: skip
    plt.show()
    waste = result.waste
    print(f"{waste.computed} tokens computed: prompt {waste.prompt}, pads {waste.padding},", end=" ")
    print(f"decode {waste.decode}, idle {waste.idle}: {waste.wasted_share:.0%} wasted.")
    print(f"cache places: {waste.kv_used} of {waste.kv_reserved} reserved were used.")

# %% [markdown]
# How much is wasted depends on how unequal the lengths are. Real requests have a long tail; the
# same counting, without a model, for batches of lengths drawn from a log-normal distribution.
# **Predict first**: does a larger batch waste a larger share or a smaller one?

# %%
rng = np.random.default_rng(0)
figure, axis = plt.subplots(figsize=(6, 2.8))
for size, colour in ((4, GREEN), (16, BLUE), (64, RED)):
    shares = []
    for sigma in np.linspace(0, 1.5, 12):
        lengths = rng.lognormal(mean=4, sigma=sigma, size=(200, size))
        shares.append(float(1 - (lengths.sum(1) / (size * lengths.max(1))).mean()))
    axis.plot(np.linspace(0, 1.5, 12), shares, "o-", color=colour, ms=3, label=f"batch of {size}")
axis.set(xlabel="spread of output lengths (sigma of their logarithm)", ylim=(0, 1),
         ylabel="share of the places idle", title="All wait for the longest")
axis.legend(frameon=False)
plt.show()

# %% nbgrader={"grade": true, "grade_id": "lab03-task-5", "locked": true, "points": 13, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=5
check_task("03", 5)

# %% [markdown]
# ## 6. The roofline
#
# Llama-3-8B in bf16 on an H100, by counting alone. **Predict first**: how many requests must
# decode together before the tensor cores, not the memory, are the limit?

# %%
with needs("03", 6):
    llama = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, 131072)
    figure, axis = plt.subplots(figsize=(8, 4.4))
    x = np.logspace(-1, 4.2, 200)
    axis.loglog(x, [H100.attainable(i) / 1e12 for i in x], color="black", lw=1.5)
    axis.axvline(H100.ridge, color=GREY, ls=":", lw=1)
    axis.text(H100.ridge * 1.08, 0.45, f"ridge: {H100.ridge:.0f} FLOP/byte", fontsize=9)
    shown = [
        ("prefill 32", step_work(llama, 1, 32), BLUE), ("128", step_work(llama, 1, 128), BLUE),
        ("prefill 2048", step_work(llama, 1, 2048), BLUE),
        ("decode, 1 row", step_work(llama, 1, 1, 1024), GREEN),
        ("8 rows", step_work(llama, 8, 1, 1024), GREEN),
        ("64 rows", step_work(llama, 64, 1, 1024), GREEN),
        ("512 rows", step_work(llama, 512, 1, 1024), GREEN),
    ]  # fmt: skip
    for name, work, colour in shown:
        rate = H100.attainable(work.intensity) / 1e12
        axis.plot(work.intensity, rate, "o", color=colour, ms=7)
        below = colour == GREEN
        axis.annotate(name, (work.intensity, rate), xytext=(7, -12) if below else (-7, 7),
                      textcoords="offset points", fontsize=9, ha="left" if below else "right")
    axis.set(xlabel="operations per byte moved", ylabel="TFLOP/s that can be reached",
             title=f"Llama-3-8B on an {H100.name}, 1,024 tokens cached a row", ylim=(0.3, 3000))
    plt.show()
    for name, work, _ in shown:
        print(f"{name:>14}: {1e3 * least_seconds(work, H100):7.2f} ms, by {bound_by(work, H100)}")

# %% [markdown]
# And waiting in a queue? Twelve requests arrive in a burst, served one at a time or all in one
# batch. **Predict first**: which way has the longer wait for a first token, which the longer wait
# between tokens, and who of the twelve feels it?

# %%
with needs("03", 1, 2, 5, 6):
    prompts = [tokenizer.encode("One day, Mia went to the")] * 12
    each = [SamplingParams(temperature=1, seed=i, max_tokens=10 + i) for i in range(12)]
    began = time.perf_counter()
    alone = []
    for i in range(12):
        alone += list(generate(model, prompts[i], each[i], request_id=i))
    arrivals = dict.fromkeys(range(12), began)
    queue = timelines(alone, arrivals)
    batch: list = []
    began = time.perf_counter()
    generate_static(model, prompts, each, on_event=batch.append)
    together = timelines(batch, dict.fromkeys(range(12), began))
    figure, axes = plt.subplots(1, 2, figsize=(11, 3), sharey=True, sharex=True)
    for axis, lines, name in ((axes[0], queue, "one at a time"), (axes[1], together, "one batch")):
        for (request, _), line in lines.items():
            moments = 1e3 * (np.array(line.token_times) - line.arrival)
            axis.barh(request, moments[0], color="#d5d8dc", height=0.7)
            axis.plot(moments, [request] * len(moments), "|", color=GREEN, ms=9)
        axis.set(title=name, xlabel="milliseconds since the burst", xlim=(0, None))
    axes[0].set_ylabel("request")
    axes[0].invert_yaxis()
    plt.tight_layout()
    plt.show()
    for name, lines in (("one at a time", queue), ("one batch", together)):
        report = summarize(list(lines.values()))
        print(f"{name:>14}: TTFT p50 {1e3 * report.ttft_p50:6.0f} ms, p99", end=" ")
        print(f"{1e3 * report.ttft_p99:6.0f} ms; TPOT p50 {1e3 * report.tpot_p50:5.1f} ms;", end=" ")
        print(f"{report.tokens_per_second:5.0f} tokens/s")

# %% nbgrader={"grade": true, "grade_id": "lab03-task-6", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=6
check_task("03", 6)

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab03-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# ## Questions
#
# **Question 1 (5 points).** A service runs Llama-3-8B on one H100 and answers one request at a time. Its owner wants ten
# times the tokens per second and says: "we need a card with ten times the FLOP/s". Use the
# roofline above: what would that card change for a single decoding request, what would ten cards
# with today's FLOP/s but ten times the bandwidth change, and what costs nothing?

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab03-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# A single row decodes at about 1 operation per byte, far left of the ridge (295 on an H100): it is
# bound by memory, so ten times the FLOP/s changes nothing; the ridge just moves to 2,950. Ten
# times the bandwidth gives ten times the tokens per second, since the least time of a step is
# bytes / bandwidth. What costs nothing is a batch: the weights, nearly all of the bytes, are moved
# once for all rows, so 10 rows take about the time of one, until K and V of the rows outweigh the
# weights (at 1,024 tokens a row, near 110 rows) or the ridge is reached.
# ### END SOLUTION

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
# The handout is `labs/lab03/README.md`; your code is in `nanovllm/generation/`. This notebook looks
# at what that code does. In four experiments you write a few lines yourself. Cells that need
# something you have not written say so and go on.
#
# After changing your code, restart the kernel: Python keeps what it has imported.

# %%
import time

import torch

from grader.student.notebook import answer
from grader.student.notebook import check_task
from grader.student.notebook import needs
from grader.student.notebook import plots_of
from grader.student.notebook import predict
from grader.course.paths import ROOT
from nanovllm.generation import beam, chain, chunked, latency, loop, roofline, static_batch
from nanovllm.generation.events import Prefilled, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import prepare
from nanovllm.generation.rows import argmax_sampler
from nanovllm.generation.structured import StructuredOutputsParams
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import load_model
from nanovllm.tokenization.tokenizer import Tokenizer

# %%
torch.set_num_threads(1)
TARGET = ROOT / "models" / "target"
model, tokenizer = load_model(TARGET), Tokenizer.from_pretrained(TARGET)
llama = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, 131072)
plots = plots_of("03")

# %% [markdown]
# ## 1. One request in slow motion
#
# A prompt of over a hundred tokens, then 24 new ones, on your machine. **Predict**: how many decode
# steps take as long as reading the whole prompt?

# %%
my_guess = ...  # decode steps that take as long as the prefill

# %%
with needs("03", 1):
    story = "Once upon a time there was a kind girl named Mia. She lived in a small town. " * 6
    prompt = tokenizer.encode(story)
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    list(loop.generate(model, prompt, greedy, sampler=argmax_sampler))  # warm up
    arrival = time.perf_counter()
    events = list(loop.generate(model, prompt, greedy, sampler=argmax_sampler))

# %%
if "events" in globals():
    read = 1e3 * (next(e.time for e in events if isinstance(e, Prefilled)) - arrival)
    moments = [1e3 * (e.time - arrival) for e in events if isinstance(e, TokenGenerated)]
    plots.timeline(len(prompt), read, moments)
    step = (moments[-1] - moments[0]) / (len(moments) - 1)
    said = "" if my_guess is ... else f"; you said {my_guess}"
    print(f"the prompt took as long as {read / step:.1f} decode steps{said}.")
    print(f"a prompt token cost {read / len(prompt):.2f} ms, a new one {step:.2f} ms.")

# %% nbgrader={"grade": true, "grade_id": "lab03-task-1", "locked": true, "points": 22, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=1
check_task("03", 1)

# %% [markdown]
# ## 2. Experiment: a distribution that moves
#
# Below are the logits of the bundled model after "Mia went to the", for the eight likeliest tokens.
# Write the function: the probabilities that are left after the temperature and top_p. Your functions
# of `chain.py` do the work; mind that they take rows, [1, V], and one value for each row.

# %%
ids = torch.tensor(tokenizer.encode("Mia went to the"))
cache = ContiguousCache(model.config, capacity=len(ids))
with torch.inference_mode():
    after = model.logits(forward_cached(model, cache, ids)[-1:]).float()  # [1, V]
top = after[0].topk(8).indices
words = [repr(tokenizer.decode([int(token)])) for token in top]


# %% nbgrader={"grade": false, "grade_id": "lab03-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def shaped(temperature: float, top_p: float) -> torch.Tensor:
    """Probabilities of the ids in `top` after temperature and top_p, in this order."""
    ### BEGIN SOLUTION
    logits = chain.apply_temperature(after, torch.tensor([temperature]))
    logits = chain.apply_top_p(logits, torch.tensor([top_p]))
    return logits.softmax(dim=-1)[0, top]
    ### END SOLUTION


# %% [markdown]
# **Predict**: at temperature 2, does top_p 0.8 keep more or fewer of these eight than at temperature
# 0.5? Then move both. Which of the two sliders can change *which* token is the likeliest?

# %%
with needs("03", 2):
    plots.explore(shaped, words)

# %% [markdown]
# No generator was used: `draw` is a pure function of logits, seed and position. Is it still random
# enough? **Predict**: how far from its probability of 0.4 is the share of token 0 in 3,000 draws?

# %%
with needs("03", 2):
    probs = [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]
    table = torch.tensor(probs).log().repeat(3000, 1)
    tokens = chain.draw(table, torch.full((3000,), 2024), torch.arange(3000))
    shares = torch.bincount(tokens, minlength=6) / 3000
    plots.draws(shares.tolist(), probs, 3000)

# %% [markdown]
# ## 3. Experiment: what does the model think of its own text?
#
# The surprise of a token is minus its log-probability. Let the model write 40 tokens after "One day",
# with `ignore_eos` and `logprobs=0`, and write `surprise`: the mean over the 40 tokens and over the
# seeds 0 and 1. A finished completion has a `cumulative_logprob`. **Predict** the surprise of a token
# for temperature 2 and top_p 1. (A token of probability 1/2 has 0.69, one of 1/100 has 4.6.)

# %%
guess = ...  # nats a token


# %% nbgrader={"grade": false, "grade_id": "lab03-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def surprise(temperature: float, top_p: float) -> float:
    """Mean of minus log-probability over 40 tokens after "One day", and over the seeds 0 and 1."""
    ### BEGIN SOLUTION
    total, given = 0.0, {"max_tokens": 40, "ignore_eos": True, "logprobs": 0}
    for seed in (0, 1):
        params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed, **given)
        *_, done = loop.generate(model, tokenizer.encode("One day"), params)
        total -= done.completion.cumulative_logprob
    return total / 80
    ### END SOLUTION


# %% [markdown]
# The star is your guess. **Predict** before you run it: at temperature 2, how much of the surprise
# does top_p 0.8 take away? Both curves use the model's own log-probabilities, before temperature.

# %%
with needs("03", 1, 2):
    plots.surprise(surprise, guess=None if guess is ... else guess)

# %% nbgrader={"grade": true, "grade_id": "lab03-task-2", "locked": true, "points": 32, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=2
check_task("03", 2)

# %% [markdown]
# ## 4. Beams against greedy
#
# Beam search looks for a likelier *whole text*. **Predict**: by how much is the sum of
# log-probabilities of 20 tokens larger with width 4 than with width 1? And which of the two texts is
# ahead after the first word?


# %%
def running_sum(start: list[int], token_ids: tuple[int, ...]) -> list[float]:
    """The log-probability of the first 1, 2, ... of these tokens behind the prompt."""
    text = torch.tensor([*start, *token_ids])
    cache = ContiguousCache(model.config, capacity=len(text))
    with torch.inference_mode():
        hidden = forward_cached(model, cache, text)[len(start) - 1 : -1]
        own = model.logits(hidden).float().log_softmax(-1)
    return own.gather(1, text[len(start) :, None])[:, 0].cumsum(0).tolist()


# %%
with needs("03", 3):
    start, best = tokenizer.encode("Mia went to the"), {}
    for width in (1, 2, 3, 4, 8):
        params = beam.BeamSearchParams(beam_width=width, max_tokens=20)
        best[width] = beam.beam_search(model, start, params)[0]
        print(f"width {width}: {tokenizer.decode(list(best[width].token_ids))}")
    sums = {width: found.logprob for width, found in best.items()}
    plots.beams(sums, *(running_sum(start, best[width].token_ids) for width in (1, 4)))

# %% nbgrader={"grade": true, "grade_id": "lab03-task-3", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=3
check_task("03", 3)

# %% [markdown]
# ## 5. What chunks change, and what they do not
#
# A prompt of 4,096 tokens. The tokens computed are the same for every chunk size; the memory that
# one step's attention scores need is not. **Predict** the peak with chunks of 512, in percent of the
# peak of one pass.

# %%
predict("03", "c", ...)  # your guess in place of the dots

# %%
with needs("03", 4):
    sizes = [4096, 2048, 1024, 512, 256, 128, 64]
    costs = [chunked.prefill_cost(4096, size) for size in sizes]
    plots.chunks(sizes, [c.peak_score_elements for c in costs], [c.steps for c in costs])
    answer("03", "c")

# %% nbgrader={"grade": true, "grade_id": "lab03-task-4", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=4
check_task("03", 4)

# %% [markdown]
# ## 6. What padding wastes
#
# Prompts of 2, 5, 9 and 16 tokens that generate 20, 5, 40 and 10. Every cell of the picture is a
# token that goes through the model. **Predict** which percentage is computed for nobody.

# %%
predict("03", "d", ...)  # your guess in place of the dots

# %%
with needs("03", 1, 2, 5):
    prompts, new = [[7] * n for n in (2, 5, 9, 16)], [20, 5, 40, 10]
    each = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in new]
    waste = static_batch.generate_static(model, prompts, each, sampler=argmax_sampler).waste
    plots.rectangle([len(prompt) for prompt in prompts], new)
    print(
        f"{waste.computed} tokens computed: prompt {waste.prompt}, pads {waste.padding},", end=" "
    )
    print(
        f"decode {waste.decode}, idle {waste.idle}; {waste.kv_used} of {waste.kv_reserved} places"
    )
    answer("03", "d")

# %% [markdown]
# ## 7. Experiment: who waits for whom
#
# Real answers have a long tail of lengths. A static batch of answers with the lengths 3, 10 and 4
# runs for 10 steps, and 30 - 17 = 13 of its 30 row steps are idle. Write `wasted`: cut the list of
# lengths into batches in its order, and return the share of idle row steps over all batches (the
# last batch may be smaller). No model is needed.
#
# **Predict** the share for batches of 64, for 1,024 answers in the order in which they came.

# %%
idle_guess = ...  # between 0 and 1


# %% nbgrader={"grade": false, "grade_id": "lab03-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def wasted(lengths: list[int], rows: int) -> float:
    """Share of row steps in which a row has already ended."""
    ### BEGIN SOLUTION
    computed = 0
    for start in range(0, len(lengths), rows):
        batch = lengths[start : start + rows]
        computed += len(batch) * max(batch)
    return 1 - sum(lengths) / computed
    ### END SOLUTION


# %% [markdown]
# The blue curve sorts the answers by length first. **Predict** how much of the waste that removes.
# And why can a server not do it?

# %%
with needs("03", 5):
    plots.idle_share(wasted, guess=None if idle_guess is ... else idle_guess)

# %% nbgrader={"grade": true, "grade_id": "lab03-task-5", "locked": true, "points": 13, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=5
check_task("03", 5)

# %% [markdown]
# ## 8. Experiment: the knee of a batch
#
# Llama-3-8B in bfloat16 on an H100, by counting alone. **Predict** how many requests must decode
# together before arithmetic, not memory, is the limit: with nothing in the cache, and with 256 tokens.

# %%
ridge_guess = predict("03", "a", ...)  # your guess in place of the dots
predict("03", "b", ...)


# %% nbgrader={"grade": false, "grade_id": "lab03-experiment-4", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def rate(rows: int, cached: int) -> float:
    """Tokens a second of a decode step of `rows` Llama-3-8B requests on an H100, at best."""
    ### BEGIN SOLUTION
    work = roofline.step_work(llama, rows, 1, cached)
    return rows / roofline.least_seconds(work, roofline.H100)
    ### END SOLUTION


# %% [markdown]
# The curves are for 0, 256, 1,024 and 8,192 tokens in each cache, on logarithmic axes. **Predict**: all
# become flat; which two because arithmetic is the limit, and what stops the other two?

# %%
with needs("03", 6):
    plots.knee(rate, guess=ridge_guess)
    answer("03", "a")
    answer("03", "b")

# %% [markdown]
# The same steps under the roof. **Predict** where a decode of one row stands, and how far right 64
# rows move it.

# %%
with needs("03", 6):
    shapes = {"prefill 32": (1, 32), "prefill 128": (1, 128), "prefill 2048": (1, 2048)}
    shapes |= {f"decode, rows: {n}": (n, 1, 1024) for n in (1, 8, 64, 512)}
    works = {name: roofline.step_work(llama, *shape) for name, shape in shapes.items()}
    plots.roof(roofline.H100, works)
    for name, work in works.items():
        least = 1e3 * roofline.least_seconds(work, roofline.H100)
        print(f"{name:>16}: {least:6.2f} ms, {roofline.bound_by(work, roofline.H100)}")

# %% [markdown]
# And waiting in a queue? Twelve requests arrive in a burst, served one at a time or all in one batch,
# on your machine. **Predict**: which way has the longer wait for a first token, which the longer wait
# between tokens, and who of the twelve feels it?

# %%
with needs("03", 1, 2, 5, 6):
    prompts = [tokenizer.encode("One day, Mia went to the")] * 12
    each = [SamplingParams(temperature=1, seed=i, max_tokens=10 + i) for i in range(12)]
    began, queue, batch = time.perf_counter(), [], []
    for i in range(12):
        queue += loop.generate(model, prompts[i], each[i], request_id=i)
    alone = latency.timelines(queue, dict.fromkeys(range(12), began))
    began = time.perf_counter()
    static_batch.generate_static(model, prompts, each, on_event=batch.append)
    together = latency.timelines(batch, dict.fromkeys(range(12), began))

# %%
with needs("03", 1, 2, 5, 6):
    ways = {"one at a time": alone, "one batch": together} if "together" in globals() else {}
    reports = {name: latency.summarize(list(found.values())) for name, found in ways.items()}
    for name, report in reports.items():
        print(f"{name:>14}: TTFT p50 {1e3 * report.ttft_p50:5.0f} ms,", end=" ")
        print(f"TPOT p50 {1e3 * report.tpot_p50:5.1f} ms, {report.tokens_per_second:4.0f} tokens/s")
    if ways:
        plots.burst(*({n: line for (n, _), line in lines.items()} for lines in ways.values()))

# %% nbgrader={"grade": true, "grade_id": "lab03-task-6", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="03" nanovllm_task=6
check_task("03", 6)

# %% [markdown]
# ## 9. Bonus: a text that must have a form
#
# The answer must match a regular expression. At each step a library says which tokens may follow, as
# a mask over the vocabulary; all other logits become -inf, then your sampler draws. Each column is a
# step: the six tokens that the model likes best, blue where the mask allows them; below, the token
# that was taken, and how many of 2,048 were allowed. **Predict**: in how many of the steps would the
# model have taken the same token without a mask?

# %%
with needs("03", 1, 2):
    form = StructuredOutputsParams(regex=r" [A-Z][a-z]+ is [0-9]{2} years old\.")
    ask = SamplingParams(temperature=0, max_tokens=20, logprobs=6, structured_outputs=form)
    question = tokenizer.encode("How old is the boy? The answer:")
    done = list(loop.generate(model, question, ask, tokenizer=tokenizer))[-1].completion
    print(repr(done.text))
    grammar = prepare(ask, model, tokenizer).grammar
    allowed = [grammar.allowed(done.token_ids[:i]) for i in range(len(done.token_ids))]
    plots.masks(done, allowed, lambda token: tokenizer.decode([token]))

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab03-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# ## Questions
#
# **Question 1 (5 points).** A service runs Llama-3-8B on one H100 and answers one request at a time. Its owner wants ten
# times the tokens per second and says: "we need a card with ten times the FLOP/s". Use the
# roofline above: what would that card change for a single decoding request, what would a card
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

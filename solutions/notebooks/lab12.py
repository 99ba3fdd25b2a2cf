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
# # Lab 12: Reliability
#
# The handout is `labs/lab12/README.md`; your code is in `nanovllm/resilience/`. Here you break things and
# watch. You write three experiments. A cell that needs a task you have not written says so: write the
# task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.** Put a number in the place of
# the dots.

# %%
from grader.student.notebook import answer, needs, plots_of, predict

plots = plots_of("12")

# %% [markdown]
# ## 1. Seeds that fail, and why
#
# ### Experiment 1: shrink them
#
# `plots.Forgetful` is an engine with a mistake: when it takes a stream over, it does not know what was
# told before. Write `blamed(seeds)`: for each seed, `run_trial` with this engine; where the trial has
# complaints, shrink it with `least`, and count the kind (its `value`) of each fault that is left.
# **Predict**: a trial has faults of ten kinds. Which of them can bring this mistake to light?
#
# **Predict** (a): 20 faults, one to blame: how many simulations does your `shrink` run?

# %%
predict("12", "a", ...)


# %% nbgrader={"grade": false, "grade_id": "lab12-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def blamed(seeds: range) -> dict[str, int]:
    """How many faults of each kind are left in failing seeds, when they have been shrunk."""
    ### BEGIN SOLUTION
    from collections import Counter

    from nanovllm.resilience.trial import least, run_trial

    found: Counter[str] = Counter()
    for seed in seeds:
        trial = run_trial(seed, make_engine=lambda clock: plots.Forgetful(clock=clock))
        if trial.complaints:
            faults = least(trial)
            found.update(f.kind.value for f in (*faults.steps, *faults.wire, *faults.disk))
    return dict(found)
    ### END SOLUTION


# %%
with needs("12", 1, 4, 5, 7):
    plots.kinds(blamed(range(100)))
with needs("12", 1):
    answer("12", "a")

# %% [markdown]
# Four kinds of fault are left nearly always, and alone. What have they in common? In a few seeds a message
# that came late, or a disk that was full, is left beside the death: what has it to do with the mistake?

# %% nbgrader={"grade": true, "grade_id": "lab12-task-1", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="12" nanovllm_task=1
from grader.student.notebook import check_task

check_task("12", 1)

# %% [markdown]
# ## 2. Who hangs?
#
# An engine rests, works, hangs and is made anew. **Predict**: at which of these looks does `Progress(10)`
# say that it hangs?

# %%
looks = [(0, 5, 0), (300, 5, 1), (305, 5, 2), (309, 6, 2), (318, 6, 2), (319, 6, 1), (320, 0, 1)]
with needs("12", 2):
    from nanovllm.resilience.progress import Progress

    progress = Progress(10.0)
    for now, steps, work in looks:
        hung = progress.hung(float(now), steps, work)
        print(f"{now:4} s, {steps} steps, {work} open: {'hangs' if hung else 'well'}")

# %% nbgrader={"grade": true, "grade_id": "lab12-task-2", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="12" nanovllm_task=2
from grader.student.notebook import check_task

check_task("12", 2)

# %% [markdown]
# ## 3. Less for a while
#
# The store is full for 45 seconds. Move `longest`. **Predict**: with 10 seconds, for how long does the
# engine compute 30 % less?

# %%
with needs("12", 3):
    from nanovllm.resilience.relief import Brake

    plots.brake(lambda longest: Brake(hold=5.0, longest=longest))

# %% [markdown]
# What would the line look like if each alarm took 30 % away?

# %% nbgrader={"grade": true, "grade_id": "lab12-task-3", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="12" nanovllm_task=3
from grader.student.notebook import check_task

check_task("12", 3)

# %% [markdown]
# ## 4. Glued to the prompt
#
# ### Experiment 2: what a naive resume gets wrong
#
# Write `glued(prompt, params, seed, cut)`: the text of a stream that is cut after `cut` tokens and begun
# anew in another `ToyEngine`, with these tokens at the end of its prompt and `max_tokens` lower by `cut`;
# the text that was told before comes in front. `text_of(engine, prompt, params, seed)` runs a request and
# gives its tokens and its text. `min_tokens` may not be above `max_tokens`: lower it to that where it is.
# A stream that ended before the cut stays as it is. **Predict** (b), then: for which of the four lines does
# it matter where the cut is?

# %%
predict("12", "b", ...)

# %%
from dataclasses import replace

from nanovllm.generation.events import TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.resilience.toy_engine import ToyEngine


def text_of(engine, prompt, params, seed):
    engine.add_request(prompt, params, seed=seed)
    events = []
    while engine.has_unfinished:
        events += [e for e in engine.step() if isinstance(e, TokenGenerated)]
    return [e.token_id for e in events], "".join(e.text for e in events)


# %% nbgrader={"grade": false, "grade_id": "lab12-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def glued(prompt: list[int], params: SamplingParams, seed: int, cut: int) -> str:
    """The text of a stream that another engine goes on with, its output glued to the prompt."""
    ### BEGIN SOLUTION
    first = replace(params, max_tokens=cut, min_tokens=min(params.min_tokens, cut))
    tokens, begun = text_of(ToyEngine(), prompt, first, seed)
    if len(tokens) < cut:  # it had ended before
        return begun
    left = (params.max_tokens or 16) - cut
    rest = replace(params, max_tokens=left, min_tokens=min(params.min_tokens, left))
    return begun + text_of(ToyEngine(), [*prompt, *tokens], rest, seed)[1]
    ### END SOLUTION


# %%
found, seeds, cuts = {}, range(40), [2, 6, 10, 14, 18, 22]
with needs("12", 4):
    for name, more in {
        "plain": {},
        "presence penalty": {"presence_penalty": 1.0},
        "min_tokens 12": {"min_tokens": 12, "ignore_eos": False},
        "stop string": {"stop": ["ab", "st", "en", "oh"]},
    }.items():
        params = SamplingParams(**({"max_tokens": 24, "ignore_eos": True} | more))
        truth = [text_of(ToyEngine(), [5, 6], params, seed)[1] for seed in seeds]
        found[name] = {
            cut: sum(glued([5, 6], params, s, cut) == truth[s] for s in seeds) for cut in cuts
        }
    plots.cuts(found, len(seeds))
    answer("12", "b")

# %% [markdown]
# The plain line stays at the top: with the key from (seed, position), glueing is right for it. This is why
# a test with plain sampling alone finds nothing.

# %% nbgrader={"grade": true, "grade_id": "lab12-task-4", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="12" nanovllm_task=4
from grader.student.notebook import check_task

check_task("12", 4)

# %% [markdown]
# ## 5. A timeline of deaths
#
# Eight streams, five at a time; the engine dies at step 6, and at the step that you move. Colours are
# engines. **Predict**: what is different when the second death comes soon after the first?

# %%
with needs("12", 1, 4, 5):
    plots.kill_at()

# %% [markdown]
# Stream 2 kills each engine that computes its third token. **Predict** (c): how many engines does it take
# with your supervisor (the question's own six requests), and at which death is stream 2 given up?

# %%
predict("12", "c", ...)

# %%
with needs("12", 1, 4, 5):
    plots.timeline(plots.killed([], poisoned=True))
with needs("12", 4, 5):
    answer("12", "c")

# %% [markdown]
# After the second death, only one of the suspects is in the engine at a time. What does this cost, and
# what would it cost not to do it?

# %% nbgrader={"grade": true, "grade_id": "lab12-task-5", "locked": true, "points": 30, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="12" nanovllm_task=5
from grader.student.notebook import check_task

check_task("12", 5)

# %% [markdown]
# ## 6. A storm of retries
#
# ### Experiment 3: three tries each, or a shared budget
#
# A server gets 100 first calls in each second, and fails from second 20 to 40. Write
# `calls(second, retry)`: how many calls reach it in this second. Each of the 100 is sent once; while the
# server fails (20 <= second < 40), each is sent again as long as `retry()` says True, at most three times
# more. **Predict** (d), then: what reaches the server with three retries each, and with the budget?

# %%
predict("12", "d", ...)


# %% nbgrader={"grade": false, "grade_id": "lab12-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def calls(second: int, retry) -> int:
    """Calls that reach the server in one second: 100 first ones, and their retries."""
    ### BEGIN SOLUTION
    sent = 0
    for _ in range(100):
        sent += 1
        tries = 0
        while 20 <= second < 40 and tries < 3 and retry():
            sent, tries = sent + 1, tries + 1
    return sent
    ### END SOLUTION


# %%
with needs("12", 6):
    from nanovllm.resilience.retry_budget import RetryBudget

    budget, lines = RetryBudget(), {"three retries each": [], "shared budget": []}
    for second in range(60):
        for _ in range(100):
            budget.call(float(second))
        lines["three retries each"].append(calls(second, lambda: True))
        lines["shared budget"].append(calls(second, lambda: budget.retry(float(second))))
    plots.storm(lines)
    answer("12", "d")

# %% [markdown]
# At its beginning the budget pays for everything that it had saved. How would you make this peak smaller?
#
# Your breaker before a server that fails for 17 seconds. **Predict**: how many calls go through while it
# fails?

# %%
with needs("12", 6):
    from nanovllm.resilience.breaker import Breaker

    plots.breaker_states(lambda: Breaker(failures=3, rest=5.0))

# %% nbgrader={"grade": true, "grade_id": "lab12-task-6", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="12" nanovllm_task=6
from grader.student.notebook import check_task

check_task("12", 6)

# %% [markdown]
# ## 7. Up the ladder, and down
#
# Three failures that come again and again; then two more, after 130 and 330 seconds. Move the gap.
# **Predict** (e); and: with which gap does nothing climb at all?

# %%
predict("12", "e", ...)

# %%
with needs("12", 7):
    from nanovllm.resilience.ladder import Ladder

    plots.ladder(Ladder)
    answer("12", "e")

# %% nbgrader={"grade": true, "grade_id": "lab12-task-7", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="12" nanovllm_task=7
from grader.student.notebook import check_task

check_task("12", 7)

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab12-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** A service has four replicas behind a gateway. Each replica has a liveness check
# that asks for one token with a timeout of 5 seconds. The gateway retries three times. On Monday at nine
# the queue is long, the checks time out, the orchestrator restarts all four replicas within a minute, and
# the service is down for half an hour, though every single part did what it was told. Name what was wrong
# with the check and with the retries, what should have happened at which level instead, and how you would
# show beforehand, without a Monday, that your change works.

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab12-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# The check asks how long the queue is, not whether the engine makes progress: under load its token waits
# behind others, so an overload looks like a death, and the remedy (a restart, with weights to read and
# an empty cache) takes capacity away when it is scarce. Liveness must count finished steps while work waits.
# The long queue is readiness: refuse new requests with 503 and Retry-After. Three retries make four times
# the load for the replicas that are left; one shared budget (20 % and a few a second) and breakers keep it
# near the offered load, and a deadline ends what nobody waits for. By levels: the overload enters at level
# 1 (smaller steps, nobody new), then level 2 (those that are too old end with their partial text); level 3
# and 4 only for a hang, one replica at a time, with a limit on restarts; a person after that. Show it in
# virtual time: a simulation with a burst of arrivals, slow steps and hangs, over thousands of seeds, and a
# judge that no level is skipped, that no healthy engine is restarted, and that each request ends once.
#
# - 1 point: overload taken for a death; progress instead of an answer in time.
# - 1 point: readiness apart from liveness.
# - 1 point: retries multiply the load; shared budget, breaker or deadline.
# - 1 point: the right levels in the right order, bounded restarts.
# - 1 point: simulation with seeds and a judge.
# ### END SOLUTION

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
# # Lab 08: Speculative decoding
#
# The handout is `labs/lab08/README.md`; your code is in `nanovllm/speculative/`. Here you look at
# guesses: which stand, which fall, and when it is better not to guess. You write three experiments. A
# cell that needs a task you have not written says so: write the task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.** Put a number in the place of
# the dots.

# %%
from grader.student.notebook import answer, needs, plots_of, predict

plots = plots_of("08")
models = plots.load()

# %% [markdown]
# ## 1. One text, step by step
#
# The prompt tells four codes and asks for one of them. First prompt lookup guesses, then the draft
# model. Each row is one step of the target: the guesses that stood, the token that the target drew, and
# the guesses that fell. **Predict**: which of the two needs fewer steps? Where does each of them guess
# wrong?


# %%
def both_ways(prompts):
    """For each proposer and each prompt, what the steps of your engine did."""
    from nanovllm.speculative.lookup import PromptLookup

    ways = {"prompt lookup": PromptLookup(), "draft model": plots.drafter(models)}
    return {name: plots.serve(models, prompts, way) for name, way in ways.items()}


# %%
with needs("08", 1, 2, 3):
    runs = both_ways(plots.KINDS["recall"][:1])
    plots.coloured(models, {name: turns for name, [turns] in runs.items()})

# %% [markdown]
# The same for a story. **Predict** first what changes.

# %%
with needs("08", 1, 2, 3):
    runs = both_ways(plots.KINDS["stories"][:1])
    plots.coloured(models, {name: turns for name, [turns] in runs.items()})

# %% nbgrader={"grade": true, "grade_id": "lab08-task-1", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="08" nanovllm_task=1
from grader.student.notebook import check_task

check_task("08", 1)

# %% nbgrader={"grade": true, "grade_id": "lab08-task-2", "locked": true, "points": 18, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="08" nanovllm_task=2
from grader.student.notebook import check_task

check_task("08", 2)

# %% nbgrader={"grade": true, "grade_id": "lab08-task-3", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="08" nanovllm_task=3
from grader.student.notebook import check_task

check_task("08", 3)

# %% [markdown]
# ## 2. Which guesses stand
#
# ### Experiment 1: acceptance by place
#
# A guess counts only if all guesses before it stand. `turns` is what the steps did: `turn.guesses` are
# the tokens guessed, `turn.accepted` says how many stood. Write `share(turns, place)`: of the guesses
# made at this place (1 is the first), the share that stands. **Predict**: how many percent of the draft
# model's *first* guesses stand in stories? Then look at place 4. And for which kind of prompt is
# lookup better than the draft model?

# %%
guess = ...  # your guess in place of the dots, in percent


# %% nbgrader={"grade": false, "grade_id": "lab08-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def share(turns, place: int) -> float:
    """Of the guesses at this place, 1 for the first, the share that stands."""
    ### BEGIN SOLUTION
    made = [turn for turn in turns if len(turn.guesses) >= place]
    return sum(turn.accepted >= place for turn in made) / max(len(made), 1)
    ### END SOLUTION


# %%
with needs("08", 1, 2, 3):
    found = {}
    for kind, prompts in plots.KINDS.items():
        runs = both_ways(prompts)
        found[kind] = {name: [turn for one in run for turn in one] for name, run in runs.items()}
    plots.acceptance(share, found, None if guess is ... else guess)

# %% [markdown]
# The dotted lines are what the formula of task 6 assumes: the same rate at each place, whatever came
# before. Where is that far from the truth, and why?
#
# ## 3. What takes a rejected guess's place
#
# The target's distribution p and the draft's q behind "... Zoe was afraid of". Move the temperature.
# **Predict**: at which temperature do most guesses stand? Can a guess be rejected whose p is above its
# q? Which tokens can the residual (green) never give?

# %%
with needs("08", 4):
    from nanovllm.speculative.rejection import distribution, residual

    at = plots.at_one_place(models, distribution)
    plots.rejected(models, at, residual)

# %% [markdown]
# Does the text depend on the draft? Guess 4,000 times from q, let your `rejection_sample` decide, and
# count. **Predict** the black bars. And (d): with p = (0.6, 0.1, 0.3) and q = (0.3, 0.5, 0.2), how many
# percent of the guesses stand?

# %%
predict("08", "d", ...)

# %%
with needs("08", 4):
    from nanovllm.speculative.rejection import pick, rejection_sample

    (p, q), drawn = at(1.0), []
    for row in plots.uniforms(4000, 5):
        token = pick(q, float(row[0]))
        tokens = rejection_sample(p.expand(2, -1), q[None], [token], row[1:].view(2, 2))
        drawn.append(tokens[0])
    plots.as_if_drawn(models, p, q, drawn)
    answer("08", "d")

# %% nbgrader={"grade": true, "grade_id": "lab08-task-4", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="08" nanovllm_task=4
from grader.student.notebook import check_task

check_task("08", 4)

# %% [markdown]
# ## 4. A tree of guesses
#
# The draft's best 14 guesses as a tree, at most three behind each token. Green: the nodes that stand.
# **Predict** (e): how many places of such a mask are dark, if all nodes have two children and the tree
# is three deep? And how many tokens does a *chain* of 14 guesses bring at the same place?

# %%
predict("08", "e", ...)

# %%
with needs("08", 5):
    text = "Zoe has a red ball. Once upon a time there was a"
    tree = plots.draft_tree(models, text, nodes=14, width=3, depth=6)
    chain = plots.draft_tree(models, text, nodes=14, width=1, depth=14)
    plots.tree(models, text, tree, plots.verified(models, text, tree))
    print(f"a chain of 14 guesses: {len(plots.verified(models, text, chain))} tokens")
    answer("08", "e")

# %% nbgrader={"grade": true, "grade_id": "lab08-task-5", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="08" nanovllm_task=5
from grader.student.notebook import check_task

check_task("08", 5)

# %% [markdown]
# ## 5. When it stops paying
#
# ### Experiment 2: the last batch that pays
#
# A step costs 4 ms and 0.2 ms for each token, a forward of the draft model 0.4 ms: these are
# `plots.TARGET` and `plots.DRAFT`. Write `last_batch(rate, guesses)`: the largest batch, up to 128, at
# which so many guesses make the step at least as fast a token as without (0 if there is none). Use your
# `speed_up_in_batch`. **Predict** (f): which batch is it for 4 guesses that stand with rate 0.8?

# %%
guess = predict("08", "f", ...)


# %% nbgrader={"grade": false, "grade_id": "lab08-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def last_batch(rate: float, guesses: int) -> int:
    """The largest batch, up to 128, at which so many guesses pay; 0 if there is none."""
    ### BEGIN SOLUTION
    from nanovllm.speculative.gain import speed_up_in_batch

    paying = [
        batch
        for batch in range(1, 129)
        if speed_up_in_batch(rate, guesses, batch, plots.TARGET, plots.DRAFT) >= 1
    ]
    return max(paying, default=0)
    ### END SOLUTION


# %%
def best(rate: float, batch: int) -> int:
    """The best number of guesses at this batch."""
    from nanovllm.speculative.gain import best_guesses

    seconds = [plots.TARGET.seconds(batch * (k + 1), 0) for k in range(9)]
    draft = plots.DRAFT.seconds(batch, 0) / seconds[0]
    return best_guesses(rate, 8, [s / seconds[0] for s in seconds], draft)


# %%
with needs("08", 6):
    from nanovllm.speculative.gain import speed_up_in_batch

    def speed(rate, guesses, batch):
        return speed_up_in_batch(rate, guesses, batch, plots.TARGET, plots.DRAFT)

    plots.pays(speed, best, last_batch, guess)
    answer("08", "f")

# %% [markdown]
# With 128 requests even one guess does not pay at rate 0.6. Where has the free time of the step gone?

# %% nbgrader={"grade": true, "grade_id": "lab08-task-6", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="08" nanovllm_task=6
from grader.student.notebook import check_task

check_task("08", 6)

# %% [markdown]
# ## 6. Who should guess
#
# ### Experiment 3: a rule of your own
#
# What the draft's guesses come to was recorded for thirty texts of the bundled target, so a policy can
# be tried without a model. Write `rule(history)`: how many guesses, 0 to 8, a request makes next. Its
# history has a pair (guesses, accepted) for each of its steps so far, (0, 0) where it did not guess.
# **Predict**: where is your rule better than always four? Can it be better than the policy of
# task 7, which knows the costs? And (g): how many guesses does that policy make in vain?

# %%
predict("08", "g", ...)


# %% nbgrader={"grade": false, "grade_id": "lab08-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def rule(history: list[tuple[int, int]]) -> int:
    """How many guesses a request makes next; history: (guesses, accepted) of each step so far."""
    ### BEGIN SOLUTION
    made = [pair for pair in history if pair[0]]
    if not made:
        return 4
    guesses, accepted = made[-1]
    if guesses == accepted:  # all stood: be bolder
        return min(guesses + 2, 8)
    if accepted:
        return accepted + 1
    return 2 if len(history) % 8 == 0 else 0  # none stood: wait a little
    ### END SOLUTION


# %%
def candidates(costs):
    """The policies to compare, for these costs."""
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.guess_policy import FixedPolicy

    fixed = {f"always {count}": FixedPolicy(count) for count in (2, 4, 8)}
    return {**fixed, "your rule": plots.Rule(rule), "your task 7": AdaptivePolicy(8, costs)}


# %%
with needs("08", 7):
    from nanovllm.speculative.replay import gain

    texts, gains = plots.recorded(), {}
    for kind, costs in plots.COSTS.items():
        policies = candidates(costs).items()
        gains[kind] = {name: gain(texts, policy, costs, batch=4) for name, policy in policies}
    plots.policies(gains)
    answer("08", "g")

# %% [markdown]
# Now look inside. One text of each kind, all at once, and one that was made up: guesses at its first forty
# tokens are wrong, at all later ones right. **Predict**: whose row ends first? After how many steps does
# your policy give the last text up, and when does it come back?

# %%
with needs("08", 7):
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.replay import replay

    costs, few = plots.COSTS["in between"], [*plots.recorded()[:5], plots.turning()]
    story = replay(few, AdaptivePolicy(8, costs), costs, batch=len(few))
    plots.wanted(story, [text.kind for text in few])

# %% nbgrader={"grade": true, "grade_id": "lab08-task-7", "locked": true, "points": 30, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="08" nanovllm_task=7
from grader.student.notebook import check_task

check_task("08", 7)

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab08-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** A team switches speculation on, with four guesses a step. At night, with two requests
# at once, answers come 1.8 times as fast. At noon, with 64 at once, they are slower than without. Nobody
# changed the model or the prompts. Explain both with the formula of task 6, say which two numbers you
# would look at on the dashboard, and what you would change.

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab08-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# At night a step waits for memory: the weights are read once, whether the step computes 2 tokens or 10,
# so v(4) is near 1 and the tokens that stand are nearly free. At noon the step computes 64 tokens
# without guesses and 320 with them, and waits for arithmetic: v(4) is near 5, and the tokens a step
# (say 3.4) are fewer than that. Acceptance did not change; the price of a guess did. Look at the tokens
# that a step yields for each request (or the share of guesses that stand, by place) and at the tokens
# that a step computes (or the batch size) with its seconds. Guess fewer in large batches, down to none,
# and let those guess whose guesses stand: the policy of task 7.
#
# - 2 points: small batch, the step waits for memory, v(k) near 1; large batch, it waits for arithmetic,
#   v(k) near k + 1, larger than the tokens gained.
# - 1 point: the rate of acceptance is the same in both.
# - 1 point: acceptance (or tokens a step), and batch size or seconds a step.
# - 1 point: number of guesses by batch (and by request), 0 allowed.
# ### END SOLUTION

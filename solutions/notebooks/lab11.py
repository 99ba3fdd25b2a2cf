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
# # Lab 11: Disaggregation and routing
#
# The handout is `labs/lab11/README.md`; your code is in `nanovllm/cluster/`. Here you see what goes over
# the wire, what four strategies do to a user, where your routing policies stand, and how a fleet
# breathes. You write three experiments. A cell that needs a task you have not written says so: write the
# task, restart the kernel, run again.
#
# **Before you run a cell that asks a question, write your guess down.** Put a number in the place of
# the dots.

# %%
from grader.student.notebook import answer, needs, plots_of, predict

plots = plots_of("11")

# %% [markdown]
# ## 1. What goes over the wire
#
# ### Experiment 1: bytes from a formula
#
# `plots.TARGET` has the shape of the bundled model: 4 layers, 4 key/value heads of 32, float32. Write
# `bytes_sent(tokens, block_size)`: the K and V of a prompt in whole blocks, without the header. `packed`
# is what your `pack` makes, header included. **Predict** (a): how many KiB are the K and V of 1,000
# tokens? And: does a larger block make the line steeper?

# %%
guess = predict("11", "a", ...)


# %% nbgrader={"grade": false, "grade_id": "lab11-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def bytes_sent(tokens: int, block_size: int) -> float:
    """Bytes of K and V of so many tokens of `plots.TARGET`, in whole blocks."""
    ### BEGIN SOLUTION
    places = -(-tokens // block_size) * block_size
    return 2 * 4 * places * 4 * 32 * 4
    ### END SOLUTION


# %%
with needs("11", 1):
    places = [(tokens, size) for size in (4, 64) for tokens in (1, 30, 64, 65, 100, 150)]
    plots.wire(bytes_sent, {place: plots.packed(*place) for place in places})
    answer("11", "a")

# %% [markdown]
# On the right: over which of these links would you rather compute a prompt again than send it? Why does
# the answer not depend on the length of the prompt? What would change it?

# %% nbgrader={"grade": true, "grade_id": "lab11-task-1", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="11" nanovllm_task=1
from grader.student.notebook import check_task

check_task("11", 1)

# %% [markdown]
# ## 2. The other side
#
# Two engines: the first computes prompts, the second goes on behind them, with blocks of another size.
# The second has a prefix cache of its own. **Predict** (b), and: five prompts that begin alike are sent
# one after another. Of which of them does the second engine load every token that it can?

# %%
predict("11", "b", ...)

# %%
with needs("11", 1, 2):
    from nanovllm.cluster.in_process import connected_engine, hand_over
    from nanovllm.generation.params import SamplingParams

    p, d = (connected_engine(plots.MODELS / "target", 200, size) for size in (16, 8))
    for name in ("Mia", "Leo", "Ana", "Tom", "Zoe"):
        text = "Once upon a time there was a little red house by the sea. In it lived " + name
        prompt, before = p.tokenizer.encode(text), d.store.loaded
        got = hand_over(p, d, prompt, SamplingParams(temperature=0, max_tokens=6))
        loaded = d.store.loaded - before
        print(
            f"{len(prompt)} tokens: {got.nbytes:,} bytes came, {loaded} tokens loaded {got.text!r}"
        )
    answer("11", "b")

# %% [markdown]
# All bytes of every prompt came, though most of them were not needed. Who could have known, before they
# were sent? What would it have to be told?

# %% nbgrader={"grade": true, "grade_id": "lab11-task-2", "locked": true, "points": 18, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="11" nanovllm_task=2
from grader.student.notebook import check_task

check_task("11", 2)

# %% [markdown]
# ## 3. Four strategies
#
# Ten requests on two instances, in the simulator: three have long prompts. **Predict** (c), and: which
# strategy has the shortest worst gap between two tokens, and which gives the first token soonest?

# %%
predict("11", "c", ...)

# %%
with needs("11", 3):
    from nanovllm.batching.simulator import StepCost
    from nanovllm.cluster.replay import Limits, Progress, replay
    from nanovllm.cluster.strategies import Wire, chunked, disaggregated, prefill_first, static

    found, limits = {}, Limits(max_num_seqs=4)
    for strategy in (static, prefill_first, chunked):
        done = [Progress(n, job, job.arrival) for n, job in enumerate(plots.jobs())]
        spans = replay(done, strategy, StepCost(), limits, lanes=("0", "1"), one_pool=True)
        found[strategy.__name__.replace("_", " ")] = done, spans
    found["disaggregated"] = disaggregated(plots.jobs(), StepCost(), Wire(), limits)
    plots.gantt(found)
    answer("11", "c")

# %% [markdown]
# Where is an instance idle, and could it have helped? With `one_pool=False` every instance has requests
# of its own from the start: change it, and look for an instance that waits while the other has a queue.

# %% nbgrader={"grade": true, "grade_id": "lab11-task-3", "locked": true, "points": 16, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="11" nanovllm_task=3
from grader.student.notebook import check_task

check_task("11", 3)

# %% [markdown]
# ## 4. Hits against balance
#
# ### Experiment 2: a policy of your own
#
# Your five policies and your index, in front of three engines with the draft model: 96 requests, two a
# step, begin with one of twelve texts, of which some are popular. Write a sixth policy:
# affinity with a limit. It takes the replica that holds most of the prompt, unless that has more than
# `most` open requests more than the least loaded; then it takes the least loaded. **Predict** (d), and:
# where in the picture does your policy stand with `most` = 1, and with `most` = 20?

# %%
guess = predict("11", "d", ...)


# %% nbgrader={"grade": false, "grade_id": "lab11-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
class LimitedAffinity:
    """The replica with the longest prefix, while it has not too much to do."""

    def __init__(self, index, most: int) -> None:
        self.index, self.most = index, most

    def choose(self, query, replicas) -> str:
        """The name of one of `replicas`."""
        ### BEGIN SOLUTION
        held = self.index.match(query.hashes)
        least = min(replicas, key=lambda replica: (replica.requests, replica.name))
        best = max(replicas, key=lambda replica: (held.get(replica.name, 0), -replica.requests))
        return (least if best.requests - least.requests > self.most else best).name
        ### END SOLUTION


# %%
with needs("11", 4):
    from nanovllm.cluster.block_index import BlockIndex
    from nanovllm.cluster.routing import make_policy
    from nanovllm.cluster.routing_interface import POLICIES

    indices = {name: BlockIndex() for name in (*POLICIES, "yours, 1", "yours, 20")}
    outcomes = {}
    for name, index in indices.items():
        most = int(name.split()[1]) if name not in POLICIES else 0
        policy = LimitedAffinity(index, most) if most else make_policy(name, index)
        outcomes[name] = plots.trial(policy, index)
    plots.policies(outcomes)
    answer("11", "d")

# %% [markdown]
# `prefix_aware` has no limit, but counts what waits in tokens. In which situation does a limit of open
# requests choose badly, where tokens choose well?

# %% nbgrader={"grade": true, "grade_id": "lab11-task-4", "locked": true, "points": 30, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="11" nanovllm_task=4
from grader.student.notebook import check_task

check_task("11", 4)

# %% [markdown]
# ## 5. A fleet that breathes
#
# ### Experiment 3: the control loop
#
# Once a second somebody asks: how many replicas should there be, and which ones go? Write
# `control(scaler, now, fleet, open_requests)` with your `decide` and `to_drain`. It returns
# `Actions(start, drain)`. **Predict**: the load goes up at second 30, a replica takes 5 s to start. How
# long is the queue at its worst? And during the change of version: are there ever fewer ready replicas?


# %% nbgrader={"grade": false, "grade_id": "lab11-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def control(scaler, now, fleet, open_requests):
    """What to do now, as Actions: replicas to start, names of those to drain."""
    ### BEGIN SOLUTION
    living = fleet.living()
    wanted = scaler.decide(now, open_requests, len(living))
    drain = to_drain(living, len(living) - wanted) if wanted < len(living) else []
    return Actions(max(0, wanted - len(living)), tuple(drain))
    ### END SOLUTION


# %%
with needs("11", 5):
    from functools import partial

    from nanovllm.cluster.autoscaler import Autoscaler, to_drain
    from nanovllm.cluster.fleet_trial import run_fleet
    from nanovllm.cluster.rollout import Actions

    mine = Autoscaler(target=4, least=2, most=8, up_delay=3, down_delay=10)
    plots.fleet(run_fleet(plots.LOAD, partial(control, mine), change_at=70), change_at=70)

# %% [markdown]
# Now move the delays and the target. The load goes up and down twice. **Predict**: which costs more
# replica-seconds, a long delay on the way down or on the way up? Which one do users notice?

# %%
with needs("11", 5):
    plots.scaler(lambda scaler: partial(control, scaler))

# %% nbgrader={"grade": true, "grade_id": "lab11-task-5", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="11" nanovllm_task=5
from grader.student.notebook import check_task

check_task("11", 5)

# %% [markdown]
# ## 6. Models that share a memory
#
# Three models of equal size, memory for two, 24 requests: first for a, b, c in turn, then as in (e), then
# without an order. **Predict** (e). Then: what does a pin save in each of the three?

# %%
predict("11", "e", ...)


# %%
def after_each(asked: str, pinned: bool) -> list[list[str]]:
    """Which models are in memory after each request."""
    from nanovllm.cluster.model_pool import ModelPool
    from nanovllm.cluster.model_specs import ModelSpec

    specs = [ModelSpec("a", 5, pinned), ModelSpec("b", 5), ModelSpec("c", 5)]
    pool, rows = ModelPool(10, specs, lambda spec: spec.name, lambda spec, loaded: None), []
    for name in asked:
        with pool.using(name):
            rows.append(pool.resident)
    return rows


# %%
with needs("11", 6):
    for asked in ("abc" * 8, "abac" * 6, "aaabaacaabaaacabaaaacaab"):
        rows = {"no pin": after_each(asked, False), "a is pinned": after_each(asked, True)}
        plots.residency(rows, asked)
    answer("11", "e")

# %% nbgrader={"grade": true, "grade_id": "lab11-task-6", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="11" nanovllm_task=6
from grader.student.notebook import check_task

check_task("11", 6)

# %% [markdown]
# ## 7. A router that knows who has which model
#
# Three replicas keep two models each; 90 requests ask for four models. Your `rank_replicas` with your
# `Memory`, and once more without: there the router believes that everybody has everything. **Predict**:
# how many of the 90 requests have to wait for a load, with and without? Which of both is more even?

# %%
with needs("11", 4, 7):
    plots.placed({"knows": plots.placements(True), "does not know": plots.placements(False)})

# %% nbgrader={"grade": true, "grade_id": "lab11-task-7", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="11" nanovllm_task=7
from grader.student.notebook import check_task

check_task("11", 7)

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab11-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** A company runs eight replicas of one model behind a round-robin router. Most
# requests are chats of an assistant whose system prompt has 3,000 tokens; a tenth are documents of 20,000
# tokens that nobody sends twice. Users of the chat complain that their text stops for a second now and
# then. One engineer proposes prefix-aware routing, another one disaggregation, a third one a larger
# autoscaler target. Which problem does each of the three mend, and which does it not? What would you do
# first, and which number would you measure before and after?

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab11-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# Text that stops is a gap between two tokens: a document's prefill of 20,000 tokens is computed in the
# replica that decodes the chat. Prefix-aware routing does not mend that: documents share nothing. It also
# gains little for the system prompt, for that is so popular that every replica holds it after its first
# request; it gains for the conversations, whose later turns find their own history. Disaggregation mends the
# gaps: prefills are computed elsewhere, and a decode instance only loads K and V. It costs transfers and
# divides the replicas, so the share of prefill must be known. A larger target makes it worse: more open
# requests on each replica, so more prefills beside each decode. First: the chunk size (the token budget of
# a step) bounds the gap without any new machine; or documents get replicas of their own. Measure the 99th
# percentile of the time between two tokens, with the time to the first token beside it.
#
# - 1 point: the gap comes from long prefills in the same engine.
# - 1 point: prefix-aware routing: right about what it gains (later turns, not documents).
# - 1 point: disaggregation removes the gap, and names a cost.
# - 1 point: a larger target does not help, or makes it worse.
# - 1 point: a first step that is cheap (chunks, separate pools), and inter-token latency p99 as number.
# ### END SOLUTION

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
# # Lab 07: Serving
#
# The handout is `labs/lab07/README.md`; your code is in `nanovllm/serving/`. This notebook puts users in
# front of it. Most of them live in virtual time: a minute takes a moment, and every run gives the same
# numbers. A cell that needs a task you have not written says so: write the task, restart the kernel,
# run again.
#
# **Before you run a cell that asks a question, write your guess into it.**

# %%
import torch

from grader.student.notebook import answer
from grader.student.notebook import check_task
from grader.student.notebook import movable
from grader.student.notebook import needs
from grader.student.notebook import plots_of
from grader.student.notebook import predict
from grader.course.paths import MODELS
from nanovllm.generation.latency import ManualClock, percentile
from nanovllm.generation.params import SamplingParams

torch.set_num_threads(1)
plots = plots_of("07")

# %% [markdown]
# ## 1. Whose thread is it?
#
# An engine whose step takes 60 ms answers one request of 12 tokens. Meanwhile a task of the event loop
# wants to run every 5 ms. It stands for everything else that a server does, such as taking the next
# request. **Predict** the longest time that it waits when the engine is stepped in the loop, and when it
# is stepped in a thread of its own.

# %%
with needs("07", 1):
    scenes = {"in the loop": plots.stepped_in_the_loop(0.06)}
    scenes["own thread"] = plots.stepped_in_a_thread(0.06)
    plots.beats(scenes)

# %% [markdown]
# And **predict** (a): six clients come at once, and are answered one at a time.

# %%
guess = predict("07", "a", ...)
with needs("07", 1):
    answer("07", "a")

# %% nbgrader={"grade": true, "grade_id": "lab07-task-1", "locked": true, "points": 28, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=1
check_task("07", 1)

# %% [markdown]
# ## 2. What a request asks for
#
# A model with a context of 100 tokens, prompts of 70. **Predict** for each request how many tokens it may
# get, or which status it is refused with.

# %%
with needs("07", 2):
    from nanovllm.serving.failures import api_error
    from nanovllm.serving.protocol import ChatCompletionRequest, CompletionRequest
    from nanovllm.serving.sampling import sampling_params

    for asked in ({}, {"max_tokens": 30}, {"max_tokens": 31}, {"temperature": -1}):
        try:
            said = sampling_params(CompletionRequest(prompt="Hi", **asked), 70, 100).max_tokens
        except Exception as error:
            said = f"{api_error(error).status}: {api_error(error).message[:66]}..."
        print(f"{asked!s:<22} {said}")

# %%
with needs("07", 2):
    HI = [{"role": "user", "content": "Hi"}]
    for asked in ({}, {"max_tokens": 5, "max_completion_tokens": 25}):
        chat = ChatCompletionRequest(messages=HI, **asked)
        print(f"chat {asked!s:<48} {sampling_params(chat, 70, 100).max_tokens}")

# %% nbgrader={"grade": true, "grade_id": "lab07-task-2", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=2
check_task("07", 2)

# %% [markdown]
# ## 3. Chunks on a time line
#
# Two choices of eight words each, a step every 10 ms. One reader looks as soon as there is something, the
# other every 35 ms. **Predict** how many chunks each gets. Does the slow reader get the last word later
# than the other one, and by how much at most?

# %%
with needs("07", 1, 2, 3):
    sent = {"looks at once": plots.read_every(0.0), "every 35 ms": plots.read_every(0.035)}
    plots.frames(sent)
    print(sent["looks at once"][0][1].decode())

# %% nbgrader={"grade": true, "grade_id": "lab07-task-3", "locked": true, "points": 16, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=3
check_task("07", 3)

# %% [markdown]
# ## 4. A bucket of tokens
#
# A key may use 600 tokens a minute. Its user sends a request every 4 seconds. Each costs 30 tokens of
# prompt when it is let in, and 90 of answer over the next 3 seconds. **Predict** for how long nothing is
# refused, and which share is let in after that.
#
# ### Experiment 1: a user against the bucket
#
# Write `use(bucket, clock)`. It lives through 180 seconds in steps of 0.1 s by setting `clock.now`. At
# every fourth second it asks: the request is let in where `bucket.wait` is 0. It returns three lists: the
# times, the level at each, and `(time, let in)` for each request.


# %% nbgrader={"grade": false, "grade_id": "lab07-experiment-1", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def use(bucket, clock) -> tuple[list[float], list[float], list[tuple[float, bool]]]:
    """A request every 4 s: 30 tokens at once, and 3 at each of the next 30 tenths of a second."""
    ### BEGIN SOLUTION
    times, levels, asked, due = [], [], [], {}
    for tick in range(1800):
        clock.now = tick / 10
        if tick % 40 == 0:
            asked.append((clock.now, bucket.wait == 0))
            if asked[-1][1]:
                bucket.charge(30)
                due.update({tick + 1 + k: 3 for k in range(30)})
        bucket.charge(due.get(tick, 0))
        times.append(clock.now)
        levels.append(bucket.level)
    return times, levels, asked
    ### END SOLUTION


# %%
with needs("07", 4):
    from nanovllm.serving.admission import TokenBucket

    clock = ManualClock()
    plots.bucket(*use(TokenBucket(600, clock), clock))

# %% [markdown]
# ## 5. Arrivals
#
# Four requests a second for 20 seconds: even (burstiness 20), Poisson (1), in bursts (0.15). **Predict**
# the longest stretch without a request in each, and the most within one second.

# %%
with needs("07", 7):
    from nanovllm.serving.load import Slo, arrival_times, closed_loop, goodput, open_loop

    SHAPES = {"even": 20.0, "Poisson": 1.0, "bursts": 0.15}
    plots.arrivals({k: arrival_times(4.0, 200, burstiness=v, seed=5) for k, v in SHAPES.items()})

# %% [markdown]
# ## 6. Overload
#
# Your `Stream` and your `Admission` around a scripted engine, in virtual time (`virtual_server.py`):
# eight requests run at once, and the server can give about 9 answers a second. From second 20 to 50
# requests come at 16 a second, before and after at 5. **Predict** for a queue of 10,000 and one of 8: the
# TTFT of a request that comes at second 49, and the second at which all is well again.

# %%
with needs("07", 1, 4, 7):
    from nanovllm.serving.virtual_server import simulate

    wave = [20 + t for t in arrival_times(16.0, 600, seed=2) if t < 30]
    calm = [t for t in arrival_times(5.0, 600, seed=1) if not 20 <= t < 50 and t < 110]
    times = sorted(wave + calm)
    load = lambda server: open_loop(server.send, times)  # noqa: E731
    runs = {f"queue of {q:,}": simulate(load, q) for q in (10_000, 8)}
    plots.overload(runs, (20, 50))

# %% [markdown]
# **Predict** (b) and (c), for 16 requests a second: the percentage of the answers that begin within a
# second without a limit to the queue, and the percentage of all requests that do with a queue of 8.

# %%
guesses = [predict("07", "b", ...), predict("07", "c", ...)]
with needs("07", 1, 4, 7):
    answer("07", "b")
    answer("07", "c")

# %% nbgrader={"grade": true, "grade_id": "lab07-task-4", "locked": true, "points": 18, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=4
check_task("07", 4)

# %% [markdown]
# ## 7. Goodput
#
# ### Experiment 2: find the knee
#
# Write `point(rate, max_queue)`: 30 seconds of Poisson arrivals at that rate (seed 7), an SLO of 1 s on
# the first token. It returns two numbers: the requests a second that really came (their number over the
# time from the first to the last), and the goodput. No goodput can lie above the first number.
#
# **Predict**: at which rate does goodput stop growing? And what does it do after that, with each queue?

# %%
guess = ...


# %% nbgrader={"grade": false, "grade_id": "lab07-experiment-2", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def point(rate: float, max_queue: int) -> tuple[float, float]:
    """Requests a second that came, and good answers a second."""
    ### BEGIN SOLUTION
    times = [time for time in arrival_times(rate, int(90 * rate), seed=7) if time < 30]
    _, records = simulate(lambda server: open_loop(server.send, times), max_queue)
    return len(times) / (times[-1] - times[0]), goodput(records, Slo(ttft=1.0))
    ### END SOLUTION


# %%
with needs("07", 1, 4, 7):
    from nanovllm.serving.virtual_server import simulate

    rates = (2, 4, 6, 8, 9, 10, 12, 16)
    curves = {f"queue of {q:,}": [point(rate, q) for rate in rates] for q in (10_000, 8, 0)}
    plots.knee(curves, guess if isinstance(guess, int | float) else None)

# %% [markdown]
# **Move it.** Each point is a request: blue ones had their first token within a second, orange ones came
# late, gray marks were refused. Change the length of the queue, and then the rate. **Predict** at which
# length the most requests are good.

# %%
with needs("07", 1, 4, 7):
    from nanovllm.serving.virtual_server import simulate

    QUEUES, RATES = [0, 2, 4, 8, 16, 10_000], [6, 10, 14]
    seen = {}
    for rate in RATES:
        times = [t for t in arrival_times(rate, 40 * rate, seed=7) if t < 15]
        for q in QUEUES:
            seen[q, rate] = simulate(lambda s, times=times: open_loop(s.send, times), q)
    movable(
        lambda axes, queue, rate: plots.waits(axes, seen[queue, rate]), queue=QUEUES, rate=RATES
    )

# %% [markdown] nbgrader={"grade": false, "grade_id": "lab07-question-1-text", "locked": true, "schema_version": 3, "solution": false, "task": false, "cell_type": "markdown"}
# **Question 1 (5 points).** At 16 requests a second both servers compute about as many answers a second.
# Where does the goodput of the one with the long queue go? Choose a queue length for an SLO of 1 s on the
# first token from the server's own numbers (about 9 answers a second), and say what the client should do
# with a 503.

# %% [markdown] nbgrader={"grade": true, "grade_id": "lab07-question-1", "locked": false, "points": 5, "schema_version": 3, "solution": true, "task": false, "cell_type": "markdown"}
# ### BEGIN SOLUTION
# In a queue that only grows every request waits longer than the one before it. After the first
# seconds each answer comes after its limit: the server works on nothing but late answers.
#
# Whoever is last in a queue of Q waits about Q / 9 s, so Q = 8 or 9 keeps the first token within 1 s
# (a little less, as prefill and a step take their part). A longer queue only stores lateness. The
# queue still has to cover the bursts of Poisson arrivals: with none, a server at 7 a second would
# refuse although it has room on average.
#
# A client that gets a 503 waits at least Retry-After, longer after each refusal and with some chance
# in it, or asks another server; to ask again at once adds to the overload.
#
# - 2 points: the waiting time grows without bound, so all the work goes into answers that miss the SLO.
# - 2 points: queue length = allowed wait times service rate (Little's law), about 8.
# - 1 point: Retry-After with growing, random waits, or another server.
# ### END SOLUTION

# %% [markdown]
# ## 8. Those who ask again
#
# ### Experiment 3: a rule for refused clients
#
# 300 people come within 10 seconds; a server with a queue of 8 cannot take them all. Each asks up to 8
# times. Write `pause(attempt, draw)`: how long a client waits after its refusal number `attempt` (1, 2, ...);
# `draw` is a random number from 0 to 1. Two rules are given: every second, and doubling. **Predict** how
# many people are answered under each. Then beat both: everybody is answered **within a minute**, with fewer
# requests. A dotted line marks when the last of them is done.


# %% nbgrader={"grade": false, "grade_id": "lab07-experiment-3", "locked": false, "schema_version": 3, "solution": true, "task": false, "cell_type": "code"}
def pause(attempt: int, draw: float) -> float:
    """Seconds until a client asks again."""
    ### BEGIN SOLUTION
    return 2.0**attempt * (0.5 + draw)
    ### END SOLUTION


# %%
RULES = {
    "every second": lambda attempt, draw: 1.0,
    "doubling": lambda attempt, draw: 2.0 ** (attempt - 1),
    "yours": lambda attempt, draw: pause(attempt, draw),
}
with needs("07", 1, 4, 7):
    plots.retries({name: plots.people(rule) for name, rule in RULES.items()})

# %% [markdown]
# ## 9. Open and closed
#
# 600 requests: at 8 a second with even, Poisson and bursty arrivals, and from 12 users, each of whom asks
# again when the answer is there. **Predict** the order of the four p99 of TTFT, and (d). Which of the four
# tells of overload at all?

# %%
guess = predict("07", "d", ...)
loads = {}
with needs("07", 1, 4, 7):
    from nanovllm.serving.virtual_server import simulate

    for name, shape in SHAPES.items():
        times = arrival_times(8.0, 600, burstiness=shape, seed=11)
        loads[name] = simulate(lambda s, times=times: open_loop(s.send, times), 10_000)[1]
    loads["12 users"] = simulate(lambda s: closed_loop(s.send, 600, 12), 10_000)[1]
    plots.cumulative(loads)
    answer("07", "d")

# %%
with needs("07", 1, 4, 7):
    for name, records in loads.items():
        waits = [record.timeline.ttft for record in records]
        print(f"{name:<9}", *(f"p{q} {percentile(waits, q):6.2f} s" for q in (50, 90, 99)))

# %% nbgrader={"grade": true, "grade_id": "lab07-task-7", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=7
check_task("07", 7)

# %% [markdown]
# ## 10. What the metrics still know
#
# 60 requests through a scripted engine of four, read by your `Metrics`. Prometheus keeps only how many
# values fell below each limit. **Predict** how far the p90 that one reads from these counts may be from
# the true one.

# %%
with needs("07", 5):
    from nanovllm.serving.metrics import Metrics

    metrics = Metrics("scripted")
    true = plots.observed(metrics)
    plots.buckets(true, *plots.counted(metrics))

# %% nbgrader={"grade": true, "grade_id": "lab07-task-5", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=5
check_task("07", 5)

# %% [markdown]
# ## 11. The store through the dashboard's eyes
#
# Twelve requests on the bundled model, four at once. Your `engine_state` is asked after every step who
# holds which slot. Before step 25 the second request of the batch is given up. **Predict** how many steps
# its slot stays empty, and how many that of a request that ends by itself.

# %%
with needs("07", 6):
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.model.loader import load_model

    engine = Engine(load_model(MODELS / "target"), EngineConfig(max_num_seqs=4))
    for number in range(12):
        length = 8 + (7 * number) % 17
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        engine.add_request([70 + number] * 4, params)
    rows, gone = plots.watched(engine, 25)
    plots.slots(rows, 25, gone["id"])

# %% nbgrader={"grade": true, "grade_id": "lab07-task-6", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false, "cell_type": "code"} nanovllm_lab="07" nanovllm_task=6
check_task("07", 6)

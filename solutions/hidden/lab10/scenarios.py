"""Hidden scenarios of lab 10: other paths than those of the visible checks."""

from grader.checks.scenarios import scenario

# task 7


def _cluster(rng):
    """A model and a cluster whose figures were made up."""
    from nanovllm.model.config import ModelConfig
    from nanovllm.parallel.hardware import Card, Cluster, Link

    kv_heads, dim = int(rng.integers(1, 5)), int(rng.integers(1, 5)) * 2
    heads, tied = kv_heads * int(rng.integers(1, 5)), bool(rng.integers(2))
    width, layers = int(rng.integers(8, 40)), int(rng.integers(1, 10))
    family = str(rng.choice(["llama", "gpt2"]))
    if family == "gpt2":
        kv_heads = heads
    config = ModelConfig(
        family, int(rng.integers(30, 90)), width, layers, heads, kv_heads, dim, 2 * width, 64,
        tie_embeddings=tied,
    )  # fmt: skip
    near, far = (Link(*(float(x) for x in rng.uniform(1, 50, size=2))) for _ in range(2))
    memory = float(rng.uniform(3e4, 3e5))
    card = Card(float(rng.uniform(100, 1000)), float(rng.uniform(500, 9000)), memory)
    return config, Cluster(card, near, far, int(rng.integers(1, 6)))


@scenario(task=7)
def a_trace_under_every_layout(nanovllm, rng):
    """Lab 04's simulator with the student's cost in place of its own: when each token came."""
    from nanovllm.batching.budget import FixedBudget
    from nanovllm.batching.policies import make_policy
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore
    from nanovllm.batching.simulator import simulate
    from nanovllm.batching.traces import Arrival
    from nanovllm.generation.latency import ManualClock
    from nanovllm.parallel.costs import Layout, ParallelCost

    story = []
    for _ in range(4):
        config, cluster = _cluster(rng)
        trace = [
            Arrival(float(rng.uniform(0, 50)), int(rng.integers(1, 60)), int(rng.integers(1, 9)))
            for _ in range(6)
        ]
        layout = Layout(*(int(n) for n in rng.integers(1, 5, size=3)))
        cost = ParallelCost(config, cluster, layout)
        scheduler = Scheduler(
            CountingStore(1000), make_policy("fcfs"), FixedBudget(24), max_num_seqs=3,
            clock=ManualClock(),
        )  # fmt: skip
        run = simulate(trace, scheduler, cost)
        story.append([line.token_times for line in run.timelines])
    return {"story": story}


@scenario(task=7)
def models_on_clusters(nanovllm, rng):
    """Bytes, capacities, and the parts of steps of random models; GPT-2's two matrices, too."""
    from nanovllm.parallel.costs import Layout, ParallelCost

    story = []
    for _ in range(8):
        config, cluster = _cluster(rng)
        layout = Layout(*(int(n) for n in rng.integers(1, 7, size=3)))
        cost = ParallelCost(config, cluster, layout, int(rng.choice([1, 2, 4])))
        tokens, rows = int(rng.integers(1, 90)), int(rng.integers(0, 9))
        places = tokens + int(rng.integers(0, 500))
        story.append([
            cost.weight_bytes(), cost.kv_bytes(), cost.capacity(), list(cost.phase(tokens, places)),
            cost.tick_seconds(tokens, places), cost.ends_seconds(tokens, rows),
            cost.seconds(tokens, places, rows),
        ])  # fmt: skip
    return {"story": story}


@scenario(task=7)
def the_best_of_random_clusters(nanovllm, rng):
    """How fast the best layout is, and whether it fits; or that nothing does."""
    from nanovllm.parallel.costs import ParallelCost, best_layout
    from nanovllm.parallel.errors import ParallelError

    story = []
    for _ in range(12):
        config, cluster = _cluster(rng)
        cards, tokens = int(rng.integers(1, 9)), int(rng.integers(1, 200))
        places = tokens + int(rng.integers(0, 900))
        try:
            layout = best_layout(config, cluster, cards, tokens, places, 3, dtype_bytes=4)
        except ParallelError:
            story.append("does not fit")
            continue
        cost = ParallelCost(config, cluster, layout, 4)
        story.append([cost.seconds(tokens, places, 3), layout.cards <= cards])
    return {"story": story}


@scenario(task=7)
def halves_of_random_phases(nanovllm, rng):
    """Timelines of one to four parts, some empty, and what random steps gain."""
    from nanovllm.parallel.costs import Layout, ParallelCost, Phase
    from nanovllm.parallel.overlap import exposed_seconds, halves, seconds_saved, timeline

    story = []
    for _ in range(8):
        parts = [
            [Phase(*(float(x) for x in rng.uniform(0, 3, size=2))) for _ in range(rng.integers(6))]
            for _ in range(rng.integers(1, 5))
        ]
        spans = timeline(parts)
        story.append([[list(span) for span in spans], exposed_seconds(spans)])
        config, cluster = _cluster(rng)
        cost = ParallelCost(
            config, cluster, Layout(int(rng.integers(1, 5)), int(rng.integers(1, 4)))
        )
        tokens = int(rng.integers(1, 400))
        saved = seconds_saved(cost, tokens, 3 * tokens)
        story.append([round(saved, 6), [len(part) for part in halves(cost, tokens, 3 * tokens)]])
    return {"story": story}

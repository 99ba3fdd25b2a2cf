"""Hidden scenarios of lab 10: other paths than those of the visible checks."""

from grader.checks.scenarios import scenario


def _whole(rng, *shape):
    """Whole numbers, whose sums are exact in any order."""
    import torch

    return torch.from_numpy(rng.integers(-50, 50, size=shape)).float()


def _calls(comm):
    """Calls, messages and bytes of each kind so far."""
    counts = sorted(comm.counts.by_kind.items())
    return [[kind, count.calls, count.messages, count.bytes] for kind, count in counts]


# task 1


@scenario(task=1)
def groups_of_a_grid(nanovllm, rng):
    """Ranks in rows and columns: sums along a row, then joins along a column."""
    from nanovllm.parallel.collectives import all_reduce, gather_last
    from nanovllm.parallel.communicator import Subgroup
    from nanovllm.parallel.threads import run_ranks

    rows, columns = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    width = int(rng.integers(1, 9))
    xs = [_whole(rng, 3, width) for _ in range(rows * columns)]

    def work(comm):
        row, column = divmod(comm.rank, columns)
        across = Subgroup(comm, [row * columns + i for i in range(columns)])
        down = Subgroup(comm, [i * columns + column for i in range(rows)])
        total = all_reduce(across, xs[comm.rank])
        mine = total.tensor_split(rows, dim=-1)[down.rank]
        joined = gather_last(down, mine, width)
        return [total, joined, _calls(across), _calls(down), sorted(across.counts.sent_to)]

    return {"ranks": run_ranks(rows * columns, work)}


@scenario(task=1)
def sums_of_sums(nanovllm, rng):
    """A result goes into the next call, in other dtypes, and nobody's x has changed at the end."""
    import torch

    from nanovllm.parallel.collectives import all_gather, all_reduce, reduce_scatter
    from nanovllm.parallel.threads import run_ranks

    size, shape = int(rng.integers(2, 8)), rng.integers(1, 6, size=3).tolist()
    dtype = [torch.float32, torch.float64, torch.int32][int(rng.integers(3))]
    xs = [_whole(rng, *shape).to(dtype).permute(2, 0, 1) for _ in range(size)]
    before = [x.clone() for x in xs]

    def work(comm):
        x = xs[comm.rank]
        total = all_reduce(comm, x)
        run = reduce_scatter(comm, total + x)
        again = all_gather(comm, run, x.numel())
        twice = all_reduce(comm, again.view(x.shape)[:, :1])
        return [total, run, again, twice, torch.equal(x, before[comm.rank]), _calls(comm)]

    return {"ranks": run_ranks(size, work), "dtype": str(dtype)}


@scenario(task=1)
def bits_of_a_sum(nanovllm, rng):
    """Numbers of all sizes: whether ranks have the same bits, and how far the sum is from exact."""
    import torch

    from nanovllm.parallel.collectives import all_reduce
    from nanovllm.parallel.threads import run_ranks

    size, count = int(rng.integers(2, 9)), int(rng.integers(1, 60))
    xs = [
        torch.from_numpy(rng.normal(size=count) * 10.0 ** rng.integers(-4, 5)).float()
        for _ in range(size)
    ]
    sums = run_ranks(size, lambda comm: all_reduce(comm, xs[comm.rank]))
    exact = torch.stack(xs).double().sum(0)
    largest = torch.stack(xs).abs().sum(0)
    return {
        "x": xs,
        "same bits": [torch.equal(one, sums[0]) for one in sums],
        "near": [bool(((one - exact).abs() <= 1e-5 * largest).all()) for one in sums],
    }


# task 2


@scenario(task=2)
def tables_of_shares(nanovllm, rng):
    """Shares and heads of many shapes, and which of them are refused."""
    from nanovllm.model.config import ModelConfig
    from nanovllm.parallel import shards
    from nanovllm.parallel.errors import ParallelError

    story = []
    for _ in range(40):
        groups, size = int(rng.integers(1, 13)), int(rng.integers(1, 13))
        config = ModelConfig("qwen3", 9, 8, 3, groups * int(rng.integers(1, 9)), groups, 4, 8, 16)
        rank, total = int(rng.integers(size)), int(rng.integers(0, 99))
        share = list(shards.share(total, size, rank))
        try:
            mine = shards.rank_config(config, size, rank)
            heads = list(shards.kv_heads(config, size, rank))
            rows = list(shards.rows_of_heads(heads, config.head_dim))
            queries = list(shards.query_heads(config, size, rank))
            story.append([share, queries, heads, rows, mine.num_heads, mine.num_kv_heads])
        except ParallelError:
            story.append([share, "refused"])
    return {"story": story}


@scenario(task=2)
def a_network_of_linears(nanovllm, rng):
    """Merged, multiplied part by part, summed; in float64, on weights of an own order of rows."""
    import torch

    from nanovllm.parallel.linears import MergedColumnParallelLinear, RowParallelLinear
    from nanovllm.parallel.shards import share
    from nanovllm.parallel.stored import Reads, StoredTensor
    from nanovllm.parallel.threads import run_ranks

    size, width = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    inner, out = int(rng.integers(1, 12)), int(rng.integers(1, 6))
    names, bias = ("a", "b", "c"), bool(rng.integers(2))
    weights = {f"m.{name}.weight": _whole(rng, inner, width) for name in names}
    weights |= {f"m.{name}.bias": _whole(rng, inner) for name in names}
    weights |= {"o.weight": _whole(rng, out, inner), "o.bias": _whole(rng, out)}
    x, order = _whole(rng, 2, 2, width), rng.permutation(inner).tolist()

    def work(comm):
        reads = Reads()
        tensors = {name: StoredTensor(weight, reads) for name, weight in weights.items()}
        mine = [order[i] for i in share(inner, comm.size, comm.rank)]
        merged = MergedColumnParallelLinear(width, dict.fromkeys(names, mine), bias).double()
        row = RowParallelLinear(comm, mine, out, bias).double()
        merged.load(tensors, "m")
        row.load(tensors, "o")
        a, b, c = merged(x.double())
        return [row(a * b - c), a, c, _calls(comm), merged.weight.dtype is torch.float64]

    return {"ranks": run_ranks(size, work)}


# task 3


@scenario(task=3)
def tokens_out_and_in(nanovllm, rng):
    """Whole numbers through embedding and head, of several steps on the same modules."""
    from nanovllm.parallel.stored import Reads, StoredTensor
    from nanovllm.parallel.threads import run_ranks
    from nanovllm.parallel.vocabulary import VocabParallelEmbedding, parallel_logits

    size, vocab, width = (int(n) for n in rng.integers(1, 9, size=3))
    vocab *= int(rng.integers(1, 6))
    table, head = _whole(rng, vocab, width), _whole(rng, vocab, width)
    steps = [_whole(rng, int(rng.integers(0, 7))).abs().long() % vocab for _ in range(4)]

    def work(comm):
        reads, story = Reads(), []
        embedding = VocabParallelEmbedding(comm, vocab, width)
        embedding.load({"e.weight": StoredTensor(table, reads)}, "e")
        mine = head.tensor_split(comm.size)[comm.rank]
        for ids in steps:
            rows = embedding(ids)
            scores = [
                parallel_logits(comm, rows[-2:], one, vocab) for one in (mine, embedding.weight)
            ]
            story.append([rows, *scores])
        return [story, reads.bytes, _calls(comm)]

    return {"ranks": run_ranks(size, work)}


# task 4


def _stored(model):
    from nanovllm.parallel.stored import Reads, StoredTensor

    return {name: StoredTensor(weight, Reads()) for name, weight in model.state_dict().items()}


def _config(rng):
    """A random shape whose heads some numbers of ranks divide."""
    from nanovllm.model.config import ModelConfig

    family = str(rng.choice(["llama", "mistral", "qwen2", "qwen3", "gpt2"]))
    groups = int(rng.integers(1, 4))
    heads = groups * int(rng.choice([2, 4]))
    layers, groups = int(rng.integers(1, 4)), heads if family == "gpt2" else groups
    return ModelConfig(
        family,
        int(rng.integers(3, 70)),
        4 * heads,
        layers,
        heads,
        groups,
        4,
        int(rng.integers(1, 30)),
        40,
        norm_eps=0.1,
        windows=tuple(rng.choice([2, 5], size=layers).tolist()) if family == "mistral" else (),
        tie_embeddings=bool(rng.integers(2)),
        qk_norm=family == "qwen3",
        qkv_bias=family in ("qwen2", "gpt2"),
        output_bias=family == "gpt2",
        mlp_bias=family == "gpt2",
    )


@scenario(task=4)
def greedy_on_ranks(nanovllm, rng):
    """Some tokens greedily, without a cache: each rank chooses by itself, and goes on with it."""
    import torch

    from nanovllm.model.attend import RecomputeAttend
    from nanovllm.model.loader import dummy_model
    from nanovllm.parallel.loading import load_weights
    from nanovllm.parallel.threads import run_ranks
    from nanovllm.parallel.transformer import ParallelTransformer

    story = []
    for _ in range(3):
        config = _config(rng)
        whole = dummy_model(config, seed=int(rng.integers(1000)))
        prompt = rng.integers(0, config.vocab_size, size=4).tolist()
        sizes = [n for n in (1, 2, 3, 4) if config.num_heads % n == 0]
        size = int(rng.choice(sizes))

        @torch.inference_mode()
        def work(comm, config=config, whole=whole, prompt=prompt):
            model, ids, scores = ParallelTransformer(config, comm), list(prompt), []
            load_weights(model, _stored(whole))
            comm.counts.clear()
            for _ in range(5):
                tokens, attend = torch.tensor(ids), RecomputeAttend(model.config)
                logits = model.logits(model(tokens, torch.arange(len(ids)), attend)[-1:])
                ids.append(int(logits.argmax()))
                scores.append(logits)
            return [ids, torch.cat(scores), _calls(comm), model.config.num_kv_heads]

        found = run_ranks(size, work)
        story.append([*found[0], [one[0] == found[0][0] for one in found], found[-1][2]])
    return {"story": story}


@scenario(task=4)
def bytes_of_the_bundled_model(nanovllm, rng):
    """The course's own model from its files: bytes read and sent, and the best tokens."""
    from pathlib import Path

    import torch

    from nanovllm.model.attend import RecomputeAttend
    from nanovllm.parallel.checkpoint import Checkpoint
    from nanovllm.parallel.loading import load_shard
    from nanovllm.parallel.threads import run_ranks

    folder = Path(nanovllm.__file__).parent.parent / "models" / "draft"
    size = int(rng.choice([1, 2, 4]))
    ids = torch.from_numpy(rng.integers(0, 500, size=12))

    @torch.inference_mode()
    def work(comm):
        checkpoint = Checkpoint(folder)
        model = load_shard(checkpoint, comm)
        hidden = model(ids, torch.arange(12), RecomputeAttend(model.config))
        best = model.logits(hidden).topk(3)
        return [best.indices[:, 0], best.values, checkpoint.reads.bytes, _calls(comm)]

    return {"ranks": run_ranks(size, work)}


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

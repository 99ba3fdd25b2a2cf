"""Hidden scenarios of lab 14: other paths than those of the visible checks."""

from grader.checks.scenarios import scenario

# task 1


@scenario(task=1)
def nested_calls(nanovllm, rng):
    """Recursion, empty intervals and long gaps: the trace adds up to the tree."""
    from nanovllm.performance.interval import Interval
    from nanovllm.performance.profile import busy_seconds, chrome_trace, time_tree

    intervals, story = [], []
    for call in range(4):
        start = call * 100 + int(rng.integers(0, 20))
        for depth in range(int(rng.integers(2, 6))):
            name = "recurse" if depth % 2 else f"f{int(rng.integers(2))}"
            intervals.append(Interval(name, start + depth, start + 60 - depth, "engine"))
        intervals.append(Interval("nothing", start + 80, start + 80, "host"))
    order = rng.permutation(len(intervals)).tolist()
    mixed = [intervals[i] for i in order]

    def shape(node):
        kids = sorted(node.children.values(), key=lambda n: n.name)
        return [node.name, node.count, round(node.seconds, 5), round(node.own, 5),
                [shape(k) for k in kids]]  # fmt: skip

    engine = [i for i in mixed if i.track == "engine"]
    story.append(shape(time_tree(engine)))
    story.append(round(busy_seconds(engine), 5))
    events = chrome_trace(mixed)["traceEvents"]
    story.append(sorted([e["name"], round(e["ts"]), round(e["dur"])] for e in events
                        if e["ph"] == "X"))  # fmt: skip
    return {"story": story}


@scenario(task=1)
def a_profile_of_a_device(nanovllm, rng):
    """Kernels that lag behind their launches, over the ends of steps."""
    from nanovllm.performance.interval import Interval
    from nanovllm.performance.profile import roofline_point, steps_of

    steps, ops, kernels, clock, late = [], [], [], 0, 0
    for _ in range(7):
        begin = clock
        for _ in range(int(rng.integers(1, 6))):
            ops.append(Interval("launch", clock, clock + 1))
            length = int(rng.integers(1, 9))
            late = max(late, clock) + length
            kernels.append(Interval("kernel", late - length, late, "device"))
            clock += int(rng.integers(1, 4))
        clock += int(rng.integers(0, 9))
        steps.append(Interval("step", begin, clock))
        clock += int(rng.integers(0, 3))
    found = [steps_of(steps, ops, kernels, warmup) for warmup in (0, 2, 6)]
    points = []
    for _ in range(4):
        flops, moved = int(rng.integers(1, 9000)), int(rng.integers(1, 900))
        one = Interval("op", 1.0, 1.5, flops=flops, bytes=moved)
        point = roofline_point(one, 4000.0, 300.0, int(rng.integers(1, 9)), 8)
        points.append([round(point.intensity, 6), round(point.share, 6), point.limit])
    return {"steps": [[list(f.launches), round(f.host_share, 6)] for f in found], "points": points}


# task 2


@scenario(task=2)
def fused_over_a_cache(nanovllm, rng):
    """A prompt in chunks, then single tokens, over K and V that a plain attend keeps."""
    import torch

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.performance.fusion import FusedTransformer

    heads = int(rng.integers(1, 4))
    groups = int(rng.choice([1, 2]))
    shape = (int(rng.integers(5, 20)), 2, heads * groups, heads, 2 * int(rng.integers(1, 5)))
    config = ModelConfig("qwen3", 30, *shape, int(rng.integers(5, 30)), 64, qk_norm=True)
    fused = FusedTransformer(dummy_model(config, int(rng.integers(99))))
    kept = {}

    def attend(layer, q, k, v):
        old = kept.get(layer)
        k, v = (k, v) if old is None else (torch.cat((old[0], k)), torch.cat((old[1], v)))
        kept[layer] = (k, v)
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5
        places = torch.arange(len(k))
        unseen = places[None] > torch.arange(len(k) - len(q), len(k))[:, None]
        scores = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        return torch.einsum("hts,shd->thd", scores, v)

    ids = torch.tensor(rng.integers(0, 30, 12).tolist())
    rows, start = [], 0
    with torch.inference_mode():
        for length in (int(rng.integers(1, 5)), 3, 1, 1):
            part = slice(start, start + length)
            hidden = fused(ids[part], torch.arange(start, start + length), attend)
            rows.append(fused.logits(hidden[-1:])[0])
            start += length
    return {"logits": torch.stack(rows)}


@scenario(task=2)
def compiled_rows(nanovllm, rng):
    """Batch sizes as a trace brings them; what is compiled, in which order, for which sizes."""
    import torch

    from nanovllm.performance.fusion import CompiledRows

    made = []

    def compile(function):
        seen = set()
        made.append(seen)

        def compiled(*inputs):
            seen.add(tuple(len(x) for x in inputs))
            return function(*inputs)

        return compiled

    rows = CompiledRows(lambda x, y: (x * y[:, None]).cumsum(-1), (3, 5, 11), compile)
    sums = []
    for count in rng.integers(1, 15, 10).tolist():
        x = torch.arange(count * 2.0).view(count, 2) + 1
        sums.append(rows(x, torch.arange(float(count))).tolist())
    return {"sums": sums, "sizes": [sorted(map(list, seen)) for seen in made]}


# task 3


@scenario(task=3)
def buffers_over_time(nanovllm, rng):
    """Batches that grow and shrink, tokens that come from earlier ones, by two graphs."""
    import torch

    from nanovllm.performance.buffers import DecodeBuffers, DecodeRow, slot_at
    from nanovllm.performance.graphs import DecodeGraphs
    from nanovllm.performance.replay import recorded_capture

    buffers = DecodeBuffers(8, 4, 2, "cpu", vocab_size=7)
    memory = torch.zeros(64, dtype=torch.int64)

    def run(rows):
        batch = buffers.batch(rows)
        ids = buffers.token_ids(rows)
        slots = batch.slot_mapping
        target = torch.where(slots >= 0, slots, 63)
        memory.index_copy_(0, target, ids * 100 + buffers.on_device["positions"][:rows])
        new = (ids * 3 + batch.context_lens + batch.block_tables.sum(-1)) % 7
        buffers.sampled[:rows] = new

    buffers.load([], 8)
    graphs = DecodeGraphs(run, (2, 8), recorded_capture)
    buffers.sampled.zero_()
    story = []
    for _ in range(9):
        rows = []
        for _ in range(int(rng.integers(1, 9))):
            position = int(rng.integers(0, 8))
            ids = rng.choice(30, size=position // 2 + 1, replace=False).tolist()
            known = bool(rng.integers(2))
            rows.append(DecodeRow(position, slot_at(position, ids, 2), ids,
                                  int(rng.integers(1, 7)),
                                  None if known else int(rng.integers(8))))  # fmt: skip
        seen = {}
        rows = [seen.setdefault(r.slot, r) for r in rows if r.slot not in seen]
        bucket = graphs.rows_for(len(rows))
        buffers.load(rows, bucket)
        graphs(bucket)
        buffers.sampled[len(rows) :] = 0
        story.append([bucket, buffers.sampled[: len(rows)].tolist(), memory[:60].tolist()])
    return {"story": story}


@scenario(task=3)
def buckets_of_any_size(nanovllm, rng):
    """Lists of buckets and what they do to batches; captures, and who replays what."""
    from nanovllm.performance.buckets import batch_buckets, bucket_for
    from nanovllm.performance.graphs import DecodeGraphs

    most = int(rng.integers(1, 300))
    buckets = tuple(batch_buckets(most))
    log = []

    def capture(function, pool):
        function()
        size = log[-1]
        return (lambda: log.append(-size)), (pool or 0) + size

    graphs = DecodeGraphs(log.append, buckets, capture)
    for count in rng.integers(1, most + 40, 12).tolist():
        graphs(graphs.rows_for(count))
    asked = rng.integers(1, most + 40, 12).tolist()
    return {"buckets": list(buckets), "log": log, "for": [bucket_for(n, buckets) for n in asked]}


# task 4


@scenario(task=4)
def flights_of_a_plan(nanovllm, rng):
    """Plans of all kinds of chunks: which rows take off, and which of them the next plan takes."""
    from types import SimpleNamespace

    from nanovllm.batching.plan import Chunk, Plan
    from nanovllm.performance.step_ahead import Flight, plan_ahead

    class Request:
        def __init__(self, name):
            self.name, self.limit = name, int(rng.integers(4, 20))

    requests = [Request(f"r{i}") for i in range(8)]
    tables = {r: rng.choice(99, size=9, replace=False).tolist() for r in requests}
    room = int(rng.integers(4, 40))
    asked = []

    class Store:
        block_size = 3

        def block_ids(self, request):
            return tables[request]

        def reserve(self, request, count):
            asked.append([request.name, count])
            return len(asked) <= room

    chunks = []
    for request in requests:
        start, length = int(rng.integers(0, 12)), int(rng.integers(1, 5))
        chunks.append(Chunk(request, start, length, start + length + int(rng.integers(0, 2))))
    places = rng.permutation(20)[: sum(c.completes for c in chunks)].tolist()
    store = Store()
    rows = plan_ahead(Plan(tuple(chunks)), places, store)
    if rows is None:
        return {"rows": None}
    flight = Flight(SimpleNamespace(), rows)
    told = [[r.name, row.position, row.slot, row.source] for r, row in rows.items()]
    for request in rng.choice(requests, size=2):
        tables[request] = tables[request][::-1]
    order = rng.permutation(len(chunks)).tolist()
    following = [Chunk(chunks[i].request, chunks[i].end, 1, chunks[i].end + 1) for i in order[:6]]
    gone = tuple(rng.choice(requests, size=1))
    taken = flight.places(Plan(tuple(following), preempted=gone), store)
    return {"rows": sorted(told), "asked": sorted(asked),
            "taken": sorted([r.name, place] for r, place in taken.items())}  # fmt: skip


@scenario(task=4)
def blocks_in_flight(nanovllm, rng):
    """Launches that overlap: who holds what after each of them."""
    from nanovllm.performance.frees import DeferredFrees

    held = {}

    class Manager:
        def hold(self, block_ids, owner):
            for block in block_ids:
                held[block] = held.get(block, 0) + 1

        def drop(self, block_ids, owner):
            for block in block_ids:
                held[block] -= 1

    frees, flying, story = DeferredFrees(Manager()), [], []
    for launch in range(20):
        if flying and rng.integers(2):
            frees.landed(flying.pop(int(rng.integers(len(flying)))))
        else:
            flying.append(launch)
            for _ in range(2):
                frees.launched(launch, rng.integers(0, 9, 3).tolist())
        story.append([frees.in_flight, sorted(b for b, n in held.items() if n)])
    for launch in [*flying, "unknown"]:
        frees.landed(launch)
    story.append([frees.in_flight, sorted(b for b, n in held.items() if n)])
    return {"story": story}


# task 5


@scenario(task=5)
def a_layer_of_experts(nanovllm, rng):
    """Shapes, k and flags at random; results and gradients of nobody, in two dtypes."""
    import torch

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.experts import ExpertsConfig
    from nanovllm.performance.moe import MoE

    count, hidden = int(rng.integers(2, 9)), int(rng.integers(3, 9))
    experts = ExpertsConfig(count, int(rng.integers(1, count + 1)), int(rng.integers(1, 6)),
                            bool(rng.integers(2)), (0,), int(rng.integers(0, 4)))  # fmt: skip
    layer = MoE(ModelConfig("qwen2_moe", 9, hidden, 1, 1, 1, 2, 7, 16, experts=experts))
    generator = torch.Generator().manual_seed(int(rng.integers(999)))
    layer.load_state_dict({
        name: torch.randn(w.shape, generator=generator) for name, w in layer.state_dict().items()
    })  # fmt: skip
    layer.requires_grad_(False)
    x = torch.randn(int(rng.integers(1, 12)), hidden, generator=generator)
    return {"out": layer(x), "twice": layer(torch.cat((x, x)))[len(x) :],
            "shapes": sorted([n, *w.shape] for n, w in layer.state_dict().items())}  # fmt: skip


@scenario(task=5)
def visits_and_weights(nanovllm, rng):
    """Routing, sorting and stacking on their own, with experts that nobody chooses."""
    import torch

    from nanovllm.performance.moe import route, sort_by_expert, stack_experts

    generator = torch.Generator().manual_seed(int(rng.integers(999)))
    count = int(rng.integers(3, 14))
    logits = torch.randn(6, count, generator=generator)
    logits[:, int(rng.integers(count))] = -50.0
    k = int(rng.integers(1, count))
    weights, experts = route(logits, k, bool(rng.integers(2)))
    dispatch = sort_by_expert(experts, count)
    names = [("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj")][int(rng.integers(2))]
    tensors = {f"{e}.{n}.weight": torch.full((2, 2), 10.0 * e + i)
               for e in range(count) for i, n in enumerate(names)}  # fmt: skip
    order = rng.permutation(sorted(tensors)).tolist()
    gate_up, down = stack_experts({name: tensors[name] for name in order}, count)
    return {"weights": weights, "experts": experts.tolist(), "visits": dispatch.visits.tolist(),
            "counts": dispatch.counts.tolist(), "gate_up": gate_up, "down": down}  # fmt: skip


# task 6


@scenario(task=6)
def experts_on_ranks(nanovllm, rng):
    """Load to bytes: the whole way, with a capacity, on ranks of several sizes."""
    import torch

    from nanovllm.performance.placement import (
        Placement,
        all_to_all_bytes,
        expert_load,
        imbalance,
        replicas,
        within_capacity,
    )

    count, tokens, k = int(rng.integers(4, 10)), int(rng.integers(5, 40)), 2
    weights = 1 / (1 + rng.permutation(count))
    choices = [rng.choice(count, size=k, replace=False, p=weights / weights.sum()).tolist()
               for _ in range(tokens)]  # fmt: skip
    experts = torch.tensor(choices)
    load = list(expert_load(experts, count))
    ranks = int(rng.integers(2, 4))
    placement = Placement(tuple(tuple(e for e in range(count) if (e + r) % ranks < 2)
                                for r in range(ranks)))  # fmt: skip
    home = rng.integers(0, ranks, tokens).tolist()
    sent = all_to_all_bytes(experts, home, placement, int(rng.integers(1, 99)))
    kept = within_capacity(experts, count, int(rng.integers(1, 6)))
    return {"load": load, "imbalance": round(imbalance(load), 6), "kept": kept.tolist(),
            "copies": list(replicas(load, count + int(rng.integers(0, 9)))),
            "sent": [list(row) for row in sent]}  # fmt: skip


@scenario(task=6)
def hot_experts_spread(nanovllm, rng):
    """Placements are compared by what they reach: slots, copies, and whether copies are apart."""
    from nanovllm.performance.placement import place_experts, replicas

    story = []
    for _ in range(4):
        ranks, slots = int(rng.integers(2, 6)), int(rng.integers(2, 5))
        count = int(rng.integers(2, ranks * slots + 1))
        load = (rng.random(count) ** 3 * 500 + 1).astype(int).tolist()
        held = [list(one) for one in place_experts(load, ranks, slots).ranks]
        copies = replicas(load, ranks * slots)
        found = [sum(one.count(e) for one in held) for e in range(count)]
        work = [sum(load[e] / copies[e] for e in one) for one in held]
        mean, largest = sum(load) / ranks, max(load[e] / copies[e] for e in range(count))
        story.append([found, [len(one) for one in held], max(work) <= 2 * mean + largest])
    return {"story": story}


# task 7


@scenario(task=7)
def another_model_and_load(nanovllm, rng):
    """Random shapes, a long trace, few blocks: the texts, beside the plain engine's own."""
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.generation.events import Finished
    from nanovllm.generation.params import SamplingParams
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.paging.store import PagedStore
    from nanovllm.performance.capstone import make_engine

    heads, groups = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    family = str(rng.choice(["qwen3", "llama"]))
    shape = ModelConfig(family, 50, 4 * int(rng.integers(2, 6)), int(rng.integers(1, 4)),
                        heads * groups, heads, 2 * int(rng.integers(2, 5)),
                        int(rng.integers(5, 30)), 128, qk_norm=family == "qwen3")  # fmt: skip
    model = dummy_model(shape, int(rng.integers(999)))
    config = EngineConfig(max_num_seqs=int(rng.integers(2, 7)),
                          max_num_batched_tokens=int(rng.integers(8, 40)))  # fmt: skip
    jobs = []
    for _ in range(9):
        prompt = rng.integers(3, 50, int(rng.integers(1, 40))).tolist()
        params = SamplingParams(max_tokens=int(rng.integers(2, 20)),
                                temperature=float(rng.choice([0.0, 0.0, 0.9])))  # fmt: skip
        jobs.append((prompt, params))
    size, found = int(rng.integers(18, 50)), []
    for make in (lambda s: make_engine(model, config, store=s),
                 lambda s: Engine(model, config, store=s)):  # fmt: skip
        engine = make(PagedStore(shape, size, 4))
        texts = {}
        for number, (prompt, params) in enumerate(jobs):
            engine.add_request(prompt, params, seed=number, request_id=number)
        while engine.has_unfinished:
            for event in engine.step():
                if isinstance(event, Finished):
                    texts[event.request_id] = list(event.completion.token_ids)
            engine.check()
        found.append([texts[i] for i in sorted(texts)])
    return {"same": found[0] == found[1], "lengths": [len(ids) for ids in found[1]]}


@scenario(task=7)
def steps_that_are_cheaper(nanovllm, rng):
    """Decodes of one request and of many, over a long context: what falls, and what grows."""
    from grader.checks.engine_costs import costs
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.generation.params import SamplingParams
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.paging.store import PagedStore
    from nanovllm.performance.capstone import make_engine
    from nanovllm.performance.counting import CountOps

    shape = ModelConfig("llama", 50, 16, 3, 4, 2, 8, 24, 128)
    weights = int(rng.integers(999))
    config, verdicts = EngineConfig(max_num_seqs=8), []
    answers = int(rng.integers(8, 20))
    for requests in (1, int(rng.integers(4, 9))):

        def ready(make):
            model = dummy_model(shape, weights)
            return make(model, config, store=PagedStore(shape, 90, 4)), model.layers

        def run(engine, requests=requests):
            for number in range(requests):
                prompt = [3 + (number + i) % 40 for i in range(20)]
                params = SamplingParams(temperature=0.0, max_tokens=answers, ignore_eos=True)
                engine.add_request(prompt, params, seed=0, request_id=number)
            while engine.has_unfinished:
                engine.step()

        base, own = (costs(lambda make=make: ready(make), run, CountOps)
                     for make in (Engine, make_engine))  # fmt: skip
        ratios = [getattr(own, name) / getattr(base, name) for name in ("operations", "tokens")]
        verdicts.append([requests, base.operations, min(ratios) <= 0.75, max(ratios) <= 1.05,
                         own.bytes <= 1.05 * base.bytes, not own.unseen,
                         own.tokens >= base.tokens / 2])  # fmt: skip
    return {"verdicts": verdicts}

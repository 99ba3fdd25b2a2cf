"""Hidden scenarios of lab 14: other paths than those of the visible checks."""

from grader.checks.scenarios import scenario

# task 1


@scenario(task=1)
def nested_calls(nanovllm, rng):
    """Recursion, neighbours that touch, empty intervals, long gaps: the trace adds up to the tree.

    Of some only the flops are known, or only the bytes; and one may end before it starts.
    """
    from nanovllm.performance.errors import PerformanceError
    from nanovllm.performance.interval import Interval
    from nanovllm.performance.profile import busy_seconds, chrome_trace, time_tree

    intervals, story = [], []
    for call in range(4):
        start = call * 100 + int(rng.integers(0, 20))
        intervals.append(Interval("nothing", start + 80, start + 80, "host"))
        intervals.append(Interval("outer", start, start + 60, "engine"))
        middle = start + int(rng.integers(3, 20))
        for part, first, last in (("one", start, middle), ("two", middle, start + 50)):
            for depth in range(min(int(rng.integers(1, 6)), last - first)):
                name = "recurse" if depth % 2 else f"{part}{int(rng.integers(2))}"
                intervals.append(Interval(name, first, last - depth, "engine"))
    order = rng.permutation(len(intervals)).tolist()
    works = rng.permutation([(0, 0), (0, 5), (7, 0), (3, 4)] * 3).tolist()
    copies = [Interval(f"c{i}", int(rng.integers(300)), 300, f"t{int(rng.integers(3))}", *work)
              for i, work in enumerate(works)]  # fmt: skip
    mixed = [intervals[i] for i in order] + copies

    def shape(node):
        kids = sorted(node.children.values(), key=lambda n: n.name)
        return [node.name, node.count, round(node.seconds, 5), round(node.own, 5),
                [shape(k) for k in kids]]  # fmt: skip

    engine = [i for i in mixed if i.track == "engine"]
    story.append(shape(time_tree(iter(engine))))
    story += [round(busy_seconds(each), 5) for each in (engine, mixed, intervals)]
    events = chrome_trace(iter(mixed))["traceEvents"]
    story.append(sorted([e["name"], round(e["ts"]), round(e["dur"]), e["tid"],
                         sorted(e.get("args", {}).items())] for e in events
                        if e["ph"] == "X"))  # fmt: skip
    story.append(sorted([e["tid"], e["args"]["name"]] for e in events
                        if e["name"] == "thread_name"))  # fmt: skip
    early = Interval(f"early{int(rng.integers(99))}", 5.0, 5.0 - float(rng.uniform(0.1, 4)))
    mixed.insert(int(rng.integers(len(mixed))), early)
    try:
        story.append(len(chrome_trace(mixed)))
    except PerformanceError as error:
        story.append(["refused", early.name in str(error)])
    return {"story": story}


@scenario(task=1)
def a_profile_of_a_device(nanovllm, rng):
    """Kernels that lag behind their launches, over the ends of steps; steps that took no time."""
    from nanovllm.performance.errors import PerformanceError
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
    steps += [Interval("step", clock + i, clock + i) for i in range(int(rng.integers(1, 4)))]
    refused = []
    for warmup in (6, 7, len(steps)):
        try:
            refused.append(steps_of(steps, ops, kernels, warmup).host_share)
        except PerformanceError:
            refused.append("refused")
    points = []
    for _ in range(4):
        flops, moved = int(rng.integers(1, 9000)), int(rng.integers(1, 900))
        one = Interval("op", 1.0, 1.5, flops=flops, bytes=moved)
        point = roofline_point(one, 4000.0, 300.0, int(rng.integers(1, 9)), 8)
        points.append([round(point.intensity, 6), round(point.share, 6), point.limit])
    shares = [[list(f.launches), f.host_share] for f in found]
    return {"steps": shares, "refused": refused, "points": points}


# task 2


@scenario(task=2)
def merged_parts(nanovllm, rng):
    """Parts with biases and without, merged, merged again, and in another order."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    from nanovllm.performance.fusion import merge_linears

    generator = torch.Generator().manual_seed(int(rng.integers(999)))
    story = []
    for kind in rng.permutation(["all", "none", "some"]).tolist():
        width, parts = int(rng.integers(2, 9)), []
        for number in range(int(rng.integers(2, 5))):
            biased = kind == "all" or (kind == "some" and number == 1)
            part = nn.Linear(width, int(rng.integers(1, 9)), bias=biased).requires_grad_(False)
            for weight in part.parameters():
                weight.data = torch.randn(weight.shape, generator=generator)
            parts.append(part)
        x = torch.randn(3, width, generator=generator)
        weight, bias = merge_linears(parts)
        story.append([kind, F.linear(x, weight, bias), bias is None])
        again, _ = merge_linears(parts)
        story.append(again.data_ptr() == weight.data_ptr())
        weight.mul_(2)
        story.append([F.linear(x, part.weight) for part in parts])
        order = rng.permutation(len(parts)).tolist()
        both = merge_linears([parts[i] for i in order])
        story += [F.linear(x, *both), [part(x) for part in parts]]
    return {"story": story}


@scenario(task=2)
def fused_over_a_cache(nanovllm, rng):
    """A prompt in chunks, then single tokens, over K and V that a plain attend keeps.

    Models with biases and without, one of whose MLPs is not gated, with an eps of their own.
    """
    import torch
    from torch import nn

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.performance.errors import PerformanceError
    from nanovllm.performance.fusion import FusedTransformer

    kept, story = {}, []

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

    for family in rng.permutation(["qwen3", "qwen2", "llama"]).tolist():
        heads, groups = int(rng.integers(1, 4)), int(rng.choice([1, 2]))
        shape = (int(rng.integers(5, 20)), 3, heads * groups, heads, 2 * int(rng.integers(1, 5)))
        config = ModelConfig(
            family, 30, *shape, int(rng.integers(5, 30)), 64, qk_norm=family == "qwen3",
            qkv_bias=family != "qwen3", mlp_bias=family == "llama",
            norm_eps=float(rng.uniform(0.05, 0.3)),
        )  # fmt: skip
        model = dummy_model(config, int(rng.integers(99)))
        other = nn.Linear(shape[0], shape[0], bias=False).requires_grad_(False)
        other.weight.data = torch.from_numpy(rng.normal(size=(shape[0], shape[0]))).float()
        model.layers[int(rng.integers(3))].mlp = other
        fused = FusedTransformer(model)
        ids = torch.tensor(rng.integers(0, 30, 12).tolist())
        rows, start = [], 0
        kept.clear()
        with torch.inference_mode():
            for length in (int(rng.integers(1, 5)), 3, 1, 1):
                part = slice(start, start + length)
                hidden = fused(ids[part], torch.arange(start, start + length), attend)
                rows.append(fused.logits(hidden[-1:])[0])
                start += length
            half = FusedTransformer(dummy_model(config, 1, torch.bfloat16))
            told = half(ids, torch.arange(12), lambda layer, q, k, v: q).dtype
        story.append([family, torch.stack(rows), str(told)])
    try:
        old = ModelConfig("gpt2", 40, 12, 1, 4, 4, 3, 20, 64, mlp_bias=True)
        FusedTransformer(dummy_model(old, 1))
    except PerformanceError as error:
        story.append(["refused", "gpt2" in str(error)])
    return {"story": story}


@scenario(task=2)
def compiled_rows(nanovllm, rng):
    """Batch sizes as a trace brings them; what is compiled, in which order, for which sizes.

    `bucket_for` is of task 3: a right one is brought along.
    """
    from unittest.mock import patch

    import torch

    from nanovllm.performance import buckets, fusion

    def smallest(count, buckets):
        return min((size for size in buckets if size >= count), default=None)

    made = []

    def compile(function):
        seen = set()
        made.append(seen)

        def compiled(*inputs):
            seen.add(tuple(len(x) for x in inputs))
            return function(*inputs)

        return compiled

    sums = []
    with (
        patch.object(buckets, "bucket_for", smallest, create=True),
        patch.object(fusion, "bucket_for", smallest, create=True),
    ):
        rows = fusion.CompiledRows(lambda x, y: (x * y[:, None]).cumsum(-1), (3, 5, 11), compile)
        for count in rng.integers(1, 15, 10).tolist():
            x = torch.arange(count * 2.0).view(count, 2) + 1
            sums.append(rows(x, torch.arange(float(count))).tolist())
    return {"sums": sums, "sizes": [sorted(map(list, seen)) for seen in made]}


# task 3


@scenario(task=3)
def buffers_over_time(nanovllm, rng):
    """Batches that grow and shrink, tokens that come from earlier ones, by two graphs.

    Some tokens are those of chunks, and some are none. Batches that are too large are refused
    in between; what the views of a bucket say, which were made before all of them.
    """
    import torch

    from nanovllm.performance.buffers import DecodeBuffers, DecodeRow, slot_at
    from nanovllm.performance.errors import PerformanceError
    from nanovllm.performance.graphs import DecodeGraphs
    from nanovllm.performance.replay import recorded_capture

    buffers = DecodeBuffers(8, 4, 2, "cpu", vocab_size=99)
    memory = torch.zeros(64, dtype=torch.int64)

    def run(rows):
        batch = buffers.batch(rows)
        ids = buffers.token_ids(rows)
        slots = batch.slot_mapping
        target = torch.where(slots >= 0, slots, 63)
        memory.index_copy_(0, target, ids * 100 + buffers.on_device["positions"][:rows])
        new = (ids * 3 + batch.context_lens + batch.block_tables.sum(-1)) % 7
        buffers.sampled[:rows] = new

    def drawn(source, last):
        position = int(rng.integers(0, 8))
        others = [block for block in range(30) if block != last]
        ids = [*rng.choice(others, size=position // 2, replace=False).tolist(), last]
        return DecodeRow(position, slot_at(position, ids, 2), ids, int(rng.integers(1, 7)), source)

    buffers.load([], 8)
    graphs = DecodeGraphs(run, (2, 8), recorded_capture)
    views = {bucket: buffers.batch(bucket) for bucket in (2, 8)}
    story = [[v.query_start_loc.tolist(), v.max_query_len, v.max_context_len]
             for v in views.values()]  # fmt: skip
    buffers.sampled.zero_()
    for turn in rng.permutation(10).tolist():
        buffers.sampled[8:] = torch.from_numpy(rng.integers(10, 99, 8))  # those of chunks
        buffers.sampled[3] = -1
        sources = [None, 3, 0, 9, *(int(x) if x < 16 else None for x in rng.integers(0, 24, 4))]
        if turn > 1:  # else a batch that has all of these
            most = 2 if turn in (3, 6) else 8
            sources = rng.permutation(sources)[: int(rng.integers(1, most + 1))].tolist()
        rows = [drawn(*x) for x in zip(sources, rng.permutation(30).tolist(), strict=False)]
        bucket = graphs.rows_for(len(rows))
        if turn % 3 == 0:
            before = {name: x.clone() for name, x in buffers.on_device.items()}
            try:
                buffers.load([*rows, *rows, *rows][: bucket + 1], bucket)
            except PerformanceError:
                same = [torch.equal(before[name], x) for name, x in buffers.on_device.items()]
                story.append(["refused", all(same)])
        buffers.load(rows, bucket)
        view, inputs = views[bucket], {n: x[:bucket] for n, x in buffers.on_device.items()}
        known = [t for t, s in zip(*(inputs[n].tolist() for n in ("token_ids", "source")),
                                   strict=True) if s < 0]  # fmt: skip
        story.append([known, *(inputs[name].tolist() for name in ("source", "positions"))])
        story.append([view.slot_mapping.tolist(), view.context_lens.tolist(),
                      view.block_tables[: len(rows)].tolist()])  # fmt: skip
        story.append(buffers.token_ids(bucket).tolist())
        graphs(bucket)
        buffers.sampled[len(rows) : 8] = 0
        story.append([bucket, buffers.sampled[: len(rows)].tolist(), memory[:60].tolist()])
    return {"story": story}


@scenario(task=3)
def sets_in_turn(nanovllm, rng):
    """Which of the two sets in host memory is waited for and sent, and what was in it then."""
    from unittest.mock import patch

    from nanovllm.performance.buffers import DecodeBuffers, DecodeRow, HostInputs
    from nanovllm.performance.errors import PerformanceError

    log, sets = [], {}

    def noting(name, method):
        def noted(inputs, *more):
            number = sets.setdefault(id(inputs), len(sets))
            log.append([name, number, int(inputs.arrays["positions"][0])])
            return method(inputs, *more)

        return noted

    buffers = DecodeBuffers(4, 9, 4, "cpu", vocab_size=7)
    with (
        patch.object(HostInputs, "wait", noting("wait", HostInputs.wait)),
        patch.object(HostInputs, "send", noting("send", HostInputs.send)),
    ):
        for turn in rng.permutation(8).tolist():
            position = int(rng.integers(1, 36))
            rows = [DecodeRow(position, position, [0] * 9, 5)] * int(rng.integers(1, 4))
            if turn < 3:
                try:
                    buffers.load(rows * 2, len(rows))
                except PerformanceError:
                    log.append(["refused", position])
            buffers.load(rows, 4)
    return {"log": log}


@scenario(task=3)
def buckets_of_any_size(nanovllm, rng):
    """Lists of buckets and what they do to batches; captures, and who replays what."""
    from nanovllm.performance.buckets import batch_buckets, bucket_for
    from nanovllm.performance.graphs import DecodeGraphs

    most = int(rng.integers(4, 300))
    buckets = tuple(batch_buckets(most))
    log = []

    def capture(function, pool):
        function()
        size = log[-1]
        log.append(["pool", pool])
        return (lambda: log.append(-size)), (pool or 0) + size

    graphs = DecodeGraphs(log.append, buckets, capture)
    for count in rng.integers(1, most + 40, 12).tolist():
        graphs(graphs.rows_for(count))
        graphs(count)
    graphs(3)  # no bucket's size
    asked = rng.integers(1, most + 40, 12).tolist()
    long = batch_buckets(int(rng.integers(530, 900)))
    return {"buckets": [list(buckets), list(long)], "log": log,
            "for": [bucket_for(n, buckets) for n in asked]}  # fmt: skip


# task 4


@scenario(task=4)
def flights_of_a_plan(nanovllm, rng):
    """Plans of all kinds of chunks: which rows take off, and which of them the next plan takes."""
    from types import SimpleNamespace

    from nanovllm.batching.plan import Chunk, Plan
    from nanovllm.performance.step_ahead import Flight, plan_ahead

    class Request:
        def __init__(self, name):
            self.name, self.limit = name, 99

    class Store:
        block_size = 3

        def __init__(self, tables, room):
            self.tables, self.room, self.asked = tables, room, []

        def block_ids(self, request):
            return self.tables[request]

        def reserve(self, request, count):
            self.asked.append([request.name, count])
            return len(self.asked) <= self.room

    story = []
    kinds = ["goes on"] * 4 + ["moved", "admitted", "preempted", "longer", "left out", "late"]
    for room in rng.permutation([99, 99, int(rng.integers(0, 9))]).tolist():
        its = rng.permutation([*kinds, "last", "middle", "beyond"]).tolist()
        requests = [Request(f"{kind} {i}") for i, kind in enumerate(its)]
        tables = {r: rng.choice(99, size=9, replace=False).tolist() for r in requests}
        chunks = []
        for kind, request in zip(its, requests, strict=True):
            start, length = int(rng.integers(0, 12)), int(rng.integers(1, 5))
            end = start + length
            chunks.append(Chunk(request, start, length, end + (kind == "middle")))
            ahead = {"last": 0, "beyond": -1}
            request.limit = end + ahead.get(kind, int(rng.integers(1, 9)))
        places = rng.permutation(20)[: len(chunks) - 1].tolist()
        store = Store(tables, room)
        rows = plan_ahead(Plan(tuple(chunks)), places, store)
        if rows is None:
            story.append("no room")
            continue
        told = [[r.name, row.position, row.slot, row.source] for r, row in rows.items()]
        story.append([sorted(told), sorted(store.asked)])
        following, named = [], {"admitted": [], "preempted": []}
        for kind, chunk in zip(its, chunks, strict=True):
            request, start = chunk.request, chunk.end
            length, late = 1 + (kind == "longer"), int(kind == "late")
            if kind != "left out":
                following.append(Chunk(request, start - late, length, start - late + length))
            named.get(kind, []).append(request)
            if kind == "moved":
                tables[request] = [*tables[request][1:], tables[request][0]]
        following = tuple(following[i] for i in rng.permutation(len(following)))
        plan = Plan(following, **{kind: tuple(them) for kind, them in named.items()})
        taken = Flight(SimpleNamespace(), rows).places(plan, store)
        order = [request.name for request in rows]
        story.append(sorted([r.name, order[place]] for r, place in taken.items()))
    return {"story": story}


@scenario(task=4)
def blocks_in_flight(nanovllm, rng):
    """Launches that overlap, of blocks twice or of none: who holds what after each of them.

    Who holds a block already cannot hold it again, and some blocks nobody can hold.
    """
    from nanovllm.performance.frees import DeferredFrees

    held = set()

    class Manager:
        def hold(self, block_ids, owner):
            new = [(block, owner) for block in block_ids]
            if len({*new}) < len(new) or held.intersection(new) or any(b < 0 for b, _ in new):
                raise ValueError("they cannot be held")
            held.update(new)

        def drop(self, block_ids, owner):
            for block in block_ids:
                held.remove((block, owner))

    frees, flying, story = DeferredFrees(Manager()), [], []
    for turn in rng.permutation(24).tolist():
        if flying and turn % 2:
            frees.landed(flying.pop(int(rng.integers(len(flying)))))
        else:
            launch, blocks = f"launch {turn}", rng.integers(0, 9, 3).tolist()
            flying.append(launch)
            frees.launched(launch, iter([] if turn % 3 == 0 else blocks))
            if turn % 4 == 0:
                frees.launched(launch, iter([] if turn % 3 == 0 else [*blocks[:2], 8]))
            if turn % 3 == 2:
                try:
                    frees.launched(str(rng.choice([launch, "refused"])), [-1])
                except ValueError:
                    story.append("refused")
                frees.landed("refused")
        story.append([frees.in_flight, sorted({block for block, _ in held})])
    for launch in [*flying, "unknown"]:
        frees.landed(launch)
    story.append([frees.in_flight, sorted({block for block, _ in held})])
    return {"story": story}


# task 5


@scenario(task=5)
def a_layer_of_experts(nanovllm, rng):
    """Shapes, k and flags at random; few tokens, the same behind hundreds, and in bfloat16."""
    import torch

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.experts import ExpertsConfig
    from nanovllm.performance.moe import MoE, grouped_mlp

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
    found = {"out": layer(x), "behind many": layer(x.repeat(150, 1))[-len(x) :],
             "shapes": sorted([n, *w.shape] for n, w in layer.state_dict().items())}  # fmt: skip
    rows = torch.from_numpy(rng.permutation([len(x), *[0] * (count - 1)]))
    weights = layer.gate_up.bfloat16(), layer.down.bfloat16()
    found["rows"] = grouped_mlp(x, rows, layer.gate_up, layer.down)
    half = grouped_mlp(x.bfloat16(), rows, *weights), layer.bfloat16()(x.bfloat16())
    return found | {"dtypes": [str(each.dtype) for each in half]}


@scenario(task=5)
def visits_and_weights(nanovllm, rng):
    """Routing, sorting and stacking on their own, with experts that nobody chooses.

    No two logits of a token are equal, also in bfloat16; what cannot be routed or stacked.
    """
    from itertools import product

    import numpy as np
    import torch

    from nanovllm.performance.errors import PerformanceError
    from nanovllm.performance.moe import route, sort_by_expert, stack_experts

    count = int(rng.integers(11, 15))  # as text, 10 comes before 2
    steps = rng.permuted(np.tile(np.arange(count), (6, 1)), axis=1)
    logits = torch.from_numpy(0.375 * steps - 2).float()
    logits[:, -1], logits[:, int(rng.integers(count - 1))] = -50.0, -40.0
    k, story = int(rng.integers(1, count - 1)), []
    dtypes = (torch.float32, torch.bfloat16)
    for dtype, normalize in product(dtypes, (True, False)):
        weights, experts = route(logits.to(dtype), k, normalize)
        story.append([weights, str(weights.dtype), experts.tolist(), str(experts.dtype)])
    dispatch = sort_by_expert(experts, count)
    story.append([dispatch.visits.tolist(), dispatch.counts.tolist()])
    for wrong in (0, count + 1):
        try:
            story.append(route(logits, wrong, True)[1].tolist())
        except PerformanceError:
            story.append("refused")
    for names in (("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj")):
        tensors = {f"{e}.{n}.weight": torch.full((2, 2), 10.0 * e + i)
                   for e in range(count) for i, n in enumerate(names)}  # fmt: skip
        order = rng.permutation(sorted(tensors)).tolist()
        story += stack_experts({name: tensors[name] for name in order}, count)
        missing, nobodys = str(rng.choice(order)), f"{count}.{rng.choice(names)}.weight"
        for name in (missing, nobodys):
            changed = {each: torch.ones(2, 2) for each in {*order} ^ {name}}
            try:
                stack_experts(changed, count)
            except PerformanceError as error:
                story.append(["refused", name in str(error)])
    return {"story": story}


# task 6


@scenario(task=6)
def experts_on_ranks(nanovllm, rng):
    """Load to bytes: the whole way, with a capacity, on ranks of several sizes.

    Nobody visits the last expert; loads of nothing, and of parts of a visit; too few slots.
    """
    import torch

    from nanovllm.performance.errors import PerformanceError
    from nanovllm.performance.placement import (
        Placement,
        all_to_all_bytes,
        expert_load,
        imbalance,
        replicas,
        within_capacity,
    )

    count, tokens, k = int(rng.integers(4, 10)), int(rng.integers(5, 40)), 2
    weights = 1 / (1 + rng.permutation(count - 1))
    choices = [rng.choice(count - 1, size=k, replace=False, p=weights / weights.sum()).tolist()
               for _ in range(tokens)]  # fmt: skip
    experts = torch.tensor(choices)
    load = list(expert_load(experts, count))
    ranks = int(rng.integers(2, 4))
    placement = Placement(tuple(tuple(e for e in range(count) if (e + r) % ranks < 2)
                                for r in range(ranks)))  # fmt: skip
    home = rng.integers(0, ranks, tokens).tolist()
    sent = all_to_all_bytes(experts, home, placement, int(rng.integers(1, 99)))
    kept = within_capacity(experts, count, int(rng.integers(1, 6)))
    shares = (rng.random(count) / 2).tolist()
    few = "taken"
    try:
        replicas(load, int(rng.integers(1, count)))
    except PerformanceError:
        few = "refused"
    return {"load": load, "imbalance": [imbalance(x) for x in (load, shares, [0] * count)],
            "kept": kept.tolist(), "too few slots": few,
            "copies": list(replicas(load, count + int(rng.integers(0, 9)))),
            "sent": [list(row) for row in sent]}  # fmt: skip


def _spread(load, copies, ranks, slots, by_load=False, apart=True):
    """Copies on ranks by the greedy rule, or by a worse one: (most to do, ranks with two alike)."""
    from fractions import Fraction

    share = [Fraction(visits, n) for visits, n in zip(load, copies, strict=True)]
    order = sorted(range(len(load)), key=lambda e: (-(load[e] if by_load else share[e]), e))
    held, work = [[] for _ in range(ranks)], [Fraction(0)] * ranks
    for expert in (e for e in order for _ in range(copies[e])):
        free = [r for r in range(ranks) if len(held[r]) < slots]
        rank = min(free, key=lambda r, e=expert: (apart and e in held[r], work[r], r))
        held[rank].append(expert)
        work[rank] += share[expert]
    return _figures(held, share)


def _figures(held, share):
    """Of experts on ranks: the most that a rank has to do, and how many hold an expert twice."""
    return max(sum(share[e] for e in one) for one in held), sum(len(x) > len({*x}) for x in held)


@scenario(task=6)
def hot_experts_spread(nanovllm, rng):
    """Placements are compared by what they reach: slots, copies, and what the rule reaches.

    Of some loads a worse rule makes more work, or more ranks that hold an expert twice.
    """
    from fractions import Fraction

    from nanovllm.performance.placement import place_experts, replicas

    story = []
    for kind in rng.permutation(["any", "by load", "not apart"] * 3).tolist():
        for _ in range(500):
            ranks, slots = int(rng.integers(2, 6)), int(rng.integers(2, 5))
            count = int(rng.integers(2, ranks * slots + 1))
            load = (rng.random(count) ** 3 * 500 + 1).astype(int).tolist()
            copies = list(replicas(load, ranks * slots))
            most, twice = _spread(load, copies, ranks, slots)
            worse = {
                "by load": _spread(load, copies, ranks, slots, by_load=True)[0] > most,
                "not apart": _spread(load, copies, ranks, slots, apart=False)[1] > twice,
            }
            if worse.get(kind, True):
                break
        held = [list(one) for one in place_experts(load, ranks, slots).ranks]
        found = [sum(one.count(e) for one in held) for e in range(count)]
        share = [Fraction(visits, n) for visits, n in zip(load, copies, strict=True)]
        own = _figures(held, share)
        reached = [own[0] <= most, own[1] <= twice]
        story.append([kind, load, found, [len(one) for one in held], reached])
    return {"story": story}


# task 7


@scenario(task=7)
def another_model_and_load(nanovllm, rng):
    """Random shapes, a long trace, few blocks: the texts, beside the plain engine's own.

    Some want log-probabilities, one is longer than all before it, and one than is allowed.
    """
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
    allowed = int(rng.integers(100, 110))
    config = EngineConfig(max_num_seqs=int(rng.integers(2, 7)), max_model_len=allowed,
                          max_num_batched_tokens=int(rng.integers(8, 40)))  # fmt: skip
    jobs = []
    for number in range(9):
        prompt = rng.integers(3, 50, int(rng.integers(1, 40))).tolist()
        params = SamplingParams(max_tokens=int(rng.integers(2, 20)),
                                temperature=float(rng.choice([0.0, 0.0, 0.9])),
                                logprobs=2 if number % 4 == 0 else None)  # fmt: skip
        jobs.append((prompt, params))
    last = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    jobs.append((rng.integers(3, 50, allowed - int(rng.integers(4, 12))).tolist(), last))
    size, stories, values = int(rng.integers(30, 50)), [], []
    for make in (lambda s: make_engine(model, config, store=s),
                 lambda s: Engine(model, config, store=s)):  # fmt: skip
        engine = make(PagedStore(shape, size, 4))
        texts, told = {}, {}
        for number, (prompt, params) in enumerate(jobs):
            engine.add_request(prompt, params, seed=number, request_id=number)
        while engine.has_unfinished:
            for event in engine.step():
                if isinstance(event, Finished):
                    end = event.completion
                    texts[event.request_id] = [list(end.token_ids), end.finish_reason]
                    told[event.request_id] = [
                        [each[token].logprob for token in sorted(each)]
                        for each in end.logprobs or ()
                    ]
            engine.check()
        stories.append([[texts[i] for i in sorted(texts)], engine.config == config])
        values.append([value for i in sorted(told) for each in told[i] for value in each])
    far = max(abs(one - other) for one, other in zip(*values, strict=True))
    return {"same": stories[0] == stories[1], "log-probabilities": bool(far < 2e-4),
            "lengths": [len(ids) for ids, _ in stories[1][0]]}  # fmt: skip


@scenario(task=7)
def steps_that_are_cheaper(nanovllm, rng):
    """Two workloads of the contract's form, other than the check's: what falls, what grows."""
    from grader.checks.engine_costs import costs
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.generation.params import SamplingParams
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.paging.store import PagedStore
    from nanovllm.performance.capstone import make_engine
    from nanovllm.performance.counting import CountOps

    shape = ModelConfig("qwen3", 40, 12, 2, 4, 2, 6, 20, 96, qk_norm=True)
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=24)
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    verdicts = []
    for _ in range(2):
        weights, start = int(rng.integers(999)), rng.integers(3, 40, 8).tolist()
        prompts = [
            start[: (8, 4, 8, 0)[number % 4]] + rng.integers(3, 40, rng.integers(1, 15)).tolist()
            for number in range(8)
        ]

        def ready(make, weights=weights):
            model = dummy_model(shape, weights)
            return make(model, config, store=PagedStore(shape, 80, 4)), model.layers

        def run(engine, prompts=prompts):
            for number, prompt in enumerate(prompts):
                engine.add_request(prompt, params, seed=0, request_id=number)
            while engine.has_unfinished:
                engine.step()

        base, own = (costs(lambda make=make: ready(make), run, CountOps)
                     for make in (Engine, make_engine))  # fmt: skip
        ratios = [getattr(own, name) / getattr(base, name) for name in ("operations", "tokens")]
        # The quarter is the check's workload's: what an idea saves differs from one to another.
        verdicts.append([base.operations, min(ratios) <= 0.85, max(ratios) <= 1.1,
                         own.bytes <= 1.1 * base.bytes, not own.unseen,
                         own.tokens >= base.tokens / 2])  # fmt: skip
    return {"verdicts": verdicts}

"""Task 2: the same numbers in fewer operations."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from grader import expect
from grader.checks.engine_costs import alive, places
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig, RopeScaling
from nanovllm.model.loader import dummy_model
from nanovllm.performance import buckets, fusion
from nanovllm.performance.counting import CountOps
from nanovllm.performance.errors import PerformanceError
from nanovllm.performance.fusion import CompiledRows, FusedTransformer, merge_linears

CONFIGS = {
    "qwen3": ModelConfig("qwen3", 40, 12, 2, 4, 2, 6, 20, 64, qk_norm=True, norm_eps=0.1),
    "llama": ModelConfig("llama", 40, 12, 3, 3, 1, 8, 14, 64, mlp_bias=True, qkv_bias=True),
    "qwen2": ModelConfig("qwen2", 40, 12, 2, 6, 3, 4, 18, 64, qkv_bias=True, tie_embeddings=True),
    "mistral": ModelConfig("mistral", 40, 10, 2, 4, 4, 4, 18, 64, windows=(3, 3), rope_theta=50.0),
}


@pytest.fixture(autouse=True)
def right_buckets(monkeypatch):
    """`bucket_for` is of task 3: these checks bring a right one along."""
    for module in (buckets, fusion):
        monkeypatch.setattr(module, "bucket_for", smallest, raising=False)


def smallest(num_seqs, buckets):
    return min((size for size in buckets if size >= num_seqs), default=None)


def linear(rows, columns, generator, bias):
    made = nn.Linear(columns, rows, bias=bias).requires_grad_(False)
    made.weight.copy_(torch.randn(rows, columns, generator=generator))
    if bias:
        made.bias.copy_(torch.randn(rows, generator=generator))
    return made


@pytest.mark.check(task=2, points=1, title="One product of all parts")
def test_merged(generator):
    for biased in (True, False):
        parts = [linear(rows, 5, generator, biased) for rows in (6, 2, 3)]
        x = torch.randn(4, 5, generator=generator)
        wanted = torch.cat([part(x) for part in parts], dim=-1)
        weight, bias = merge_linears(parts)
        expect(
            nn.functional.linear(x, weight, bias),
            wanted,
            call="x times merge_linears(parts)",
            given={"rows": [6, 2, 3], "biased": biased},
            cause="the parts' rows one below another, in their order, and so their biases",
        )
        expect(bias is None, not biased, call="whether there is no bias", cause="as the parts")
        for order in ([0, 2], [1, 0]):
            some = [parts[number] for number in order]
            wanted = torch.cat([part(x) for part in some], dim=-1)
            expect(
                nn.functional.linear(x, *merge_linears(some)),
                wanted,
                call="x times merge_linears of two of these parts, which lie in one memory now",
                given={"parts": order, "biased": biased},
                cause="one below another in the new order, wherever they lay before",
            )


@pytest.mark.check(task=2, points=1, title="A part without a bias")
def test_some_biased(generator):
    parts = [linear(3, 4, generator, biased) for biased in (False, True, False)]
    x = torch.randn(2, 4, generator=generator)
    wanted = torch.cat([part(x) for part in parts], dim=-1)
    weight, bias = merge_linears(parts)
    expect(
        nn.functional.linear(x, weight, bias),
        wanted,
        call="merge_linears of parts with and without a bias",
        cause="a part without has 0 in its place",
    )


@pytest.mark.check(task=2, points=1, title="No weight is in memory twice")
def test_views(generator):
    parts = [linear(rows, 5, generator, False) for rows in (4, 3)]
    x = torch.randn(2, 5, generator=generator)
    before = [part(x) for part in parts]
    weight, _ = merge_linears(parts)
    expect(
        [part(x) for part in parts],
        before,
        call="the parts after merge_linears",
        cause="the model computes as before",
    )
    homes = {part.weight.untyped_storage().data_ptr() for part in parts}
    expect(
        [len(homes), homes == {weight.untyped_storage().data_ptr()}],
        [1, True],
        call="where the parts' weights are",
        cause="they are views of the merged weight",
    )
    again, _ = merge_linears(parts)
    expect(
        again.data_ptr() == weight.data_ptr(),
        True,
        call="whether a second merge of the same parts is the first one",
        cause="they lie like this already, and somebody may use it",
    )
    weight.mul_(2)
    expect(
        parts[1](x), 2 * before[1], call="a part, after the merged weight doubled", cause="as above"
    )


@pytest.mark.check(task=2, points=2, title="The model's hidden states and logits")
def test_equal(seed):
    for family, config in CONFIGS.items():
        equal(family, dummy_model(config, seed % 1000), seed)


@pytest.mark.check(task=2, points=1, title="Scaled RoPE, other MLPs, other dtypes")
def test_others(seed):
    plain = CONFIGS["llama"]
    for scaling in (RopeScaling("yarn", 4.0, 16), RopeScaling("linear", 2.5, 16)):
        model = dummy_model(replace(plain, rope_scaling=scaling), seed % 1000)
        equal(f"llama with {scaling.kind} RoPE", model, seed)
    model = dummy_model(plain, seed % 1000)
    model.layers[1].mlp = nn.Linear(12, 12, bias=False).requires_grad_(False)
    equal("llama with an MLP in layer 1 that is not gated", model, seed)
    model = dummy_model(plain, seed % 1000).to(torch.bfloat16)
    equal("bfloat16 llama", model, seed, atol=0.1)


def equal(family, model, seed, atol=2e-5):
    config = model.config
    draw = random.Random(seed)
    ids = torch.tensor([draw.randrange(40) for _ in range(9)])
    positions = torch.arange(9) + draw.randrange(20)
    attend = RecomputeAttend(config)
    with torch.inference_mode():
        hidden = model(ids, positions, attend)
        wanted = [hidden, model.logits(hidden[-2:])]
        fused = FusedTransformer(model)
        found = fused(ids, positions, attend)
        after = model(ids, positions, attend)
    expect(
        [found, fused.logits(found[-2:])],
        wanted,
        call=f"FusedTransformer(model)(ids, positions, attend) of a {family} model, and its logits",
        given={"H": config.num_heads, "G": config.num_kv_heads, "D": config.head_dim},
        cause="it gives what the model gives",
        atol=atol,
        rtol=atol,
    )
    expect(found.dtype, hidden.dtype, call="dtype of its hidden states", cause="the model's")
    expect(after, hidden, call="the model after it was fused", cause="it still works", atol=atol)


@pytest.mark.check(task=2, points=1, title="attend sees the same q, k and v")
def test_attend(seed):
    config = CONFIGS["qwen3"]
    model = dummy_model(config, seed % 1000)
    ids, positions = torch.tensor([5, 6, 7]), torch.tensor([4, 0, 9])
    seen = {"model": [], "fused": []}

    def noting(name):
        def attend(layer, q, k, v):
            seen[name].append([layer, q.clone(), k.clone(), v.clone()])
            return q * 0.5

        return attend

    with torch.inference_mode():
        model(ids, positions, noting("model"))
        FusedTransformer(model)(ids, positions, noting("fused"))
    for one, other in zip(seen["model"], seen["fused"], strict=True):
        expect(
            other,
            one,
            call=f"what attend gets in layer {one[0]}",
            cause="q and k with their norms and turned by their own positions, v as it is",
            atol=2e-5,
        )


@pytest.mark.check(task=2, points=1, title="At most 22 operations a layer")
def test_operations():
    for family in ("qwen3", "llama"):
        count(family, CONFIGS[family])


def count(family, config):
    model = dummy_model(config, 1)
    fused = FusedTransformer(model)
    ids = torch.tensor([3, 4, 5, 6])
    with torch.inference_mode(), CountOps() as ops:
        fused(ids, torch.arange(4), lambda layer, q, k, v: q)
    most = 22 * config.num_layers + 14
    expect.that(
        ops.total <= most,
        f"a step over {config.num_layers} layers of {family} has {ops.total} operations, at most "
        f"{most} are allowed (attend and views not counted): {dict(ops.by_name.most_common(8))}",
    )
    expect.that(
        ops.by_name["linear"] + ops.by_name["addmm"] + ops.by_name["mm"] <= 4 * config.num_layers,
        f"q, k and v are one product, and so are gate and up: at most 4 products a layer, not "
        f"{ops.by_name['linear'] / config.num_layers:g}",
    )


@pytest.mark.check(task=2, points=1, title="No weight of the model is copied; others are refused")
def test_memory():
    before = places(alive())
    model = dummy_model(CONFIGS["llama"], 1)
    fused, more = FusedTransformer(model), FusedTransformer(model)
    held = sum(size for home, size in places(alive()).items() if home not in before)
    size = sum(w.nbytes for w in model.state_dict().values() if w.ndim > 1)
    expect.that(
        held <= 1.2 * size,
        f"a model of {size} bytes, fused twice, has {held}: its weights are in memory once",
    )
    expect(more.model is model, True, call="whether fused.model is the model", cause="as given")
    storages = {w.untyped_storage().data_ptr() for w in model.state_dict().values() if w.ndim > 1}
    parts = len([w for w in model.state_dict().values() if w.ndim > 1])
    layers = CONFIGS["llama"].num_layers
    expect.that(
        len(storages) <= parts - 3 * layers,
        "q, k and v share one storage, and so do gate and up: else weights are in memory twice",
    )
    expect(fused.config, model.config, call="fused.config", cause="the model's")
    gpt2 = dummy_model(ModelConfig("gpt2", 40, 12, 1, 4, 4, 3, 20, 64, mlp_bias=True), 1)
    expect.raises(
        PerformanceError,
        lambda: FusedTransformer(gpt2),
        match="gpt2",
        call="FusedTransformer of a GPT-2",
        cause="it has LayerNorm and learned positions",
    )


@pytest.mark.check(task=2, points=2, title="Compiled once a bucket")
def test_compiled(seed):
    draw = random.Random(seed)
    made, shapes = [], []

    def compile(function):
        number = len(made)
        made.append(function)

        def compiled(*inputs):
            shapes.append((number, len(inputs[0]), len(inputs[1])))
            return function(*inputs)

        return compiled

    def function(x, y):
        return x.sum(-1, keepdim=True) * 2 + y

    rows = CompiledRows(function, (1, 2, 4, 8), compile)
    for count in [3, *(draw.randrange(1, 9) for _ in range(12)), 8, 1]:
        x, y = torch.rand(count, 3), torch.rand(count, 1) + 1
        expect(
            rows(x, y),
            function(x, y),
            call=f"CompiledRows(...)(x, y) of {count} rows",
            cause="the first N rows of what the bucket gave",
        )
    by_number = {number: sorted({s[1:] for s in shapes if s[0] == number}) for number, *_ in shapes}
    expect.that(
        all(len(sizes) == 1 for sizes in by_number.values()),
        f"what is compiled once sees one size only, or torch compiles anew; yours: {by_number}",
    )
    sizes = [size for [(size, _)] in by_number.values()]
    expect.that(
        len(sizes) == len(set(sizes)) and set(sizes) <= {1, 2, 4, 8},
        f"each bucket is compiled once, and nothing else; yours: {sorted(sizes)}",
    )
    smallest = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8}
    shapes.clear()
    for count in smallest:
        rows(torch.ones(count, 3), torch.ones(count, 1))
    expect(
        [size for _, size, _ in shapes],
        list(smallest.values()),
        call="buckets for 1, 2, 3, 4 and 5 rows",
        cause="the smallest that holds them",
    )


@pytest.mark.check(task=2, points=1, title="Above the largest bucket, and not before it is needed")
def test_compiled_lazily():
    made = []
    rows = CompiledRows(lambda x: x + 1, (2, 4), lambda f: made.append(1) or f)
    expect(len(made), 0, call="compiled functions before the first call", cause="none is needed")
    expect(
        rows(torch.zeros(7)), torch.ones(7), call="7 rows, buckets up to 4", cause="runs as it is"
    )
    expect(len(made), 0, call="compiled functions after that", cause="no bucket holds 7 rows")
    rows(torch.zeros(2))
    rows(torch.zeros(1))
    expect(len(made), 1, call="after 2 rows and 1 row", cause="both use the bucket of 2")

"""Task 5: a router, experts, and no loop over tokens."""

import pytest
import torch
from torch import nn

from grader import expect
from nanovllm.model.config import ModelConfig
from nanovllm.model.experts import ExpertsConfig
from nanovllm.performance.counting import CountOps
from nanovllm.performance.errors import PerformanceError
from nanovllm.performance.moe import MoE, grouped_mlp, route, sort_by_expert, stack_experts

PRODUCTS = ("linear", "addmm", "mm", "mv", "matmul", "einsum", "bmm", "baddbmm")


def layer_of(generator, hidden=6, count=5, k=2, inner=3, normalize=True, shared=0):
    """A layer of random weights."""
    experts = ExpertsConfig(count, k, inner, normalize, (0,), shared)
    config = ModelConfig("qwen2_moe", 9, hidden, 1, 2, 1, 4, 11, 16, experts=experts)
    layer = MoE(config).requires_grad_(False)
    for weight in layer.state_dict().values():
        weight.copy_(torch.randn(weight.shape, generator=generator))
    return layer


def one_mlp(x, gate_up, down):
    gate, up = (gate_up @ x).chunk(2)
    return down @ (nn.functional.silu(gate) * up)


def by_formula(layer, x, k, normalize, shared):
    """The layer's results, token by token, expert by expert."""
    w = layer.state_dict()
    rows = []
    for token in x:
        p = (w["gate.weight"] @ token).softmax(-1)
        order = p.argsort(descending=True)[:k]
        scale = p[order].sum() if normalize else 1.0
        y = sum(p[e] / scale * one_mlp(token, w["gate_up"][e], w["down"][e]) for e in order)
        if shared:
            both = torch.cat(
                (w["shared_expert.gate_proj.weight"], w["shared_expert.up_proj.weight"])
            )
            more = one_mlp(token, both, w["shared_expert.down_proj.weight"])
            y = y + (w["shared_expert_gate.weight"] @ token).sigmoid() * more
        rows.append(y)
    return torch.stack(rows)


@pytest.mark.check(task=5, points=1, title="The k most probable experts")
def test_route(generator):
    logits = torch.randn(7, 6, generator=generator) * 2
    p = logits.softmax(-1)
    for k in (1, 2, 6):
        weights, experts = route(logits, k, normalize=False)
        order = p.argsort(-1, descending=True)[:, :k]
        expect(experts, order, call=f"experts of route(logits, {k}, False)", cause="best first")
        expect(experts.dtype, torch.int64, call="their dtype", cause="they are indices")
        expect(
            weights,
            p.gather(1, order),
            call="their weights",
            cause="softmax over all experts, then the top k; not the other way round",
        )


@pytest.mark.check(task=5, points=1, title="Renormalised or not")
def test_normalize(generator):
    logits = torch.randn(7, 6, generator=generator)
    plain, _ = route(logits, 3, normalize=False)
    weights, _ = route(logits, 3, normalize=True)
    expect(
        weights,
        plain / plain.sum(-1, keepdim=True),
        call="weights of route(logits, 3, True)",
        cause="those of the chosen experts, divided by their sum",
    )
    for k in (0, 7):
        expect.raises(
            PerformanceError,
            lambda k=k: route(logits, k, True),
            call=f"route with k = {k} of 6 experts",
            cause="a token cannot visit so many",
        )


@pytest.mark.check(task=5, points=1, title="The router computes in float32")
def test_router_dtype(generator):
    logits = (torch.randn(9, 8, generator=generator) * 3).to(torch.bfloat16)
    weights, _ = route(logits, 3, normalize=True)
    expect(weights.dtype, torch.float32, call="dtype of weights", cause="bfloat16 has 8 bits")
    top = logits.float().softmax(-1).topk(3).values
    expect(
        weights,
        top / top.sum(-1, keepdim=True),
        call="route(bfloat16 logits, 3, True)",
        cause="softmax, and the sum of the chosen ones, in float32",
    )


@pytest.mark.check(task=5, points=1, title="Visits sorted by expert")
def test_sort(generator):
    experts = torch.randint(0, 5, (90, 3), generator=generator)
    experts[experts == 3] = 4  # nobody visits expert 3
    found = sort_by_expert(experts, 6)
    flat = experts.flatten().tolist()
    expect(
        found.visits.tolist(),
        sorted(range(270), key=lambda visit: (flat[visit], visit)),
        call="visits of sort_by_expert(experts, 6)",
        given={"experts, first rows": experts[:5]},
        cause="by expert; visits to one expert in the order of their tokens",
    )
    expect(
        found.counts.tolist(),
        [flat.count(e) for e in range(6)],
        call="counts",
        cause="one for each expert, also for those that nobody visits",
    )


@pytest.mark.check(task=5, points=2, title="Each row through its expert's MLP")
def test_grouped(generator):
    gate_up = torch.randn(4, 10, 3, generator=generator)
    down = torch.randn(4, 3, 5, generator=generator)
    x = torch.randn(7, 3, generator=generator)
    for counts in ([2, 0, 4, 1], [0, 0, 0, 7], [7, 0, 0, 0]):
        of_row = [e for e, n in enumerate(counts) for _ in range(n)]
        expect(
            grouped_mlp(x, torch.tensor(counts), gate_up, down),
            torch.stack([one_mlp(r, gate_up[e], down[e]) for r, e in zip(x, of_row, strict=True)]),
            call=f"grouped_mlp(x, counts={counts}, gate_up, down)",
            cause="the gate's rows stand above the up's",
            atol=1e-4,
        )
    half = [w.to(torch.bfloat16) for w in (x, gate_up, down)]
    found = grouped_mlp(half[0], torch.tensor([2, 0, 4, 1]), *half[1:])
    expect(found.dtype, torch.bfloat16, call="dtype of bfloat16 rows' results", cause="as x")
    nothing = grouped_mlp(x[:0], torch.zeros(4, dtype=torch.long), gate_up, down)
    expect(list(nothing.shape), [0, 3], call="shape without rows", cause="no token, no work")


@pytest.mark.check(task=5, points=1, title="The layer, token by token")
def test_layer(generator):
    for k, normalize, shared in ((2, True, 0), (1, False, 0), (5, False, 0), (3, False, 4)):
        layer = layer_of(generator, k=k, normalize=normalize, shared=shared)
        x = torch.randn(8, 6, generator=generator)
        expect(
            layer(x),
            by_formula(layer, x, k, normalize, shared),
            call=f"MoE(config)(x), k={k}, normalize={normalize}, shared_size={shared}",
            cause="the sum over a token's experts, each times its weight",
            atol=1e-4,
        )


@pytest.mark.check(task=5, points=1, title="A token does not depend on its neighbours")
def test_alone(generator):
    layer = layer_of(generator, count=2, k=1)
    x = torch.randn(6, 6, generator=generator)
    expect(
        layer(x.repeat(100, 1))[-6:],
        layer(x),
        call="six tokens behind 594 others",
        cause="no expert is full, nobody is dropped",
        atol=1e-5,
    )
    layer = layer_of(generator)
    together = layer(x)
    expect(
        torch.cat([layer(row[None]) for row in x]),
        together,
        call="each token alone, beside all together",
        cause="no expert is full, nobody is dropped",
        atol=1e-5,
    )
    x[2] = torch.nan
    kept = [0, 1, 3, 4, 5]
    expect(
        layer(x)[kept], together[kept], call="beside a row of NaN", cause="the others", atol=1e-5
    )
    expect(list(layer(x[:0]).shape), [0, 6], call="shape of MoE(no tokens)", cause="no work")


@pytest.mark.check(task=5, points=1, title="No loop over tokens, no expert twice")
def test_work(generator):
    totals = []
    for tokens in (40, 400):
        layer = layer_of(generator, count=4)
        x = torch.randn(tokens, 6, generator=generator)
        with torch.inference_mode(), CountOps() as ops:
            layer(x)
        totals.append(ops.total)
    expect.that(
        totals[1] <= totals[0] + 4,
        f"ten times as many tokens take as many operations; yours: {totals[0]}, then {totals[1]}",
    )
    gate_up = torch.randn(64, 8, 6, generator=generator)
    down = torch.randn(64, 6, 4, generator=generator)
    counts = torch.zeros(64, dtype=torch.long)
    counts[[3, 40]] = torch.tensor([2, 1])
    with torch.inference_mode(), CountOps() as ops:
        grouped_mlp(torch.randn(3, 6, generator=generator), counts, gate_up, down)
    products = sum(ops.by_name[name] for name in PRODUCTS)
    expect.that(
        products <= 6,
        "experts without rows are not computed, no expert twice: 2 of 64 have some, and at most 6 "
        f"products are allowed; yours: {products}",
    )


@pytest.mark.check(task=5, points=1, title="A checkpoint's experts, by two families' names")
def test_stacked(generator):
    qwen = ("gate_proj", "up_proj", "down_proj")
    for names in (qwen, ("w1", "w3", "w2")):
        parts = {}
        for expert in range(11):  # "10" sorts before "2"
            for name, size in zip(names, ((3, 4), (3, 4), (4, 3)), strict=True):
                parts[f"{expert}.{name}.weight"] = torch.randn(size, generator=generator)
        order = sorted(parts)
        gate_up, down = stack_experts({name: parts[name] for name in order}, 11)
        gate, up, last = (torch.stack([parts[f"{e}.{n}.weight"] for e in range(11)]) for n in names)
        expect(
            [gate_up, down],
            [torch.cat((gate, up), 1), last],
            call=f"stack_experts of tensors named {', '.join(names)}",
            cause="w1 is the gate, w3 the up, w2 the down projection; experts in order of number",
        )


@pytest.mark.check(task=5, points=1, title="Tensors that are missing, or nobody's")
def test_wrong_tensors(generator):
    for family in (("w1", "w2", "w3"), ("gate_proj", "up_proj", "down_proj")):
        names = [f"{expert}.{part}.weight" for expert in range(3) for part in family]
        others = [f"3.{family[0]}.weight", "0.w9.weight", f"0.{family[1]}.bias"]
        for changed in (*names, *others):
            tensors = {name: torch.ones(2, 2) for name in {*names} ^ {changed}}
            expect.raises(
                PerformanceError,
                lambda tensors=tensors: stack_experts(tensors, 3),
                match=changed.replace(".", r"\."),
                call=f"stack_experts of 3 experts, {changed} missing or too many",
                cause="it is refused, and named",
            )
    expect.raises(
        PerformanceError,
        lambda: stack_experts({}, 1),
        call="stack_experts of nothing",
        cause="its expert's tensors are missing",
    )


@pytest.mark.check(task=5, points=1, title="In bfloat16, results are bfloat16")
def test_layer_dtype(generator):
    layer = layer_of(generator, shared=3).to(torch.bfloat16)
    x = torch.randn(5, 6, generator=generator).to(torch.bfloat16)
    found = layer(x)
    expect(found.dtype, torch.bfloat16, call="dtype of MoE(x)", cause="as x")
    exact = layer.float()
    expect(
        found.float(),
        exact(x.float()),
        call="a bfloat16 layer beside the same in float32",
        cause="as close as 8 bits allow",
        rtol=0.1,
        atol=0.5,
    )

"""Task 5: SqueezeLLM."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from grader import expect
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.quantization.kmeans import weighted_kmeans
from nanovllm.quantization.squeezellm import fisher_diagonal, kept_apart, squeeze
from nanovllm.quantization.table_linear import TableLinear

QWEN3 = ModelConfig("qwen3", 40, 16, 2, 4, 2, 6, 20, 32, qk_norm=True)
GPT2 = ModelConfig(
    "gpt2", 40, 16, 1, 2, 2, 8, 24, 32, qkv_bias=True, output_bias=True, mlp_bias=True
)


@pytest.mark.check(task=5, points=2, title="Squared gradients, of each row by itself")
def test_fisher(rng):
    for config, shape in ((QWEN3, (3, 6)), (GPT2, (2, 4))):
        model = dummy_model(config, seed=int(rng.integers(99)))
        rows = torch.tensor(rng.integers(0, 40, size=shape))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        told: list[list[int]] = []
        found = fisher_diagonal(model, rows, lambda *done, told=told: told.append(list(done)))
        state = [(p.requires_grad, p.grad) for p in model.parameters()]
        expect(
            [state, all(torch.equal(before[n], v) for n, v in model.state_dict().items())],
            [[(False, None)] * len(state), True],
            call="requires_grad and grad of the parameters behind fisher_diagonal, and whether "
            "the weights are the same",
            cause="the model is only looked at",
        )
        expect(told, [[i + 1, shape[0]] for i in range(shape[0])], call="what on_progress was told")
        weights = {f"layers.{n}": m.weight for n, m in model.layers.named_modules()
                   if isinstance(m, nn.Linear)}  # fmt: skip
        wanted = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for every in weights.values():
            every.requires_grad_(True)
        for row in rows:
            hidden = model(row[:-1], torch.arange(len(row) - 1), RecomputeAttend(config))
            loss = F.cross_entropy(model.logits(hidden), row[1:])
            for name, slope in zip(
                weights, torch.autograd.grad(loss, weights.values()), strict=True
            ):
                wanted[name] += slope**2 / len(rows)
        expect(sorted(found), sorted(wanted), call="names of fisher_diagonal")
        for name, value in wanted.items():
            expect(
                found[name] / value.mean(),
                value / value.mean(),
                call=f"fisher_diagonal of {name} [N, K], of {shape[0]} rows, in parts of its mean",
                cause="square the gradient of each row's mean loss, then take the mean over rows",
                atol=2e-3,
                rtol=2e-3,
            )


def error_of(values, weights, table, codes):
    """The weighted squared error of one row."""
    values, weights = values.double(), weights.double()
    return float((weights * (values - table.double()[codes.long()]) ** 2).sum())


def every_way(values, weights, k):
    """The least error over all ways to cut the sorted values in k pieces or fewer."""
    order = values.argsort()
    x, w = values.double()[order], weights.double()[order]
    least = torch.inf
    for pieces in range(1, min(k, len(x)) + 1):
        for cuts in itertools.combinations(range(1, len(x)), pieces - 1):
            error = 0.0
            for start, end in itertools.pairwise((0, *cuts, len(x))):
                part, share = x[start:end], w[start:end]
                if share.sum() > 0:
                    mean = (part * share).sum() / share.sum()
                    error += float((share * (part - mean) ** 2).sum())
            least = min(least, error)
    return least


def by_tables(values, weights, k):
    """The least error, by the plain dynamic programme over ends and starts."""
    order = values.argsort()
    x, w = values.double()[order].numpy(), weights.double()[order].numpy()
    n = len(x)
    cost = np.zeros((n + 1, n + 1))
    for start in range(n):
        off, share = x[start:] - x[start], w[start:]
        sums = [(share * off**power).cumsum() for power in range(3)]
        cost[start, start + 1 :] = sums[2] - sums[1] ** 2 / np.maximum(sums[0], 1e-300)
    least = cost[0].copy()
    for _ in range(k - 1):
        least = np.array([(least[: e + 1] + cost[: e + 1, e]).min() for e in range(n + 1)])
    return float(least[n])


def judge_kmeans(values, weights, k, least, says):
    """Each row has the least error, finite entries, and codes of the table."""
    given = [values.clone(), weights.clone()]
    table, codes = weighted_kmeans(values, weights, k)
    expect([values, weights], given, call="values and weights afterwards")
    expect(
        [list(table.shape), list(codes.shape), codes.dtype, bool(torch.isfinite(table).all()),
         int(codes.max()) < k],
        [[len(values), k], list(values.shape), torch.uint8, True, True],
        call=f"shapes, dtype of the codes, whether the table is finite, codes below k: {says}",
    )  # fmt: skip
    for row in range(len(values)):
        wanted = least(values[row], weights[row], k)
        found = error_of(values[row], weights[row], table[row], codes[row])
        size = error_of(values[row], weights[row], values[row].mean().repeat(k), codes[row])
        expect.that(
            found <= wanted * (1 + 1e-4) + 1e-9 * size + 1e-14,
            f"the error is the least there is, {wanted:.6g}",
            observed=found,
            call=f"row {row} of weighted_kmeans with k = {k}: {says}",
            given={"values": values[row].tolist(), "weights": weights[row].tolist(),
                   "table": table[row].tolist(), "codes": codes[row].tolist()},
            cause="sum of weight * (value - table[code])^2; in one dimension a cluster is a piece "
            "of the sorted values",
        )  # fmt: skip


def some_rows(rng, rows, n):
    values = torch.tensor(rng.normal(size=(rows, n)), dtype=torch.float32)
    return values, torch.tensor(rng.random((rows, n)) ** 4, dtype=torch.float32)


@pytest.mark.check(task=5, points=2, title="The best of all ways to cut a row")
def test_every_way(rng):
    for n, k in ((9, 3), (8, 4), (7, 2), (6, 1)):
        values, weights = some_rows(rng, 6, n)
        values[1] *= 100  # rows of other sizes
        values[2] += 20
        judge_kmeans(values, weights, k, every_way, f"{n} values a row")


@pytest.mark.check(task=5, points=1, title="Values that weigh nothing, equal ones, few ones")
def test_odd_rows(rng):
    values, weights = some_rows(rng, 6, 8)
    weights[0] = 0.0
    weights[1, :6] = 0.0
    values[2] = values[2].round()
    values[3] = 1.5
    weights[4] *= 1e-12
    weights[5, values[5].argsort()[:3]] = 0.0
    for k in (2, 4):
        judge_kmeans(values, weights, k, every_way, "odd rows")
    few = [x[:, :2].contiguous() for x in some_rows(rng, 3, 8)]
    judge_kmeans(*few, 4, every_way, "two values a row")


@pytest.mark.check(task=5, points=1, title="Many rows of many values", stress=True)
def test_many(rng):
    for rows, n, k in ((3, 40, 8), (2, 60, 16), (4, 33, 4)):
        values, weights = some_rows(rng, rows, n)
        values = values * torch.tensor(rng.random((rows, 1)) * 0.1).float()
        values[:, :3] *= 20  # outliers
        judge_kmeans(values, weights, k, by_tables, f"{rows} rows of {n} values")


@pytest.mark.check(task=5, points=1, title="Which weights are kept apart")
def test_kept_apart(rng):
    for rows, columns in ((40, 50), (100, 60), (6, 50), (3, 10)):
        size = rows * columns
        weight = torch.tensor(rng.normal(size=(rows, columns)), dtype=torch.float32)
        fisher = torch.tensor(rng.random((rows, columns)), dtype=torch.float32) ** 8
        largest = weight.abs().flatten().argsort(descending=True)[: round(0.0045 * size)]
        if size == 6000:  # one that is both
            fisher.view(-1)[largest[0]] = 2.0
        sensitive = fisher.flatten().argsort(descending=True)[: round(0.0005 * size)]
        wanted = sorted({*largest.tolist(), *sensitive.tolist()})
        found = kept_apart(weight, fisher)
        expect(
            [found.dtype, found.flatten().nonzero().flatten().tolist()],
            [torch.bool, wanted],
            call=f"dtype and flat places of kept_apart of [{rows}, {columns}]",
            cause="0.45 % by size, over the whole matrix and of both signs, and 0.05 % by Fisher",
        )


@pytest.mark.check(task=5, points=2, title="Tables for what stays, and the rest kept whole")
def test_squeeze(rng):
    linear = nn.Linear(40, 24).requires_grad_(False)
    linear.weight.copy_(torch.tensor(rng.normal(size=(24, 40))))
    linear.weight[3, 5] = 40.0
    weight = linear.weight.clone()
    fisher = torch.tensor(rng.random((24, 40)), dtype=torch.float32) ** 4
    largest = weight.abs().flatten().topk(4).indices  # 0.0045 * 960 is 4.32, 0.0005 * 960 is 0.48
    for bits, sparse in ((2, True), (3, False), (3, True)):
        found = squeeze(linear, fisher, bits, sparse)
        call = f"squeeze of a linear [24, 40] with {bits} bits, sparse={sparse}"
        apart = torch.zeros(960, dtype=torch.bool)
        if sparse:
            apart[largest] = True
        apart = apart.view(24, 40)
        counts = fisher.masked_fill(apart, 0.0)
        least = [by_tables(weight[n], counts[n], 2**bits) for n in range(24)]
        errors = (counts * (found.dense() - weight).square()).sum(1)
        expect.that(
            bool((errors <= torch.tensor(least) * 1.02 + 1e-6).all()),
            "each row's tables have the least error, Fisher-weighted",
            observed=errors.tolist(),
            call=call,
            given={"the least errors": least},
            cause="weights that are kept apart do not count for the tables",
        )
        expect(
            [found.bits, found.sparse().to_dense() != 0, found.bias, linear.weight],
            [bits, apart, linear.bias, weight],
            call=f"bits, places of the sparse part, bias; the linear's own weight: {call}",
        )
        expect(
            found.dequantize()[apart],
            weight[apart],
            call=f"the weights kept apart, dense and sparse together: {call}",
            cause="the sparse part has what the dense one lacks",
            rtol=2e-3,
        )


@pytest.mark.check(task=5, points=1, title="Both products")
def test_both_products(rng, monkeypatch):
    codes = torch.tensor(rng.integers(0, 4, size=(6, 11)), dtype=torch.uint8)
    table = torch.tensor(rng.normal(size=(6, 4)), dtype=torch.float32)
    extra = torch.zeros(6, 11)
    extra[[0, 0, 2, 5], [3, 10, 0, 4]] = torch.tensor([50.0, -7.0, 0.25, 3.0])
    bias = torch.tensor(rng.normal(size=6), dtype=torch.float32)

    def never(*args):
        raise AssertionError("forward makes the sparse part dense (dequantize, to_dense)")

    monkeypatch.setattr(torch.Tensor, "to_dense", never)
    for more, shift in ((extra, bias), (extra, None), (None, bias), (torch.zeros(6, 11), None)):
        linear = TableLinear(codes, table, more, shift)
        weight = table.half().double().gather(1, codes.long())
        weight = weight + (0 if more is None else more.half().double())
        linear.dequantize = never
        for shape, dtype in (
            ((4, 11), torch.float32), ((2, 3, 11), torch.float32), ((11,), torch.float32),
            ((5, 11), torch.bfloat16), ((0, 11), torch.float32),
        ):  # fmt: skip
            x = torch.tensor(rng.normal(size=shape)).to(dtype)
            wanted = x.double() @ weight.T + (0 if shift is None else shift.double())
            linear.bias = None if shift is None else shift.to(dtype)
            found = linear(x)
            expect(
                [found.dtype, list(found.shape)],
                [dtype, [*shape[:-1], 6]],
                call=f"dtype and shape of TableLinear of x {list(shape)}, {dtype}",
            )
            expect(
                found.double(),
                wanted,
                call=f"TableLinear(x) for x {list(shape)}, {dtype}",
                given={"sparse part": "none" if more is None else more.nonzero().tolist(),
                       "bias": shift is not None},
                cause="x times the table's weights, x times the sparse ones, and the bias once",
                atol=1e-4 if dtype == torch.float32 else 0.7,
            )  # fmt: skip

"""Task 3: GPTQ."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from grader import expect
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.quantization.by_layer import quantize_by_layer
from nanovllm.quantization.gptq import gptq, gptq_block, hessian
from nanovllm.quantization.grid import Grid
from nanovllm.quantization.scheme import Scheme

QWEN3 = ModelConfig("qwen3", 40, 16, 3, 4, 2, 6, 20, 32, qk_norm=True)
GPT2 = ModelConfig(
    "gpt2", 40, 16, 2, 2, 2, 8, 24, 32, qkv_bias=True, output_bias=True, mlp_bias=True
)


def some_layer(rng, n=40, rows=5, columns=12, bits=3, group=4, symmetric=False):
    """Weight, Hessian of inputs that are alike, and a grid from the range of each group."""
    mixed = rng.normal(size=(columns, columns)) * (rng.random(columns) + 0.2)
    inputs = rng.normal(size=(n, columns)) @ mixed + rng.normal(size=(n, 1))
    weight = rng.normal(size=(rows, columns)).astype(np.float32)
    return weight, 2 * inputs.T @ inputs / n, grid_of(weight, bits, group, symmetric)


def grid_of(weight, bits, group, symmetric):
    """Task 1's grid, in numpy."""
    rows, columns = weight.shape
    starts = range(0, columns, group)
    steps = 2**bits - 1
    scales = np.empty((rows, len(starts)), np.float32)
    zeros = np.full(scales.shape, 2 ** (bits - 1))
    for g, start in enumerate(starts):
        part = weight[:, start : start + group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        span = 2 * np.maximum(-low, high) if symmetric else high - low
        scales[:, g] = (span / steps).astype(np.float16)
        if not symmetric:
            zeros[:, g] = (-low / scales[:, g]).round().clip(0, steps)
    group_of = torch.arange(columns) // group
    return Grid(bits, torch.tensor(scales), torch.tensor(zeros).to(torch.uint8), group_of)


def one_by_one(weight, h, grid, damping=0.01, act_order=False):
    """Codes [N, K] as OBQ finds them: for each column the inverse of what is left of H."""
    w, h = weight.astype(np.float64).copy(), np.array(h, dtype=np.float64)
    dead = np.diag(h) == 0
    h[dead, dead] = 1.0
    w *= ~dead
    h += damping * np.diag(h).mean() * np.eye(len(h))
    left = list(range(len(h)))
    if act_order:
        left.sort(key=lambda k: -h[k, k])
    codes = np.zeros(w.shape, np.int64)
    while left:
        j, inverse = left[0], np.linalg.inv(h[np.ix_(left, left)])
        scale = grid.scales[:, grid.group_of[j]].double().numpy()
        zero = grid.zeros[:, grid.group_of[j]].double().numpy()
        codes[:, j] = (np.round(w[:, j] / scale) + zero).clip(0, 2**grid.bits - 1)
        error = w[:, j] - (codes[:, j] - zero) * scale
        w[:, left] -= np.outer(error / inverse[0, 0], inverse[0])
        left.pop(0)
    return codes


def codes_of(weight, h, grid, **how):
    """The student's codes."""
    return gptq(torch.tensor(weight), torch.tensor(h), grid, **how).codes.tolist()


@pytest.mark.check(task=3, points=1, title="H is the mean of the products of inputs, twice")
def test_hessian(rng):
    for n, columns in ((3, 2), (50, 7)):
        x = rng.normal(size=(n, columns)).astype(np.float32)
        found = hessian(torch.tensor(x))
        wanted = [
            [2 * sum(float(row[i]) * float(row[j]) for row in x) / n for j in range(columns)]
            for i in range(columns)
        ]
        expect(
            found.tolist(),
            wanted,
            call=f"hessian of {n} inputs [{n}, {columns}]",
            cause="2 X^T X / n: one entry for each pair of columns",
            atol=1e-6,
        )
        expect(found.dtype, torch.float64, call="dtype of hessian(inputs)")


def naive_inputs(model, rows):
    """What every linear multiplies, by its name: one row after another through the whole model."""
    found, hooks = {}, []
    for name, part in model.layers.named_modules():
        if isinstance(part, nn.Linear):
            seen = found.setdefault(name, [])
            hooks.append(
                part.register_forward_pre_hook(lambda _, x, seen=seen: seen.append(x[0].clone()))
            )
    for row in rows:
        model(row, torch.arange(len(row)), RecomputeAttend(model.config))
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(seen) for name, seen in found.items()}


@pytest.mark.check(task=3, points=3, title="A layer's inputs come from behind quantized layers")
def test_by_layer(rng):
    for config, shape in ((QWEN3, (3, 5)), (GPT2, (2, 7)), (QWEN3, (2, 1))):
        model = dummy_model(config, seed=int(rng.integers(99)))
        truth = copy.deepcopy(model)
        rows = torch.tensor(rng.integers(0, 40, size=shape))
        seen, told, changed = [], [], []

        def coarse(block, inputs, model=model, seen=seen, changed=changed):
            seen.append(
                [list(model.layers).index(block), {n: x.clone() for n, x in inputs.items()}]
            )
            for part in block.modules():
                if isinstance(part, nn.Linear):
                    part.weight.copy_(part.weight.mul(2).round() / 2)
            changed.append(block)

        quantize_by_layer(model, rows, coarse, lambda *done, told=told: told.append(list(done)))
        call = f"quantize_by_layer of a {config.family} model, {shape[0]} rows of {shape[1]} tokens"
        expect(
            [[layer for layer, _ in seen], told],
            [list(range(config.num_layers)), [[i + 1, config.num_layers] for i in
                                              range(config.num_layers)]],
            call=f"layers that the quantizer of {call} was given, and what on_progress was told",
        )  # fmt: skip
        for layer, inputs in seen:
            wanted = {name.partition(".")[2]: x for name, x in naive_inputs(truth, rows).items()
                      if name.startswith(f"{layer}.")}  # fmt: skip
            expect(sorted(inputs), sorted(wanted), call=f"names of the inputs of layer {layer}")
            for name, x in wanted.items():
                expect(
                    inputs[name],
                    x,
                    call=f"inputs of {name} in layer {layer}: {call}",
                    given={"the quantizer": "rounds the weights of its block to halves"},
                    cause="the layers before are quantized, this one is not; rows are apart",
                    atol=2e-5,
                )
            for part in truth.layers[layer].modules():
                if isinstance(part, nn.Linear):
                    part.weight.copy_(part.weight.mul(2).round() / 2)
        expect(
            sum(len(module._forward_pre_hooks) + len(module._forward_hooks)
                for module in model.modules()),
            0,
            call="hooks that are left in the model",
        )  # fmt: skip


@pytest.mark.check(task=3, points=3, title="The codes of the slow way: an inverse a column")
def test_naive(rng):
    for number, (bits, group, symmetric, n) in enumerate(
        [(2, 4, False, 40), (3, 12, True, 30), (4, 5, False, 60), (2, 3, True, 200), (8, 4, 0, 50)]
    ):
        weight, h, grid = some_layer(rng, n=n, bits=bits, group=group, symmetric=bool(symmetric))
        before = [weight.copy(), h.copy()]
        given = [torch.tensor(weight), torch.tensor(h)]
        found = gptq(*given, grid)
        expect(
            found.codes.tolist(),
            one_by_one(weight, h, grid).tolist(),
            call=f"codes of gptq, {bits} bits, groups of {group} of 12 columns (layer {number})",
            given={"weight": weight.tolist(), "scales": grid.scales.tolist(),
                   "zeros": grid.zeros.tolist()},
            cause="column j is rounded as it is by then; column k behind it loses "
            "(w_j - q_j) / U_jj * U_jk",
        )  # fmt: skip
        expect(
            [given[0].numpy().tolist(), given[1].numpy().tolist()],
            [before[0].tolist(), before[1].tolist()],
            call="weight and hessian afterwards",
            cause="they are the caller's",
        )
        expect(
            [found.grid is grid or torch.equal(found.grid.scales, grid.scales), found.codes.dtype],
            [True, torch.uint8],
            call="whether the grid is the one that was given, and the dtype of the codes",
        )


@pytest.mark.check(task=3, points=1, title="Lazy blocks change no code")
def test_lazy(rng):
    weight, h, grid = some_layer(rng, columns=29, group=8, bits=3, n=90)
    wanted = one_by_one(weight, h, grid).tolist()
    for size in (1, 5, 28, 29, 128):
        expect(
            codes_of(weight, h, grid, block_size=size),
            wanted,
            call=f"codes of gptq of 29 columns with block_size={size}",
            cause="behind a block, all later columns are corrected by all its errors, once",
        )


@pytest.mark.check(task=3, points=2, title="Damping, and columns that no input reaches")
def test_damping(rng):
    for damping, dead in ((0.0001, ()), (0.3, ()), (0.01, (0, 7)), (0.2, (11,)), (0.1, range(12))):
        weight, h, grid = some_layer(rng, bits=3)
        for column in dead:
            h[column] = h[:, column] = 0.0
        expect(
            codes_of(weight, h, grid, damping=damping),
            one_by_one(weight, h, grid, damping).tolist(),
            call=f"codes of gptq with damping={damping}; dead columns: {list(dead)}",
            given={"weight": weight.tolist(), "diagonal of H": np.diag(h).tolist()},
            cause="a dead column has the diagonal 1 and weights 0; then each diagonal gets damping "
            "times their mean more",
        )


@pytest.mark.check(task=3, points=1, title="act_order: from the largest diagonal to the smallest")
def test_act_order(rng):
    for group, symmetric, columns in (
        (4, False, 12),
        (12, True, 12),
        (5, False, 12),
        (8, True, 40),
    ):
        weight, h, grid = some_layer(rng, columns=columns, group=group, symmetric=symmetric)
        if columns == 40:  # equal diagonals
            h /= np.sqrt(np.outer(np.diag(h), np.diag(h)))
            np.fill_diagonal(h, rng.integers(1, 4, size=columns))
        else:  # columns far apart
            h[3] *= 3
            h[:, 3] *= 3
        expect(
            codes_of(weight, h, grid, act_order=True),
            one_by_one(weight, h, grid, act_order=True).tolist(),
            call=f"codes of gptq with act_order=True, groups of {group} of {columns} columns",
            given={"diagonal of H": np.diag(h).tolist()},
            cause="a column keeps the scale of its own group, and its code its own place; of "
            "columns with equal diagonals the first comes first",
        )


@pytest.mark.check(task=3, points=1, title="A block: every linear on the grid that it had")
def test_block(rng):
    for config, act_order in ((QWEN3, False), (GPT2, True)):
        block = dummy_model(config, seed=int(rng.integers(99))).layers[1]
        linears = {n: m for n, m in block.named_modules() if isinstance(m, nn.Linear)}
        inputs = {
            name: torch.tensor(rng.normal(size=(60, m.in_features)) + 0.3, dtype=torch.float32)
            for name, m in linears.items()
        }
        gptq_block(block, inputs, Scheme(bits=3, group_size=7), act_order=act_order)
        for name, linear in linears.items():
            weight, x = linear.weight.numpy(), inputs[name].double().numpy()
            grid = grid_of(weight, 3, 7, False)
            found = block.get_submodule(name)
            call = f"{name} of a {config.family} block after gptq_block with 3 bits, groups of 7"
            expect(type(found).__name__, "GroupedLinear", call=f"the class of {call}")
            expect(
                found.weight_codes.codes.tolist(),
                one_by_one(weight, 2 * x.T @ x / len(x), grid, act_order=act_order).tolist(),
                call=f"codes of {call}, act_order={act_order}",
                cause="each linear has its own inputs; its grid comes from its weight as it was",
            )
            expect(found.bias, linear.bias, call=f"bias of {call}")


@pytest.mark.check(task=3, points=1, title="Any layer: the bound, and the codes", stress=True)
def test_any_layer(rng):
    for number in range(25):
        columns, rows = int(rng.integers(1, 24)), int(rng.integers(1, 5))
        how = {"bits": int(rng.choice([2, 3, 4])), "group": int(rng.integers(1, columns + 3)),
               "symmetric": bool(rng.random() < 0.4), "n": int(rng.integers(1, 60))}  # fmt: skip
        weight, h, grid = some_layer(rng, rows=rows, columns=columns, **how)
        if rng.random() < 0.5:  # room at both ends, so that nothing is clipped
            half = torch.full_like(grid.zeros, 2 ** (grid.bits - 1))
            grid = Grid(grid.bits, grid.scales * 8, half, grid.group_of)
        for column in range(columns):
            if rng.random() < 0.05:
                h[column] = h[:, column] = 0.0
        damping, act_order = float(rng.choice([0.01, 0.1])), bool(rng.random() < 0.3)
        options = {"damping": damping, "act_order": act_order}
        size = int(rng.integers(1, 30))
        failing = smallest(weight, h, grid, options, size)
        if failing is not None:
            weight, h, grid = failing
            expect(
                codes_of(weight, h, grid, block_size=size, **options),
                one_by_one(weight, h, grid, **options).tolist(),
                call=f"codes of gptq with {options}, block_size={size} (layer {number}, made as "
                "small as it still fails)",
                given={"weight": weight.tolist(), "H": h.tolist(), "bits": grid.bits,
                       "scales": grid.scales.tolist(), "zeros": grid.zeros.tolist(),
                       "group_of": grid.group_of.tolist()},
            )  # fmt: skip
        bounded(weight, h, grid, damping, size)


def smallest(weight, h, grid, options, size):
    """The layer with rows and columns left out while its codes are still wrong; None if right."""

    def wrong(weight, h, grid):
        return (
            codes_of(weight, h, grid, block_size=size, **options)
            != one_by_one(weight, h, grid, **options).tolist()
        )

    if not wrong(weight, h, grid):
        return None
    shrunk = True
    while shrunk:
        shrunk = False
        rows, columns = weight.shape
        for axis, count in ((0, rows), (1, columns)):
            for out in range(count if count > 1 else 0):
                keep = [i for i in range(count) if i != out]
                smaller = (
                    (weight[keep], h,
                     Grid(grid.bits, grid.scales[keep], grid.zeros[keep], grid.group_of))
                    if axis == 0
                    else (weight[:, keep], h[np.ix_(keep, keep)],
                          Grid(grid.bits, grid.scales, grid.zeros, grid.group_of[keep]))
                )  # fmt: skip
                if wrong(*smaller):
                    (weight, h, grid), shrunk = smaller, True
                    break
            if shrunk:
                break
    return weight, h, grid


def bounded(weight, h, grid, damping, size):
    """Where nothing is clipped, the error is under Babai's bound."""
    if (np.diag(h) == 0).any():
        return
    damped = h + damping * np.diag(h).mean() * np.eye(len(h))
    u = np.linalg.cholesky(np.linalg.inv(damped)).T
    found = gptq(torch.tensor(weight), torch.tensor(h), grid, damping=damping, block_size=size)
    inside = ((found.codes > 0) & (found.codes < 2**grid.bits - 1)).all(dim=1).numpy()
    off = weight - found.dequantize().double().numpy()
    loss = ((off @ damped) * off).sum(axis=1)
    bound = ((grid.column_scales().double().numpy() / 2 / np.diag(u)) ** 2).sum(axis=1)
    expect(
        [bool(ok) for ok in (loss <= bound * (1 + 1e-6))[inside]],
        [True] * int(inside.sum()),
        call="whether the error of each row without a first or last code is under the bound "
        "sum_j (s_j / (2 U_jj))^2",
        given={"errors d H d^T": loss.tolist(), "bounds": bound.tolist()},
        cause="every step leaves at most half a step of its column over",
    )

"""Task 4: AWQ."""

import copy

import pytest
import torch
from torch import nn

from grader import expect
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.quantization.awq import (
    awq_block,
    clip,
    fold,
    folds,
    search_scale,
    value_channels,
)
from nanovllm.quantization.scheme import Scheme

LLAMA = ModelConfig(
    "llama", 40, 16, 2, 6, 2, 4, 20, 32, qkv_bias=True, output_bias=True, mlp_bias=True
)
GPT2 = ModelConfig(
    "gpt2", 40, 16, 2, 2, 2, 8, 24, 32, qkv_bias=True, output_bias=True, mlp_bias=True
)


def rounded(weight, scheme):
    """Task 1's rounding: what the codes of a weight stand for."""
    found, size = torch.empty_like(weight), scheme.group_size or weight.shape[1]
    top = 2**scheme.bits - 1
    for start in range(0, weight.shape[1], size):
        part = weight[:, start : start + size]
        low, high = (
            part.amin(1, keepdim=True).clamp(max=0),
            part.amax(1, keepdim=True).clamp(min=0),
        )
        if scheme.symmetric:
            scale, zero = (
                2 * torch.maximum(-low, high) / top,
                torch.full_like(low, 2**scheme.bits / 2),
            )
        else:
            scale, zero = high - low, low
            scale = scale / top
        scale = scale.half().float()
        scale[scale == 0] = 1.0
        if not scheme.symmetric:
            zero = (-low / scale).round().clamp(0, top)
        codes = ((part / scale).round() + zero).clamp(0, top)
        found[:, start : start + size] = (codes - zero) * scale
    return found


def candidates(inputs, channel_of):
    """The 20 scales, each channel from the columns that read it."""
    sizes = torch.stack([
        inputs[:, channel_of == c].abs().double().mean() for c in range(int(channel_of.max()) + 1)
    ])  # fmt: skip
    found = []
    for ratio in torch.arange(20).double() / 20:
        scale = (sizes**ratio).clamp(min=1e-4)
        found.append((scale / (scale.max() * scale.min()).sqrt()).float())
    return found


def output_error(weights, inputs, scheme, column):
    """Squared errors of all outputs, where columns are scaled before rounding."""
    total = 0.0
    for weight in weights:
        off = weight - rounded(weight * column, scheme) / column
        total += float((inputs.double() @ off.double().T).square().sum())
    return total


def judge_scale(found, weights, inputs, channel_of, scheme, call):
    """The scale is one of the twenty, and none is clearly better."""
    every = candidates(inputs, channel_of)
    errors = [output_error(weights, inputs, scheme, s[channel_of]) for s in every]
    near = [i for i, s in enumerate(every) if torch.allclose(found.float(), s, rtol=1e-4)]
    given = {"errors for r = 0, 1/20, ...": [round(e, 5) for e in errors]}
    expect.that(
        bool(near),
        "the scale is one of the twenty candidates",
        observed=found.tolist(),
        call=call,
        given={**given, "the best candidate": every[errors.index(min(errors))].tolist()},
        cause="a_c^r, at least 1e-4, over the root of the largest times the smallest; a_c is the "
        "mean of |x|",
    )
    expect.that(
        min(errors[i] for i in near) <= min(errors) * 1.01,
        "no candidate has a smaller error of the outputs",
        observed={"r": near[0] / 20},
        call=call,
        given=given,
        cause="squared errors of the outputs, of all readers together, decide",
    )


def uneven(rng, n, columns, loud=()):
    """Inputs whose channels are of other sizes, some far larger, and which go together."""
    x = torch.tensor(rng.normal(size=(n, columns)), dtype=torch.float32)
    x = x * torch.tensor(rng.random(columns) + 0.1, dtype=torch.float32) + 0.5 * x[:, :1]
    for column in loud:
        x[:, column] *= 30
    return x


def some_weight(rng, rows, columns):
    return torch.tensor(rng.normal(size=(rows, columns)), dtype=torch.float32)


@pytest.mark.check(task=4, points=1, title="Which value each input of o_proj comes from")
def test_value_channels():
    for heads, kv_heads, dim in ((4, 2, 3), (6, 2, 2), (3, 3, 2), (5, 1, 4)):
        expect(
            value_channels(heads, kv_heads, dim).tolist(),
            [(h * kv_heads // heads) * dim + d for h in range(heads) for d in range(dim)],
            call=f"value_channels({heads}, {kv_heads}, {dim})",
            cause="neighbouring query heads share a value head",
        )


@pytest.mark.check(task=4, points=2, title="A fold changes no output")
def test_fold(rng):
    torch.manual_seed(int(rng.integers(99)))
    x = torch.randn(5, 16)
    for config in (LLAMA, GPT2):
        block = dummy_model(config, seed=int(rng.integers(99))).layers[0]
        model = dummy_model(config, seed=1)
        rotation = model.positions.rotation(torch.arange(5))
        attend = RecomputeAttend(config)
        wanted = block(x, rotation, attend)
        for one in folds(block, config.head_dim):
            before = copy.deepcopy(block)
            source = block.get_submodule(one.source)
            read_by = [block.get_submodule(name) for name in one.readers]
            outputs = source.weight.shape[0]
            scale = torch.tensor(rng.random(outputs) * 3 + 0.3, dtype=torch.float32)
            fold(source, read_by, one.channel_of, scale)
            call = f"fold of {one.source} into {', '.join(one.readers)} of a {config.family} block"
            expect(
                block(x, rotation, attend),
                wanted,
                call=f"the block's outputs after {call}",
                given={"query heads": config.num_heads, "value heads": config.num_kv_heads,
                       "biases": "everywhere"},
                cause="what is divided at the source is multiplied at the readers: weight and bias",
                atol=1e-4,
            )  # fmt: skip
            for name, reader in zip(one.readers, read_by, strict=True):
                old = before.get_submodule(name)
                expect(
                    [reader.weight, reader.bias],
                    [old.weight * scale[one.channel_of], old.bias],
                    call=f"weight and bias of {name} after {call}",
                    cause="a column is multiplied by the scale of the channel that it reads",
                    rtol=1e-5,
                )


@pytest.mark.check(task=4, points=3, title="The scale with the smallest error of the outputs")
def test_search(rng):
    for bits, group, loud in ((3, 4, (2,)), (4, None, (5, 6)), (2, 6, ()), (3, 4, (0,))):
        x = uneven(rng, 50, 12, loud)
        weights = [some_weight(rng, 6, 12), 2 * some_weight(rng, 3, 12)]
        before = [weight.clone() for weight in weights]
        scheme, straight = Scheme(bits, group), torch.arange(12)
        found = search_scale(weights, x, straight, scheme)
        call = f"search_scale of two weights, {bits} bits, groups of {group}, loud channels {loud}"
        judge_scale(found, weights, x, straight, scheme, call)
        expect(weights, before, call=f"the weights after {call}")
    channel_of = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5])
    x, weights = uneven(rng, 40, 12, (1, 10)), [some_weight(rng, 5, 12)]
    found = search_scale(weights, x, channel_of, Scheme(3, 4))
    call = "search_scale of o_proj, four query heads on two value heads of three channels"
    expect(len(found), 6, call=f"scales from {call}", cause="one for each channel of the source")
    judge_scale(found, weights, x, channel_of, Scheme(3, 4), call)
    x[:, 3], weights = 0.0, [some_weight(rng, 5, 12)]
    found = search_scale(weights, x, torch.arange(12), Scheme(2, 4))
    call = "search_scale where a channel is always 0"
    judge_scale(found, weights, x, torch.arange(12), Scheme(2, 4), call)
    exact = torch.tensor([[0.0, 15.0, 3.0, 8.0], [15.0, 1.0, 0.0, 2.0]])
    expect(
        search_scale([exact], uneven(rng, 20, 4, (0,)), torch.arange(4), Scheme(4, 4)).tolist(),
        [1.0] * 4,
        call="search_scale where plain rounding has no error at all",
        cause="r = 0 is the first candidate, and none is better",
    )


@pytest.mark.check(task=4, points=2, title="Each group of each row is cut off where it gains")
def test_clip(rng):
    cut = 0
    for bits, group, symmetric in ((2, 4, False), (3, 5, False), (2, None, True)):
        x, weight, scheme = (
            uneven(rng, 30, 12),
            some_weight(rng, 5, 12),
            Scheme(bits, group, symmetric),
        )
        weight[1, 2] = 9.0
        found, size = clip(weight, x, scheme), group or 12
        for n in range(5):
            for start in range(0, 12, size):
                part, seen = weight[n : n + 1, start : start + size], x[:, start : start + size]
                every, errors = [], []
                for share in torch.arange(20, 10, -1).double() / 20:
                    bound = part.abs().max() * share
                    every.append(part.clamp(-bound, bound))
                    off = part - rounded(every[-1], scheme)
                    errors.append(float((seen.double() @ off.double().T).square().sum()))
                mine = found[n : n + 1, start : start + size]
                near = [e for e, w in zip(errors, every, strict=True)
                        if torch.allclose(w, mine, rtol=1e-5)]  # fmt: skip
                expect.that(
                    bool(near) and min(near) <= min(errors) * 1.001 + 1e-9,
                    "the group is clamped at the best of ten bounds",
                    observed=mine.tolist(),
                    call=f"row {n}, columns {start} to {min(start + size, 12) - 1} of clip, "
                    f"{bits} bits, groups of {group}",
                    given={"weights": part.tolist(), "errors for m, 0.95 m, ...": errors,
                           "best": every[errors.index(min(errors))].tolist()},
                    cause="compare with the weights as they were, by what this group adds to the "
                    "outputs",
                )  # fmt: skip
                cut += errors.index(min(errors)) > 0
    expect.that(cut > 5, "some groups gain by it", observed=cut, call="groups that are cut off")


@pytest.mark.check(task=4, points=2, title="A block: folded, clipped but for q and k, rounded")
def test_block(rng):
    for config in (LLAMA, GPT2):
        block = dummy_model(config, seed=int(rng.integers(99))).layers[1]
        for weight in (block.input_layernorm.weight, block.post_attention_layernorm.weight):
            weight[[2, 9]] *= 20  # as plant_outliers does
        old, scheme = copy.deepcopy(block), Scheme(bits=3, group_size=8)
        names = {n: m for n, m in block.named_modules() if isinstance(m, nn.Linear)}
        seen: dict[int, torch.Tensor] = {}
        inputs = {}
        for name, m in names.items():  # linears with one input: q, k, v; gate and up
            kind = (m.in_features, name.endswith(("q_proj", "k_proj", "v_proj")),
                    name.endswith(("gate_proj", "up_proj")))  # fmt: skip
            if kind not in seen:
                seen[kind] = uneven(rng, 40, m.in_features, (2, 9))
            inputs[name] = seen[kind]
        given, values = dict(inputs), {name: x.clone() for name, x in inputs.items()}
        awq_block(block, inputs, scheme, config.head_dim)
        call = f"awq_block of a {config.family} block, 3 bits, groups of 8"
        changed = [name for name, x in given.items()
                   if inputs.get(name) is not x or not torch.equal(x, values[name])]  # fmt: skip
        expect(
            changed,
            [],
            call=f"names of the inputs that are others after {call}",
            cause="they are the caller's, and some linears have the very same tensor",
        )
        state = copy.deepcopy(old)  # the block as folded, by the scales that were found
        column = {name: torch.ones(m.in_features) for name, m in names.items()}
        for one in folds(old, config.head_dim):
            now, was = block.get_submodule(one.source), state.get_submodule(one.source)
            readers = [state.get_submodule(name) for name in one.readers]
            by = "bias" if isinstance(was, nn.Linear) else "weight"
            scale = getattr(was, by) / getattr(now, by)
            judge_scale(scale, [r.weight for r in readers], given[one.readers[0]], one.channel_of,
                        scheme, f"the scale of {one.source} that {call} found")  # fmt: skip
            rows = scale if was.weight.dim() == 1 else scale[:, None]
            was.weight.div_(rows)
            if getattr(was, "bias", None) is not None:
                was.bias.div_(scale)
                expect(now.bias, was.bias, call=f"bias of {one.source} after {call}", atol=1e-5)
            for name, reader in zip(one.readers, readers, strict=True):
                reader.weight.mul_(scale[one.channel_of])
                column[name] = scale[one.channel_of]
        for name in names:
            found, linear = block.get_submodule(name), state.get_submodule(name)
            expect(type(found).__name__, "GroupedLinear", call=f"the class of {name} after {call}")
            clips = not name.endswith(("q_proj", "k_proj"))
            wanted = linear.weight
            if clips:
                wanted = best_clip(linear.weight, given[name] / column[name], scheme)
            same = (found.dequantize() - rounded(wanted, scheme)).abs() < 1e-4
            expect.that(
                float(same.float().mean()) > 0.97,
                "the folded weight, "
                + ("clipped and rounded" if clips else "rounded, not clipped"),
                observed=f"{float(same.float().mean()):.0%} of the weights are the right ones",
                call=f"{name} after {call}",
                cause="a linear's inputs are divided by the scale that its columns have got",
            )


def best_clip(weight, inputs, scheme):
    """The clipped weight, one group after another."""
    found = weight.clone()
    for start in range(0, weight.shape[1], scheme.group_size):
        columns = slice(start, start + scheme.group_size)
        part, x = weight[:, columns], inputs[:, columns].double()
        least = torch.full((len(weight),), torch.inf).double()
        for share in torch.arange(20, 10, -1).double() / 20:
            bound = part.abs().amax(1, keepdim=True) * share
            clamped = torch.minimum(torch.maximum(part, -bound), bound)
            error = (x @ (part - rounded(clamped, scheme)).double().T).square().sum(0)
            better = error < least
            found[better, columns] = clamped[better]
            least = torch.minimum(least, error)
    return found

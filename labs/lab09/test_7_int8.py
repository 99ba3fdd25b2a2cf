"""Task 7: int8 activations."""

import numpy as np
import pytest
import torch

from grader import expect
from nanovllm.model.block import DecoderBlock
from nanovllm.model.config import ModelConfig
from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.int8_activations import Int8Linear, int8_matmul, quantize_tokens
from nanovllm.quantization.smoothquant import smooth_block, smoothing_scale

MIDDLE = "a scale is the token's own largest |x| over 127.5"


@pytest.mark.check(task=7, points=1, title="A scale a token, half a step a value")
def test_tokens(generator):
    size = torch.tensor([1e-3, 1.0, 50.0, 1e4, 7.0])[:, None]
    for dtype, shape in (
        (torch.float32, (5, 9)),
        (torch.bfloat16, (5, 1)),
        (torch.float32, (5, 2)),
    ):
        x = (torch.randn(shape, generator=generator) * size).to(dtype)
        x[4] = 0.0
        codes, scales = quantize_tokens(x)
        expect(
            [str(codes.dtype), str(scales.dtype), list(codes.shape), list(scales.shape)],
            ["torch.int8", "torch.float32", list(shape), [5, 1]],
            call="dtypes and shapes of quantize_tokens(x)",
            given={"x": f"{dtype} {list(shape)}"},
        )
        largest = x.double().abs().amax(1, keepdim=True)
        wanted = torch.where(largest == 0, 1.0, largest / 127.5).float()
        expect(scales, wanted, call="scales of quantize_tokens(x); token 4 is all 0", cause=MIDDLE)
        off = (codes.double() * scales.double() - x.double()).abs() / scales.double()
        expect.that(
            bool((off <= 0.5001).all()),
            "every code times its scale is off by half a scale at most",
            observed=off.max().item(),
            call="quantize_tokens(x), the largest error in scales",
            given={"x": x},
            cause="codes are -128 .. 127; the largest value is worth 127.5",
        )
    x = torch.randn(2, 3, 4, generator=generator)
    codes, scales = quantize_tokens(x)
    expect(
        [list(codes.shape), scales],
        [[2, 3, 4], x.abs().amax(-1, keepdim=True) / 127.5],
        call="quantize_tokens(x [2, 3, 4])",
    )


@pytest.mark.check(task=7, points=1, title="No token hears of another")
def test_alone(generator):
    x = torch.randn(6, 16, generator=generator)
    alone = [quantize_tokens(x[i : i + 1]) for i in range(6)]
    for name, value in (("1e6 times as large", 1e6), ("NaN", torch.nan), ("infinite", torch.inf)):
        batch = x.clone()
        batch[2] *= value
        codes, scales = quantize_tokens(batch)
        expect.that(
            name.startswith("1e6") or not scales[2].isfinite().any(),
            "a token with NaN or an infinity has a scale that is not finite",
            observed=scales[2],
            call=f"scale of token 2 of quantize_tokens(x), which is {name}",
            cause="the engine finds NaN in the logits and fails that request; numbers hide it",
        )
        for i in (0, 1, 3, 4, 5):
            expect(
                [codes[i : i + 1], scales[i : i + 1]],
                list(alone[i]),
                call=f"token {i} of quantize_tokens(x), when token 2 is {name}; expected: what it "
                "is alone",
                rtol=0.0,
                atol=0.0,
                cause=MIDDLE,
            )
    linear = Int8Linear(random_weight(generator, 8, 16))
    batch = x.clone()
    batch[2] = torch.nan
    out = linear(batch)
    for i in (0, 1, 3, 4, 5):
        expect(
            out[i : i + 1],
            linear(x[i : i + 1]),
            call=f"row {i} of Int8Linear(x), when row 2 is NaN; expected: what it is alone",
            rtol=0.0,
            atol=0.0,
            cause="sums of whole numbers do not depend on the shape of the product",
        )
    expect.that(
        not out[2].isfinite().any(),
        "a token with NaN gives no numbers",
        observed=out[2],
        call="row 2 of the same",
    )


@pytest.mark.check(task=7, points=1, title="Sums of whole numbers, exact")
def test_matmul(rng):
    for rows, columns, inner in ((1, 1, 2), (3, 5, 33), (17, 8, 64), (2, 3, 4097)):
        a = rng.integers(-128, 128, size=(rows, inner))
        b = rng.integers(-128, 128, size=(columns, inner))
        a[0] = b[0] = -127  # the sum of 4,097 such products is odd, and too large for float32
        found = int8_matmul(*(torch.from_numpy(m.astype(np.int8)) for m in (a, b)))
        given = {"T": rows, "N": columns, "K": inner}
        expect(str(found.dtype), "torch.int32", call="dtype of int8_matmul(a, b)", given=given)
        expect(
            found.long(),
            torch.from_numpy(a @ b.T),
            call="int8_matmul(a, b)",
            given=given,
            cause="products of two int8 need 16 bits, their sums more; float32 counts to 2^24",
        )


def random_weight(generator, rows, columns):
    codes = torch.randint(0, 256, (rows, columns), generator=generator).to(torch.uint8)
    scales = (0.01 + torch.rand(rows, 1, generator=generator)).half().float()
    zeros = torch.full((rows, 1), 128, dtype=torch.uint8)
    return QuantizedWeight(codes, Grid(8, scales, zeros, torch.zeros(columns, dtype=torch.int32)))


@pytest.mark.check(task=7, points=2, title="The linear")
def test_linear(generator):
    for shape, rows, dtype, biased in (
        ((5, 12), 7, torch.float32, True),
        ((2, 3, 20), 4, torch.float32, False),
        ((1, 8), 3, torch.bfloat16, True),
        ((4, 2050), 2, torch.float32, False),
    ):
        columns = shape[-1]
        weight = random_weight(generator, rows, columns)
        weight.codes[:, 0] = 128  # 0: where x is largest, its code may be either of two
        steps = torch.randint(-120, 121, shape, generator=generator).double()
        steps[..., 0] = 127.5
        size = 2.0 ** torch.randint(-2, 7, (*shape[:-1], 1), generator=generator)
        x = (steps * size).to(dtype)
        bias = torch.randn(rows, generator=generator).to(dtype) if biased else None
        out = Int8Linear(weight, bias)(x)
        wanted = (steps * size.double()) @ weight.dequantize().double().T
        if biased:
            wanted = wanted + bias.double()
        given = {"x": f"{dtype} {list(shape)}", "N": rows, "bias": biased}
        expect(
            [str(out.dtype), list(out.shape)],
            [str(dtype), [*shape[:-1], rows]],
            call="dtype and shape of Int8Linear(weight, bias)(x)",
            given=given,
        )
        expect(
            out,
            wanted.to(dtype),
            call="Int8Linear(weight, bias)(x); each x is a whole number of its token's steps",
            given=given,
            rtol=1e-5 if dtype is torch.float32 else 0.01,
            cause="sums of codes, times the token's scale, times the channel's; then the bias",
        )
    weight = random_weight(generator, 3, 8)
    x = torch.randn(4, 8, generator=generator)
    exact = x.double() @ weight.dequantize().double().T
    step = x.double().abs().amax(1, keepdim=True) / 127.5
    most = step * weight.dequantize().double().abs().sum(1) / 2
    off = (Int8Linear(weight)(x).double() - exact).abs()
    expect.that(
        bool((off <= 1.001 * most).all()),
        "it is off by at most half a step of x times the sum of all |w| of the row",
        observed=(off / most).max().item(),
        call="Int8Linear(weight)(x) against the product with x as it is",
        cause="x is rounded once, to int8; the weight is what its codes stand for",
    )


@pytest.mark.check(task=7, points=1, title="How much is moved")
def test_scale(generator):
    for strength in (0.5, 0.0, 0.8, 1.0):
        x = torch.randn(7, 5, generator=generator)
        x[:, 3] *= 100
        x[:, 1] = 0.0
        weights = [torch.randn(n, 5, generator=generator) for n in (4, 2)]
        weights[1][:, 2] *= 30
        for weight in weights:
            weight[:, 4] = 0.0
        large = x.double().abs().amax(0).clamp(min=1e-5)
        heavy = torch.cat(weights).double().abs().amax(0).clamp(min=1e-5)
        expect(
            smoothing_scale(x, weights, strength),
            (large**strength / heavy ** (1 - strength)).float(),
            call="smoothing_scale(inputs, weights, strength)",
            given={"strength": strength, "inputs": "channel 1 is 0", "weights": "column 4 is 0"},
            cause="the largest |x| of a channel over all inputs, the largest |w| of its column "
            "over all weights; each at least 1e-5",
        )


def blocks(generator):
    for family, config in (
        ("qwen3", ModelConfig("qwen3", 50, 16, 1, 4, 2, 6, 24, 64, qk_norm=True, qkv_bias=True)),
        ("gpt2", ModelConfig("gpt2", 50, 16, 1, 4, 4, 4, 24, 64, qkv_bias=True, output_bias=True,
                             mlp_bias=True)),
    ):  # fmt: skip
        block = DecoderBlock(config, 0).eval().requires_grad_(False)
        for parameter in block.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        yield family, config, block


class Rotation:
    def apply(self, x):
        return x


def outputs(block, x):
    """What the block gives, and what each of its linears is given."""
    seen = {}
    hooks = [
        part.register_forward_pre_hook(lambda _, given, path=path: seen.update({path: given[0]}))
        for path, part in block.named_modules()
        if isinstance(part, torch.nn.Linear)
    ]
    groups = block.self_attn.q_proj.out_features // block.self_attn.v_proj.out_features
    out = block(x, Rotation(), lambda layer, q, k, v: q + v.repeat_interleave(groups, dim=1))
    for hook in hooks:
        hook.remove()
    return out, seen


@pytest.mark.check(task=7, points=1, title="Into both norms, and nothing changes")
def test_smooth(generator):
    for family, config, block in blocks(generator):
        x = torch.randn(9, 16, generator=generator)
        block.input_layernorm.weight[5] *= 100
        block.post_attention_layernorm.weight[2] *= 60
        before, inputs = outputs(block, x)
        weights = {name: block.get_submodule(name).weight.clone() for name in inputs}
        smooth_block(block, inputs, config.head_dim, strength=0.5)
        after, smoothed = outputs(block, x)
        expect(
            after,
            before,
            call=f"a block of {family} after smooth_block; expected: what it gave before",
            rtol=1e-3,
            atol=1e-3,
            cause="a norm's weight, and its bias where it has one, are divided by what the columns "
            "of its readers are multiplied with",
        )
        readers = {"self_attn.q_proj": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]}
        first = "mlp.gate_proj" if hasattr(block.mlp, "gate_proj") else "mlp.up_proj"
        readers[first] = sorted({first, "mlp.up_proj"})
        for name, all_of_them in readers.items():
            x_max = smoothed[name].abs().amax(0)
            heavy = torch.cat([block.get_submodule(n).weight for n in all_of_them]).abs().amax(0)
            expect(
                x_max,
                heavy,
                call=f"the largest |x| of each input of {name} after smooth_block(strength=0.5); "
                "expected: the largest |w| of its column, over all readers",
                given={"family": family},
                rtol=1e-3,
            )
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            expect(
                block.get_submodule(name).weight,
                weights[name],
                call=f"the weight of {name} after smooth_block",
                cause="only what a norm's outputs are multiplied with is changed",
            )

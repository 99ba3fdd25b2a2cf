"""Task 4: the MLP and the decoder block."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from grader import expect
from nanovllm.model.block import DecoderBlock, SelfAttention
from nanovllm.model.config import ModelConfig
from nanovllm.model.mlp import SwiGLU

# E = 10, H = 4, G = 2, D = 6: H * D is not E, and no two sizes are equal.
CONFIG = ModelConfig("qwen3", 20, 10, 3, 4, 2, 6, 14, 64, norm_eps=0.1)


class Turn:
    """Stands in for a rotation: shifts and stretches, so that order and target show."""

    def apply(self, x):
        return 2.0 * x + 0.5


class Recorder:
    """Stands in for an attend: keeps what it is called with and answers with 3 q - 1."""

    def __call__(self, layer, q, k, v):
        self.layer, self.q, self.k, self.v = layer, q, k, v
        return 3.0 * q - 1.0


class Call(nn.Module):
    """Stands in for a part of a block: a plain function of the hidden states."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, *rest):
        return self.function(x)


def _fill(module, generator):
    for weight in module.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.copy_(noise * weight.shape[-1] ** -0.5 if weight.ndim == 2 else 1 + 0.4 * noise)
    return module.requires_grad_(False)


def _heads(x, linear, heads):
    return functional.linear(x, linear.weight, linear.bias).reshape(len(x), heads, 6)


def _rms(x, norm):
    return norm.weight * x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()


@pytest.mark.check(task=4, points=3, title="SwiGLU gates one projection by the other")
def test_swiglu(generator):
    mlp = _fill(SwiGLU(replace(CONFIG, mlp_bias=True)), generator)
    x = 2 * torch.randn(5, 10, generator=generator)
    gate, up = mlp.gate_proj(x), mlp.up_proj(x)
    expect(
        mlp(x),
        mlp.down_proj(gate / (1 + torch.exp(-gate)) * up),
        call="SwiGLU(config)(x)",
        given={"x": x},
        cause="down(silu(gate(x)) * up(x)), with silu(z) = z * sigmoid(z).",
    )


@pytest.mark.check(task=4, points=2, title="q and k are turned, v is not")
def test_what_attend_gets(generator):
    layer = _fill(SelfAttention(replace(CONFIG, qkv_bias=True), layer=2), generator)
    x = torch.randn(5, 10, generator=generator)
    seen = Recorder()
    layer(x, Turn(), seen)
    expect(
        {"q": seen.q, "k": seen.k, "v": seen.v, "layer": seen.layer},
        {
            "q": 2 * _heads(x, layer.q_proj, 4) + 0.5,
            "k": 2 * _heads(x, layer.k_proj, 2) + 0.5,
            "v": _heads(x, layer.v_proj, 2),
            "layer": 2,
        },
        call="SelfAttention(config, layer=2)(x, rotation, attend): what attend is called with",
        given={"x": x},
        cause="q [T,H,D] and k [T,G,D] go through rotation.apply, v [T,G,D] stays as it is.",
    )


@pytest.mark.check(task=4, points=3, title="QK-norm comes before the rotation")
def test_qk_norm(generator):
    layer = _fill(SelfAttention(replace(CONFIG, qk_norm=True), layer=0), generator)
    x = torch.randn(5, 10, generator=generator)
    seen = Recorder()
    layer(x, Turn(), seen)
    expect(
        {"q": seen.q, "k": seen.k, "v": seen.v},
        {
            "q": 2 * _rms(_heads(x, layer.q_proj, 4), layer.q_norm) + 0.5,
            "k": 2 * _rms(_heads(x, layer.k_proj, 2), layer.k_norm) + 0.5,
            "v": _heads(x, layer.v_proj, 2),
        },
        call="SelfAttention(config with qk_norm)(x, rotation, attend): what attend is called with",
        given={"x": x},
        cause="q_norm and k_norm act on each head, before the rotation; v has no norm.",
    )


@pytest.mark.check(task=4, points=2, title="The heads' results go back through o_proj")
def test_output_projection(generator):
    layer = _fill(SelfAttention(CONFIG, layer=0), generator)
    x = torch.randn(4, 10, generator=generator)  # T = H: a wrong reshape raises nothing
    answer = torch.randn(4, 4, 6, generator=generator)
    expect(
        layer(x, Turn(), lambda layer, q, k, v: answer),
        layer.o_proj(answer.reshape(4, 24)),
        call="SelfAttention(config, layer=0)(x, rotation, attend), as many tokens as heads",
        given={"x": x},
        cause="what attend returns is reshaped to [T, H*D] and projected; x is not added here.",
    )


@pytest.mark.check(task=4, points=2, title="Each sublayer adds to the stream")
def test_residuals(generator):
    block = DecoderBlock(CONFIG, layer=1)
    block.input_layernorm = Call(lambda x: 2 * x + 1)
    block.self_attn = Call(lambda x: x * x)
    block.post_attention_layernorm = Call(lambda x: 3 - x)
    block.mlp = Call(lambda x: 0.5 * x.abs())
    x = torch.randn(5, 10, generator=generator)
    middle = x + (2 * x + 1) ** 2
    expect(
        block(x, Turn(), Recorder()),
        middle + 0.5 * (3 - middle).abs(),
        call="DecoderBlock(config, layer=1)(x, ...), its parts replaced by small functions",
        given={"x": x},
        cause="x + attention(norm(x)), then y + mlp(second_norm(y)): pre-norm, two residuals.",
    )

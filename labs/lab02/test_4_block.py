"""Task 4: the MLPs and the decoder block."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from grader import expect
from nanovllm.model.block import DecoderBlock, SelfAttention
from nanovllm.model.config import ModelConfig
from nanovllm.model.mlp import GeluMLP, SwiGLU

# E = 10, H = 4, G = 2, D = 6, I = 14: H * D is not E, and no two sizes are equal.
CONFIG = ModelConfig("qwen3", 20, 10, 3, 4, 2, 6, 14, 64, norm_eps=0.1)


class Turn:
    """Stands in for a rotation: shifts and stretches, so that order and target show."""

    def apply(self, x):
        return 2.0 * x + 0.5


class Recorder:
    """Stands in for an attend: keeps what it is called with and answers with 3 q - 1."""

    calls = 0

    def __call__(self, layer, q, k, v):
        self.layer, self.q, self.k, self.v = layer, q, k, v
        self.calls += 1
        return 3.0 * q - 1.0


def _fill(module, generator):
    for weight in module.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.copy_(noise * weight.shape[-1] ** -0.5 if weight.ndim == 2 else 1 + 0.4 * noise)
    return module.requires_grad_(False)


def _heads(x, linear, heads):
    return functional.linear(x, linear.weight, linear.bias).reshape(len(x), heads, 6)


def _rms(x, norm):
    return norm.weight * x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()


def _shapes(module):
    return {name: list(value.shape) for name, value in sorted(module.state_dict().items())}


@pytest.mark.check(task=4, points=2, title="SwiGLU gates one projection by the other")
def test_swiglu(generator):
    mlp = _fill(SwiGLU(replace(CONFIG, mlp_bias=True)), generator)
    x = 2 * torch.randn(5, 10, generator=generator)
    gate, up = mlp.gate_proj(x), mlp.up_proj(x)
    expect(
        mlp(x),
        mlp.down_proj(gate / (1 + torch.exp(-gate)) * up),
        call="SwiGLU(config)(x)",
        given={"x": x},
        cause="down(silu(gate(x)) * up(x)), with silu(z) = z / (1 + exp(-z)).",
    )


@pytest.mark.check(task=4, points=2, title="GPT-2's MLP has a gelu in its tanh form")
def test_gelu(generator):
    config = replace(CONFIG, family="gpt2", mlp_bias=True)
    mlp = _fill(GeluMLP(config), generator)
    x = 2 * torch.randn(5, 10, generator=generator)
    up = mlp.up_proj(x)
    gelu = up / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (up + 0.044715 * up**3)))
    expect(
        mlp(x),
        mlp.down_proj(gelu),
        call="GeluMLP(config)(x)",
        given={"x": x},
        cause="down(gelu(up(x))); GPT-2 uses the tanh form of gelu, which is not torch's default.",
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.check(task=4, points=2, title="The parameters have the names and shapes of the family")
def test_parameters():
    E, H, G, inner = 10, 24, 12, 14
    plain = {
        "input_layernorm.weight": [E],
        "mlp.down_proj.weight": [E, inner],
        "mlp.gate_proj.weight": [inner, E],
        "mlp.up_proj.weight": [inner, E],
        "post_attention_layernorm.weight": [E],
        "self_attn.k_proj.weight": [G, E],
        "self_attn.o_proj.weight": [E, H],
        "self_attn.q_proj.weight": [H, E],
        "self_attn.v_proj.weight": [G, E],
    }
    heads = {"self_attn.q_norm.weight": [6], "self_attn.k_norm.weight": [6]}
    qkv = {f"self_attn.{x}_proj.bias": [H if x == "q" else G] for x in "qkv"}
    out = {"self_attn.o_proj.bias": [E]}
    mlp = {f"mlp.{x}_proj.bias": [E if x == "down" else inner] for x in ("down", "up", "gate")}
    gpt2 = {**plain, **qkv, **out, **mlp}
    for name in ("input_layernorm", "post_attention_layernorm"):
        gpt2[f"{name}.bias"] = [E]
    for name in ("weight", "bias"):
        del gpt2[f"mlp.gate_proj.{name}"]
    cases = (
        ({}, plain),
        ({"qk_norm": True}, {**plain, **heads}),
        ({"qkv_bias": True}, {**plain, **qkv}),
        ({"output_bias": True, "mlp_bias": True}, {**plain, **out, **mlp}),
        ({"family": "gpt2", "qkv_bias": True, "output_bias": True, "mlp_bias": True}, gpt2),
    )
    for options, expected in cases:
        said = ", ".join(f"{name}={value}" for name, value in options.items()) or "no options"
        expect(
            _shapes(DecoderBlock(replace(CONFIG, **options), 0)),
            dict(sorted(expected.items())),
            call=f"shapes in DecoderBlock(config, layer=0).state_dict(), config with {said}",
            cause="load_model puts weights where these names are; a bias or a norm is there only "
            "where the config says so.",
        )
    eps = DecoderBlock(CONFIG, 0).input_layernorm.eps
    expect(eps, 0.1, call="DecoderBlock(config, 0).input_layernorm.eps, config.norm_eps = 0.1")


@pytest.mark.check(task=4, points=2, title="q and k are turned, v is not")
def test_what_attend_gets(generator):
    layer = _fill(SelfAttention(replace(CONFIG, qkv_bias=True), 2), generator)
    x = torch.randn(5, 10, generator=generator)
    seen = Recorder()
    layer(x, Turn(), seen)
    expect(seen.calls, 1, call="calls of attend by SelfAttention(config, layer=2)")
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


@pytest.mark.check(task=4, points=2, title="QK-norm comes before the rotation")
def test_qk_norm(generator):
    layer = _fill(SelfAttention(replace(CONFIG, qk_norm=True), 0), generator)
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
    layer = SelfAttention(CONFIG, 0)
    expect(
        [type(norm).__name__ for norm in (layer.q_norm, layer.k_norm)],
        ["Identity", "Identity"],
        call="types of q_norm and k_norm of SelfAttention(config without qk_norm)",
        cause="whoever calls the parts of a layer need not know whether it has these norms.",
    )


@pytest.mark.check(task=4, points=2, title="The heads' results go back through o_proj")
def test_output_projection(generator):
    layer = _fill(SelfAttention(CONFIG, 0), generator)
    x = torch.randn(4, 10, generator=generator)  # T = H: a wrong reshape raises nothing
    answer = torch.randn(4, 6, 4, generator=generator).transpose(1, 2)  # a view, as k.T is one
    expect(
        layer(x, Turn(), lambda layer, q, k, v: answer),
        layer.o_proj(answer.reshape(4, 24)),
        call="SelfAttention(config, layer=0)(x, rotation, attend), as many tokens as heads",
        given={"x": x},
        cause="what attend returns is reshaped to [T, H*D] and projected; x is not added here. It "
        "may be a view, which reshape takes and view does not.",
    )


@pytest.mark.check(task=4, points=2, title="Each sublayer adds to the stream")
def test_residuals(generator):
    block = _fill(DecoderBlock(CONFIG, 1), generator)
    x = torch.randn(5, 10, generator=generator)
    normed = _rms(x, block.input_layernorm)
    answer = 3 * (2 * _heads(normed, block.self_attn.q_proj, 4) + 0.5) - 1
    middle = x + answer.reshape(5, 24) @ block.self_attn.o_proj.weight.T
    normed = _rms(middle, block.post_attention_layernorm)
    gate, up = (normed @ linear.weight.T for linear in (block.mlp.gate_proj, block.mlp.up_proj))
    seen = Recorder()
    expect(
        block(x, Turn(), seen),
        middle + (gate / (1 + torch.exp(-gate)) * up) @ block.mlp.down_proj.weight.T,
        call="DecoderBlock(config, layer=1)(x, rotation, attend), attend answers 3 q - 1",
        given={"x": x},
        cause="each sublayer reads the normed stream, and its result is added to the stream "
        "before the norm.",
    )
    expect(seen.layer, 1, call="the layer that DecoderBlock(config, layer=1) hands to attend")

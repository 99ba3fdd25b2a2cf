"""Task 1: RMSNorm and LayerNorm."""

import pytest
import torch
from torch.nn import functional

from grader import expect
from nanovllm.model.norms import layer_norm, rms_norm


def _oracle(x, weight, eps):
    x = x.double()
    return (weight.double() * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()).float()


@pytest.mark.check(task=1, points=3, title="RMSNorm divides by the root mean square")
def test_root_mean_square(generator):
    x = 0.3 * torch.randn(5, 12, generator=generator) + 0.2
    weight = 1 + 0.5 * torch.randn(12, generator=generator)
    expect(
        rms_norm(x, weight, 0.1),
        _oracle(x, weight, 0.1),
        call="rms_norm(x, weight, eps=0.1)",
        given={"x": x, "weight": weight},
        cause="eps is large here on purpose: it must be added to the mean square, under the root.",
    )


@pytest.mark.check(task=1, points=3, title="RMSNorm works in float32 inside")
def test_float32_inside(generator):
    x = (400 * torch.randn(4, 16, generator=generator)).half()
    weight = torch.ones(16).half()
    expect(
        rms_norm(x, weight, 1e-6).float(),
        _oracle(x, weight, 1e-6),
        call="rms_norm(x, weight, eps=1e-6) in float16, entries of some hundreds",
        given={"x": x},
        cause="400 squared is more than float16 can hold (65504): take the mean in float32.",
        rtol=2e-3,
        atol=1e-3,
    )


@pytest.mark.check(task=1, points=2, title="RMSNorm casts back before the weight")
def test_cast_before_weight(generator):
    x = torch.randn(64, 96, generator=generator).bfloat16()
    weight = (1 + 0.5 * torch.randn(96, generator=generator)).bfloat16()
    actual = rms_norm(x, weight, 1e-6)
    expect(str(actual.dtype), "torch.bfloat16", call="rms_norm(x, weight, 1e-6).dtype")
    wide = x.double()
    quotient = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    expected = weight * quotient.float().bfloat16()
    share = (actual == expected).double().mean().item()
    expect.that(
        share > 0.98,
        "(nearly) all entries equal the published order of roundings, bit for bit",
        observed=share,
        call="rms_norm(x, weight, eps=1e-6) in bfloat16",
        given={"x": x, "weight": weight},
        cause="cast the quotient to x's dtype before the weight multiplies it; the weight that "
        "the model was trained with expects that rounding.",
    )


@pytest.mark.check(task=1, points=2, title="LayerNorm centres and divides by the deviation")
def test_layer_norm(generator):
    x = torch.randn(4, 6, generator=generator) + 1.0
    weight, bias = torch.randn(2, 6, generator=generator)
    expect(
        layer_norm(x, weight, bias, 0.1),
        functional.layer_norm(x, (6,), weight, bias, 0.1),
        call="layer_norm(x, weight, bias, eps=0.1)",
        given={"x": x, "weight": weight, "bias": bias},
        cause="torch.var divides by E - 1 unless told otherwise; the bias comes last.",
    )
    low = (300 * x).half()
    expect(
        layer_norm(low, weight.half(), bias.half(), 0.1).float(),
        functional.layer_norm(low.float(), (6,), weight.half().float(), bias.half().float(), 0.1),
        call="layer_norm(x, weight, bias, eps=0.1) in float16, entries of some hundreds",
        cause="the variance overflows float16: compute in float32.",
        rtol=4e-3,
        atol=4e-3,
    )

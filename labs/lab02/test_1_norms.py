"""Task 1: RMSNorm and LayerNorm."""

import pytest
import torch
from torch.nn import functional

from grader import expect
from nanovllm.model.norms import LayerNorm, RMSNorm, layer_norm, rms_norm


def _oracle(x, weight, eps):
    x = x.double()
    return (weight.double() * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()).float()


@pytest.mark.check(task=1, points=2, title="RMSNorm divides by the root mean square")
def test_root_mean_square(generator):
    weight = 1 + 0.5 * torch.randn(12, generator=generator)
    for shape in ((5, 12), (2, 3, 12), (12,)):
        x = 0.3 * torch.randn(shape, generator=generator) + 0.2
        expected = _oracle(x, weight, 0.1)
        expect(
            rms_norm(x, weight, 0.1),
            expected,
            call="rms_norm(x, weight, eps=0.1)",
            given={"x": x, "weight": weight},
            cause="eps is large here on purpose: it must be added to the mean square, under the "
            "root.",
        )


@pytest.mark.check(task=1, points=2, title="RMSNorm works in float32 inside")
def test_float32_inside(generator):
    x = (400 * torch.randn(4, 16, generator=generator)).half()
    weight = torch.ones(16).half()
    expected = _oracle(x, weight, 1e-6)
    expect(
        rms_norm(x, weight, 1e-6).float(),
        expected,
        call="rms_norm(x, weight, eps=1e-6) in float16, entries of some hundreds",
        given={"x": x},
        cause="400 squared is more than float16 can hold (65504): take the mean in float32.",
        rtol=2e-3,
        atol=1e-3,
    )


@pytest.mark.check(task=1, points=1, title="RMSNorm casts back before the weight")
def test_cast_before_weight(generator):
    x = torch.randn(64, 96, generator=generator).bfloat16()
    weight = (1 + 0.5 * torch.randn(96, generator=generator)).bfloat16()
    wide = x.double()
    quotient = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    expected = weight * quotient.float().bfloat16()
    actual = rms_norm(x, weight, 1e-6)
    expect.that(
        actual.dtype == torch.bfloat16,
        "the result has x's dtype, bfloat16",
        observed=str(actual.dtype),
        call="rms_norm(x, weight, eps=1e-6).dtype, x and weight in bfloat16",
    )
    share = (actual == expected).double().mean().item()
    expect.that(
        share > 0.98,
        "at least 98 % of the entries are bit for bit those of the published order of roundings",
        observed=round(share, 2),
        call="share of equal entries of rms_norm(x, weight, eps=1e-6) in bfloat16",
        given={"x": x, "weight": weight},
        cause="the quotient is rounded to x's dtype before the weight multiplies it; the weight "
        "was trained with that rounding.",
    )


@pytest.mark.check(task=1, points=1, title="LayerNorm centres and divides by the deviation")
def test_layer_norm(generator):
    x = torch.randn(4, 6, generator=generator) + 1.0
    weight, bias = torch.randn(2, 6, generator=generator)
    low = (300 * x).half()
    wide = functional.layer_norm(low.float(), (6,), weight.half().float(), bias.half().float(), 0.1)
    for some in (x, x.reshape(2, 2, 6), x[1]):
        expect(
            layer_norm(some, weight, bias, 0.1),
            functional.layer_norm(some, (6,), weight, bias, 0.1),
            call="layer_norm(x, weight, bias, eps=0.1)",
            given={"x": some, "weight": weight, "bias": bias},
            cause="mean and variance are those of the E entries along the last axis (torch.var "
            "divides by E - 1 unless told otherwise), eps is added to the variance, and the bias "
            "comes last.",
        )
    actual = layer_norm(low, weight.half(), bias.half(), 0.1)
    expect(
        actual.float(),
        wide,
        call="layer_norm(x, weight, bias, eps=0.1) in float16, entries of some hundreds",
        cause="the variance overflows float16: compute in float32.",
        rtol=4e-3,
        atol=4e-3,
    )
    expect.that(
        actual.dtype == torch.float16,
        "the result has x's dtype, float16",
        observed=str(actual.dtype),
        call="layer_norm(x, weight, bias, eps=0.1).dtype, all in float16",
    )
    many = torch.randn(64, 96, generator=generator).bfloat16()
    weight, bias = torch.randn(2, 96, generator=generator).bfloat16()
    once = functional.layer_norm(many.double(), (96,), weight.double(), bias.double(), 0.1)
    share = (layer_norm(many, weight, bias, 0.1) == once.bfloat16()).double().mean().item()
    expect.that(
        share > 0.98,
        "at least 98 % of the entries are bit for bit those that are rounded once, at the end",
        observed=round(share, 2),
        call="share of equal entries of layer_norm(x, weight, bias, eps=0.1) in bfloat16",
        cause="weight and bias, too, are applied in float32; the sum is rounded to x's dtype.",
    )


@pytest.mark.check(task=1, points=2, title="Both norms as modules with weights of their own")
def test_modules(generator):
    x = torch.randn(3, 10, generator=generator) + 0.5
    for make, names in ((RMSNorm, ["weight"]), (LayerNorm, ["bias", "weight"])):
        norm = make(10, 0.2)
        kind = make.__name__
        shapes = {name: list(value.shape) for name, value in norm.named_parameters()}
        expect(
            shapes,
            {name: [10] for name in names},
            call=f"parameters of {kind}(10, eps=0.2)",
            cause="a tensor becomes a parameter of a module as an nn.Parameter.",
        )
        ones, zeros = torch.ones(10), torch.zeros(10)
        fresh = {"weight": ones, "bias": zeros}
        found = {name: value.detach() for name, value in norm.named_parameters()}
        expect(found, {name: fresh[name] for name in names}, call=f"{kind}(10, eps=0.2) at first")
        values = {name: torch.randn(10, generator=generator) for name in names}
        norm.load_state_dict(values)
        if make is RMSNorm:
            expected = _oracle(x, values["weight"], 0.2)
        else:
            expected = functional.layer_norm(x, (10,), values["weight"], values["bias"], 0.2)
        expect(
            norm(x).detach(),
            expected,
            call=f"{kind}(10, eps=0.2)(x)",
            given={"x": x},
            cause="the module hands its own parameters and its own eps to the function.",
        )
        expect(norm.eps, 0.2, call=f"{kind}(10, eps=0.2).eps")

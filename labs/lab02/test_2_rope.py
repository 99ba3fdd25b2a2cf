"""Task 2: rotary position embeddings."""

import math

import numpy as np
import pytest
import torch

from grader import expect
from nanovllm.model.config import RopeScaling
from nanovllm.model.rope import (
    apply_rope,
    inverse_frequencies,
    llama3_frequencies,
    rotation_angles,
)


def _turned(x, angles):
    """Half-split rotation by complex numbers: pair i is x[i] + 1j * x[i + D/2]."""
    half = x.shape[-1] // 2
    pairs = x[..., :half].numpy().astype(complex) + 1j * x[..., half:].numpy()
    pairs = pairs * np.exp(1j * angles.numpy().astype(float))[:, None, :]
    return torch.from_numpy(np.concatenate([pairs.real, pairs.imag], -1)).float()


@pytest.mark.check(task=2, points=2, title="One frequency for each pair")
def test_frequencies():
    for head_dim, theta in ((8, 10_000.0), (6, 100.0), (20, 500_000.0)):
        expected = [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
        expect(
            inverse_frequencies(head_dim, theta),
            torch.tensor(expected),
            call=f"inverse_frequencies(head_dim={head_dim}, theta={theta:g})",
            cause="the exponent of pair i is -2i/D, and theta is the one given.",
            atol=1e-9,
        )
        kind = str(inverse_frequencies(head_dim, theta).dtype)
        expect(kind, "torch.float32", call="inverse_frequencies(head_dim, theta).dtype")


@pytest.mark.check(task=2, points=2, title="Angles of the positions that are given")
def test_given_positions(generator):
    frequencies = torch.rand(4, generator=generator) * 0.9 + 0.1
    for positions in ([57], [0, 1, 2], [9, 301, 3, 3, 0]):
        angles = np.outer(positions, frequencies.double().numpy())
        cos, sin = rotation_angles(torch.tensor(positions), frequencies)
        expect(
            {"cos": cos, "sin": sin},
            {"cos": torch.tensor(np.cos(angles)), "sin": torch.tensor(np.sin(angles))},
            call=f"rotation_angles(torch.tensor({positions}), frequencies)",
            given={"frequencies": frequencies},
            cause="use the positions given, as they are: not 0..T-1, and not counted from 1.",
            rtol=1e-4,
            atol=1e-4,
        )
        kinds = [str(cos.dtype), str(sin.dtype)]
        expect(kinds, ["torch.float32"] * 2, call="dtypes of cos and sin")


@pytest.mark.check(task=2, points=2, title="Half-split pairs are turned")
def test_half_split(generator):
    x = torch.randn(5, 2, 8, generator=generator)
    angles = torch.rand(5, 4, generator=generator) * 3
    expected = _turned(x, angles)
    expect(
        apply_rope(x.clone(), angles.cos(), angles.sin()),
        expected,
        call="apply_rope(x, cos, sin)",
        given={"x": x},
        cause="the pairs are (i, i + D/2), and (a, b) becomes (a cos - b sin, b cos + a sin): both "
        "from the old a and b.",
    )


@pytest.mark.check(task=2, points=1, title="Every head of a token turns by the token's angle")
def test_same_for_every_head(generator):
    x = torch.randn(3, 3, 4, generator=generator)  # T = H: a wrong broadcast raises nothing
    angles = torch.tensor([[0.0, 0.0], [0.7, 0.1], [2.0, 0.4]])
    expected = _turned(x, angles)
    expect(
        apply_rope(x.clone(), angles.cos(), angles.sin()),
        expected,
        call="apply_rope(x, cos, sin), as many tokens as heads",
        given={"x": x, "angles": angles},
        cause="the angle belongs to the token (first dimension), not to the head.",
    )


@pytest.mark.check(task=2, points=1, title="A new tensor in x's dtype; x stays as it was")
def test_new_tensor(generator):
    x = torch.randn(4, 2, 6, generator=generator).bfloat16()
    angles = torch.rand(4, 3, generator=generator) + 0.5
    before = x.clone()
    turned = apply_rope(x, angles.cos(), angles.sin())
    expect(
        x.float(),
        before.float(),
        call="x after apply_rope(x, cos, sin)",
        cause="the result is written into x itself: return a new tensor.",
    )
    expect.that(
        turned.dtype == torch.bfloat16,
        "the result has x's dtype, bfloat16",
        observed=str(turned.dtype),
        call="apply_rope(x, cos, sin).dtype, x in bfloat16, cos and sin in float32",
        cause="a product with a float32 tensor is promoted to float32.",
    )
    x[..., 3:] = 0.0  # b is 0: a cos and a sin stand alone, and are rounded once
    cos, sin = (part.bfloat16()[:, None] for part in (angles.cos(), angles.sin()))
    expected = torch.cat((x[..., :3] * cos, x[..., :3] * sin), dim=-1)
    share = (apply_rope(x, angles.cos(), angles.sin()) == expected).double().mean().item()
    expect.that(
        share == 1.0,
        "every entry is bit for bit a cos or a sin, with cos and sin in x's dtype",
        observed=round(share, 2),
        call="share of equal entries of apply_rope(x, cos, sin), x in bfloat16, cos and sin in "
        "float32, the second half of each head 0",
        given={"x": x},
        cause="cos and sin are rounded to x's dtype before they multiply x.",
    )


@pytest.mark.check(task=2, points=2, title="Llama 3 slows only the slow pairs")
def test_llama3_scaling():
    frequencies = 10_000.0 ** -np.linspace(0, 1, 16, endpoint=False)
    for trained, low, high in ((512, 1.5, 6.0), (90, 1.0, 2.0)):
        scaling = RopeScaling("llama3", 8.0, trained, low_freq_factor=low, high_freq_factor=high)
        expected = []
        for frequency in frequencies:
            turns = trained * frequency / (2 * math.pi)
            share = min(max((turns - low) / (high - low), 0.0), 1.0)
            expected.append((1 - share) * frequency / 8 + share * frequency)
        expect(
            llama3_frequencies(torch.tensor(frequencies, dtype=torch.float32), scaling),
            torch.tensor(expected, dtype=torch.float32),
            call="llama3_frequencies(frequencies, scaling)",
            given={"scaling": scaling},
            cause="fast pairs (many turns) keep their frequency, slow ones are divided by factor, "
            "and between low and high the share of the old frequency grows from 0 to 1.",
            rtol=1e-4,
            atol=1e-9,
        )

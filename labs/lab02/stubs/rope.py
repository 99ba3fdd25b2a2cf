"""Rotary position embeddings: a token's position turns its queries and keys by an angle."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.model.config import RopeScaling


def inverse_frequencies(head_dim: int, theta: float) -> Float[Tensor, "D/2"]:
    """The angle by which each of the D/2 pairs turns from a position to the next: radians, float32.

    Pair i, counted from 0, turns by theta^(-2i/D).
    Source: Su et al. 2021 (RoFormer), section 3.2.2.

    >>> inverse_frequencies(head_dim=4, theta=10_000.0)
    tensor([1.0000, 0.0100])
    """
    raise NotImplementedError("lab02 task 2: inverse_frequencies")


def llama3_frequencies(
    frequencies: Float[Tensor, "D/2"], scaling: RopeScaling
) -> Float[Tensor, "D/2"]:
    """The frequencies of Llama 3.1: fast pairs keep theirs, slow pairs turn `factor` times slower.

    What counts is how many turns a pair makes in the original_max_position tokens of training.
    `high_freq_factor` turns or more: frequency unchanged. `low_freq_factor` turns or fewer:
    divided by `factor`. Between them: the mean of both, weighted linearly by the turns.
    `high_freq_factor` is always the larger of the two.
    Source: Llama 3.1, rope_type "llama3".

    >>> scaling = RopeScaling("llama3", factor=8.0, original_max_position=64)
    >>> llama3_frequencies(torch.tensor([1.0, 0.25, 0.01]), scaling)
    tensor([1.0000, 0.1440, 0.0012])
    """
    raise NotImplementedError("lab02 task 2: llama3_frequencies")


def rotation_angles(
    positions: Int[Tensor, "T"], frequencies: Float[Tensor, "D/2"]
) -> tuple[Float[Tensor, "T D/2"], Float[Tensor, "T D/2"]]:
    """Cosine and sine, in float32, of the angle of each pair at each given position.

    The angle is position times frequency, in radians, computed in float32 or wider. Positions may
    be any, in any order: in decoding there is one token, at position 57 for example.

    >>> cos, sin = rotation_angles(torch.tensor([0, 3]), torch.tensor([1.0, 0.01]))
    >>> cos
    tensor([[ 1.0000,  1.0000],
            [-0.9900,  0.9996]])
    """
    raise NotImplementedError("lab02 task 2: rotation_angles")


def apply_rope(
    x: Float[Tensor, "T H D"], cos: Float[Tensor, "T D/2"], sin: Float[Tensor, "T D/2"]
) -> Float[Tensor, "T H D"]:
    """Each head of x with its pairs (i, i + D/2) turned: half-split, as all models here do it.

    A pair (a, b) becomes (a cos - b sin, b cos + a sin), by the angles of its token, the same for
    every head. cos and sin are first rounded to x's dtype. Products and sums may be rounded to it
    or kept wider. The result is a new tensor in x's dtype; x itself does not change.

    >>> x = torch.tensor([[[1.0, 10.0, 0.0, 0.0]]])
    >>> apply_rope(x, torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([[[ 0., 10.,  1.,  0.]]])
    """
    raise NotImplementedError("lab02 task 2: apply_rope")


def linear_frequencies(
    frequencies: Float[Tensor, "D/2"], scaling: RopeScaling
) -> Float[Tensor, "D/2"]:
    """Position interpolation: every pair turns `factor` times slower (Chen et al. 2023).

    >>> scaling = RopeScaling("linear", factor=4.0, original_max_position=64)
    >>> linear_frequencies(torch.tensor([1.0, 0.2]), scaling)
    tensor([0.2500, 0.0500])
    """
    return frequencies / scaling.factor


def yarn_frequencies(
    frequencies: Float[Tensor, "D/2"], scaling: RopeScaling
) -> Float[Tensor, "D/2"]:
    """Interpolate the slow pairs, keep the fast ones, ramp between (Peng et al. 2023, YaRN).

    >>> scaling = RopeScaling("yarn", factor=4.0, original_max_position=64)
    >>> yarn_frequencies(torch.tensor([1.0, 0.1, 0.01, 0.001]), scaling)
    tensor([1.0000e+00, 6.2500e-02, 2.5000e-03, 2.5000e-04])
    """
    half = len(frequencies)
    slowest = math.log(frequencies[-1]) * half / (half - 1) if half > 1 else 0.0  # -log theta

    def pair_with(turns: float) -> float:
        """The (fractional) pair that makes so many turns in the trained context."""
        wanted = math.log(turns * 2 * math.pi / scaling.original_max_position)
        return half * wanted / slowest if slowest else 0.0

    first, last = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * half - 1)
    width = last - first if last != first else 0.001
    ramp = ((torch.arange(half) - first) / width).clamp(0, 1).to(frequencies.device)
    return frequencies / scaling.factor * ramp + frequencies * (1 - ramp)


def cosine_scale(scaling: RopeScaling | None) -> float:
    """The factor on cos and sin: 1, except for YaRN, which sharpens attention a little."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


SCALINGS: dict[str, Callable[[Tensor, RopeScaling], Tensor]] = {
    "linear": linear_frequencies,
    "llama3": llama3_frequencies,
    "yarn": yarn_frequencies,
}

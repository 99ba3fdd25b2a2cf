"""Rotary position embeddings: a token's position turns its queries and keys by an angle."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.model.config import RopeScaling


def inverse_frequencies(head_dim: int, theta: float) -> Float[Tensor, "D/2"]:
    """The angle, in radians per position, by which each of the D/2 pairs turns.

    Pair i turns by theta^(-2i/D): the first by one radian a token, the last very slowly.
    Source: Su et al. 2021 (RoFormer), section 3.2.2.

    >>> inverse_frequencies(head_dim=4, theta=10_000.0)
    tensor([1.0000, 0.0100])
    """
    raise NotImplementedError("lab02 task 2: inverse_frequencies")


def llama3_frequencies(
    frequencies: Float[Tensor, "D/2"], scaling: RopeScaling
) -> Float[Tensor, "D/2"]:
    """Slow down the pairs that never completed a turn in training, and leave the fast ones.

    A pair makes turns = original_max_position * frequency / 2 pi in the trained context. With
    low = low_freq_factor and high = high_freq_factor: at `high` turns or more it keeps its
    frequency, at `low` turns or fewer it gets frequency / factor, and in between it gets
    (1 - s) * frequency / factor + s * frequency with s = (turns - low) / (high - low).
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

    The positions are those given, not 0..T-1: in decoding there is one token, at position 57.

    >>> cos, sin = rotation_angles(torch.tensor([0, 3]), torch.tensor([1.0, 0.01]))
    >>> cos
    tensor([[ 1.0000,  1.0000],
            [-0.9900,  0.9996]])
    """
    raise NotImplementedError("lab02 task 2: rotation_angles")


def apply_rope(
    x: Float[Tensor, "T H D"], cos: Float[Tensor, "T D/2"], sin: Float[Tensor, "T D/2"]
) -> Float[Tensor, "T H D"]:
    """Turn each head's pairs (i, i + D/2): half-split, as all models of this course do it.

    (a, b) becomes (a cos - b sin, b cos + a sin), the same for every head; cos and sin are cast to
    x's dtype first.

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

"""Grids: the scale and zero point of every group of weights, and rounding onto them."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.scheme import Scheme


def fit_grid(weight: Float[Tensor, "N K"], scheme: Scheme) -> Grid:
    """The grid of a weight: every group of `scheme.group_size` columns of a row gets a scale and a
    zero point from its own weights. The last group has what is left of the columns.

    Symmetric: the largest weight of the group, by its absolute value, lies 2**bits / 2 - 1/2
    steps from 0. Asymmetric: the range from the smallest to the largest weight, made wider so that
    0 is in it, is 2**bits - 1 steps, and the zero point is the code nearest to 0's place. Scales
    are rounded to float16; where that gives 0 (all weights are 0, or nearly so), the scale is 1.
    The zero point is that of the scale so rounded. Computed in float32, whatever the weight's
    dtype. Weights whose scale is too large for float16 are not asked for.

    >>> weight = torch.tensor([[-1.0, 0.5, 2.0, 0.0, 0.0, 3.0]])
    >>> grid = fit_grid(weight, Scheme(bits=2, group_size=4))
    >>> grid.scales, grid.zeros, grid.group_of
    (tensor([[1., 1.]]), tensor([[1, 0]], dtype=torch.uint8), tensor([0, 0, 0, 0, 1, 1]))
    >>> fit_grid(weight, Scheme(bits=2, group_size=None, symmetric=True)).scales
    tensor([[2.]])
    """
    raise NotImplementedError("lab09 task 1: fit_grid")


def nearest_codes(weight: Float[Tensor, "N K"], grid: Grid) -> UInt8[Tensor, "N K"]:
    """The code whose value is nearest to each weight, the first or last code beyond the ends.

    A weight in the middle between two values may get either. It is off by at most half a step
    unless it lies beyond the ends. Computed in float32.

    >>> grid = fit_grid(torch.tensor([[-1.0, 0.0, 1.0, 2.0]]), Scheme(bits=2, group_size=4))
    >>> nearest_codes(torch.tensor([[-9.0, 0.4, 0.6, 5.0]]), grid)  # codes are -1, 0, 1 and 2
    tensor([[0, 1, 2, 3]], dtype=torch.uint8)
    """
    raise NotImplementedError("lab09 task 1: nearest_codes")


def round_to_nearest(weight: Float[Tensor, "N K"], scheme: Scheme) -> QuantizedWeight:
    """The weight on its own grid, every weight by itself (RTN): what all methods have to beat."""
    raise NotImplementedError("lab09 task 1: round_to_nearest")

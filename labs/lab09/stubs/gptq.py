"""GPTQ: columns are rounded one after another, and those to come make up for the error."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.model.block import DecoderBlock
from nanovllm.quantization.by_layer import Inputs
from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.grids import fit_grid
from nanovllm.quantization.grouped import GroupedLinear
from nanovllm.quantization.linear import replace_linear
from nanovllm.quantization.scheme import Scheme


def hessian(inputs: Float[Tensor, "n K"]) -> Float[Tensor, "K K"]:
    """H = 2 X^T X / n in float64: an error d [K] of a row of weights costs d H d^T / 2, the mean
    of the squared errors of its n outputs.

    >>> hessian(torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
    tensor([[10.,  3.],
            [ 3.,  1.]], dtype=torch.float64)
    """
    raise NotImplementedError("lab09 task 3: hessian")


def gptq(
    weight: Float[Tensor, "N K"],
    hessian: Float[Tensor, "K K"],
    grid: Grid,
    damping: float = 0.01,
    block_size: int = 128,
    act_order: bool = False,
) -> QuantizedWeight:
    """The weight on a fixed grid, so that the outputs, not the weights, stay near.

    A column whose diagonal of H is 0 (a dead one: its input was always 0) gets the diagonal 1, and
    its weights count as 0. Then `damping` times the mean of the diagonal is added to the diagonal.
    U is the upper Cholesky factor of the inverse: H^-1 = U^T U. Columns are quantized from first
    to last, or with `act_order` by falling diagonal, equal ones from first to last. Column j as it
    is by then, w_j, gets its nearest codes, whose values are q_j, and each column k behind it loses
    (w_j - q_j) / U_jj * U_jk. All sums are float64.

    `block_size` is how many columns are corrected at once before all later ones are; codes do not
    depend on it. Neither `weight` nor `hessian` changes. Source: Frantar et al. 2022, algorithm 1.

    >>> weight = torch.tensor([[0.4, 0.4]])
    >>> grid = Grid(2, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.uint8), torch.tensor([0, 0]))
    >>> same = torch.ones(2, 2)  # two inputs that are always equal: only the sum of weights counts
    >>> gptq(weight, same, grid).dequantize()
    tensor([[0., 1.]])
    """
    raise NotImplementedError("lab09 task 3: gptq")


def gptq_block(
    block: DecoderBlock, inputs: Inputs, scheme: Scheme, act_order: bool = False
) -> None:
    """Put a `GroupedLinear` in place of every linear that has `inputs`, with its bias: its weight
    by GPTQ on the grid that `fit_grid` gives the weight as it was."""
    raise NotImplementedError("lab09 task 3: gptq_block")

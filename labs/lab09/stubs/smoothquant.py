"""SmoothQuant: what is hard in the activations is moved into the weights, which bear it."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.model.block import DecoderBlock
from nanovllm.quantization.at_load import BY_CHANNEL
from nanovllm.quantization.awq import fold, folds
from nanovllm.quantization.by_layer import Inputs
from nanovllm.quantization.grids import round_to_nearest
from nanovllm.quantization.int8_activations import Int8Linear
from nanovllm.quantization.linear import replace_linear

SMALLEST = 1e-5  # of a channel's largest value, so that nothing is divided by 0


def smoothing_scale(
    inputs: Float[Tensor, "n K"], weights: Sequence[Float[Tensor, "_N K"]], strength: float = 0.5
) -> Float[Tensor, "K"]:
    """By what each channel of the inputs is divided: x_k^strength / w_k^(1 - strength).

    x_k is the largest |x| of channel k, w_k the largest |w| of column k over all of the weights,
    which have these inputs; both are at least SMALLEST. With strength 0.5 channel and column have
    the same largest value afterwards. Source: Xiao et al. 2022, equation 4.

    >>> smoothing_scale(torch.tensor([[8.0, 1.0], [-2.0, 0.5]]), [torch.tensor([[2.0, -0.25]])])
    tensor([2., 2.])
    """
    raise NotImplementedError("lab09 task 7: smoothing_scale")


def smooth_block(block: DecoderBlock, inputs: Inputs, head_dim: int, strength: float = 0.5) -> None:
    """Fold a smoothing scale into both norms of a block, in place: what it computes stays.

    inputs: what its linears multiply, by their names. Of the block's `folds` only those of which
    the source is a norm are used (its name ends with "layernorm").
    """
    raise NotImplementedError("lab09 task 7: smooth_block")


def smoothquant_block(
    block: DecoderBlock, inputs: Inputs, head_dim: int, strength: float = 0.5
) -> None:
    """Smooth a block, then put an `Int8Linear` in place of each of its linears (given)."""
    smooth_block(block, inputs, head_dim, strength)
    for name in inputs:
        linear: Any = block.get_submodule(name)
        weight = round_to_nearest(linear.weight, BY_CHANNEL)
        replace_linear(block, name, Int8Linear(weight, linear.bias))

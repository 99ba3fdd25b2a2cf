"""Softmax of every row of a matrix: a row is read once, and written once."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.runtime import launch


# lab06 task 1: your kernels and helpers for what stands below.


def softmax(
    x: Float[Tensor, "R C"], out: Float[Tensor, "R C"] | None = None
) -> Float[Tensor, "R C"]:
    """The softmax of each row, of any strides, into `out` (new by default).

    Scores of 1,000 do not overflow; the sum is float32. Every number is read once.

    >>> softmax(torch.tensor([[0.0, 0.0], [1000.0, 0.0]]))
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]])
    """
    raise NotImplementedError("lab06 task 1: softmax")

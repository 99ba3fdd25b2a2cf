"""Rotary positions on queries and keys, in place: no copy of either is ever made."""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.runtime import launch


# lab06 task 3: your kernels and helpers for what stands below.


def rope_(
    q: Float[Tensor, "T H D"],
    k: Float[Tensor, "T G D"],
    cos: Float[Tensor, "T D/2"],
    sin: Float[Tensor, "T D/2"],
) -> None:
    """Rotate q and k of any strides in place, halves paired: (0, D/2), (1, D/2 + 1), ...

    cos and sin are lab 02's `rotation_angles` of the tokens' positions.

    >>> import torch
    >>> q, k = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 2.0]]])
    >>> rope_(q, k, cos=torch.tensor([[0.0]]), sin=torch.tensor([[1.0]]))  # a quarter turn
    >>> q.tolist(), k.tolist()
    ([[[0.0, 1.0]]], [[[-2.0, 0.0]]])
    """
    raise NotImplementedError("lab06 task 3: rope_")

"""Write a step's keys and values into the paged cache (vLLM's reshape_and_cache)."""

import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.kernels.runtime import launch


# lab06 task 5: your kernels and helpers for what stands below.


def store_kv(
    k: Float[Tensor, "T G D"],
    v: Float[Tensor, "T G D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    slot_mapping: Int[Tensor, "T"],
) -> None:
    """Copy every token's k and v, of any strides, to its slot of the caches; slot -1: nowhere.

    Slot s is position s % P of block s // P. A token of slot -1 is not read, either.

    >>> import torch
    >>> cache = torch.zeros(2, 2, 2, 1, 1)  # K and V of 2 blocks of 2 positions
    >>> k = torch.tensor([5.0, 6.0, 7.0]).view(3, 1, 1)
    >>> store_kv(k, -k, cache[0], cache[1], torch.tensor([3, -1, 0]))
    >>> cache.flatten(1).tolist()
    [[7.0, 0.0, 0.0, 5.0], [-7.0, 0.0, 0.0, -5.0]]
    """
    raise NotImplementedError("lab06 task 5: store_kv")

"""Codes of a few bits side by side in words of 32."""

import torch
from jaxtyping import Int32, UInt8
from torch import Tensor


def pack(codes: UInt8[Tensor, "... n"], bits: int) -> Int32[Tensor, "... words"]:
    """Codes of `bits` bits along the last dimension, 32 // bits of them in a word.

    The first code of a word has its lowest bits; what is left over of the last word is 0. (With 3
    bits a word holds ten codes, and its two highest bits are 0.)

    >>> pack(torch.tensor([[1, 2, 3, 15, 0, 0, 0, 0, 7]], dtype=torch.uint8), bits=4)
    tensor([[62241,     7]], dtype=torch.int32)
    """
    raise NotImplementedError("lab09 task 2: pack")


def unpack(words: Int32[Tensor, "... words"], bits: int, count: int) -> UInt8[Tensor, "... n"]:
    """The first `count` codes of each row of words: `pack` undone.

    >>> unpack(torch.tensor([[-1]], dtype=torch.int32), bits=8, count=3)
    tensor([[255, 255, 255]], dtype=torch.uint8)
    """
    raise NotImplementedError("lab09 task 2: unpack")

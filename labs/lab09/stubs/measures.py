"""What a quantized weight takes, and what a model loses by it."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.quantization.grid import QuantizedWeight


def bits_per_weight(weight: QuantizedWeight) -> float:
    """Bits stored for a weight [N, K], over its N * K numbers.

    Each row has whole words of 32 bits, with 32 // bits codes in each. Each group of a row has a
    scale of 16 bits and, unless the grid is symmetric, a zero point of `bits` bits.

    >>> from nanovllm.quantization.grids import round_to_nearest
    >>> from nanovllm.quantization.scheme import Scheme
    >>> bits_per_weight(round_to_nearest(torch.tensor([[0.5, 0.1, -0.2]]), Scheme(4, 2)))
    24.0
    """
    raise NotImplementedError("lab09 task 1: bits_per_weight")


def perplexity(losses: Sequence[Float[Tensor, "_n"]]) -> float:
    """exp of the mean loss of a token; `losses` has -log p in nats of each token, text by text.

    Every token counts the same, whether its text is long or short. Sums are float64.

    >>> round(perplexity([torch.tensor([0.0, 0.0, 0.0]), torch.tensor([4.0])]), 4)
    2.7183
    """
    raise NotImplementedError("lab09 task 1: perplexity")

"""Normalisation: bring each token's vector to a common size before a layer reads it."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def rms_norm(
    x: Float[Tensor, "... E"], weight: Float[Tensor, "E"], eps: float
) -> Float[Tensor, "... E"]:
    """Divide each vector by its root mean square, in float32, then multiply by the weight.

    y = weight * (x / sqrt(mean(x^2) + eps)). The mean and the quotient are taken in float32
    whatever x is; the quotient is cast back to x's dtype before the weight, which has that dtype
    too, multiplies it.
    Source: Zhang and Sennrich 2019, equation 4.

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), eps=0.0)
    tensor([[0.8485, 2.2627]])
    """
    raise NotImplementedError("lab02 task 1: rms_norm")


def layer_norm(
    x: Float[Tensor, "... E"], weight: Float[Tensor, "E"], bias: Float[Tensor, "E"], eps: float
) -> Float[Tensor, "... E"]:
    """Subtract each vector's mean, divide by its standard deviation, then scale and shift.

    y = (x - mean) / sqrt(var + eps) * weight + bias, with the variance over all E entries
    (divided by E, not E - 1), all in float32; the result is cast back to x's dtype.
    Source: Ba, Kiros and Hinton 2016; GPT-2 uses it.

    >>> layer_norm(torch.tensor([[1.0, 3.0]]), torch.ones(2), torch.tensor([0.0, 10.0]), eps=0.0)
    tensor([[-1., 11.]])
    """
    raise NotImplementedError("lab02 task 1: layer_norm")


class RMSNorm(nn.Module):
    """`rms_norm` with its weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "... E"]) -> Float[Tensor, "... E"]:
        return rms_norm(x, self.weight, self.eps)


class LayerNorm(nn.Module):
    """`layer_norm` with its weight and bias."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "... E"]) -> Float[Tensor, "... E"]:
        return layer_norm(x, self.weight, self.bias, self.eps)

"""Normalisation: bring each token's vector to a common size before a layer reads it."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def rms_norm(
    x: Float[Tensor, "... E"], weight: Float[Tensor, "E"], eps: float
) -> Float[Tensor, "... E"]:
    """Each vector divided by its root mean square, times the weight; the result has x's dtype.

    y = weight * (x / sqrt(mean(x^2) + eps)). The quotient is computed in float32, whatever x's
    dtype is, and rounded to that dtype before the weight, which has x's dtype, multiplies it.
    Source: Zhang and Sennrich 2019, equation 4.

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), eps=0.0)
    tensor([[0.8485, 2.2627]])
    """
    raise NotImplementedError("lab02 task 1: rms_norm")


def layer_norm(
    x: Float[Tensor, "... E"], weight: Float[Tensor, "E"], bias: Float[Tensor, "E"], eps: float
) -> Float[Tensor, "... E"]:
    """Each vector less its mean, over its standard deviation, scaled and shifted, in x's dtype.

    y = (x - mean) / sqrt(var + eps) * weight + bias, where var is the mean squared deviation of
    the E entries. Everything is computed in float32, whatever x's dtype is.
    Source: Ba, Kiros and Hinton 2016; GPT-2 uses it.

    >>> layer_norm(torch.tensor([[1.0, 3.0]]), torch.ones(2), torch.tensor([0.0, 10.0]), eps=0.0)
    tensor([[-1., 11.]])
    """
    raise NotImplementedError("lab02 task 1: layer_norm")


class RMSNorm(nn.Module):
    """`RMSNorm(size, eps)`: `rms_norm` with a weight of its own.

    Parameter: `weight` [size], ones at first. Attribute: `eps`.

    >>> RMSNorm(2, eps=0.0)(torch.tensor([[3.0, 4.0]])).detach()
    tensor([[0.8485, 1.1314]])
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab02 task 1: RMSNorm")


class LayerNorm(nn.Module):
    """`LayerNorm(size, eps)`: `layer_norm` with a weight and a bias of its own.

    Parameters: `weight` [size], ones at first, and `bias` [size], zeros at first. Attribute: `eps`.

    >>> LayerNorm(2, eps=0.0)(torch.tensor([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab02 task 1: LayerNorm")

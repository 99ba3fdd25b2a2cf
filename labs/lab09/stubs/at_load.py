"""A model quantized when it is loaded, by rounding alone (given)."""

from __future__ import annotations

import torch

from nanovllm.model.transformer import Transformer
from nanovllm.quantization.grids import round_to_nearest
from nanovllm.quantization.linear import linears, replace_linear
from nanovllm.quantization.linear_tensors import made_linear
from nanovllm.quantization.scheme import Scheme

BY_CHANNEL = Scheme(bits=8, group_size=None, symmetric=True)
SCHEMES = {"int8": BY_CHANNEL, "int4": Scheme(bits=4, group_size=64), "w8a8": BY_CHANNEL}


def quantize_linears(model: Transformer, name: str) -> Transformer:
    """Round every linear of the layers in place: int8, int4, or w8a8, with int8 activations."""
    return round_linears(model, SCHEMES[name], activations=name == "w8a8")


@torch.no_grad()
def round_linears(model: Transformer, scheme: Scheme, activations: bool = False) -> Transformer:
    """Every linear of the layers on its own grid, in place; gives the model back."""
    for name, linear in list(linears(model)):
        weight = round_to_nearest(linear.weight, scheme)
        replace_linear(model, name, made_linear(weight, linear.bias, activations))
    return model

"""What every quantized linear has, and where linears stand in a model (given)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nanovllm.model.transformer import Transformer


class QuantizedLinear(nn.Module):
    """Stands where an `nn.Linear` stood: x [..., K] to x w^T + bias [..., N].

    Attributes: `in_features` K, `out_features` N, `bias` [N] or None, in the model's dtype;
    `int8_activations`, whether x is rounded to int8, too. What is stored of the weight is in
    buffers: no optimizer sees them, and `weight_of(model)` is still the embedding. A subclass says
    what the weight is (`dequantize`) and how many bits it takes.
    """

    bias: Tensor | None
    int8_activations = False

    def __init__(self, in_features: int, out_features: int, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("bias", bias)

    def dequantize(self) -> Float[Tensor, "N K"]:
        """The weight that is multiplied with, in float32."""
        raise NotImplementedError

    @property
    def stored_bits(self) -> int:
        """Bits that codes, scales, zero points, tables and sparse parts take; not the bias."""
        raise NotImplementedError

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        """Multiply in x's dtype."""
        return F.linear(x, self.dequantize().to(x.dtype), self.bias)


def linears(model: Transformer) -> Iterator[tuple[str, Any]]:
    """Every linear of the layers, by name: `layers.0.self_attn.q_proj`, ...; never the head."""
    for name, module in model.layers.named_modules(prefix="layers"):
        if isinstance(module, nn.Linear | QuantizedLinear):
            yield name, module


def replace_linear(model: nn.Module, name: str, linear: nn.Module) -> None:
    """Put `linear` where the module of that name stands in a model or in a block of one."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, linear)

"""How a quantized model can be stored: one scheme for all of its linears, in one layout (given)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from nanovllm.model.transformer import Transformer
from nanovllm.quantization.errors import QuantizationError
from nanovllm.quantization.grid import QuantizedWeight
from nanovllm.quantization.linear import QuantizedLinear, linears
from nanovllm.quantization.scheme import Scheme
from nanovllm.quantization.stored_as import StoredAs

if TYPE_CHECKING:  # of a later task
    from nanovllm.quantization.table_linear import TableLinear

BITS_OF = {"compressed-tensors": (2, 3, 4, 8), "gptq": (2, 4, 8), "awq": (4, 8),
           "squeezellm": (2, 3, 4)}  # fmt: skip


def stored_as(model: Transformer, layout: str) -> StoredAs:
    """How the linears of a model are stored by compressed-tensors, gptq, awq or squeezellm.

    Raises:
        QuantizationError: the layout is unknown or does not hold them.
    """
    check_layout(layout)
    weights = {}
    for name, linear in linears(model):
        if not isinstance(linear, QuantizedLinear):
            raise QuantizationError(f"{name} is not quantized; quantize all linears, then save.")
        if hasattr(linear, "table") != (layout == "squeezellm"):
            raise QuantizationError(
                f"{name} is a {type(linear).__name__}, which {layout} has no tensors for."
            )
        if layout == "squeezellm":
            return StoredAs(layout, Scheme(cast("TableLinear", linear).bits, None))
        weights[name] = linear.weight_codes
    activations = {linear.int8_activations for _, linear in linears(model)}
    scheme = _scheme(weights)
    check_layout(layout, scheme.bits)
    if activations == {True}:
        if layout != "compressed-tensors":
            raise QuantizationError(f"{layout} knows no int8 activations; use compressed-tensors.")
        return StoredAs("int-quantized", scheme, activations=True)
    if layout == "compressed-tensors":
        return StoredAs("pack-quantized", scheme)
    if layout == "gptq":  # a zero point of 0, less 1, is read in two ways: version 2 ended that
        return StoredAs("gptq" if scheme.symmetric else "gptq_v2", scheme)
    return StoredAs("awq", scheme)


def check_layout(layout: str, bits: int | None = None) -> None:
    """Raise QuantizationError for an unknown layout, or one that has no codes of so many bits."""
    if layout not in BITS_OF:
        raise QuantizationError(f"format {layout!r} is not known; use {', '.join(BITS_OF)}.")
    if bits is not None and bits not in BITS_OF[layout]:
        held = " or ".join(map(str, BITS_OF[layout]))
        raise QuantizationError(
            f"{layout} holds codes of {held} bits, not of {bits}; use compressed-tensors."
        )


def _scheme(weights: dict[str, QuantizedWeight]) -> Scheme:
    """The one scheme of all weights. Raises QuantizationError."""
    grids = {name: weight.grid for name, weight in weights.items()}
    bits = {grid.bits for grid in grids.values()}
    sizes = {int((grid.group_of == 0).sum()) for grid in grids.values() if grid.scales.shape[1] > 1}
    if len(bits) != 1 or len(sizes) > 1:
        raise QuantizationError(
            f"the linears have {sorted(bits)} bits in groups of {sorted(sizes)} columns, but one "
            "folder holds one scheme; quantize all in the same way."
        )
    size = sizes.pop() if sizes else None
    for name, grid in grids.items():
        columns = len(grid.group_of)
        if not torch.equal(grid.group_of, torch.arange(columns) // (size or columns)):
            raise QuantizationError(
                f"the groups of {name} do not lie one after another (act-order with groups), "
                "and such a model is not written."
            )
    return Scheme(bits.pop(), size, all(grid.symmetric for grid in grids.values()))

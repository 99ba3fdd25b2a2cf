"""The tensors of one quantized linear in a folder, checked before a layout reads them (given)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from nanovllm.quantization import layouts
from nanovllm.quantization.errors import QuantizationError
from nanovllm.quantization.grid import QuantizedWeight
from nanovllm.quantization.grouped import GroupedLinear
from nanovllm.quantization.layouts import Tensors
from nanovllm.quantization.linear import QuantizedLinear
from nanovllm.quantization.stored_as import StoredAs

if TYPE_CHECKING:  # of later tasks
    from nanovllm.quantization.int8_activations import Int8Linear
    from nanovllm.quantization.table_linear import TableLinear

OPTIONAL = {"bias", "weight_g_idx", "g_idx"}


def is_quantized(tensors: Tensors) -> bool:
    """Whether these are those of a linear that is stored as codes."""
    weight = tensors.get("weight")
    return bool(set(tensors) - {"weight", "bias"}) or (
        weight is not None and not weight.is_floating_point()
    )


def read_linear(tensors: Tensors, stored: StoredAs, rows: int, columns: int) -> QuantizedLinear:
    """The linear [rows, columns] of these tensors; `bias` is in the model's dtype already.

    Raises:
        QuantizationError: what does not fit, as the end of a sentence that begins with the name.
    """
    if stored.layout == "squeezellm":
        from nanovllm.quantization.tables import from_tables  # a later task

        return from_tables(tensors, stored.scheme.bits, rows, columns)
    size = stored.scheme.group_size or columns
    groups = -(-columns // size)
    _check_shapes(tensors, _wanted(stored, rows, columns, groups), size)
    for name in ("scales", "weight_scale"):
        scales = tensors.get(name, torch.ones(1))
        if not (scales.isfinite() & (scales > 0)).all():
            raise QuantizationError(f"has {name} that are NaN, infinite, or not above 0.")
    group_of = torch.arange(columns, dtype=torch.int32) // size
    for name in ("g_idx", "weight_g_idx"):
        given = tensors.get(name, group_of)
        if not ((given >= 0) & (given < groups)).all():
            raise QuantizationError(f"has a {name} beyond its {groups} groups.")
    if "weight_shape" in tensors and tensors["weight_shape"].tolist() != [rows, columns]:
        raise QuantizationError(
            f"has the weight_shape {tensors['weight_shape'].tolist()} where its config.json asks "
            f"for {[rows, columns]}."
        )
    weight = _weight({"g_idx": group_of, **tensors}, stored)
    return made_linear(weight, tensors.get("bias"), stored.activations)


def made_linear(
    weight: QuantizedWeight, bias: Tensor | None, activations: bool = False
) -> QuantizedLinear:
    """What multiplies with this weight; with int8 activations, task 7's."""
    if not activations:
        return GroupedLinear(weight, bias)
    from nanovllm.quantization.int8_activations import Int8Linear  # a later task

    return Int8Linear(weight, bias)


def to_tensors(linear: QuantizedLinear, stored: StoredAs) -> Tensors:
    """The tensors of a linear's weight in a layout, by their last names."""
    if stored.layout == "squeezellm":
        from nanovllm.quantization.tables import to_tables

        return to_tables(cast("TableLinear", linear))
    weight = cast("GroupedLinear | Int8Linear", linear).weight_codes
    match stored.layout:
        case "pack-quantized":
            return layouts.to_pack_quantized(weight, stored.scheme)
        case "int-quantized":
            return layouts.to_int_quantized(weight, stored.scheme)
        case "awq":
            return layouts.to_awq(weight)
    return layouts.to_gptq(weight, version=2 if stored.layout == "gptq_v2" else 1)


def _weight(tensors: Tensors, stored: StoredAs) -> QuantizedWeight:
    match stored.layout:
        case "pack-quantized":
            return layouts.from_pack_quantized(tensors, stored.scheme)
        case "int-quantized":
            return layouts.from_int_quantized(tensors, stored.scheme)
        case "awq":
            return layouts.from_awq(tensors, stored.scheme)
    version = 2 if stored.layout == "gptq_v2" else 1
    return layouts.from_gptq(tensors, stored.scheme, version)


def _wanted(
    stored: StoredAs, rows: int, columns: int, groups: int
) -> dict[str, tuple[list[int], torch.dtype | None]]:
    """Shape and dtype of each tensor; None: any floating dtype."""
    per_word = 32 // stored.scheme.bits
    row_words, column_words = -(-rows // per_word), -(-columns // per_word)
    int32, int8 = torch.int32, torch.int8
    if stored.layout == "awq":
        return {
            "qweight": ([columns, row_words], int32),
            "qzeros": ([groups, row_words], int32),
            "scales": ([groups, rows], None),
        }
    if stored.layout.startswith("gptq"):
        return {
            "qweight": ([column_words, rows], int32),
            "qzeros": ([groups, row_words], int32),
            "scales": ([groups, rows], None),
            "g_idx": ([columns], int32),
        }
    wanted = {"weight_scale": ([rows, groups], None), "weight_g_idx": ([columns], int32)}
    if stored.layout == "int-quantized":
        wanted["weight"], zeros = ([rows, columns], int8), ([rows, groups], int8)
    else:
        wanted["weight_packed"] = ([rows, column_words], int32)
        wanted["weight_shape"] = ([2], torch.int64)
        zeros = ([row_words, groups], int32)
    if not stored.scheme.symmetric:
        wanted["weight_zero_point"] = zeros
    return wanted


def _check_shapes(
    tensors: Tensors, wanted: dict[str, tuple[list[int], torch.dtype | None]], size: int
) -> None:
    for name, (shape, dtype) in wanted.items():
        if name not in tensors:
            if name in OPTIONAL:
                continue
            raise QuantizationError(f"lacks {name}; download the folder again.")
        found = tensors[name]
        if list(found.shape) != shape:
            raise QuantizationError(
                f"has a {name} of shape {list(found.shape)} where its bits and groups of {size} "
                f"columns ask for {shape}; config and weights do not belong together."
            )
        if found.dtype != dtype and not (dtype is None and found.is_floating_point()):
            raise QuantizationError(
                f"has a {name} of {str(found.dtype).removeprefix('torch.')} where "
                f"{'floats' if dtype is None else str(dtype).removeprefix('torch.')} are expected."
            )
    unknown = sorted(set(tensors) - set(wanted) - OPTIONAL)
    if unknown:
        raise QuantizationError(f"has a {unknown[0]}, which is not read.")

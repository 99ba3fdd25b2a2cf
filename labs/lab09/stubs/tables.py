"""SqueezeLLM's tensors of a linear: codes, a table a row, and the sparse part in CSR (given).

qweight [ceil(K / p), N]: codes along K, as in GPTQ's layout. lookup_table [N, 2**bits] float16.
rows [N + 1] and cols [S] int32, vals [S] float16: the sparse part; S may be 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nanovllm.quantization.errors import QuantizationError
from nanovllm.quantization.layouts import Tensors
from nanovllm.quantization.packing import unpack
from nanovllm.quantization.table_linear import TableLinear


def to_tables(linear: TableLinear) -> Tensors:
    """The tensors of a linear, by their last names; not its bias."""
    return {
        "qweight": linear.words.T,
        "lookup_table": linear.table,
        "rows": linear.row_ends,
        "cols": linear.columns,
        "vals": linear.extra,
    }


def from_tables(tensors: Tensors, bits: int, rows: int, columns: int) -> TableLinear:
    """`to_tables` undone; a `bias` is taken over.

    Raises:
        QuantizationError: what does not fit, as the end of a sentence that begins with the name.
    """
    wanted = {
        "qweight": [-(-columns // (32 // bits)), rows],
        "lookup_table": [rows, 2**bits],
        "rows": [rows + 1],
    }
    for name in (*wanted, "cols", "vals"):
        if name not in tensors:
            raise QuantizationError(f"lacks {name}; download the folder again.")
        if list(tensors[name].shape) != wanted.get(name, list(tensors["cols"].shape)):
            raise QuantizationError(
                f"has a {name} of shape {list(tensors[name].shape)}, which does not fit its "
                f"{bits} bits and {rows} x {columns} weights."
            )
    for name in ("lookup_table", "vals"):
        if not tensors[name].isfinite().all():
            raise QuantizationError(f"has a {name} with NaN or infinity.")
    ends, places = tensors["rows"].long(), tensors["cols"].long()
    if ends[0] != 0 or ends[-1] != len(places) or (ends.diff() < 0).any():
        raise QuantizationError("has rows that do not divide its sparse part.")
    if not ((places >= 0) & (places < columns)).all():
        raise QuantizationError(f"has cols beyond its {columns} columns.")
    extra: Tensor = torch.zeros(rows, columns)
    extra[torch.arange(rows).repeat_interleave(ends.diff()), places] = tensors["vals"].float()
    codes = unpack(tensors["qweight"].T, bits, columns)
    return TableLinear(codes, tensors["lookup_table"].float(), extra, tensors.get("bias"))

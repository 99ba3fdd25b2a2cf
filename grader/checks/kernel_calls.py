"""How the host functions of labs 06 and 09 are called to have their kernels compiled.

Each takes a dtype, and whether sizes are odd; else they are those of a small model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[[torch.dtype, bool], None]


def warmup(dtype: torch.dtype, odd: bool) -> None:
    from nanovllm.kernels.add import add
    from nanovllm.kernels.softmax import softmax

    n = 83 if odd else 4096
    add(torch.zeros(n, dtype=dtype), torch.zeros(n, dtype=dtype))
    softmax(torch.zeros(3, n, dtype=dtype))


def rms_norm(dtype: torch.dtype, odd: bool) -> None:
    from nanovllm.kernels.rms_norm import fused_add_rms_norm_

    x = torch.zeros(3, 83 if odd else 1024, dtype=dtype)
    fused_add_rms_norm_(x, x.clone(), x[0].clone(), 1e-6)


def rope(dtype: torch.dtype, odd: bool) -> None:
    from nanovllm.kernels.rope import rope_

    q, k, _, half = _heads(dtype, odd)
    rope_(q, k, torch.zeros(len(q), half), torch.zeros(len(q), half))


def silu(dtype: torch.dtype, odd: bool) -> None:
    from nanovllm.kernels.silu import silu_and_mul

    silu_and_mul(torch.zeros(3, 2 * (83 if odd else 3072), dtype=dtype))


def store(dtype: torch.dtype, odd: bool) -> None:
    from nanovllm.kernels.store_kv import store_kv

    _, k, v, _ = _heads(dtype, odd)
    store_kv(k, v, *_caches(dtype, odd), torch.zeros(len(k), dtype=torch.int64))


def decode(dtype: torch.dtype, odd: bool) -> None:
    from nanovllm.kernels.paged_decode import paged_decode

    paged_decode(*_paged(dtype, odd))


def split(dtype: torch.dtype, odd: bool) -> None:
    from nanovllm.kernels.split_decode import split_decode

    split_decode(*_paged(dtype, odd), splits=3)


def prefill(dtype: torch.dtype, odd: bool) -> None:
    from nanovllm.kernels.paged_prefill import paged_prefill

    q, *rest = _paged(dtype, odd)
    paged_prefill(q, *rest, torch.arange(len(q) + 1, dtype=rest[-1].dtype), 64)  # pyright: ignore[reportCallIssue]


def w4a16(dtype: torch.dtype, odd: bool) -> None:
    from nanovllm.quantization.w4a16 import w4a16

    outputs, inputs = (45, 70) if odd else (256, 1024)
    scales = torch.zeros(outputs, -(-inputs // 64), dtype=torch.float16)
    words = torch.zeros(outputs, -(-inputs // 8), dtype=torch.int32)
    groups = torch.arange(inputs, dtype=torch.int32) // 64
    x = torch.zeros(3, inputs, dtype=dtype)
    w4a16(x, words, scales, torch.zeros_like(scales, dtype=torch.uint8), groups)


CALLS: dict[str, dict[int, Call]] = {  # lab -> task -> its host functions, called
    "lab06": {1: warmup, 2: rms_norm, 3: rope, 4: silu, 5: store, 6: decode, 7: split, 8: prefill},
    "lab09": {6: w4a16},
}


def _heads(dtype: torch.dtype, odd: bool) -> tuple[Tensor, Tensor, Tensor, int]:
    """q, k and v of one fused projection, and half of a head."""
    heads, groups, dim = (6, 3, 12) if odd else (8, 2, 64)
    rows = torch.zeros(3, heads + 2 * groups, dim, dtype=dtype)
    q, k, v = rows.split((heads, groups, groups), dim=1)
    return q, k, v, dim // 2


def _caches(dtype: torch.dtype, odd: bool) -> tuple[Tensor, Tensor]:
    shape = (4, 5, 3, 12) if odd else (4, 16, 2, 64)
    return torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)


def _paged(dtype: torch.dtype, odd: bool) -> Any:
    """q, caches, tables and context lengths of three sequences."""
    integers = torch.int64 if odd else torch.int32
    tables = torch.zeros(3, 3, dtype=integers)
    q = _heads(dtype, odd)[0]
    return q, *_caches(dtype, odd), tables, torch.ones(3, dtype=integers)

"""Compile every kernel of lab 06 for an H100, on a machine that has none; run by test_kernels.py.

Prints one line a kernel: its name, bytes of shared memory. What compiles may still be wrong.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

torch.cuda.is_available = lambda: True  # so that the package defines kernels to be compiled

from nanovllm.kernels import (  # noqa: E402
    add,
    paged_decode,
    paged_prefill,
    rms_norm,
    rope,
    silu,
    softmax,
    split_decode,
    store_kv,
)

MODULES = (add, softmax, rms_norm, rope, silu, store_kv, paged_decode, split_decode, paged_prefill)
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def compile_only(
    kernel: Any, grid: tuple[int, ...], *args: Any, capability: int = 90, **constants: Any
) -> None:
    """What `launch` would run, compiled for a compute capability, 9.0 unless told."""
    signature: dict[str, str] = {}
    for name, value in zip(kernel.arg_names, args, strict=False):
        if torch.is_tensor(value):
            signature[name] = TYPES[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    signature |= dict.fromkeys(constants, "constexpr")
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert len(compiled.asm["cubin"]) > 0
    print(kernel.fn.__name__, compiled.metadata.shared)


def main() -> None:
    """Call every host function with tensors of the given type and head dim."""
    for module in MODULES:
        module.launch = compile_only
    dtype, dim = getattr(torch, sys.argv[1]), int(sys.argv[2])

    def some(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    add.add(some(3), some(3))
    softmax.softmax(some(2, 5))
    rms_norm.fused_add_rms_norm_(some(2, 80), some(2, 80), some(80), 1e-6)
    rope.rope_(some(2, 6, dim), some(2, 2, dim), torch.zeros(2, dim // 2), torch.zeros(2, dim // 2))
    silu.silu_and_mul(some(2, 96))
    cache = some(4, 16, 2, dim)
    slots = torch.zeros(2, dtype=torch.int64)
    store_kv.store_kv(some(2, 2, dim), some(2, 2, dim), cache, cache, slots)
    tables, contexts = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    starts = torch.arange(3, dtype=torch.int32)
    paged_decode.paged_decode(some(2, 6, dim), cache, cache, tables, contexts)
    split_decode.split_decode(some(2, 6, dim), cache, cache, tables, contexts, splits=3)
    paged_prefill.paged_prefill(some(2, 6, dim), cache, cache, tables, contexts, starts, 64)


if __name__ == "__main__":
    main()

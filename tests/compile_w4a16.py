"""Compile lab 09's kernel for an A100 and an H100, on a machine that has none; run by a test."""

from __future__ import annotations

from functools import partial

import torch

from tests.compile_kernels import compile_only  # first: kernels are to be compiled

from nanovllm.quantization import w4a16  # isort: skip


def main() -> None:
    """Print a line for each GPU, dtype of x and number of its rows."""
    for capability in (80, 90):
        w4a16.launch = partial(compile_only, capability=capability)
        for dtype, rows in ((torch.float32, 1), (torch.float16, 8), (torch.bfloat16, 300)):
            scales, zeros = torch.ones(96, 3).half(), torch.zeros(96, 3, dtype=torch.uint8)
            words, groups = torch.zeros(96, 24).int(), torch.arange(192).int() // 64
            w4a16.w4a16(torch.zeros(rows, 192, dtype=dtype), words, scales, zeros, groups)


if __name__ == "__main__":
    main()

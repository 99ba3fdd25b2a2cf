"""Where the fast path can be used, and why it cannot elsewhere."""

from __future__ import annotations

import os
import shutil

import torch

from nanovllm.model.config import ModelConfig

BLOCK_MULTIPLE = 16  # the longest vector of any machine
DTYPES = (torch.float32, torch.bfloat16)


class FastPathError(RuntimeError):
    """The fast path cannot be used; the message says why."""


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, else c++, g++ or clang++ on the path."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def available(
    config: ModelConfig | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    block_size: int = BLOCK_MULTIPLE,
) -> str | None:
    """Why the fast path cannot be used here (for this model); None if it can.

    >>> available(dtype=torch.float16)
    'it computes in float32 or bfloat16, not in torch.float16'
    """
    if torch.device(device).type != "cpu":
        return f"it is for CPUs, and the model is on {device}"
    if dtype not in DTYPES:
        return f"it computes in float32 or bfloat16, not in {dtype}"
    if block_size % BLOCK_MULTIPLE:
        return f"it needs blocks of a multiple of {BLOCK_MULTIPLE} tokens, not of {block_size}"
    if config is not None:
        sizes = (config.hidden_size, config.head_dim, config.intermediate_size)
        if config.experts is not None:
            sizes += (config.experts.intermediate_size, config.experts.shared_size)
        if any(size % 2 for size in sizes):
            return f"it needs even sizes, but hidden, head and MLPs have {sizes}"
    if find_compiler() is None:
        return "there is no C++ compiler (c++, g++, clang++, or one that CXX names)"
    return None

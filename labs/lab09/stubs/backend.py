"""Who multiplies weights of 4 bits: torch's operations, or task 6's kernel (given)."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from nanovllm.quantization.errors import QuantizationError

BACKENDS = ("torch", "triton")


def linear_backend(device: torch.device | str) -> str:
    """ "triton" on a GPU where Triton is installed, else "torch"; NANOVLLM_LINEAR wins.

    Asked for "triton" on a CPU, the kernel runs in Triton's interpreter: slow, for tests.
    Raises QuantizationError for any other name.

    >>> linear_backend("cpu")
    'torch'
    """
    chosen = os.environ.get("NANOVLLM_LINEAR", "")
    if not chosen:
        on_gpu = torch.device(device).type == "cuda"
        return "triton" if on_gpu and find_spec("triton") else "torch"
    if chosen not in BACKENDS:
        raise QuantizationError(f"NANOVLLM_LINEAR is {chosen!r}, but must be torch or triton.")
    return chosen

"""Which attention a paged engine runs on: torch's operations, or lab 06's kernels."""

import os
from typing import Any

import torch

from nanovllm.llm.lab_packages import why_missing
from nanovllm.llm.read_options import OptionError
from nanovllm.model.config import ModelConfig
from nanovllm.paging.store import PagedStore

BACKENDS = ("torch", "triton")


def attention_backend(device: torch.device | str, wanted: str | None = None) -> str:
    """ "triton" on a GPU where lab 06 is here, else "torch"; `wanted` or NANOVLLM_ATTENTION wins.

    Asked for "triton" on a CPU, the kernels run in Triton's interpreter: slow, for tests.
    Raises OptionError for any other name.

    >>> attention_backend("cpu"), attention_backend("cuda"), attention_backend("cpu", "triton")
    ('torch', 'triton', 'triton')
    """
    chosen = wanted or os.environ.get("NANOVLLM_ATTENTION", "")
    if not chosen:
        on_gpu = torch.device(device).type == "cuda"
        return "triton" if on_gpu and why_missing("lab06") is None else "torch"
    if chosen not in BACKENDS:
        raise OptionError(f"attention is {chosen!r}, but must be {' or '.join(BACKENDS)}.")
    return chosen


def paged_store(
    config: ModelConfig,
    num_blocks: int,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    attention: str | None = None,
    num_host_blocks: int = 0,
    kv_cache_dtype: str = "auto",
    **options: Any,
) -> PagedStore:
    """Lab 05's store on the chosen attention; lab 09's if K and V are to be codes.

    `options` are PagedStore's.
    """
    sizes = (config, num_blocks, block_size, dtype, device)
    options["num_host_blocks"] = num_host_blocks
    on_kernels = attention_backend(device, attention) == "triton"
    if kv_cache_dtype != "auto":
        from nanovllm.quantization.kv_store import QuantizedStore

        if on_kernels:  # which read the floats that the codes stand for
            from nanovllm.kernels.attention import triton_paged_attention

            options["attention"] = triton_paged_attention
        return QuantizedStore(*sizes, kind=kv_cache_dtype, **options)
    if not on_kernels:
        return PagedStore(*sizes, **options)
    from nanovllm.kernels.attention import TritonPagedCache, triton_paged_attention

    cache = TritonPagedCache(*sizes, num_host_blocks)
    return PagedStore(*sizes, attention=triton_paged_attention, cache=cache, **options)

"""Lab 09's K/V cache in any engine: what `kv_cache_dtype` asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.lab_packages import why_missing
from nanovllm.llm.read_options import OptionError
from nanovllm.model.accounting import kv_bytes_per_token
from nanovllm.model.config import ModelConfig

if TYPE_CHECKING:  # lab 05 may not be here
    from nanovllm.paging.beam import PagedBeamCache


def check_kv_cache(options: EngineOptions) -> None:
    """Raise OptionError where K and V are to be codes, and lab 09 is not here."""
    why = why_missing("lab09") if options.kv_codes else None
    if why is not None:
        raise OptionError(
            f"kv_cache_dtype={options.kv_cache_dtype!r} needs lab09 (quantization): {why}"
        )


def token_bytes(config: ModelConfig, dtype_bytes: int, options: EngineOptions) -> int:
    """Bytes of K and V that one token takes in all layers, scales and all. Raises OptionError."""
    if not options.kv_codes:
        return kv_bytes_per_token(config, dtype_bytes)
    check_kv_cache(options)
    from nanovllm.quantization.kv_cache import QuantizedCache

    return QuantizedCache.bytes_per_token(config, options.kv_cache_dtype)


def beam_cache(options: EngineOptions) -> Callable[..., PagedBeamCache]:
    """What makes the cache of a beam search, with PagedBeamCache's arguments."""
    if options.kv_codes:
        from nanovllm.quantization.kv_store import QuantizedBeamCache

        return partial(QuantizedBeamCache, kind=options.kv_cache_dtype)
    from nanovllm.paging.beam import PagedBeamCache

    return PagedBeamCache

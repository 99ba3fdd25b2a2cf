"""How the engine is to batch and store: vLLM's names, checked before anything is loaded."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch

from nanovllm.llm.read_options import OptionError

if TYPE_CHECKING:  # the labs that these belong to may not be here
    from nanovllm.batching.config import EngineConfig

DEFAULT_KV_BYTES = 1 << 30
GPU_KV_SHARE = 0.8  # the rest is for activations, logits and graphs
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size")
_SIZES = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
KV_CACHE_DTYPES = ("auto", "int8", "int4", "fp8")
AT_LOAD = ("int8", "int4", "w8a8")
QUANTIZATIONS = (*AT_LOAD, "gptq", "awq", "compressed-tensors", "squeezellm")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How the engine batches and stores K and V, with vLLM's names.

    max_num_seqs: samples that run at once. max_num_batched_tokens: tokens that a step computes at
    most. scheduling_policy: fcfs, sjf, deadline, round-robin, priority or size-queues. block_size:
    tokens that a block holds. num_gpu_blocks_override: blocks of the cache, on whatever device it
    is, or kv_cache_memory_bytes: what they may take; by default as many as max_num_seqs of the
    longest requests need, within `kv_room`. enable_prefix_caching: requests that begin alike
    share.
    enforce_eager: never the compiled step or CUDA graphs, whatever the machine;
    NANOVLLM_ENFORCE_EAGER=1 in the environment says so for all. engine: static (lab 03),
    continuous (lab 04) or paged (lab 05); by default the highest whose labs are here.
    speculative_config: lab 08's, a dict such as {"method": "ngram"}; None for no guesses.
    kv_cache_dtype: auto keeps K and V in the model's dtype; int8, int4 and fp8 are lab 09's codes,
    with a scale for every token and head. quantization: int8, int4 or w8a8 (int8 activations, too)
    round the weights of a model when it is loaded, by lab 09; a folder that is quantized is read as
    it is, and gptq, awq, compressed-tensors or squeezellm ask for such a folder.
    tensor_parallel_size, pipeline_parallel_size: lab 10's ranks, each a process of its own: each
    layer is cut into so many slices, and the layers into so many stages.

    >>> EngineOptions(max_num_seqs=0)
    Traceback (most recent call last):
    nanovllm.llm.read_options.OptionError: max_num_seqs must be a whole number, at least 1; got 0.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    scheduling_policy: str = "fcfs"
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    enforce_eager: bool = field(default_factory=lambda: "NANOVLLM_ENFORCE_EAGER" in os.environ)
    engine: str | None = None
    speculative_config: Mapping[str, Any] | None = None
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "block_size", *_RANKS, *_SIZES):
            value = getattr(self, name)
            if value is None and name in _SIZES:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name} must be a whole number, at least 1; got {value!r}.")
        if self.num_gpu_blocks_override and self.kv_cache_memory_bytes:
            raise OptionError(
                "num_gpu_blocks_override and kv_cache_memory_bytes both say how large the cache "
                "is; give one of them."
            )
        for name in ("enable_prefix_caching", "enforce_eager"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise OptionError(
                f"kv_cache_dtype must be auto, int8, int4 or fp8; got {self.kv_cache_dtype!r}."
            )
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            raise OptionError(
                f"quantization {self.quantization!r} is not known; use {', '.join(AT_LOAD)}, or "
                f"{', '.join(QUANTIZATIONS[len(AT_LOAD) :])} for a folder that is quantized so."
            )

    @property
    def num_ranks(self) -> int:
        """Processes that share the model; with 1 there is no executor."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def kv_codes(self) -> bool:
        """Whether K and V are kept as codes."""
        return self.kv_cache_dtype != "auto"

    def num_blocks(
        self, max_model_len: int, bytes_per_token: int, device: torch.device | str = "cpu"
    ) -> int:
        """Blocks of the cache, for a model of this context. Raises OptionError."""
        if self.num_gpu_blocks_override:
            return self.num_gpu_blocks_override
        from nanovllm.paging.block_table import blocks_for

        block_bytes = self.block_size * bytes_per_token
        if self.kv_cache_memory_bytes:
            if self.kv_cache_memory_bytes < block_bytes:
                raise OptionError(
                    f"kv_cache_memory_bytes is {self.kv_cache_memory_bytes}, but one block of "
                    f"{self.block_size} tokens takes {block_bytes}."
                )
            return self.kv_cache_memory_bytes // block_bytes
        longest = blocks_for(max_model_len, self.block_size)
        return max(longest, min(self.max_num_seqs * longest, kv_room(device) // block_bytes))

    def num_slots(
        self, max_model_len: int, bytes_per_token: int, device: torch.device | str = "cpu"
    ) -> int:
        """Slots of the cache, where it has slots: one a sample, within `kv_room`."""
        room = kv_room(device) // (max_model_len * bytes_per_token)
        return max(1, min(self.max_num_seqs, room))

    def config(self, max_model_len: int | None) -> EngineConfig:
        """The settings of lab 04's engine. Raises OptionError."""
        from nanovllm.batching.config import EngineConfig
        from nanovllm.batching.errors import ConfigError

        try:
            return EngineConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_model_len=max_model_len,
                policy=self.scheduling_policy,
            )
        except ConfigError as error:
            raise OptionError(str(error)) from None


def kv_room(device: torch.device | str) -> int:
    """Bytes that K and V may take where nobody says: on a GPU, most of what is free by now."""
    if torch.device(device).type != "cuda":
        return DEFAULT_KV_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * GPU_KV_SHARE)


def read_engine_options(given: dict[str, Any]) -> EngineOptions:
    """Return the options of these names. Raises OptionError, for unknown names too."""
    known = [field.name for field in fields(EngineOptions)]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"use {', '.join(known)}."
            raise OptionError(f"LLM has no option {name!r}; {hint}")
    return EngineOptions(**given)

"""How the engine is to batch and store: vLLM's names, checked before anything is loaded."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch

from nanovllm.llm.read_options import OptionError

if TYPE_CHECKING:  # the labs that these belong to may not be here
    from nanovllm.batching.config import EngineConfig

GIB = 1 << 30
DEFAULT_KV_BYTES = GIB
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
    most. adaptive_token_budget: let lab 04's controller move that limit, down to max_num_seqs, as
    steps turn out slow or fast. scheduling_policy: fcfs, sjf, deadline, round-robin, priority (the
    numbers of requests), priority-with-ageing or size-queues. block_size: tokens that a block
    holds. num_gpu_blocks_override: blocks of the cache, on whatever device it is, or
    kv_cache_memory_bytes: what they may take; by default as many as max_num_seqs of the longest
    requests need, within `kv_room`. gpu_memory_utilization: the share of a GPU's memory that
    weights, K and V may fill together (0 to 1). swap_space: GiB of host memory to which preempted
    requests are swapped where that is measured to be cheaper than to compute them again; 0 for
    none. enable_prefix_caching: requests that begin alike share.
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
    distributed_executor_backend: "mp" gives the model a process of its own also where it is one
    rank; executor_timeout: seconds after which a rank that says nothing counts as dead.

    >>> EngineOptions(max_num_seqs=0)
    Traceback (most recent call last):
    nanovllm.llm.read_options.OptionError: max_num_seqs must be a whole number, at least 1; got 0.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    adaptive_token_budget: bool = False
    scheduling_policy: str = "fcfs"
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    swap_space: float = 0
    enable_prefix_caching: bool = True
    enforce_eager: bool = field(default_factory=lambda: "NANOVLLM_ENFORCE_EAGER" in os.environ)
    engine: str | None = None
    speculative_config: Mapping[str, Any] | None = None
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    distributed_executor_backend: str | None = None
    executor_timeout: float = 300.0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "block_size", *_RANKS, *_SIZES):
            value = getattr(self, name)
            if value is None and name in _SIZES:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name} must be a whole number, at least 1; got {value!r}.")
        given = [name for name in (*_SIZES, "gpu_memory_utilization") if getattr(self, name)]
        if len(given) > 1:
            raise OptionError(
                f"{' and '.join(given)} both say how large the cache is; give one of them."
            )
        share = self.gpu_memory_utilization
        if share is not None and not (isinstance(share, int | float) and 0 < share <= 1):
            raise OptionError(f"gpu_memory_utilization must be above 0, to 1; got {share!r}.")
        self._check_swap_space()
        for name in ("adaptive_token_budget", "enable_prefix_caching", "enforce_eager"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.distributed_executor_backend not in (None, "mp"):
            raise OptionError(
                "distributed_executor_backend must be mp, or left out; got "
                f"{self.distributed_executor_backend!r}."
            )
        seconds = self.executor_timeout
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise OptionError(f"executor_timeout must be seconds, above 0; got {seconds!r}.")
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
        """Parts of the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def in_processes(self) -> bool:
        """Whether the model is in processes of its own, behind lab 10's executor."""
        return self.num_ranks > 1 or self.distributed_executor_backend is not None

    @property
    def kv_codes(self) -> bool:
        """Whether K and V are kept as codes."""
        return self.kv_cache_dtype != "auto"

    def num_blocks(
        self, max_model_len: int, bytes_per_token: int, device: torch.device | str = "cpu"
    ) -> int:
        """Blocks of the cache, for a model of this context. Raises OptionError."""
        self.check_memory(bytes_per_token, device)
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
        room = kv_room(device, self.gpu_memory_utilization)
        longest = blocks_for(max_model_len, self.block_size)
        return max(longest, min(self.max_num_seqs * longest, room // block_bytes))

    def _check_swap_space(self) -> None:
        given = self.swap_space
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or not 0 <= given < math.inf:
            raise OptionError(f"swap_space must be a number of GiB, 0 or more; got {given!r}.")
        if given and given * GIB > host_memory():
            raise OptionError(
                f"swap_space is {given:g} GiB, but this machine has {host_memory() / GIB:.1f} GiB "
                "of memory; give less."
            )

    def check_memory(self, bytes_per_token: int, device: torch.device | str = "cpu") -> None:
        """Raise OptionError where K and V of the given size are more than a CPU's memory."""
        wanted = (self.num_gpu_blocks_override or 0) * self.block_size * bytes_per_token
        wanted = max(wanted, self.kv_cache_memory_bytes or 0)
        if torch.device(device).type == "cpu" and wanted > host_memory():
            raise OptionError(
                f"K and V would take {wanted / GIB:.1f} GiB, but this machine has "
                f"{host_memory() / GIB:.1f} GiB of memory; give a smaller "
                f"{next(name for name in _SIZES if getattr(self, name))}."
            )

    def num_host_blocks(self, bytes_per_token: int) -> int:
        """Blocks of swap_space. Raises OptionError where not even one fits."""
        block_bytes = self.block_size * bytes_per_token
        if self.swap_space and self.swap_space * GIB < block_bytes:
            raise OptionError(
                f"swap_space is {self.swap_space:g} GiB, but one block of {self.block_size} tokens "
                f"takes {block_bytes} bytes; give more, or 0 to compute preempted requests again."
            )
        return int(self.swap_space * GIB // block_bytes)

    def num_slots(
        self, max_model_len: int, bytes_per_token: int, device: torch.device | str = "cpu"
    ) -> int:
        """Slots of the cache, where it has slots: one a sample, within `kv_room`."""
        room = kv_room(device, self.gpu_memory_utilization) // (max_model_len * bytes_per_token)
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
                adaptive_budget=self.adaptive_token_budget,
            )
        except ConfigError as error:
            raise OptionError(str(error)) from None


def host_memory() -> float:
    """Bytes of this machine's memory; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return math.inf


def kv_room(device: torch.device | str, share: float | None = None) -> int:
    """Bytes that K and V may take where nobody says: on a GPU, most of what is free by now.

    share: of all the GPU's memory, what is in use by now included. Raises OptionError where
    there is no such GPU, or nothing left of the share.
    """
    if torch.device(device).type != "cuda":
        if share is not None:
            raise OptionError(
                f"gpu_memory_utilization is for a CUDA GPU, but the device is {device}; use "
                "kv_cache_memory_bytes."
            )
        return DEFAULT_KV_BYTES
    free, total = torch.cuda.mem_get_info(device)
    if share is None:
        return int(free * GPU_KV_SHARE)
    room = int(total * share) - (total - free)
    if room <= 0:
        raise OptionError(
            f"gpu_memory_utilization is {share:g}, but {1 - free / total:.2f} of the GPU's memory "
            "is in use before K and V; give more."
        )
    return room


def read_engine_options(given: dict[str, Any]) -> EngineOptions:
    """Return the options of these names. Raises OptionError, for unknown names too."""
    known = [field.name for field in fields(EngineOptions)]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"use {', '.join(known)}."
            raise OptionError(f"LLM has no option {name!r}; {hint}")
    return EngineOptions(**given)

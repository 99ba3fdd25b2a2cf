"""Which engine and which store answer: the one place that picks them."""

import difflib
import os
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import nanovllm
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import ConfigError
from nanovllm.generation.request import weight_of
from nanovllm.llm.options import OptionError
from nanovllm.model.accounting import kv_bytes_per_token
from nanovllm.model.transformer import Transformer
from nanovllm.paging.block_table import blocks_for
from nanovllm.paging.store import PagedStore
from nanovllm.tokenization.tokenizer import Tokenizer

DEFAULT_KV_BYTES = 1 << 30
FAST_REPLACES = ("model", "generation", "batching", "paging")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How the engine batches and stores K and V, with vLLM's names.

    max_num_seqs: samples that run at once. max_num_batched_tokens: tokens that a step computes at
    most. scheduling_policy: fcfs, sjf, round-robin, priority or size-queues. block_size: tokens
    that a block holds. num_gpu_blocks_override: blocks of the cache, on whatever device it is, or
    kv_cache_memory_bytes: what they may take; by default as many as max_num_seqs of the longest
    requests need, within DEFAULT_KV_BYTES. enable_prefix_caching: requests that begin alike share.
    enforce_eager: never the compiled step, whatever the machine; NANOVLLM_ENFORCE_EAGER=1 in the
    environment says so for all.

    >>> EngineOptions(max_num_seqs=0)
    Traceback (most recent call last):
    nanovllm.llm.options.OptionError: max_num_seqs must be at least 1, got 0.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    scheduling_policy: str = "fcfs"
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    enforce_eager: bool = field(default_factory=lambda: "NANOVLLM_ENFORCE_EAGER" in os.environ)

    def __post_init__(self) -> None:
        self.config(max_model_len=None)
        for name in ("block_size", "num_gpu_blocks_override", "kv_cache_memory_bytes"):
            value = getattr(self, name)
            if value is None and name != "block_size":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name} must be a whole number from 1, got {value!r}.")
        if self.num_gpu_blocks_override and self.kv_cache_memory_bytes:
            raise OptionError(
                "num_gpu_blocks_override and kv_cache_memory_bytes both say how large the cache "
                "is; give one of them."
            )
        for name in ("enable_prefix_caching", "enforce_eager"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, got {getattr(self, name)!r}.")

    def num_blocks(self, max_model_len: int, bytes_per_token: int) -> int:
        """Blocks of the cache, for a model of this context. Raises OptionError."""
        if self.num_gpu_blocks_override:
            return self.num_gpu_blocks_override
        block_bytes = self.block_size * bytes_per_token
        if self.kv_cache_memory_bytes:
            if self.kv_cache_memory_bytes < block_bytes:
                raise OptionError(
                    f"kv_cache_memory_bytes is {self.kv_cache_memory_bytes}, but one block of "
                    f"{self.block_size} tokens takes {block_bytes}."
                )
            return self.kv_cache_memory_bytes // block_bytes
        longest = blocks_for(max_model_len, self.block_size)
        return max(longest, min(self.max_num_seqs * longest, DEFAULT_KV_BYTES // block_bytes))

    def config(self, max_model_len: int | None) -> EngineConfig:
        """The settings of lab 04's engine. Raises OptionError."""
        try:
            return EngineConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_model_len=max_model_len,
                policy=self.scheduling_policy,
            )
        except ConfigError as error:
            raise OptionError(str(error)) from None


def read_engine_options(given: dict[str, Any]) -> EngineOptions:
    """Return the options of these names. Raises OptionError, for unknown names too."""
    known = [field.name for field in fields(EngineOptions)]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"use {', '.join(known)}."
            raise OptionError(f"LLM has no option {name!r}; {hint}")
    return EngineOptions(**given)


def make_store(model: Transformer, max_model_len: int, options: EngineOptions) -> PagedStore:
    """Return where K and V live: lab 05's blocks."""
    weight = weight_of(model)
    per_token = kv_bytes_per_token(model.config, weight.element_size())
    return PagedStore(
        model.config,
        options.num_blocks(max_model_len, per_token),
        options.block_size,
        weight.dtype,
        weight.device,
        enable_prefix_caching=options.enable_prefix_caching,
    )


def is_mine(package: str) -> bool:
    """Whether a lab's package is the student's own code. Raises what importing it raises."""
    where = import_module(f"nanovllm.{package}").__file__
    return where is not None and Path(where).resolve().is_relative_to(nanovllm._MINE)


def why_not_fast(model: Transformer, options: EngineOptions) -> str | None:
    """Why the compiled step cannot answer; None if it can.

    It computes in place of labs 02 to 05, so it makes way for code of the student's own.
    """
    if options.enforce_eager:
        return "enforce_eager is set"
    if not options.enable_prefix_caching:
        return "it always caches prefixes"
    mine = [package for package in FAST_REPLACES if is_mine(package)]
    if mine:
        return f"your own code of {', '.join(mine)} is to run"
    from nanovllm.fast import available  # not before: it builds on what may be the student's

    weight = weight_of(model)
    return available(model.config, weight.dtype, weight.device, options.block_size)


def make_engine(
    model: Transformer, tokenizer: Tokenizer | None, max_model_len: int, options: EngineOptions
) -> Engine:
    """Return the engine that answers; without a tokenizer, in token ids alone."""
    config = options.config(max_model_len)
    if why_not_fast(model, options) is None:
        from nanovllm.fast import fast_engine

        weight = weight_of(model)
        per_token = kv_bytes_per_token(model.config, weight.element_size())
        return fast_engine(
            model,
            config,
            tokenizer=tokenizer,
            num_blocks=options.num_blocks(max_model_len, per_token),
            block_size=options.block_size,
            dtype=weight.dtype,
        )
    return Engine(
        model, config, tokenizer=tokenizer, store=make_store(model, max_model_len, options)
    )

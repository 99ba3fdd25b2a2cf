"""The engines on lab 05's blocks: with a plain step, or with the one that is compiled."""

from nanovllm.batching.engine import Engine
from nanovllm.generation.request import weight_of
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.packages import is_mine
from nanovllm.llm.paged_store import attention_backend, paged_store
from nanovllm.model.accounting import kv_bytes_per_token
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore
from nanovllm.tokenization.tokenizer import Tokenizer

FAST_REPLACES = ("model", "generation", "batching", "paging")


def make_store(model: Transformer, max_model_len: int, options: EngineOptions) -> PagedStore:
    """Return where K and V live: lab 05's blocks, read by lab 06's kernels on a GPU."""
    weight = weight_of(model)
    return paged_store(
        model.config,
        _num_blocks(model, max_model_len, options),
        options.block_size,
        weight.dtype,
        weight.device,
        enable_prefix_caching=options.enable_prefix_caching,
    )


def why_not_fast(model: Transformer, options: EngineOptions) -> str | None:
    """Why the compiled step cannot answer; None if it can.

    It computes in place of labs 02 to 05, so it makes way for code of the student's own.
    """
    if options.enforce_eager:
        return "enforce_eager is set"
    if not options.enable_prefix_caching:
        return "it always caches prefixes"
    weight = weight_of(model)
    if attention_backend(weight.device) != "torch":
        return "attention is to run on lab 06's kernels"
    mine = [package for package in FAST_REPLACES if is_mine(package)]
    if mine:
        return f"your own code of {', '.join(mine)} is to run"
    from nanovllm.fast import available  # not before: it builds on what may be the student's

    return available(model.config, weight.dtype, weight.device, options.block_size)


def make_engine(
    model: Transformer, tokenizer: Tokenizer | None, max_model_len: int, options: EngineOptions
) -> Engine:
    """Return the engine that answers; without a tokenizer, in token ids alone."""
    config = options.config(max_model_len)
    if why_not_fast(model, options) is None:
        from nanovllm.fast import fast_engine

        return fast_engine(
            model,
            config,
            tokenizer=tokenizer,
            num_blocks=_num_blocks(model, max_model_len, options),
            block_size=options.block_size,
            dtype=weight_of(model).dtype,
        )
    return Engine(
        model, config, tokenizer=tokenizer, store=make_store(model, max_model_len, options)
    )


def _num_blocks(model: Transformer, max_model_len: int, options: EngineOptions) -> int:
    """Blocks of the cache for this model. Raises OptionError."""
    per_token = kv_bytes_per_token(model.config, weight_of(model).element_size())
    return options.num_blocks(max_model_len, per_token)

"""The engines on lab 05's blocks: with a plain step, a compiled one, or CUDA graphs."""

from dataclasses import replace

from nanovllm.batching.engine import Engine
from nanovllm.generation.request import weight_of
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.guessing import Guessing, NoGuesses, speculation
from nanovllm.llm.kv_codes import token_bytes
from nanovllm.llm.lab_packages import is_mine, why_missing
from nanovllm.llm.paged_store import attention_backend, paged_store
from nanovllm.llm.read_options import say
from nanovllm.llm.scoring import salt_of
from nanovllm.llm.weight_codes import has_codes
from nanovllm.model.transformer import Transformer
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.prefix_cache import SaltOf
from nanovllm.paging.store import PagedStore
from nanovllm.tokenization.tokenizer import Tokenizer

# Whose code a step computes in place of: it makes way for the student's own. The rest of labs 03
# to 05 (sampler, scheduler, block manager) works above the compiled step, whoever wrote it.
COMPILED_REPLACES = ("model",)
GRAPHS_REPLACE = ("model", "generation", "batching", "paging")
ABOVE = ("generation", "batching", "paging")


def make_store(
    model: Transformer,
    max_model_len: int,
    options: EngineOptions,
    attention: str | None = None,
    salt_of: SaltOf = salt_of,
) -> PagedStore:
    """Return where K and V live: lab 05's blocks, read by lab 06's kernels on a GPU.

    attention: as `attention_backend`'s `wanted`. salt_of: who shares the prefix cache.
    """
    weight = weight_of(model)
    per_token = bytes_per_token(model, options)
    num_host_blocks = options.num_host_blocks(per_token)
    return paged_store(
        model.config,
        options.num_blocks(max_model_len, per_token, weight.device),
        options.block_size,
        weight.dtype,
        weight.device,
        enable_prefix_caching=options.enable_prefix_caching,
        preemption="swap" if num_host_blocks else "recompute",
        num_host_blocks=num_host_blocks,
        swap_by_cost=num_host_blocks > 0,
        kv_cache_dtype=options.kv_cache_dtype,
        salt_of=salt_of,
        attention=attention,
    )


def step_kind(model: Transformer, options: EngineOptions) -> str:
    """What kind of step answers: "CUDA graphs", "compiled" and whose work it is beneath, or
    "plain" and why.
    """
    on_gpu = weight_of(model).device.type == "cuda"
    why = why_not_gpu(model, options) if on_gpu else why_not_fast(model, options)
    if why is not None:
        return f"plain: {why}"
    if on_gpu:
        return "CUDA graphs"
    above = (*ABOVE, "speculative") if options.speculative_config is not None else ABOVE
    mine = [package for package in above if is_mine(package)]
    return f"compiled, beneath your own {', '.join(mine)}" if mine else "compiled"


def why_not_gpu(model: Transformer, options: EngineOptions) -> str | None:
    """Why the GPU path cannot answer; None if it can. Lab 06's kernels may be the student's."""
    weight = weight_of(model)
    why = _why_plain(model, options, GRAPHS_REPLACE)
    if why is None and options.kv_codes:
        why = f"K and V are kept in {options.kv_cache_dtype}"
    if why is None and has_codes(model):
        why = "its linears are quantized"
    if why is None and attention_backend(weight.device) != "triton":
        why = why_missing("lab06") or "attention is to run on torch's operations"
    if why is not None:
        return why
    from nanovllm.gpu import available  # not before: it builds on what may be the student's

    return available(model.config, weight.device)


def why_not_fast(model: Transformer, options: EngineOptions) -> str | None:
    """Why the compiled step cannot answer; None if it can."""
    sparse = ("performance",) if model.config.experts is not None else ()  # its `MoE`
    why = _why_plain(model, options, COMPILED_REPLACES + sparse)
    if why is not None:
        return why
    if not options.enable_prefix_caching:
        return "it always caches prefixes"
    if options.kv_codes and options.kv_cache_dtype != "int8":
        return f"K and V are kept in {options.kv_cache_dtype}"
    weight = weight_of(model)
    if attention_backend(weight.device) != "torch":
        return "attention is to run on lab 06's kernels"
    from nanovllm.fast import available  # not before, as above

    return available(model.config, weight.dtype, weight.device, options.block_size)


def _why_plain(model: Transformer, options: EngineOptions, replaced: tuple[str, ...]) -> str | None:
    """Why no other step may compute in place of these packages."""
    if options.enforce_eager:
        return "enforce_eager is set"
    if has_codes(model) or options.kv_codes:
        replaced = (*replaced, "quantization")
    mine = [package for package in replaced if is_mine(package)]
    return f"your own code of {', '.join(mine)} is to run" if mine else None


def make_engine(
    model: Transformer,
    tokenizer: Tokenizer | None,
    max_model_len: int,
    options: EngineOptions,
    guessing: NoGuesses | Guessing | None = None,
) -> Engine:
    """Return the engine that answers; without a tokenizer, in token ids alone.

    guessing: what `speculation` made of the options; if None, it is asked now.
    """
    config = options.config(max_model_len)
    guessing = guessing or speculation(model, max_model_len, options)
    kind = step_kind(model, options)
    if kind.startswith("compiled"):
        from nanovllm.fast import FastEngine

        per_token = bytes_per_token(model, options, kind)
        num_host_blocks = options.num_host_blocks(per_token)
        manager = BlockManager(
            options.num_blocks(max_model_len, per_token, weight_of(model).device),
            options.block_size,
            preemption="swap" if num_host_blocks else "recompute",
            num_host_blocks=num_host_blocks,
            salt_of=salt_of,
        )
        return guessing.on(FastEngine)(
            model,
            config,
            tokenizer=tokenizer,
            num_blocks=manager.num_blocks,
            manager=manager,
            draws=not is_mine("generation"),
            kv_cache_dtype=options.kv_cache_dtype,
            num_host_blocks=num_host_blocks,
        )
    store = make_store(model, max_model_len, options)
    parts = {"tokenizer": tokenizer, "store": store}
    if kind == "CUDA graphs":
        from nanovllm.gpu.engine import GpuEngine
        from nanovllm.gpu.fallback import went_plain

        try:
            return guessing.on(GpuEngine)(model, config, notify=say, **parts)
        except NotImplementedError:  # a kernel of the student's that is not written yet
            raise
        except Exception as error:  # whatever it is, the plain step can do without
            say(went_plain(error))
            parts["store"] = make_store(model, max_model_len, options, attention="torch")
    return guessing.on(Engine)(model, config, **parts)


def bytes_per_token(model: Transformer, options: EngineOptions, kind: str = "plain") -> int:
    """Bytes that a token takes in the cache of such a step; the compiled one's has longer heads."""
    config = model.config
    if kind.startswith("compiled"):
        from nanovllm.fast.cache import padded_dim

        config = replace(config, head_dim=padded_dim(config))
    return token_bytes(config, weight_of(model).element_size(), options)

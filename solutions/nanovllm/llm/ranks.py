"""Lab 10 in any engine: what `tensor_parallel_size` and `pipeline_parallel_size` ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from nanovllm.llm.engine_levels import Level, choose
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.lab_packages import why_missing
from nanovllm.llm.read_options import OptionError
from nanovllm.llm.weight_codes import load_weights
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import read_quantization
from nanovllm.model.transformer import Transformer


def choose_level(options: EngineOptions) -> Level:
    """The level of the engine, with several ranks if they are asked for. Raises OptionError."""
    level = choose(options.engine)
    if not options.in_processes:
        return level
    asked = _asked(options)
    level.require("lab05", asked)
    why = why_missing("lab10")
    if why is not None:
        raise OptionError(f"{asked} needs lab10 (parallel): {why}")
    for name in ("speculative_config", "quantization"):
        if getattr(options, name) is not None:
            raise _refused(options, name)
    if options.kv_codes:
        raise _refused(options, f"kv_cache_dtype={options.kv_cache_dtype!r}")
    ranks = "1 rank" if options.num_ranks == 1 else f"{options.num_ranks} ranks"
    title = f"{level.title} on {ranks}"
    return replace(level, title=title, home="parallel_level:ParallelRung")


def load(
    folder: Path, dtype: torch.dtype, device: torch.device, options: EngineOptions
) -> Transformer:
    """The model, or what stands for it where its weights are on several ranks.

    Raises ModelFolderError, OptionError.
    """
    if not options.in_processes:
        return load_weights(folder, dtype, device, options.quantization)
    if read_quantization(folder) is not None:
        raise _refused(options, f"a quantized folder such as {folder}")
    config = ModelConfig.from_pretrained(folder)
    if config.experts is not None:
        raise _refused(options, f"a mixture of experts such as {folder}")
    _check_devices(device, options)
    from nanovllm.parallel.remote import RemoteModel

    model = RemoteModel(config, dtype, str(folder), device.type)
    return cast(Transformer, model)  # it has the same face


def _check_devices(device: torch.device, options: EngineOptions) -> None:
    if device.type not in ("cpu", "cuda"):
        raise OptionError(f"{_asked(options)} needs CPUs or CUDA GPUs, not {device.type}.")
    cards = torch.cuda.device_count()
    if device.type == "cuda" and cards < options.num_ranks:
        raise OptionError(
            f"{_asked(options)} needs {options.num_ranks} GPUs, but {cards} are here; use fewer "
            'ranks, or device="cpu".'
        )


def _asked(options: EngineOptions) -> str:
    """The option that asks for ranks, as it was given."""
    names = ("tensor_parallel_size", "pipeline_parallel_size")
    many = [f"{name}={getattr(options, name)}" for name in names if getattr(options, name) > 1]
    return " with ".join(many) or "distributed_executor_backend='mp'"


def _refused(options: EngineOptions, what: str) -> OptionError:
    return OptionError(
        f"{what} does not go with {_asked(options)}: ranks run the plain step on plain, "
        "dense weights; leave one of them out."
    )

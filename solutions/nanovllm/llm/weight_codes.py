"""Lab 09's weights in any engine: what a folder holds, and what `quantization` asks for."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from nanovllm.llm.engine_options import AT_LOAD
from nanovllm.llm.lab_packages import why_missing
from nanovllm.llm.read_options import OptionError
from nanovllm.model.config import ModelConfig
from nanovllm.model.errors import ModelFolderError
from nanovllm.model.loader import load_model, read_quantization, resolve_folder
from nanovllm.model.transformer import Transformer


def load_weights(
    folder: str | Path,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    quantization: str | None = None,
) -> Transformer:
    """The model of a folder or hub name, its linears quantized if they are there or are to be.

    Raises ModelFolderError for what is wrong with the folder, OptionError for `quantization`.
    """
    folder = resolve_folder(folder)
    config = read_quantization(folder)
    if ModelConfig.from_pretrained(folder).experts is not None:
        return _load_experts(folder, dtype, device, quantization)
    if config is not None:
        return _load_quantized(folder, _method(config), dtype, device, quantization)
    if quantization is None:
        return load_model(folder, dtype, device)
    if quantization not in AT_LOAD:
        raise OptionError(
            f"quantization={quantization!r} says how a folder was quantized, and {folder} was not; "
            f"use {', '.join(AT_LOAD)} to quantize it now, or `nanovllm quantize`."
        )
    check_quantization(quantization)
    model = load_model(folder, dtype)
    from nanovllm.quantization.at_load import quantize_linears

    return quantize_linears(model, quantization).to(device)


def check_quantization(quantization: str | None) -> None:
    """Raise OptionError where weights are to be codes, and lab 09 is not here."""
    why = why_missing("lab09") if quantization is not None else None
    if why is not None:
        raise OptionError(f"quantization={quantization!r} needs lab09 (quantization): {why}")


def has_codes(model: Transformer) -> bool:
    """Whether a linear of the layers is quantized. Imports nothing of lab 09."""
    modules = model.layers.named_modules()
    return any(name.endswith("_proj") and not isinstance(m, nn.Linear) for name, m in modules)


def _load_experts(
    folder: Path, dtype: torch.dtype, device: torch.device | str, quantization: str | None
) -> Transformer:
    if quantization is not None:
        raise OptionError(
            f"quantization={quantization!r}, but {folder} holds a mixture of experts, which is "
            "read as it is; leave the option out, or choose a dense model."
        )
    why = why_missing("lab14")
    if why is not None:
        raise ModelFolderError(f"{folder} holds a mixture of experts and needs lab14: {why}")
    from nanovllm.performance.expert_checkpoint import load_experts

    return load_experts(folder, dtype, device)


def _method(config: object) -> object:
    return config.get("quant_method") if isinstance(config, dict) else None


def _load_quantized(
    folder: Path,
    method: object,
    dtype: torch.dtype,
    device: torch.device | str,
    quantization: str | None,
) -> Transformer:
    if quantization not in (None, method):
        raise OptionError(
            f"quantization={quantization!r}, but {folder} is quantized already ({method}); leave "
            "the option out, or choose the unquantized model."
        )
    why = why_missing("lab09")
    if why is not None:
        raise ModelFolderError(f"{folder} is quantized ({method}) and needs lab09: {why}")
    from nanovllm.quantization.checkpoint import load_quantized
    from nanovllm.quantization.errors import QuantizationError

    try:
        return load_quantized(folder, dtype, device)
    except QuantizationError as error:
        raise ModelFolderError(str(error)) from error

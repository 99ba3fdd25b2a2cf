"""Folders of quantized models: read into a `Transformer`, or written whole (given)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from nanovllm.model.checkpoint_names import module_tensors
from nanovllm.model.config import Json, ModelConfig, read_json
from nanovllm.model.loader import (
    empty_model,
    fill,
    read_quantization,
    read_tensors,
    resolve_folder,
    settle_tying,
)
from nanovllm.model.transformer import Transformer
from nanovllm.quantization.errors import QuantizationError
from nanovllm.quantization.layouts import Tensors
from nanovllm.quantization.linear import QuantizedLinear, linears, replace_linear
from nanovllm.quantization.linear_tensors import is_quantized, read_linear, to_tensors
from nanovllm.quantization.stored_as import StoredAs, read_config, write_config
from nanovllm.quantization.storing import stored_as


def load_quantized(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transformer:
    """The model of a folder or hub name, whose config.json has a `quantization_config`.

    Linears stored as codes keep them; all other tensors are cast to `dtype`, also their biases.

    Raises:
        ModelFolderError: the folder cannot be read, as with `load_model`.
        QuantizationError: one sentence on what is wrong with the quantized weights.
    """
    folder = resolve_folder(folder)
    config = ModelConfig.from_pretrained(folder)
    try:
        return _load(folder, config, dtype, torch.device(device))
    except QuantizationError as error:
        raise QuantizationError(f"The model in {folder} cannot be used: {error}") from None


def _load(
    folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Transformer:
    given = read_quantization(folder)
    if not isinstance(given, dict):
        raise QuantizationError("its config.json has no quantization_config; use load_model.")
    stored_at = read_config(given)
    if config.family == "gpt2":
        raise QuantizationError("a quantized GPT-2 is not read.")
    shapes = {name: linear.weight.shape for name, linear in linears(empty_model(config))}
    parts: dict[str, Tensors] = {name: {} for name in shapes}
    weights: Tensors = {}
    for name, tensor in read_tensors(folder):
        for target, value in module_tensors(config.family, name, tensor):
            module, _, last = target.rpartition(".")
            if module in parts and last != "bias":
                parts[module][last] = value
                continue
            if not value.is_floating_point():
                raise QuantizationError(
                    f"{target} is quantized, too, and only linears of the layers are read so."
                )
            value = value.to(device=device, dtype=dtype)
            weights[target] = value
            if module in parts:
                parts[module]["bias"] = value
    made = {}
    for name, tensors in parts.items():
        if not is_quantized(tensors):
            weights |= {f"{name}.{last}": tensor.to(device=device, dtype=dtype)
                        for last, tensor in tensors.items()}  # fmt: skip
            continue
        stored = stored_at(name)
        if stored is None:
            raise QuantizationError(f"{name} is quantized, but its config leaves it as it was.")
        try:
            made[name] = read_linear(tensors, stored, *shapes[name]).to(device)
        except QuantizationError as error:
            raise QuantizationError(f"{name} {error}") from None
    if not made:
        raise QuantizationError("none of its linears is quantized, though its config says so.")
    model = empty_model(settle_tying(config, weights))
    for name, linear in made.items():
        replace_linear(model, name, linear)
        weights |= {f"{name}.{last}": tensor for last, tensor in linear.state_dict().items()}
    return fill(folder, model, weights)


def save_quantized(
    model: Transformer, source: str | Path, to: str | Path, layout: str = "compressed-tensors"
) -> Path:
    """Write a model whose linears were quantized, and all files of the folder that it came from.

    layout: compressed-tensors, gptq, awq or squeezellm. What is no quantized linear keeps the dtype
    that it has in `source` where that loses nothing, else it has the model's. `to` appears when it
    is whole.

    Raises:
        QuantizationError: `to` is there already, `source` is quantized, or this layout cannot
            hold these weights.
    """
    source, to = resolve_folder(source), Path(to)
    check_places(source, to)
    stored = stored_as(model, layout)
    begun = to.with_name(f".{to.name}.{os.getpid()}.unfinished")
    begun.mkdir(parents=True)
    try:
        tensors = dict(_tensors(model, source, stored))
        save_file(tensors, begun / "model.safetensors", {"format": "pt"})
        for file in source.iterdir():
            if file.is_file() and not file.name.endswith((".safetensors", ".index.json", ".bin")):
                shutil.copyfile(file, begun / file.name)
        config = read_json(source / "config.json") | {"quantization_config": write_config(stored)}
        _write_json(begun / "config.json", config)
        begun.rename(to)
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    return to


def check_places(source: Path, to: Path) -> None:
    """Raise QuantizationError where no quantized model can be written from one folder to another;
    ask before much is computed."""
    if to.exists():
        raise QuantizationError(f"{to} is there already; name another folder, or remove it.")
    if read_quantization(source) is not None:
        raise QuantizationError(f"{source} is quantized already; begin with the unquantized model.")
    if ModelConfig.from_pretrained(source).family == "gpt2":
        raise QuantizationError("GPT-2 stores its linears in another way; it is not written.")


def _tensors(model: Transformer, source: Path, stored: StoredAs) -> Iterator[tuple[str, Tensor]]:
    """What stands in the new file, by its name there: the source's names, the model's values."""
    values, modules = model.state_dict(), dict(linears(model))
    for name, was in read_tensors(source):
        for target, _ in module_tensors(model.config.family, name, was):
            module, _, last = target.rpartition(".")
            if isinstance(modules.get(module), QuantizedLinear) and last == "weight":
                codes = to_tensors(modules[module], stored)
                stem = name.removesuffix("weight")
                yield from ((stem + n, tensor.cpu().contiguous()) for n, tensor in codes.items())
                continue
            value = values.get(target, was).cpu()  # a tied model has no head
            same = torch.equal(value.to(was.dtype).to(value.dtype), value)
            yield name, value.to(was.dtype).clone() if same else value.clone()


def _write_json(path: Path, data: Json) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")

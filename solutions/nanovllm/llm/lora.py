"""LoRA adapters: models that share all weights but two thin factors a linear (Hu and others, 2021).

With factors A [R, E] and B [O, R] a linear gives W x + s B A x; s is lora_alpha / R, or
lora_alpha / sqrt(R) where the adapter's config says use_rslora. Folders are those that peft writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nanovllm.batching.plan import Plan
from nanovllm.llm.lora_params import adapter_of
from nanovllm.model.config import read_json
from nanovllm.model.errors import ModelFolderError
from nanovllm.model.loader import read_tensors

Factors = dict[str, tuple[Tensor, Tensor]]  # by the linear's name: A [R, E], and s B [O, R]
CONFIG = "adapter_config.json"
PLAIN = {  # field of adapter_config.json -> the values with which it changes nothing
    "bias": ("none", None), "use_dora": (False, None), "fan_in_fan_out": (False, None),
    "modules_to_save": ([], None), "alpha_pattern": ({}, None), "lora_bias": (False, None),
    "trainable_token_indices": ({}, [], None), "layer_replication": ([], None),
}  # fmt: skip


def read_adapter(folder: Path, model: nn.Module) -> Factors:
    """The factors of a peft folder, in the model's dtype. Raises ModelFolderError."""
    config = read_json(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        raise ModelFolderError(f"{folder / CONFIG} is of no LoRA adapter; peft writes such a file.")
    for field, plain in PLAIN.items():
        if config.get(field) not in plain:
            raise ModelFolderError(
                f"{folder / CONFIG} has {field} {config[field]!r}, which is not served; train an "
                "adapter of plain LoRA factors."
            )
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_tensors(folder):
        linear, _, half = name.removeprefix("base_model.model.").rpartition(".lora_")
        halves.setdefault(linear.removeprefix("model."), {})[half] = tensor
    linears = dict(model.named_modules())
    return {
        name: _checked(folder, name, linears.get(name), pair, config)
        for name, pair in halves.items()
    }


def _checked(
    folder: Path, name: str, linear: Any, pair: dict[str, Tensor], config: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """A and s B of one linear. Raises ModelFolderError."""
    a, b = pair.get("A.weight"), pair.get("B.weight")
    if not isinstance(linear, nn.Linear) or not name.startswith("layers.") or len(pair) > 2:
        raise ModelFolderError(
            f"{folder} changes {name!r}, which is no plain linear in a layer of this model; serve "
            "it with its own base model, unquantized."
        )
    shapes = [None if x is None else tuple(x.shape) for x in (a, b)]
    rank = len(a) if a is not None else 0
    wanted = [(rank, linear.in_features), (linear.out_features, rank)]
    if a is None or b is None or shapes != wanted:
        raise ModelFolderError(
            f"{folder} has factors of shapes {shapes[0]} and {shapes[1]} for {name}, whose weight "
            f"is {tuple(linear.weight.shape)}; it belongs to another model."
        )
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return a.to(linear.weight), (b.float() * scale).to(linear.weight)


class Adapters:
    """Lets each row of a step have the adapter of its request, in one pass over the model.

    The product with W is one for all rows of the step; each adapter adds its own, for its own rows.
    The model's weights stay as they are. by_name: read_adapter's factors.
    """

    def __init__(self, model: nn.Module, by_name: Mapping[str, Factors]) -> None:
        self.names = list(by_name)
        self.rows: dict[str, Tensor] = {}  # of the present step, by adapter
        for linear in {linear for factors in by_name.values() for linear in factors}:
            here = {name: f[linear] for name, f in by_name.items() if linear in f}
            model.get_submodule(linear).register_forward_hook(self._hook(here))

    def choose(self, plan: Plan, device: torch.device | str) -> None:
        """From now on the rows are those of this plan."""
        rows: dict[str, list[int]] = {}
        for chunk, mine in zip(plan.chunks, plan.rows, strict=True):
            name = adapter_of(chunk.request)
            if name is not None:
                rows.setdefault(name, []).extend(mine)
        self.rows = {name: torch.tensor(some, device=device) for name, some in rows.items()}

    def _hook(self, factors: Mapping[str, tuple[Tensor, Tensor]]) -> Any:
        def add(
            linear: nn.Module, inputs: tuple[Float[Tensor, "T E"]], out: Float[Tensor, "T O"]
        ) -> None:
            for name, rows in self.rows.items():
                if name in factors:
                    a, b = factors[name]
                    out[rows] += inputs[0][rows] @ a.T @ b.T

        return add

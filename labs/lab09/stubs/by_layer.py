"""Calibration layer by layer: each one is quantized for what the quantized ones before it give."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.model.transformer import Transformer
from nanovllm.quantization.held_out import RowsAttend

# What each linear of a layer multiplies, by the linear's name in it: "self_attn.q_proj", ...
Inputs = dict[str, Float[Tensor, "n K"]]
Quantizer = Callable[[Any, Inputs], None]  # the first is a DecoderBlock
OnProgress = Callable[[int, int], None]  # how much is done, of how much


@torch.no_grad()
def quantize_by_layer(
    model: Transformer,
    rows: Int[Tensor, "R S"],
    quantizer: Quantizer,
    on_progress: OnProgress | None = None,
) -> None:
    """Let `quantizer` change the layers of a model in place, from the first to the last.

    For each layer `quantizer(block, inputs)` is called once. `inputs` has for every `nn.Linear` of
    the block the vectors that it multiplies when the rows of tokens go through the model, all n =
    R * S of them in the rows' order: the layers before are quantized already, this one and those
    behind it are not. No row sees another one (`RowsAttend`). The block is left without hooks.
    `on_progress(layers done, layers)` is called after each layer.

    >>> from nanovllm.model.config import ModelConfig
    >>> model = Transformer(ModelConfig("llama", 8, 4, 2, 2, 1, 2, 6, 16))
    >>> shapes = lambda block, inputs: print(len(inputs), inputs["mlp.down_proj"].shape)
    >>> quantize_by_layer(model, torch.tensor([[1, 2, 3], [4, 5, 6]]), shapes)
    7 torch.Size([6, 6])
    7 torch.Size([6, 6])
    """
    raise NotImplementedError("lab09 task 3: quantize_by_layer")

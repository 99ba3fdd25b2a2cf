"""Outlier channels, as large models have them, planted in a model that has none (given)."""

from collections.abc import Sequence
from typing import cast

import torch

from nanovllm.model.block import DecoderBlock
from nanovllm.model.transformer import Transformer


@torch.no_grad()
def plant_outliers(
    model: Transformer, factor: float, channels: Sequence[int] = (3, 70, 131, 200)
) -> None:
    """Multiply these channels of both norms of every layer by `factor`, and divide the columns
    that read them by it, in place: the model computes what it did before."""
    for block in model.layers:
        block = cast(DecoderBlock, block)
        attention, mlp = block.self_attn, block.mlp
        first = [attention.q_proj, attention.k_proj, attention.v_proj]
        second = [getattr(mlp, name) for name in ("gate_proj", "up_proj") if hasattr(mlp, name)]
        for norm, readers in (
            (block.input_layernorm, first),
            (block.post_attention_layernorm, second),
        ):
            for parameter in norm.parameters():  # a LayerNorm has a bias, too
                parameter[list(channels)] *= factor
            for reader in readers:
                reader.weight[:, list(channels)] /= factor

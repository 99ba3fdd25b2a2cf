"""Rows of text for calibration and for judging, and a model's loss on them (given)."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor

import nanovllm
from nanovllm.model.config import ModelConfig
from nanovllm.model.transformer import Transformer

ROWS = Path(nanovllm.__file__).resolve().parent.parent / "models" / "rows.safetensors"


def calibration_rows(count: int = 24) -> Int[Tensor, "R 512"]:
    """The first of 24 rows of 512 tokens of the bundled model's kind of text."""
    return load_file(ROWS)["calibration"][:count, :512].long()


def held_out_rows(count: int = 32) -> Int[Tensor, "R 513"]:
    """The first of 32 rows of 513 tokens; none of them is a calibration row."""
    return load_file(ROWS)["held_out"][:count].long()


class RowsAttend:
    """An attend for rows of equal length, one after another: no row sees another.

    config: of the model, for the windows of its layers; None for a model that has none.
    """

    def __init__(self, num_rows: int, config: ModelConfig | None = None) -> None:
        self.num_rows = num_rows
        self.config = config

    def __call__(
        self,
        layer: int,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
    ) -> Float[Tensor, "T H D"]:
        q, k, v = (x.unflatten(0, (self.num_rows, -1)).transpose(1, 2) for x in (q, k, v))
        window, length = self.config.window(layer) if self.config else None, q.shape[2]
        if window is None or window >= length:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            every = torch.ones(length, length, dtype=torch.bool, device=q.device)
            seen = every.tril().triu(1 - window)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)


def hidden_states(model: Transformer, rows: Int[Tensor, "R S"]) -> Float[Tensor, "R S E"]:
    """What the model makes of every token of the rows, after its last norm."""
    positions = torch.arange(rows.shape[1]).repeat(len(rows))
    hidden = model(rows.flatten(), positions, RowsAttend(len(rows), model.config))
    return hidden.unflatten(0, tuple(rows.shape))


@torch.inference_mode()
def held_out_loss(model: Transformer, rows: Int[Tensor, "R S"] | None = None) -> float:
    """Mean of -log p(next token), in nats, over all places of the rows but the last of each.

    exp of it is the perplexity. rows: all held-out rows if None.
    """
    rows = held_out_rows() if rows is None else rows
    total = 0.0
    for some in rows.split(8):
        logits = model.logits(hidden_states(model, some[:, :-1]).flatten(0, 1))
        losses = F.cross_entropy(logits.float(), some[:, 1:].flatten(), reduction="sum")
        total += losses.item()
    return total / rows[:, 1:].numel()

"""AWQ: channels with large inputs get larger weights before rounding, and smaller inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.model.block import DecoderBlock
from nanovllm.quantization.by_layer import Inputs
from nanovllm.quantization.gptq import hessian
from nanovllm.quantization.grids import round_to_nearest
from nanovllm.quantization.grouped import GroupedLinear
from nanovllm.quantization.linear import replace_linear
from nanovllm.quantization.scheme import Scheme


@dataclass(frozen=True)
class Fold:
    """A module of a block whose S outputs may be divided by a scale each, because the linears that
    read them can be multiplied by it (given).

    source: the name of a norm or linear. readers: names of linears; they have the same input.
    channel_of: for each of their K columns the source's output that it is multiplied with.
    """

    source: str
    readers: tuple[str, ...]
    channel_of: Int[Tensor, "K"]


def value_channels(num_heads: int, num_kv_heads: int, head_dim: int) -> Int[Tensor, "H*D"]:
    """For each input of `o_proj` the output of `v_proj` that it is a weighted mean of: query heads
    that share a value head read the same ones.

    >>> value_channels(num_heads=4, num_kv_heads=2, head_dim=3)
    tensor([0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5])
    """
    raise NotImplementedError("lab09 task 4: value_channels")


def folds(block: DecoderBlock, head_dim: int) -> list[Fold]:
    """All folds of a block, in the order of its forward (given).

    GPT-2's MLP has none before `down_proj`: its gelu stands between.
    """
    attention, mlp = block.self_attn, block.mlp
    hidden = torch.arange(attention.q_proj.in_features)
    queries, values = (p.weight.shape[0] // head_dim for p in (attention.q_proj, attention.v_proj))
    gated = hasattr(mlp, "gate_proj")
    inner = ("mlp.gate_proj", "mlp.up_proj") if gated else ("mlp.up_proj",)
    projections = tuple(f"self_attn.{name}_proj" for name in "qkv")
    found = [
        Fold("input_layernorm", projections, hidden),
        Fold("self_attn.v_proj", ("self_attn.o_proj",), value_channels(queries, values, head_dim)),
        Fold("post_attention_layernorm", inner, hidden),
    ]
    if gated:
        found.append(
            Fold("mlp.up_proj", ("mlp.down_proj",), torch.arange(mlp.down_proj.in_features))
        )
    return found


def search_scale(
    weights: Sequence[Float[Tensor, "_N K"]],
    inputs: Float[Tensor, "n K"],
    channel_of: Int[Tensor, "K"],
    scheme: Scheme,
) -> Float[Tensor, "S"]:
    """The scale of each source channel with which the outputs of the readers change least.

    There are S = max(channel_of) + 1 channels, each read by some column; scales are float32. a_c is
    the mean of |x| over the n inputs and the columns that read channel c. Candidates: for
    r = 0, 1/20, ..., 19/20 the scales a_c^r, at least 1e-4, divided by the root of the largest
    times the smallest. A weight is multiplied by the scales of its columns, rounded by
    `round_to_nearest`, and divided by them again. The candidate with the smallest sum of squared
    errors of all outputs wins, of equals the one with the smaller r; r = 0 is plain rounding.
    Source: Lin et al. 2023, equations 4 and 5.
    """
    raise NotImplementedError("lab09 task 4: search_scale")


def fold(
    source: Any,
    readers: Sequence[nn.Linear],
    channel_of: Int[Tensor, "K"],
    scale: Float[Tensor, "S"],
) -> None:
    """Divide the source's outputs by the scale and multiply the readers' columns with it, in
    place: what source and readers compute together does not change. The source is a norm or a
    linear, with a bias or without; the readers' biases stay.

    >>> norm, linear = nn.LayerNorm(2), nn.Linear(2, 1)
    >>> _ = nn.init.ones_(norm.bias), nn.init.ones_(linear.weight)
    >>> fold(norm, [linear], torch.tensor([0, 1]), torch.tensor([2.0, 4.0]))
    >>> norm.weight.tolist(), norm.bias.tolist(), linear.weight.tolist()
    ([0.5, 0.25], [0.5, 0.25], [[2.0, 4.0]])
    """
    raise NotImplementedError("lab09 task 4: fold")


def clip(
    weight: Float[Tensor, "N K"], inputs: Float[Tensor, "n K"], scheme: Scheme
) -> Float[Tensor, "N K"]:
    """The weight with each group's largest weights cut off, where the outputs gain by it.

    Every group of columns of every row chooses for itself among m, 0.95 m, ..., 0.55 m, where m is
    its largest |w|: its weights are clamped between minus that and that. It takes the smallest sum
    of squared errors of what the group alone adds to the n outputs, between the weight as it is
    and the clamped one after `round_to_nearest`; of equals the larger bound. The result has the
    weight's dtype.
    """
    raise NotImplementedError("lab09 task 4: clip")


def awq_block(block: DecoderBlock, inputs: Inputs, scheme: Scheme, head_dim: int) -> None:
    """Search and fold the scales of the block, fold by fold; then put a `GroupedLinear` in place
    of every linear, its weight clipped and rounded for the inputs that it has by then. The weights
    of q_proj and k_proj are not clipped: their errors meet in a softmax. `inputs` and its tensors
    stay as they are."""
    raise NotImplementedError("lab09 task 4: awq_block")

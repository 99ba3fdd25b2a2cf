"""A mixture of experts by grouped products; each program has one expert. Not verified on a GPU."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.kernels.runtime import launch
from nanovllm.kernels.silu import silu_and_mul
from nanovllm.model.experts import ExpertsConfig
from nanovllm.performance.moe import MoE, route


@triton.jit
def grouped_linear_kernel(
    x, stride_xm, stride_xk, source, weight, stride_wn, stride_wo, stride_wk,
    experts, starts, ends, target, out, stride_om, stride_oo, num_outputs, num_inputs,
    NUM_EXPERTS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Program (t, j): the rows of tile t times rows j * OUTPUTS .. of its expert's weight."""
    tile = tl.program_id(0)
    expert = tl.load(experts + tile)
    rows = tl.load(starts + tile) + tl.arange(0, ROWS)
    there = (rows < tl.load(ends + tile)) & (expert < NUM_EXPERTS)  # past the last tile: nothing
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    from_row = tl.load(source + rows, mask=there, other=0)
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    end = tl.where(expert < NUM_EXPERTS, num_inputs, 0)
    for start in range(0, end, INPUTS):
        inputs = start + tl.arange(0, INPUTS)
        left = x + from_row[:, None] * stride_xm + inputs[None, :] * stride_xk
        right = weight + expert * stride_wn + outputs[None, :].to(tl.int64) * stride_wo
        inside = inputs < num_inputs
        a = tl.load(left, mask=there[:, None] & inside[None, :], other=0.0)
        b = tl.load(
            right + inputs[:, None] * stride_wk,
            mask=inside[:, None] & (outputs < num_outputs)[None, :],
            other=0.0,
        )
        total += tl.dot(a, b, input_precision="ieee")
    to_row = tl.load(target + rows, mask=there, other=0)
    place = out + to_row[:, None] * stride_om + outputs[None, :] * stride_oo
    tl.store(place, total, mask=there[:, None] & (outputs < num_outputs)[None, :])


@dataclass(frozen=True)
class Tiles:
    """Visits sorted by expert, cut into tiles of `rows`; nothing of it is read by the host.

    visits [M]: each visit's place in `experts.flatten()`. A tile's expert, and the first of its
    rows and the end of its expert's; there are as many tiles as any choice of experts may need,
    and those that are not needed have no expert (N).
    """

    visits: Int[Tensor, "M"]
    experts: Int[Tensor, "tiles"]
    starts: Int[Tensor, "tiles"]
    ends: Int[Tensor, "tiles"]
    rows: int


def tiles_of(experts: Int[Tensor, "T k"], num_experts: int, rows: int) -> Tiles:
    """The tiles of a step, computed on the tensor's own device.

    >>> found = tiles_of(torch.tensor([[2, 0], [2, 2]]), num_experts=3, rows=2)
    >>> found.visits.tolist(), found.experts.tolist()
    ([1, 0, 2, 3], [0, 2, 2, 3, 3])
    """
    flat = experts.flatten()
    counts = flat.new_zeros(num_experts).scatter_add_(0, flat, torch.ones_like(flat))
    row_ends, tile_ends = counts.cumsum(0), ((counts + rows - 1) // rows).cumsum(0)
    tiles = torch.arange(-(-len(flat) // rows) + num_experts, device=flat.device)
    owner = torch.searchsorted(tile_ends, tiles, right=True)
    known = owner.clamp(max=num_experts - 1)
    before = tile_ends[known] - (counts[known] + rows - 1) // rows  # tiles of other experts
    starts = row_ends[known] - counts[known] + (tiles - before) * rows
    return Tiles(flat.argsort(stable=True), owner, starts, row_ends[known], rows)


def grouped_linear(
    x: Float[Tensor, "R K"],
    weight: Float[Tensor, "N O K"],
    tiles: Tiles,
    source: Int[Tensor, "M"],
    target: Int[Tensor, "M"],
) -> Float[Tensor, "M O"]:
    """Row target[m] is row source[m] of x times the weight of the expert of visit m."""
    num_experts, outputs, inputs = weight.shape
    out = x.new_empty(len(tiles.visits), outputs)
    launch(
        grouped_linear_kernel, (len(tiles.experts), triton.cdiv(outputs, 64)),
        x, *x.stride(), source, weight, *weight.stride(), tiles.experts, tiles.starts, tiles.ends,
        target, out, *out.stride(), outputs, inputs,
        NUM_EXPERTS=num_experts, ROWS=tiles.rows, OUTPUTS=64, INPUTS=64,
    )  # fmt: skip
    return out


def moe_by_kernels(layer: MoE, x: Float[Tensor, "T E"], config: ExpertsConfig) -> Tensor:
    """`layer(x)` [T, E] without a loop over experts; no number is read by the host.

    The order of a token's sum is that of its experts, so that a graph's replay repeats it.
    """
    k = config.per_token
    weights, experts = route(layer.gate(x), k, config.normalize)
    few = len(x) * k <= 16 * config.num_experts
    tiles = tiles_of(experts, config.num_experts, rows=16 if few else 64)
    in_order = torch.arange(len(tiles.visits), device=x.device)
    gate_up = grouped_linear(x, layer.gate_up, tiles, tiles.visits // k, in_order)
    out = grouped_linear(silu_and_mul(gate_up), layer.down, tiles, in_order, tiles.visits)
    result = (out.view(len(x), k, x.shape[1]) * weights[..., None].to(x.dtype)).sum(dim=1)
    if config.shared_size:
        shared = F.linear(x, layer.shared_expert_gate.weight).sigmoid()
        result = result + shared * layer.shared_expert(x)
    return result

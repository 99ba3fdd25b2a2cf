"""What checkpoints call the tensors of a quantized linear, and how codes lie in them.

Each layout is a pair: `to_...` gives the tensors of one weight [N, K] in M groups, by the names
that follow the linear's own name in a file; `from_...` gives the weight back. Words are int32 and
hold p = 32 // bits codes, as `pack` fills them. Scales are the grid's `stored_scales` in the
tensors: float16, unless that would change those of another's file. A `scheme` says bits and group
size, and whether all grids of the file are symmetric. Groups lie one after another, as in
`fit_grid`, where no tensor says otherwise; only GPTQ's layout is asked to write others.
"""

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.packing import pack, unpack
from nanovllm.quantization.scheme import Scheme

Tensors = dict[str, Tensor]


def one_after_another(columns: int, scheme: Scheme) -> Int[Tensor, "K"]:
    """The group of each column where groups lie one after another (given)."""
    return torch.arange(columns) // (scheme.group_size or columns)


def to_pack_quantized(weight: QuantizedWeight, scheme: Scheme) -> Tensors:
    """compressed-tensors' `pack-quantized`, the layout of weights without activations.

    weight_packed [N, ceil(K / p)]: codes along K. weight_scale [N, M]. weight_shape int64 [2]: N
    and K. weight_zero_point [ceil(N / p), M]: zero points along N; not if the scheme is symmetric.
    (The library's codes go from -2**(bits - 1), and it adds as much before it packs them: in the
    file they are ours.)

    >>> grid = Grid(4, torch.ones(2, 1), torch.tensor([[8], [3]], dtype=torch.uint8),
    ...             torch.tensor([0]))
    >>> weight = QuantizedWeight(torch.tensor([[1], [2]], dtype=torch.uint8), grid)
    >>> to_pack_quantized(weight, Scheme(bits=4))  # doctest: +NORMALIZE_WHITESPACE
    {'weight_packed': tensor([[1], [2]], dtype=torch.int32),
     'weight_scale': tensor([[1.], [1.]], dtype=torch.float16), 'weight_shape': tensor([2, 1]),
     'weight_zero_point': tensor([[56]], dtype=torch.int32)}
    """
    raise NotImplementedError("lab09 task 2: to_pack_quantized")


def from_pack_quantized(tensors: Tensors, scheme: Scheme) -> QuantizedWeight:
    """`to_pack_quantized` undone; in a symmetric scheme zero points are the middle code.

    weight_g_idx [K], where there is one, is the group of each column.
    """
    raise NotImplementedError("lab09 task 2: from_pack_quantized")


def to_int_quantized(weight: QuantizedWeight, scheme: Scheme) -> Tensors:
    """compressed-tensors' `int-quantized`, for 8 bits: nothing is packed (given).

    weight int8 [N, K]: codes less 128. weight_scale [N, M]. weight_zero_point int8 [N, M]: zero
    points less 128; not if the scheme is symmetric.
    """
    grid = weight.grid
    tensors = {"weight": _signed(weight.codes), "weight_scale": grid.stored_scales}
    if not scheme.symmetric:
        tensors["weight_zero_point"] = _signed(grid.zeros)
    return tensors


def from_int_quantized(tensors: Tensors, scheme: Scheme) -> QuantizedWeight:
    """`to_int_quantized` undone, with `weight_g_idx` as in `from_pack_quantized` (given)."""
    scales, signed = tensors["weight_scale"].float(), tensors["weight"]
    zeros = torch.zeros(scales.shape) if scheme.symmetric else tensors["weight_zero_point"]
    group_of = tensors.get("weight_g_idx", one_after_another(signed.shape[1], scheme))
    return QuantizedWeight(_unsigned(signed), Grid(8, scales, _unsigned(zeros), group_of))


def _signed(codes: UInt8[Tensor, "..."]) -> Tensor:
    return (codes.short() - 128).to(torch.int8)


def _unsigned(codes: Tensor) -> UInt8[Tensor, "..."]:
    return (codes.short() + 128).to(torch.uint8)


def to_gptq(weight: QuantizedWeight, version: int = 1) -> Tensors:
    """GPTQ's layout: everything is turned round, so that K comes first.

    qweight [ceil(K / p), N]: codes along K. qzeros [M, ceil(N / p)]: zero points along N, also of
    symmetric grids; version 1 stores each of them less 1 (0 as the last code), version 2 as it is.
    scales [M, N]. g_idx int32 [K]: the group of each column.
    """
    raise NotImplementedError("lab09 task 2: to_gptq")


def from_gptq(tensors: Tensors, scheme: Scheme, version: int = 1) -> QuantizedWeight:
    """`to_gptq` undone; g_idx alone says which column is in which group."""
    raise NotImplementedError("lab09 task 2: from_gptq")


def to_awq(weight: QuantizedWeight) -> Tensors:
    """AWQ's layout for its GEMM kernel: K first, too, but the codes of a word lie along N.

    qweight [K, ceil(N / p)] and qzeros [M, ceil(N / p)]: of every p codes that share a word, those
    at even places come first, then those at odd places (for 4 bits 0 2 4 6 1 3 5 7, for 8 bits
    0 2 1 3). What is left over of the last word is 0. scales [M, N].

    >>> grid = Grid(4, torch.ones(8, 1), torch.zeros(8, 1, dtype=torch.uint8), torch.tensor([0]))
    >>> codes = torch.arange(8, dtype=torch.uint8).unsqueeze(1)
    >>> hex(to_awq(QuantizedWeight(codes, grid))["qweight"].item())
    '0x75316420'
    """
    raise NotImplementedError("lab09 task 2: to_awq")


def from_awq(tensors: Tensors, scheme: Scheme) -> QuantizedWeight:
    """`to_awq` undone."""
    raise NotImplementedError("lab09 task 2: from_awq")




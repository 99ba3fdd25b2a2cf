"""A linear whose weight is codes into a table for each row, and a few weights that stand apart."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from nanovllm.quantization.linear import QuantizedLinear
from nanovllm.quantization.packing import pack, unpack


class TableLinear(QuantizedLinear):
    """Weight [n, k] is table[n, codes[n, k]], and in some places a sparse value more.

    Buffers: words [N, ...] int32 (the codes, packed), table [N, 2**bits] float16; the sparse part
    in CSR: row_ends [N + 1] and columns [S] int32, extra [S] float16. Without one S is 0.
    """

    words: Tensor
    table: Tensor
    row_ends: Tensor
    columns: Tensor
    extra: Tensor

    def __init__(
        self,
        codes: UInt8[Tensor, "N K"],
        table: Float[Tensor, "N 2**bits"],
        extra: Float[Tensor, "N K"] | None = None,
        bias: Tensor | None = None,
    ) -> None:
        rows, columns = codes.shape
        super().__init__(columns, rows, bias)
        self.bits = (table.shape[1] - 1).bit_length()
        self.register_buffer("words", pack(codes, self.bits))
        self.register_buffer("table", table.half())
        found = _csr(codes.new_zeros(codes.shape, dtype=torch.half) if extra is None else extra)
        self.register_buffer("row_ends", found.crow_indices().int())
        self.register_buffer("columns", found.col_indices().int())
        self.register_buffer("extra", found.values().half())

    @property
    def codes(self) -> UInt8[Tensor, "N K"]:
        """The place of each weight in its row's table."""
        return unpack(self.words, self.bits, self.in_features)

    def dense(self) -> Float[Tensor, "N K"]:
        """What the codes stand for, in float32."""
        return self.table.float().gather(1, self.codes.long())

    def sparse(self) -> Float[Tensor, "N K"]:
        """The sparse part in float32, a CSR tensor: torch multiplies it with matrices [K, T]."""
        size = (self.out_features, self.in_features)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(
                self.row_ends, self.columns, self.extra.float(), size, check_invariants=False
            )

    def dequantize(self) -> Float[Tensor, "N K"]:
        return self.dense() + self.sparse().to_dense()

    @property
    def stored_bits(self) -> int:
        """What all buffers but the bias take."""
        parts = (self.words, self.table, self.row_ends, self.columns, self.extra)
        return 8 * sum(part.nbytes for part in parts)

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        """x times the dense part in x's dtype, plus x times the sparse part, which stays sparse and
        whose sums run in float32; plus the bias. In which order, and whether the sums of the three
        are rounded in between, is open. The result has x's dtype."""
        raise NotImplementedError("lab09 task 5: TableLinear.forward")


def _csr(values: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return values.to_sparse_csr()

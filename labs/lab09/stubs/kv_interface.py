"""What a quantized K/V cache offers to the store and to the engine (given)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.model.config import ModelConfig
from nanovllm.quantization.errors import QuantizationError

KINDS = ("int8", "int4", "fp8")
Pairs = Sequence[tuple[int, int]]  # (from block, to block)


def check_kind(kind: str) -> None:
    """Raise QuantizationError unless a cache of this kind can be made.

    >>> check_kind("int2")
    Traceback (most recent call last):
    nanovllm.quantization.errors.QuantizationError: kind must be int8, int4 or fp8; got 'int2'.
    """
    if kind not in KINDS:
        raise QuantizationError(f"kind must be int8, int4 or fp8; got {kind!r}.")


class QuantizedCacheInterface(Protocol):
    """K and V of all layers in blocks, as codes: lab 05's PagedCache in fewer bits.

    Which block is whose, it does not know: it is told slots and block numbers. A row is what one
    token has in one key head of one layer, K or V: D values. Every row has its own scale. In which
    dtypes and in which order codes and scales lie is open, within the handout's bytes and errors;
    codes count steps of the scale as it is kept, after its rounding. A row of zeros reads as zeros,
    but in int4 a single 0 among others may read as up to half a step.
    """

    num_blocks: int  # on the device
    block_size: int  # tokens a block
    device: torch.device

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        num_host_blocks: int = 0,
        *,
        kind: str = "int8",
    ) -> None:
        """kind: int8, int4 or fp8. dtype: what `read` gives. Raises QuantizationError."""

    @staticmethod
    def bytes_per_token(config: ModelConfig, kind: str) -> int:
        """Bytes that one token takes in all layers, scales and all. Raises QuantizationError."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes reserved on the device, whether used or not."""
        ...

    def write(
        self,
        layer: int,
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
        slot_mapping: Int[Tensor, " T"],
    ) -> None:
        """Put every token's k and v of one layer into its slot; slot -1 is written nowhere. All
        other slots of one write are different."""

    def read(
        self, layer: int, block_ids: Int[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N P G D"], Float[Tensor, "N P G D"]]:
        """K and V of these blocks of one layer, in this order; what unused slots give is open."""
        ...

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copy whole blocks, K and V of all layers; no block is both read and written."""

    def swap_out(self, pairs: Pairs) -> None:
        """Copy device blocks to host blocks."""

    def swap_in(self, pairs: Pairs) -> None:
        """Copy host blocks to device blocks."""

"""K and V as the native step reads them, and the plain way to read and write them."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.fast.availability import BLOCK_MULTIPLE
from nanovllm.fast.memory import untouched
from nanovllm.fast.weights import padded, pair_of
from nanovllm.model.config import ModelConfig
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.cache import PagedCache, Pairs, resized


def padded_dim(config: ModelConfig) -> int:
    """D filled up to whole vectors, two at a time, of any machine."""
    return padded(config.head_dim, 2 * BLOCK_MULTIPLE)


class FastCache(PagedCache):
    """k [L, B, G, D / pair, P, pair], v [L, B, G, P / pair, D, pair], D filled up with zeros.

    A vector holds one dimension of many positions of K, or many dimensions of one position of V;
    with a pair of 2 (bfloat16), two of them.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        num_host_blocks: int = 0,
    ) -> None:
        pair, dim, layers = pair_of(dtype), padded_dim(config), config.num_layers
        k_block = (config.num_kv_heads, dim // pair, block_size, pair)
        v_block = (config.num_kv_heads, block_size // pair, dim, pair)
        self.k = untouched((layers, num_blocks, *k_block), dtype)
        self.v = untouched((layers, num_blocks, *v_block), dtype)
        self.host_k = torch.empty(layers, num_host_blocks, *k_block, dtype=dtype)
        self.host_v = torch.empty(layers, num_host_blocks, *v_block, dtype=dtype)

    @property
    def scales(self) -> dict[str, Tensor]:
        """What the native step has to know besides k and v."""
        return {}

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self.k.shape[4]

    def write(
        self,
        layer: int,
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
        slot_mapping: Int[Tensor, "T"],
    ) -> None:
        """As the plain cache: every token's k and v of one layer into its slot, -1 nowhere."""
        kept = slot_mapping >= 0
        blocks, places = slot_mapping[kept] // self.block_size, slot_mapping[kept] % self.block_size
        used, pair = k.shape[-1], self.k.shape[-1]
        by_pair = k[kept].unflatten(-1, (-1, pair))  # [T, G, D / pair, pair]
        self.k[layer][blocks, :, : used // pair, places] = by_pair
        self.v[layer][blocks, :, places // pair, :used, places % pair] = v[kept]


class FastInt8Cache(FastCache):
    """k [L, B, G, D / 4, P, 4] uint8 (codes + 128), v [L, B, G, P / 4, D, 4] int8 codes, and their
    scales [L, B, G, P]: lab 09's rows of int8. dtype: what `read` gives.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        num_host_blocks: int = 0,
    ) -> None:
        self.dtype, self.head_dim = dtype, config.head_dim
        blocks, dim = (config.num_layers, num_blocks, config.num_kv_heads), padded_dim(config)
        self.k = untouched((*blocks, dim // 4, block_size, 4), torch.uint8).fill_(128)
        self.v = untouched((*blocks, block_size // 4, dim, 4), torch.int8)
        self.k_scales = torch.zeros(*blocks, block_size)
        self.v_scales = torch.zeros(*blocks, block_size)
        self._held = (self.k, self.v, self.k_scales, self.v_scales)
        self._host = tuple(x.new_empty(len(x), num_host_blocks, *x.shape[2:]) for x in self._held)

    @property
    def scales(self) -> dict[str, Tensor]:
        return {"k_scales": self.k_scales, "v_scales": self.v_scales}

    @property
    def nbytes(self) -> int:
        """Bytes reserved, whether used or not."""
        return sum(x.nbytes for x in self._held)

    def write(
        self,
        layer: int,
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
        slot_mapping: Int[Tensor, "T"],
    ) -> None:
        kept = slot_mapping >= 0
        blocks, places = slot_mapping[kept] // self.block_size, slot_mapping[kept] % self.block_size
        k_codes, self.k_scales[layer][blocks, :, places] = _int8_rows(k[kept])
        v_codes, self.v_scales[layer][blocks, :, places] = _int8_rows(v[kept])
        dims = torch.arange(self.head_dim)
        k_codes = (k_codes + 128).to(torch.uint8)
        at = blocks[:, None], slice(None), dims // 4, places[:, None], dims % 4
        self.k[layer][at] = k_codes.transpose(1, 2)
        self.v[layer][blocks, :, places // 4, : self.head_dim, places % 4] = v_codes.to(torch.int8)

    def read(
        self, layer: int, block_ids: Int[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N P G D"], Float[Tensor, "N P G D"]]:
        """What the codes of these blocks stand for."""
        k = self.k[layer][block_ids].permute(0, 3, 1, 2, 4).flatten(3).int() - 128
        v = self.v[layer][block_ids].permute(0, 2, 4, 1, 3).flatten(1, 2)
        both = []
        for codes, scales in ((k, self.k_scales), (v, self.v_scales)):
            scale = scales[layer][block_ids].transpose(1, 2).unsqueeze(-1)
            both.append((codes[..., : self.head_dim] * scale).to(self.dtype))
        return both[0], both[1]

    def resize(self, num_blocks: int) -> None:
        self.k = resized(self.k, num_blocks, fill=128)
        self.v = resized(self.v, num_blocks)
        self.k_scales = resized(self.k_scales, num_blocks)
        self.v_scales = resized(self.v_scales, num_blocks)
        self._held = (self.k, self.v, self.k_scales, self.v_scales)

    def copy_blocks(self, pairs: Pairs) -> None:
        old, new = self._columns(pairs)
        for held in self._held:
            held[:, new] = held[:, old]

    def swap_out(self, pairs: Pairs) -> None:
        here, there = self._columns(pairs)
        for held, host in zip(self._held, self._host, strict=True):
            host[:, there] = held[:, here]

    def swap_in(self, pairs: Pairs) -> None:
        there, here = self._columns(pairs)
        for held, host in zip(self._held, self._host, strict=True):
            held[:, here] = host[:, there]


def _int8_rows(x: Float[Tensor, "T G D"]) -> tuple[Float[Tensor, "T G D"], Float[Tensor, "T G"]]:
    """Codes -127 .. 127, and the scale of each row."""
    scale = x.float().abs().amax(dim=-1) / 127
    codes = x.float() / torch.where(scale > 0, scale, 1.0).unsqueeze(-1)
    return codes.round().clamp(-127, 127), scale


def attend_plainly(
    q: Float[Tensor, "T H D"],
    k_cache: Float[Tensor, "B G D/pair P pair"],
    v_cache: Float[Tensor, "B G P/pair D pair"],
    batch: PagedBatch,
    scale: float | None = None,
    window: int | None = None,
) -> Float[Tensor, "T H D"]:
    """Lab 05's attention over one layer of a FastCache: what runs until the native step is ready.

    The blocks of this step are brought into the plain layout first.
    """
    used, tables = batch.block_tables.unique(return_inverse=True)
    k = k_cache[used].permute(0, 3, 1, 2, 4).flatten(3)  # [B', P, G, D]
    v = v_cache[used].permute(0, 2, 4, 1, 3).flatten(1, 2)
    dim = q.shape[-1]
    renumbered = replace(batch, block_tables=tables.to(torch.int32))
    return paged_attention(q, k[..., :dim], v[..., :dim], renumbered, scale, window)

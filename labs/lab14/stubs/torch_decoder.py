"""The fused decoder over lab 05's cache by torch's operations: graphs on a CPU (given).

A decode reads whole tables, as wide as the longest context may be, so that its shapes never change.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.model.transformer import Transformer
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.cache import PagedCache
from nanovllm.performance.errors import PerformanceError
from nanovllm.performance.fusion import FusedTransformer


def write_row(cache: Tensor, new: Float[Tensor, "N G D"], slots: Int[Tensor, "N"]) -> None:
    """Put each row into its slot of a layer's cache [B, P, G, D]; -1: nowhere.

    Without a choice by a mask, whose size the host would have to know: a row that goes nowhere
    repeats the first one, which goes nowhere only where all do; then slot 0 is written as it was.
    """
    flat = cache.flatten(0, 1)
    first = slots[:1].clamp(min=0)
    kept = torch.where((slots[:1] >= 0)[:, None, None], new[:1], flat[first])
    valid = slots >= 0
    flat[torch.where(valid, slots, first)] = torch.where(valid[:, None, None], new, kept)


def attend_tables(
    q: Float[Tensor, "N H D"], k_cache: Tensor, v_cache: Tensor, batch: PagedBatch,
    window: int | None,
) -> Float[Tensor, "N H D"]:  # fmt: skip
    """One query of each sequence over its whole table; a context of 0 gives zeros."""
    tables, lens = batch.block_tables.long(), batch.context_lens.long()[:, None]
    k, v = (x[tables].flatten(1, 2).transpose(1, 2) for x in (k_cache, v_cache))  # [N, G, S, D]
    places = torch.arange(k.shape[2], device=q.device)
    seen = places < lens
    v = torch.where(seen[:, None, :, None], v, 0)  # what lies in unused slots may be NaN
    k = torch.where(seen[:, None, :, None], k, 0)
    if window is not None:
        seen = seen & (places >= lens - window)
    seen = seen | (lens == 0)
    out = F.scaled_dot_product_attention(
        q.unflatten(1, (k.shape[1], -1)), k, v, attn_mask=seen[:, None, None]
    )
    return out.flatten(1, 2)


class TorchDecoder:
    """`FusedTransformer` with the face of the GPU's decoder; `model` is lab 02's.

    Raises PerformanceError for a model that cannot be fused, or whose experts the host chooses.
    """

    def __init__(self, model: Transformer) -> None:
        if model.config.experts is not None:
            raise PerformanceError(
                "a mixture of experts asks the host how many visits each expert has, which a graph "
                "cannot; use the plain engine."
            )
        self.model, self.fused = model, FusedTransformer(model)

    def forward(
        self,
        token_ids: Int[Tensor, "T"],
        positions: Int[Tensor, "T"],
        cache: PagedCache,
        batch: PagedBatch,
    ) -> Float[Tensor, "T E"]:
        """The hidden states after the last norm; K and V are stored by batch.slot_mapping."""
        config = self.model.config

        def decode(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            write_row(cache.k[layer], k, batch.slot_mapping)
            write_row(cache.v[layer], v, batch.slot_mapping)
            window = config.window(layer)
            return attend_tables(q, cache.k[layer], cache.v[layer], batch, window)

        def chunks(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(layer, k, v, batch.slot_mapping)
            window = config.window(layer)
            return paged_attention(q, cache.k[layer], cache.v[layer], batch, window=window)

        return self.fused(token_ids, positions, decode if batch.max_query_len == 1 else chunks)

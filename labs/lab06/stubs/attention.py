"""The three attention kernels behind lab 05's seam: what a step's `attend` calls on a GPU."""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.kernels.paged_decode import paged_decode
from nanovllm.kernels.paged_prefill import paged_prefill
from nanovllm.kernels.runtime import INTERPRETED
from nanovllm.kernels.split_decode import choose_splits, split_decode
from nanovllm.kernels.store_kv import store_kv
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.cache import PagedCache

SHARE = 64  # positions of a context that are worth a program of their own


def triton_paged_attention(
    q: Float[Tensor, "T H D"],
    k_cache: Float[Tensor, "B P G D"],
    v_cache: Float[Tensor, "B P G D"],
    batch: PagedBatch,
    scale: float | None = None,
    window: int | None = None,
    out: Float[Tensor, "T H D"] | None = None,
) -> Float[Tensor, "T H D"]:
    """Lab 05's `paged_attention` by kernels: decodes, split where they are few; else prefill."""
    tables, contexts = batch.block_tables, batch.context_lens
    if batch.max_query_len > 1:
        starts, longest = batch.query_start_loc, batch.max_query_len
        return paged_prefill(
            q, k_cache, v_cache, tables, contexts, starts, longest, scale, window, out
        )
    programs = len(contexts) * k_cache.shape[2]
    visible = min(batch.max_context_len, window or batch.max_context_len)
    splits = choose_splits(programs, num_processors(), visible, SHARE)
    if splits == 1:
        return paged_decode(q, k_cache, v_cache, tables, contexts, scale, window, out)
    return split_decode(q, k_cache, v_cache, tables, contexts, splits, scale, window, out)


class TritonPagedCache(PagedCache):
    """Lab 05's cache, written to by the kernel."""

    def write(
        self,
        layer: int,
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
        slot_mapping: Tensor,
    ) -> None:
        """Put every token's k and v of one layer into its slot; slot -1 is written nowhere."""
        store_kv(k, v, self.k[layer], self.v[layer], slot_mapping)


@cache
def num_processors() -> int:
    """Streaming multiprocessors of the GPU; the interpreter runs one program at a time."""
    if INTERPRETED:
        return 1
    return torch.cuda.get_device_properties("cuda").multi_processor_count

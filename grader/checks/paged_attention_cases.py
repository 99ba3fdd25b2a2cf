"""Random paged attention problems with poison where nothing may be read, and their solution."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from grader.checks.guard_regions import Guard


@dataclass(frozen=True)
class PagedCase:
    """What attention is given, and the answer of plain float64 arithmetic."""

    q: Tensor  # [T, H, D]
    k_cache: Tensor  # [B, P, G, D]; NaN beside the contexts
    v_cache: Tensor
    block_tables: Tensor  # [N, M]; filled up with a block of NaN
    context_lens: Tensor  # [N]
    query_start_loc: Tensor  # [N + 1]
    max_query_len: int
    guard: Guard
    expected: Tensor  # [T, H, D] in q's dtype
    strided: tuple[str, ...]

    @property
    def cache(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both caches, the block tables and the context lengths."""
        return self.k_cache, self.v_cache, self.block_tables, self.context_lens

    def empty_out(self) -> Tensor:
        """Where the answer goes [T, H, D], with poison around it."""
        order = (2, 0, 1) if "out" in self.strided else None
        return self.guard.empty(*self.q.shape, dtype=self.q.dtype, order=order)


def paged_case(
    generator: torch.Generator,
    contexts: list[int],
    lengths: list[int] | None = None,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    block_size: int = 4,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    sharp: float = 1.0,
    strided: tuple[str, ...] = (),
    device: str = "cpu",
) -> PagedCase:
    """Contexts of these lengths; the newest `lengths` (default: 1) tokens of each are queries.

    `sharp` multiplies the queries: with large ones a single key wins. `strided`: which of q, k,
    v and out are laid out otherwise, their dims apart. Positions that no window reaches
    any more hold NaN: their blocks may have been freed.
    """
    lengths = [1] * len(contexts) if lengths is None else lengths
    guard = Guard(device)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    q = sharp * normal(sum(lengths), heads, dim)
    widths = [-(-context // block_size) for context in contexts]
    num_blocks = sum(widths) + 2
    order = torch.randperm(num_blocks - 1, generator=generator) + 1  # block 0 belongs to nobody
    caches = [torch.full((num_blocks, block_size, kv_heads, dim), torch.nan).to(dtype)] * 2
    caches = [cache.clone() for cache in caches]
    poisoned = int(order[-1])
    tables = torch.full((len(contexts), max(widths) + 3), poisoned, dtype=torch.int32)
    starts = [0, *accumulate(lengths)]
    expected = torch.zeros(q.shape)
    taken = 0
    for i, (context, width) in enumerate(zip(contexts, widths, strict=True)):
        blocks = order[taken : taken + width]
        taken += width
        tables[i, :width] = blocks
        k, v = normal(context, kv_heads, dim), normal(context, kv_heads, dim)
        places = torch.arange(context)
        mine = slice(starts[i], starts[i + 1])
        expected[mine] = _attention(q[mine], k, v, window)
        for cache, values in zip(caches, (k, v), strict=True):
            if window is not None:
                values[: max(0, context - lengths[i] - window + 1)] = torch.nan
            cache[blocks[places // block_size], places % block_size] = values
    return PagedCase(
        q=guard.place(q, order=(1, 2, 0) if "q" in strided else None),
        k_cache=guard.place(caches[0], order=(0, 3, 2, 1) if "k" in strided else None),
        v_cache=guard.place(caches[1], order=(0, 3, 2, 1) if "v" in strided else None),
        block_tables=tables.to(device)[:, : max(widths)],
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        query_start_loc=torch.tensor(starts, dtype=torch.int32, device=device),
        max_query_len=max(lengths),
        guard=guard,
        expected=expected.to(dtype),
        strided=strided,
    )


def _attention(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """Causal attention [T, H, D] in float64; the queries are the newest of the S positions."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double(), v.double()
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("thd,shd->hts", q, k) / q.shape[-1] ** 0.5
    keys = torch.arange(len(k))
    queries = torch.arange(len(k) - len(q), len(k))[:, None]
    visible = (keys <= queries) & (keys > queries - (window or len(k) + 1))
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, v).float()

"""Random paged attention problems with poison where nothing may be read, and their solution."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grader.checks.expect import expect
from grader.checks.guard_regions import Guard


@dataclass(frozen=True)
class PagedCase:
    """What attention is given, and the answer of plain float64 arithmetic."""

    q: Tensor  # [T, H, D]
    k_cache: Tensor  # [B, P, G, D]; NaN beside the contexts
    v_cache: Tensor
    block_tables: Tensor  # [N, M]; filled up with a block of NaN, and wider in memory
    context_lens: Tensor  # [N]
    query_start_loc: Tensor  # [N + 1]
    max_query_len: int
    guard: Guard
    answer: Tensor  # [T, H, D] float32
    scale: float | None
    window: int | None
    strided: tuple[str, ...]

    @property
    def expected(self) -> Tensor:
        """The answer [T, H, D] in q's dtype."""
        return self.answer.to(self.q.dtype)

    @property
    def cache(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both caches, the block tables and the context lengths."""
        return self.k_cache, self.v_cache, self.block_tables, self.context_lens

    @property
    def options(self) -> dict[str, float | int | None]:
        """The keyword arguments that attention is to be given."""
        return {"scale": self.scale, "window": self.window}

    def empty_out(self, dtype: torch.dtype | None = None) -> Tensor:
        """Where the answer goes [T, H, D], with poison around it."""
        order = (2, 0, 1) if "out" in self.strided else None
        return self.guard.empty(*self.q.shape, dtype=dtype or self.q.dtype, order=order)

    def check(self, call: str, given: dict[str, Any]) -> None:
        """End the check if anything was touched that is not the kernels' to touch."""
        self.guard.check(call, given)
        if self.guard.trace is not None:
            expect(
                self._unused_entries_read(),
                "none",
                call=f"{call}: entries [sequence, number] of block_tables that were read, but "
                "belong to no position of the context",
                given=given,
                cause="unused entries of a block table are not read",
            )

    def _unused_entries_read(self) -> str:
        width, size = self.block_tables.stride(0), self.k_cache.shape[1]
        whole = self.block_tables.as_strided((len(self.context_lens) * width,), (1,), 0)
        used = [-(-context // size) for context in self.context_lens.tolist()]
        found = {
            divmod(int(element), width)
            for _, elements in self.guard.trace.elements(whole)
            for element in elements
        }
        unused = sorted([n, entry] for n, entry in found if entry >= used[n])
        return ", ".join(map(str, unused)) or "none"

    def tokens_written(self, out: Tensor) -> dict[tuple, set[int]]:
        """While watched: (launch, program) -> the tokens of `out` [T, H, D] that it stored."""
        found: dict[tuple, set[int]] = {}
        size = out.untyped_storage().nbytes() // out.element_size()
        place = np.full(size, -1)
        numbers = torch.arange(size).as_strided(out.shape, out.stride(), out.storage_offset())
        for token, elements in enumerate(numbers):
            place[elements.flatten().numpy()] = token
        for access, elements in self.guard.trace.elements(out.as_strided((size,), (1,), 0)):
            if access.is_store:
                tokens = set(place[elements].tolist()) - {-1}
                found.setdefault((access.launch, access.program), set()).update(tokens)
        return found

    def keys_read(self) -> dict[tuple, dict[tuple[int, int], set[int]]]:
        """While watched: (launch, program) -> (sequence, key head) -> positions it loaded."""
        found: dict[tuple, dict[tuple[int, int], set[int]]] = {}
        lens, (_, size, heads, _) = self.context_lens.tolist(), self.k_cache.shape
        place = np.full(self.k_cache.untyped_storage().nbytes() // self.k_cache.element_size(), -1)
        numbers = torch.arange(len(place)).as_strided(
            self.k_cache.shape, self.k_cache.stride(), self.k_cache.storage_offset()
        )
        names: list[tuple[int, int, int]] = []
        for sequence, length in enumerate(lens):
            for position in range(length):
                block = int(self.block_tables[sequence, position // size])
                for head in range(heads):
                    place[numbers[block, position % size, head].numpy()] = len(names)
                    names.append((sequence, head, position))
        whole = self.k_cache.as_strided((len(place),), (1,), 0)
        for access, elements in self.guard.trace.elements(whole):
            if not access.is_store:
                mine = found.setdefault((access.launch, access.program), {})
                for number in np.unique(place[elements]):
                    if number >= 0:
                        sequence, head, position = names[number]
                        mine.setdefault((sequence, head), set()).add(position)
        return found


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
    scale: float | None = None,
    strided: tuple[str, ...] = (),
    integers: torch.dtype = torch.int32,
    device: str = "cpu",
) -> PagedCase:
    """Contexts of these lengths; the newest `lengths` (default: 1) tokens of each are queries.

    `sharp` multiplies the queries: with large ones a single key wins. `strided`: which of q, k,
    v and out are laid out otherwise, their dims apart. `integers`: the type of the tables and
    lengths. Positions that no window reaches
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
    tables = torch.full((len(contexts), max(widths) + 3), poisoned, dtype=integers)
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
        expected[mine] = _attention(q[mine], k, v, scale, window)
        for cache, values in zip(caches, (k, v), strict=True):
            if window is not None:
                values[: max(0, context - lengths[i] - window + 1)] = torch.nan
            cache[blocks[places // block_size], places % block_size] = values
    return PagedCase(
        q=guard.place(q, order=(1, 2, 0) if "q" in strided else None),
        k_cache=guard.place(caches[0], order=(0, 3, 2, 1) if "k" in strided else None),
        v_cache=guard.place(caches[1], order=(0, 3, 2, 1) if "v" in strided else None),
        block_tables=tables.to(device)[:, : max(widths)],
        context_lens=torch.tensor(contexts, dtype=integers, device=device),
        query_start_loc=torch.tensor(starts, dtype=integers, device=device),
        max_query_len=max(lengths),
        guard=guard,
        answer=expected,
        scale=scale,
        window=window,
        strided=strided,
    )


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None) -> Tensor:
    """Causal attention [T, H, D] in float64; the queries are the newest of the S positions."""
    group = q.shape[1] // k.shape[1]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = q.double(), k.double(), v.double()
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("thd,shd->hts", q, k) * scale  # pyright: ignore[reportOperatorIssue]  # a number by now
    keys = torch.arange(len(k))
    queries = torch.arange(len(k) - len(q), len(k))[:, None]
    visible = (keys <= queries) & (keys > queries - (window or len(k) + 1))
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, v).float()

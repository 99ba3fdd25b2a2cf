"""What attention is told about a step: where the new tokens go, and where the old ones are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from nanovllm.paging.block_table import BlockTable, blocks_for

# (q [T,H,D], k_cache [B,P,G,D], v_cache, batch, scale=None, window=None) -> [T,H,D]: what may be
# replaced by a faster kernel. The step's own k and v are in the cache already.
PagedAttention = Callable[..., Tensor]
# A table and the tokens start .. end - 1 of its sequence that a step computes.
Span = tuple[BlockTable, int, int]


@dataclass(frozen=True)
class PagedBatch:
    """The T tokens of N sequences, one after another, and the blocks of each (vLLM's names).

    block_tables is filled up with 0 on the right: read no further than context_lens says.
    """

    slot_mapping: Int[Tensor, "T"]  # int64; where each new token is written; -1: nowhere
    block_tables: Int[Tensor, "N M"]  # int32; M: most blocks of any sequence
    context_lens: Int[Tensor, "N"]  # int32; tokens of each sequence, the new ones included
    query_start_loc: Int[Tensor, "N+1"]  # int32; new tokens of sequence i: from [i] to [i+1] - 1
    max_query_len: int
    max_context_len: int
    # What attention works out at a step's first layer for the others, by block size.
    reads: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)


def make_batch(spans: Sequence[Span], device: torch.device | str = "cpu") -> PagedBatch:
    """The PagedBatch of a step that computes these spans, in their order; at least one.

    A table may have blocks beyond its span's end (room for later): they are left out.

    >>> a, b = BlockTable(4, [7, 2]), BlockTable(4, [5])
    >>> batch = make_batch([(a, 3, 6), (b, 2, 3)])
    >>> batch.slot_mapping.tolist(), batch.block_tables.tolist()
    ([31, 8, 9, 22], [[7, 2], [5, 0]])
    >>> batch.context_lens.tolist(), batch.query_start_loc.tolist()
    ([6, 3], [0, 3, 4])
    """
    slots: list[int] = []  # of all new tokens
    starts = [0]  # where each span's tokens begin, and at last their number
    rows: list[list[int]] = []  # each sequence's blocks up to its span's end
    for table, start, end in spans:
        slots += table.slots(start, end)
        starts.append(len(slots))
        rows.append(table.block_ids[: blocks_for(end, table.block_size)])
    most = max(map(len, rows))
    ends = [end for _, _, end in spans]
    return PagedBatch(
        slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
        block_tables=_int32([row + [0] * (most - len(row)) for row in rows], device),
        context_lens=_int32(ends, device),
        query_start_loc=_int32(starts, device),
        max_query_len=max(end - start for _, start, end in spans),
        max_context_len=max(ends),
    )


def _int32(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device | str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)

"""Who reads which slots in a step, worked out once for all layers (given; use it or not)."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nanovllm.paging.batch import PagedBatch

GROUP = 8  # decodes read together: larger groups save calls, smaller ones save padding


@dataclass(frozen=True)
class Rectangle:
    """The tokens of a few decodes of about the same length, as one rectangle of slots.

    Behind the end of a shorter context its last token stands again: every slot that is read
    holds a token, so that what lies in unused ones (NaN, even) is never touched.
    """

    slots: Int[Tensor, "N S"]
    context_lens: Int[Tensor, "N"]

    @property
    def width(self) -> int:
        """S: the longest context."""
        return self.slots.shape[1]


@dataclass(frozen=True)
class ReadPlan:
    """Who reads what in a step: the same for every layer, and worked out once.

    rows: where the decodes' queries stand among the step's tokens, shortest context first.
    rectangles: those decodes, group by group. prompts: of each other sequence its number, its
    tokens in the step and the length of its context.
    """

    rows: Int[Tensor, "N"]
    rectangles: tuple[Rectangle, ...]
    prompts: tuple[tuple[int, slice, int], ...]


def read_rectangle(
    block_tables: Int[Tensor, "N M"], context_lens: Int[Tensor, "N"], block_size: int
) -> Rectangle:
    """The slots of all tokens of N contexts, as wide as the longest.

    >>> read_rectangle(torch.tensor([[2, 0], [1, 0]]), torch.tensor([3, 1]), block_size=2).slots
    tensor([[4, 5, 0],
            [2, 2, 2]])
    """
    last = context_lens.long()[:, None] - 1
    places = torch.arange(int(last.max()) + 1, device=last.device).minimum(last)  # [N, S]
    blocks = block_tables.long().gather(1, places // block_size)
    return Rectangle(blocks * block_size + places % block_size, context_lens)


def plan_of(batch: PagedBatch, block_size: int) -> ReadPlan:
    """The step's plan: its first layer has it worked out, the others find it in the batch."""
    if block_size not in batch.reads:
        batch.reads[block_size] = plan_reads(batch, block_size)
    return batch.reads[block_size]


def plan_reads(batch: PagedBatch, block_size: int) -> ReadPlan:
    """Sort a step's sequences into decodes (one query), in groups of equal length, and others."""
    starts, contexts = batch.query_start_loc.tolist(), batch.context_lens.tolist()
    spans = [slice(a, b) for a, b in pairwise(starts)]
    lengths = [span.stop - span.start for span in spans]
    decodes = sorted((i for i, n in enumerate(lengths) if n == 1), key=contexts.__getitem__)
    sequences = torch.tensor(decodes, dtype=torch.long, device=batch.context_lens.device)
    tables, ends = batch.block_tables[sequences], batch.context_lens[sequences]
    return ReadPlan(
        batch.query_start_loc[sequences].long(),
        tuple(
            read_rectangle(tables[at : at + GROUP], ends[at : at + GROUP], block_size)
            for at in range(0, len(decodes), GROUP)
        ),
        tuple((i, spans[i], contexts[i]) for i, n in enumerate(lengths) if n > 1),
    )


def gather(
    cache: Float[Tensor, "B P G D"], block_table: Int[Tensor, "M"], context_len: int
) -> Float[Tensor, "S G D"]:
    """The first `context_len` tokens of one sequence, in order, from its blocks.

    >>> cache = torch.arange(6.0).view(3, 2, 1, 1)  # block b holds 2b, 2b + 1
    >>> gather(cache, torch.tensor([2, 0]), 3).flatten()
    tensor([4., 5., 0.])
    """
    return cache[block_table].flatten(0, 1)[:context_len]


def gather_rectangle(
    cache: Float[Tensor, "B P G D"], slots: Int[Tensor, "N S"]
) -> Float[Tensor, "N G S D"]:
    """What stands in a rectangle of slots, as torch's attention wants it: heads before tokens."""
    rows = cache.flatten(0, 1).index_select(0, slots.flatten())
    return rows.unflatten(0, slots.shape).transpose(1, 2)


def visible_places(
    ends: Int[Tensor, "N 1"], width: int, window: int | None = None
) -> Bool[Tensor, "N S"]:
    """Of the places 0 .. width - 1, those before each end; with a window, the last of those.

    >>> visible_places(torch.tensor([[1], [3]]), 4, window=2).int()
    tensor([[1, 0, 0, 0],
            [0, 1, 1, 0]], dtype=torch.int32)
    """
    places = torch.arange(width, device=ends.device)
    visible = places < ends
    if window is not None:
        visible &= places >= ends - window
    return visible

"""K and V on the wire: blocks become bytes, and bytes become tokens in blocks of another size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.cluster.errors import WireError
from nanovllm.cluster.header import DTYPES, Header, decode, encode

if TYPE_CHECKING:
    from nanovllm.paging.cache import PagedCache


@dataclass(frozen=True)
class Received:
    """K and V of the first T tokens of a prompt, in order, without blocks."""

    k: Float[Tensor, "L T G D"]
    v: Float[Tensor, "L T G D"]

    @property
    def num_tokens(self) -> int:
        """How many tokens came."""
        return self.k.shape[1]

    def upto(self, end: int) -> Received:
        """The tokens before `end` alone."""
        return Received(self.k[:, :end], self.v[:, :end])


def pack(header: Header, cache: PagedCache, block_ids: Sequence[int], num_tokens: int) -> bytes:
    """The first num_tokens tokens of these blocks as bytes: a header, then all of K, then all of V.

    Each is [L, B, P, G, D] as it lies in the cache: whole blocks, those that num_tokens needs and
    no more. Places behind the last token are sent as zeros: what another request left there is
    nobody's business. Nothing in the cache changes.

    Raises:
        WireError: the blocks have no room for so many tokens, or num_tokens is below 1.
    """
    ### BEGIN SOLUTION
    size = header.block_size
    if not 1 <= num_tokens <= len(block_ids) * size:
        raise WireError(f"{num_tokens} tokens are not in {len(block_ids)} blocks of {size}.")
    used = list(block_ids[: header.num_blocks(num_tokens)])
    unused = len(used) * size - num_tokens
    parts = [encode(header, num_tokens)]
    for stored in (cache.k, cache.v):
        blocks = stored[:, used].cpu()  # [L, B, P, G, D], a copy
        if unused:
            blocks[:, -1, -unused:] = 0
        parts.append(blocks.contiguous().view(torch.uint8).numpy().tobytes())
    return b"".join(parts)
    ### END SOLUTION


def unpack(data: bytes, mine: Header) -> Received:
    """What `pack` made, read again; `mine` is the header of the engine that receives.

    Raises:
        WireError: no header, or fewer or more bytes than it promises.
        ForeignError: `refuse_foreign` refuses the header.
    """
    ### BEGIN SOLUTION
    header, num_tokens, start = decode(data)
    mine.refuse_foreign(header)
    places = header.num_blocks(num_tokens) * header.block_size  # blocks lie one behind another
    shape = (header.num_layers, places, header.num_kv_heads, header.head_dim)
    size = header.nbytes(num_tokens)
    if len(data) != start + 2 * size:
        raise WireError(
            f"{len(data) - start} bytes of K and V came, but {2 * size} were announced."
        )
    both = [
        torch.frombuffer(bytearray(data[first : first + size]), dtype=DTYPES[header.dtype])
        for first in (start, start + size)
    ]
    return Received(*(x.view(shape)[:, :num_tokens] for x in both))
    ### END SOLUTION


def load(cache: PagedCache, received: Received, block_ids: Sequence[int], start: int) -> None:
    """Write the received tokens start .. T - 1 into a request's blocks, of this cache's own size.

    block_ids: all blocks of the request, in order. Tokens before `start` are there already,
    perhaps shared with others: they are not touched. Nor is anything behind the last token.
    """
    ### BEGIN SOLUTION
    size = cache.block_size
    places = torch.arange(start, received.num_tokens, device=cache.device)
    blocks = torch.tensor(list(block_ids), device=cache.device)
    slots = blocks[places // size] * size + places % size
    for stored, came in ((cache.k, received.k), (cache.v, received.v)):
        stored.flatten(1, 2)[:, slots] = came[:, start:].to(cache.device)
    ### END SOLUTION

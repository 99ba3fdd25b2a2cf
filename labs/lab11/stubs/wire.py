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
    raise NotImplementedError("lab11 task 1: pack")


def unpack(data: bytes, mine: Header) -> Received:
    """What `pack` made, read again; `mine` is the header of the engine that receives.

    Raises:
        WireError: no header, or fewer or more bytes than it promises.
        ForeignError: `refuse_foreign` refuses the header.
    """
    raise NotImplementedError("lab11 task 1: unpack")


def load(cache: PagedCache, received: Received, block_ids: Sequence[int], start: int) -> None:
    """Write the received tokens start .. T - 1 into a request's blocks, of this cache's own size.

    block_ids: all blocks of the request, in order. Tokens before `start` are there already,
    perhaps shared with others: they are not touched. Nor is anything behind the last token.
    """
    raise NotImplementedError("lab11 task 1: load")

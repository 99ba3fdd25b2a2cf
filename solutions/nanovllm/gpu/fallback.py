"""The way back from the GPU path: one sentence, and the plain step over the same K and V."""

import copy

from nanovllm.paging.attention import paged_attention
from nanovllm.paging.cache import PagedCache
from nanovllm.paging.store import PagedStore


def went_plain(error: Exception) -> str:
    """The sentence.

    >>> went_plain(RuntimeError("no kernel image"))
    'the GPU path failed (RuntimeError: no kernel image); the plain step goes on in its place'
    """
    said = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".: ")
    return f"the GPU path failed ({said}); the plain step goes on in its place"


def use_torch(store: PagedStore) -> None:
    """Read and write the store's K and V by torch's operations, no longer by lab 06's kernels."""
    store.attention = paged_attention
    cache = copy.copy(store.cache)  # the same tensors
    cache.__class__ = PagedCache
    store.cache = cache

"""Lab 05's compaction as an operation of an engine, and a pool of another size (given).

It pays where memory is to go to somebody else while requests run: it copies the blocks that lie
too high, where giving up the pool would compute every token of every running request again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from nanovllm.batching.errors import ConfigError
from nanovllm.paging.block_table import blocks_for
from nanovllm.paging.compaction import compact, span
from nanovllm.paging.interface import MovingManager
from nanovllm.paging.resizing import can_resize, resize
from nanovllm.paging.store import PagedStore

if TYPE_CHECKING:
    from nanovllm.batching.engine import Engine


class CompactionError(ConfigError):
    """This engine cannot compact its blocks, or not to this size; nothing has changed."""


@dataclass(frozen=True)
class Compaction:
    """What it did. In blocks, but for the bytes, which are those of the pool."""

    moved: int  # copied
    span_before: int  # up to the last held one
    span: int  # the same, now
    num_blocks_before: int
    num_blocks: int  # of the pool, now
    nbytes_before: int
    nbytes: int


def compact_engine(engine: Engine, num_blocks: int | None = None) -> Compaction:
    """Move what requests hold to the low end of the pool; then, if asked, change its size.

    To be called between two steps. num_blocks: of the pool from then on, fewer or more; a pool of
    another size has forgotten what requests that ended left in its prefix cache. Raises
    CompactionError.
    """
    store = _store_of(engine)
    manager = cast(MovingManager, store.manager)
    if num_blocks is not None:
        _check_size(engine, store, num_blocks)
        resize(manager, manager.num_blocks)  # cached blocks would be in the way
    before = span(manager), store.num_blocks, store.nbytes
    moved = compact(manager)
    store.make_copies()
    if num_blocks is not None:
        store.resize(num_blocks)
    return Compaction(
        moved, before[0], span(manager), before[1], store.num_blocks, before[2], store.nbytes
    )


def _store_of(engine: Engine) -> PagedStore:
    """The engine's store, whose blocks may move."""
    store: Any = engine.store
    why = getattr(engine, "why_not_compact", None) or getattr(store, "why_not_compact", None)
    if not isinstance(store, PagedStore):
        why = "this engine keeps K and V in slots, not in blocks; use engine 'paged'"
    elif not (hasattr(store.manager, "move") and hasattr(store.manager, "pinned_blocks")):
        why = (
            "this block manager has no `move` and `pinned_blocks`, which task 8 of lab 05 asks for"
        )
    if why is not None:
        raise CompactionError(f"compact: {why}.")
    return store


def _check_size(engine: Engine, store: PagedStore, num_blocks: int) -> None:
    """Refuse a size that this store cannot have, or that its requests do not fit into."""
    if isinstance(num_blocks, bool) or not isinstance(num_blocks, int) or num_blocks < 1:
        raise CompactionError(
            f"compact: num_blocks must be a whole number, at least 1; got {num_blocks!r}."
        )
    for part, can in (
        (store.manager, can_resize(store.manager)),
        (store.cache, hasattr(store.cache, "resize")),
    ):
        if not can:
            raise CompactionError(
                f"compact: a {type(part).__name__} cannot change its size; leave num_blocks out."
            )
    known, _ = engine.requests.all()
    longest = max((request.limit for request in known), default=1)
    manager = cast(MovingManager, store.manager)
    least = max(
        blocks_for(longest, store.block_size),
        len(manager.owners()),
        max(manager.pinned_blocks(), default=-1) + 1,
    )
    if num_blocks < least:
        raise CompactionError(
            f"compact: num_blocks is {num_blocks}, but the open requests need {least}: what they "
            "hold, and the longest of them whole; give as many, or wait until they have ended."
        )

"""What the engine holds at one moment, as plain data: the picture that a dashboard draws."""

from collections.abc import Mapping
from typing import Any

from nanovllm.batching.engine import Engine
from nanovllm.batching.request import Request

Names = Mapping[int, str]  # engine request id to the name that people know


def blocks_of(store: Any, request: Request) -> list[int]:
    """The blocks of the store that a running request holds, a list of its own; or an empty one.

    A store tells by `block_ids(request)` (in a slot store the slot is the one block); one that
    has no such method, for it only counts tokens, has no blocks to show.
    """
    ### BEGIN SOLUTION
    return list(store.block_ids(request)) if hasattr(store, "block_ids") else []
    ### END SOLUTION


def request_row(
    store: Any, request: Request, names: Names, now: float, running: bool
) -> dict[str, Any]:
    """One sample as a row: who it is, where it stands, what it has, how long it has been here.

    `prompt_tokens`, `output_tokens` and `computed_tokens` are numbers of tokens; `blocks` those
    of a running one, shared ones included; `age` and `waited` are seconds up to now. `kv_bytes` are
    those of its blocks; `cached_tokens` were in the prefix cache when it first came in.
    """
    sequence = request.sequence
    blocks = blocks_of(store, request) if running else []
    block_bytes = getattr(store, "nbytes", 0) // getattr(store, "num_blocks", 1)
    return {
        "id": names.get(sequence.request_id, str(sequence.request_id)),
        "index": sequence.index,
        "state": request.status.value,
        "prompt_tokens": len(sequence.prompt_token_ids),
        "output_tokens": request.num_output_tokens,
        "computed_tokens": request.num_computed_tokens,
        "preemptions": request.num_preemptions,
        "age": now - request.arrival,
        "waited": request.waited(now),
        "blocks": blocks,
        "kv_bytes": len(blocks) * block_bytes,
        "cached_tokens": getattr(store, "found", {}).get(request, 0),
    }


def kv_facts(store: Any) -> dict[str, Any]:
    """The store as a whole: tokens, share in use, and how it is cut into blocks.

    block_size is in tokens; both it and num_blocks are 0 where the store has no blocks.
    cached_blocks: held by nobody, but kept for requests that begin alike. prefix: tokens that were
    looked up in the prefix cache and those found, since the start; None where there is no cache.
    cache_dtype: "auto", or the codes that K and V are kept in; bytes_per_token: what a token takes
    in all layers, or 0 where the store does not say how large it is. swap: `Swapping.facts`; None
    where preempted requests are always computed again.
    """
    swapping = getattr(store, "swapping", None)
    stats = getattr(store, "prefix_stats", None)
    return {
        "total_tokens": store.total_tokens,
        "free_tokens": store.free_tokens,
        "usage": 1.0 - store.free_tokens / store.total_tokens,
        "block_size": getattr(store, "block_size", 0),
        "num_blocks": getattr(store, "num_blocks", 0),
        "cache_dtype": getattr(store, "kv_cache_dtype", "auto"),
        "bytes_per_token": getattr(store, "nbytes", 0) // store.total_tokens,
        "cached_blocks": [] if stats is None else store.cached_blocks(),
        "prefix": None if stats is None else {"queries": stats.queries, "hits": stats.hits},
        "swap": None if swapping is None else swapping.facts(),
    }


def engine_state(engine: Engine, names: Names) -> dict[str, Any]:
    """A dict: `kv` is `kv_facts` of the store; `running` and `waiting` are lists of `request_row`.

    Who runs stands in the order of admission, who waits in the order of admission to come.
    Only plain data leaves: nothing in it changes when the engine goes on. To be called in the
    engine's thread, between two steps.
    """
    ### BEGIN SOLUTION
    now, scheduler, store = engine.clock(), engine.scheduler, engine.store
    return {
        "kv": kv_facts(store),
        "running": [request_row(store, r, names, now, True) for r in scheduler.running],
        "waiting": [request_row(store, r, names, now, False) for r in scheduler.queue()],
    }
    ### END SOLUTION

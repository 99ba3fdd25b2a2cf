"""A decode launched on the guess that every request goes on, before anybody knows its token.

Why it may be launched, and what became of it may be dropped. All launches and copies are in the
order of one stream, so what is launched later finds all that was launched earlier done.

- A request may have ended by a stop, been given up, failed, or been preempted meanwhile. Its row
  is not in the next plan: its token is dropped. What the row wrote is one slot behind the
  request's last stored token. That block has been freed, and whoever has it next writes each slot
  before reading it, by a later launch. No cached block holds such a slot: a block is found by
  others only when all of its tokens are stored, and was taken out of the index when it was given.
- Blocks may be copied, for a write or to host memory: later in the stream, too. The copy may hold
  the slot that was written ahead; it is behind the stored tokens there as well.
- A commit may put a block that others share in the place of a full one of the same content. The
  flight has read the old one, before anything could be written to it.
- A request whose token a flight computes has its block already, taken one step early. The
  scheduler would take it before it admits anybody. So the same requests run in the same steps,
  unless the pool is nearly empty: then the blocks of a row that ends are missed for a step, and
  one that was cached may be gone.
- Whoever was admitted or preempted by the new plan has another table: nothing of a flight counts
  for it. For all others the flight has computed what the plan asks for if the slot is the same: a
  table has each slot once, so the position is, too. Computing it again does no harm: it writes the
  same K and V.

Beams have an engine of their own (lab 05's) and never meet a flight. Samples of one request share
blocks that are full, or have been copied for one of them when the other was admitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.batching.store import KVStore
from nanovllm.performance.buffers import DecodeRow, slot_at
from nanovllm.performance.runner import Launch


@dataclass
class FlightCounts:
    """Counted since the start, in rows (one token of one request)."""

    rows_launched: int = 0
    rows_taken: int = 0  # those that the next plan asked for
    waits: int = 0  # steps whose tokens the host waited for
    idle_waits: int = 0  # with nothing launched behind them: the device then waits for the host


@dataclass(frozen=True)
class Flight:
    """The launch, and what each of its rows computes; row i has place i in `sampled`."""

    launch: Launch
    rows: dict[Request, DecodeRow]

    def places(self, plan: Plan, store: KVStore) -> dict[Request, int]:
        """Of each request whose chunk of the plan the flight has computed: its row's number.

        A row counts where the plan asks for one token of its request, in the very slot that the row
        wrote, and where the plan has neither admitted nor preempted the request: then its blocks
        are others. A plan has at most one chunk of a request. What else the flight computed is
        dropped.
        """
        ### BEGIN SOLUTION
        moved = {*plan.admitted, *plan.preempted}
        chunk_of = {c.request: c for c in plan.chunks if c.request not in moved}
        found = {}
        for place, (request, row) in enumerate(self.rows.items()):
            chunk = chunk_of.get(request)
            if chunk and chunk.length == 1:
                slot = slot_at(chunk.start, store.block_ids(request), store.block_size)
                if slot == row.slot:
                    found[request] = place
        return found
        ### END SOLUTION


def plan_ahead(
    plan: Plan, places: Sequence[int], store: KVStore
) -> dict[Request, DecodeRow] | None:
    """The decodes that follow `plan` if every request goes on, before its tokens are known.

    places: of each chunk of the plan that completes, in order, where its token will be in
    `sampled`: the row's `source`. A request gets a row if its chunk completes, and if the token of
    that row is not beyond its `limit`: one whose chunk ends at `request.limit` draws its last token
    now. The row stands at position `chunk.end`, in the slot that the store's blocks give it; room
    for it is reserved first, `store.reserve(request, chunk.length + 1)`, for the plan's own tokens
    are not yet counted as stored. Returns None where the store has no room for one of them: then
    somebody will have to give way, and nothing is launched ahead; room that was reserved before
    stays reserved. Where nobody goes on there are no rows, `{}`.
    """
    ### BEGIN SOLUTION
    rows: dict[Request, DecodeRow] = {}
    sources = iter(places)
    for chunk in plan.chunks:
        request, position = chunk.request, chunk.end
        source = next(sources) if chunk.completes else None
        if not chunk.completes or position >= request.limit:
            continue
        if not store.reserve(request, chunk.length + 1):
            return None
        block_ids = store.block_ids(request)
        slot = slot_at(position, block_ids, store.block_size)
        rows[request] = DecodeRow(position, slot, block_ids, source=source)
    return rows
    ### END SOLUTION

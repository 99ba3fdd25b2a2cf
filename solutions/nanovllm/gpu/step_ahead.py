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

from dataclasses import dataclass

from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.batching.store import KVStore
from nanovllm.gpu.buffers import DecodeRow, slot_at
from nanovllm.gpu.runner import Launch


@dataclass
class FlightCounts:
    """Counted since the start, in rows (one token of one request)."""

    rows_launched: int = 0
    rows_taken: int = 0  # those that the next plan asked for


@dataclass(frozen=True)
class Flight:
    """The launch, and what each of its rows computes; row i has place i in `sampled`."""

    launch: Launch
    rows: dict[Request, DecodeRow]

    def places(self, plan: Plan, store: KVStore) -> dict[Request, int]:
        """Where the tokens are of those chunks of a plan that the flight has computed."""
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

"""A trace of requests through an allocator: how many fit at once, and how much is used (given)."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from nanovllm.batching.traces import Arrival
from nanovllm.paging.fragmentation import Allocator, Blocks


@dataclass
class Resident:
    """A request that has room: it stores its prompt, then one token a step."""

    number: int
    stored: int
    end: int  # tokens stored when it is done


@dataclass(frozen=True)
class Moment:
    """What memory looked like after one step."""

    running: int
    stored: int  # tokens
    reserved: int  # places
    external: float  # share of the free places that no single request could have


@dataclass(frozen=True)
class Occupancy:
    """A whole trace."""

    moments: tuple[Moment, ...]
    preemptions: int

    @property
    def utilisation(self) -> float:
        """Tokens stored, a reserved place, over the whole run."""
        return sum(m.stored for m in self.moments) / sum(m.reserved for m in self.moments)

    @property
    def peak_running(self) -> int:
        """The most requests at once."""
        return max(m.running for m in self.moments)


def occupancy(allocator: Allocator, trace: Sequence[Arrival], longest_output: int) -> Occupancy:
    """Serve a trace of requests that are all there from the start, first come, first served.

    One that wants a piece reserves its prompt and `longest_output` (nobody knows how long its
    answer will be); one that wants Blocks takes them as it grows, and when there are none, the
    newest goes back to the queue and begins again.

    >>> from nanovllm.paging.fragmentation import FirstFit
    >>> trace = [Arrival(0.0, 20, 10)] * 4
    >>> found = [occupancy(memory, trace, 44) for memory in (FirstFit(128), Blocks(128))]
    >>> [(run.peak_running, round(run.utilisation, 2)) for run in found]
    [(2, 0.38), (4, 0.77)]
    """
    waiting = deque(range(len(trace)))
    running: list[Resident] = []
    moments: list[Moment] = []
    preemptions = 0
    while waiting or running:
        for one in list(running):
            one.stored += one in running  # it may have been sent back a moment ago
            while (
                isinstance(allocator, Blocks)
                and one in running
                and not allocator.allocate(one.number, one.stored)
            ):
                newest = running.pop()
                allocator.free(newest.number)
                waiting.appendleft(newest.number)
                preemptions += 1
        while waiting:
            number = waiting[0]
            prompt, output = trace[number].prompt, trace[number].output
            room = prompt if isinstance(allocator, Blocks) else prompt + longest_output
            if not allocator.allocate(number, room):
                break
            running.append(Resident(waiting.popleft(), prompt, prompt + output - 1))
        if not running:
            raise ValueError(f"request {waiting[0]} does not fit into {allocator.size} places")
        moments.append(
            Moment(
                len(running),
                sum(one.stored for one in running),
                sum(allocator.reserved.values()),
                allocator.external_fragmentation(),
            )
        )
        for one in [one for one in running if one.stored >= one.end]:
            running.remove(one)
            allocator.free(one.number)
    return Occupancy(tuple(moments), preemptions)

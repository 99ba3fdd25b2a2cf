"""Routing policies: which replica answers a request (see routing_interface.py)."""

### BEGIN SOLUTION
import hashlib
import random
from collections.abc import Sequence

from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.routing_interface import (
    POLICIES,
    BlockIndexInterface,
    Policy,
    Query,
    ReplicaLoad,
)

REQUEST_TOKENS = 64  # what an open request costs besides its prompt: its decodes, in tokens


class RoundRobin:
    """One after another, in the order of their names."""

    def __init__(self) -> None:
        self.last = ""

    def choose(self, query: Query, replicas: Sequence[ReplicaLoad]) -> str:
        names = sorted(replica.name for replica in replicas)
        self.last = next((name for name in names if name > self.last), names[0])
        return self.last


class LeastLoaded:
    """The one with the fewest open requests; of equals, the first by name."""

    def choose(self, query: Query, replicas: Sequence[ReplicaLoad]) -> str:
        return min(replicas, key=lambda replica: (replica.requests, replica.name)).name


class PowerOfTwo:
    """The less loaded of two drawn at random: nearly as even as the least loaded, and never all
    on one replica because several routers saw it idle at one moment."""

    def __init__(self, seed: int = 0) -> None:
        self.draws = random.Random(seed)

    def choose(self, query: Query, replicas: Sequence[ReplicaLoad]) -> str:
        ordered = sorted(replicas, key=lambda replica: replica.name)
        two = self.draws.sample(ordered, min(2, len(ordered)))
        return min(two, key=lambda replica: replica.requests).name


class Rendezvous:
    """The highest hash of (key, replica): of n replicas, one more or less moves 1/n of the keys."""

    def choose(self, query: Query, replicas: Sequence[ReplicaLoad]) -> str:
        key = query.key or str(query.hashes[0] if query.hashes else "")

        def weight(name: str) -> bytes:
            return hashlib.sha256(f"{name}\0{key}".encode()).digest()

        return max((replica.name for replica in replicas), key=weight)


class PrefixAware:
    """The one that will answer first: tokens it would have to compute, and those that wait there.

    A long prefix draws a request to where it is, until so much waits there that computing it
    elsewhere is sooner. A request that nobody has seen goes where least waits.
    """

    def __init__(self, index: BlockIndexInterface) -> None:
        self.index = index

    def choose(self, query: Query, replicas: Sequence[ReplicaLoad]) -> str:
        held = self.index.match(query.hashes)

        def cost(replica: ReplicaLoad) -> tuple[int, int, str]:
            cached = held.get(replica.name, 0) * query.block_size
            waiting = replica.tokens + REQUEST_TOKENS * replica.requests
            to_compute = max(1, query.num_tokens - cached)
            return to_compute + waiting, replica.requests, replica.name

        return min(replicas, key=cost).name


def make_policy(name: str, index: BlockIndexInterface, seed: int = 0) -> Policy:
    """The policy of this name. Raises ClusterError."""
    if name not in POLICIES:
        raise ClusterError(f"routing policy {name!r} is not known; use {', '.join(POLICIES)}.")
    if name == "prefix_aware":
        return PrefixAware(index)
    if name == "power_of_two":
        return PowerOfTwo(seed)
    return {"round_robin": RoundRobin, "least_loaded": LeastLoaded, "rendezvous": Rendezvous}[
        name
    ]()


### END SOLUTION

"""What a router knows when it chooses, and what is asked of policies and of the index (given).

`routing.py` and `block_index.py` start empty: what they keep, and how, is the student's choice.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

POLICIES = ("round_robin", "least_loaded", "power_of_two", "rendezvous", "prefix_aware")


@dataclass(frozen=True)
class Query:
    """A request as a router sees it.

    key: of the conversation or user it belongs to; "" if nobody said. hashes: of the full blocks
    of its prompt, each of the block and all before it. num_tokens: of the prompt; block_size: of
    these, tokens a block.
    """

    key: str = ""
    hashes: tuple[Hashable, ...] = ()
    num_tokens: int = 0
    block_size: int = 16


@dataclass(frozen=True)
class ReplicaLoad:
    """What is open on a replica now.

    requests: that have not ended. tokens: of their prompts, still to be computed as far as the
    router knows.
    """

    name: str
    requests: int = 0
    tokens: int = 0


class Policy(Protocol):
    """Chooses a replica for each request; OpenWork says which can be chosen.

    `choose(query, replicas)`: the name of one of `replicas`, which are at least one, in any order,
    and may be others the next time. A policy may remember what it chose; it counts nothing that is
    open: `replicas` says that. The order in which replicas are listed changes no choice.
    """

    def choose(self, query: Query, replicas: Sequence[ReplicaLoad]) -> str: ...


class BlockIndexInterface(Protocol):
    """`block_index.BlockIndex()`: which replica holds which blocks, as far as its events say.

    A hash stands for a block and all before it, and may be anything hashable. Replicas are known
    by name, and come and go. An event may come twice, and events of one replica may come in any
    order that is possible: a block may be removed before the one that it follows. What the index
    keeps of a block ends when no replica holds it any more.
    """

    def stored(self, replica: str, hashes: Sequence[Hashable]) -> None:
        """The replica has put these blocks into its prefix cache."""

    def removed(self, replica: str, hashes: Sequence[Hashable]) -> None:
        """It has given them up; the removal of what it never stored means nothing."""

    def cleared(self, replica: str) -> None:
        """It holds nothing any more: it was restarted, or has gone."""

    def match(self, hashes: Sequence[Hashable]) -> dict[str, int]:
        """By replica, how many of these blocks it holds from the first on, without a gap.

        Replicas that lack the first are left out. The result is the caller's to keep. Of all
        blocks it looks at `hashes` alone, up to the first that nobody holds. For stored
        "a": 1, 2, 4 and "b": 1, `match([1, 2, 3, 4])` is {"a": 2, "b": 1}, `match([9, 1])` is {}.
        """
        ...

    def size(self, replica: str) -> int:
        """How many blocks it holds; 0 for a replica that nobody knows."""
        ...


class MakePolicy(Protocol):
    """`routing.make_policy(name, index, seed=0)`: the policy of a name of POLICIES.

    Raises ClusterError for any other name, and says which there are.

    - round_robin: one after another in the order of their names, from the one behind the last that
      was chosen; behind the last name stands the first, and with it begins a new policy.
    - least_loaded: the one with the fewest open requests; of equals, the first by name.
    - power_of_two: two are drawn, by a generator of its own that `seed` begins, and the one with
      fewer open requests is chosen. Every pair is as likely as any other.
    - rendezvous: requests of one key go to one replica, while that is among `replicas`. One that
      leaves moves its own keys only; one that comes takes keys from the others, and moves no key
      between these. Keys spread evenly, about 1/n to each. Another router, in another process,
      chooses alike. A query without a key has the first of its hashes as its key; all that have
      neither share one key.
    - prefix_aware: the one with the lowest cost: tokens of the prompt that it would have to
      compute, plus tokens that wait there, plus a constant of your choice, from 1 to 64 tokens,
      for each open request there. What it need not compute are blocks that it holds by the
      `index`; one token it computes in any case. Of equals, the one with fewer open requests; then
      the first by name.

    `index` is read when a request is chosen for, never written: others feed it.
    """

    def __call__(self, name: str, index: BlockIndexInterface, seed: int = 0) -> Policy: ...

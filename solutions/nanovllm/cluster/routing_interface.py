"""What a router knows when it chooses, and what is asked of a policy (given)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol


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
    """Chooses a replica for each request; Router says which can be chosen.

    `choose(query, replicas)`: the name of one of `replicas`, which are at least one, in any order,
    and may be others the next time. A policy may remember what it chose; it counts nothing that is
    open: `replicas` says that.
    """

    def choose(self, query: Query, replicas: Sequence[ReplicaLoad]) -> str: ...

"""What is open on each replica, counted by the router itself (given)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from nanovllm.cluster.errors import NoReplicaError
from nanovllm.cluster.routing_interface import BlockIndexInterface, Policy, Query, ReplicaLoad


class OpenWork:
    """Chooses by a policy, and counts a request on its replica until it has ended, however it ends.

    >>> from nanovllm.cluster.block_index import BlockIndex
    >>> from nanovllm.cluster.routing import make_policy
    >>> index = BlockIndex()
    >>> work = OpenWork(make_policy("least_loaded", index), index)
    >>> with work.on(Query(num_tokens=9), ["a", "b"]) as name:
    ...     name, work.load(name).tokens
    ('a', 9)
    >>> work.load("a")
    ReplicaLoad(name='a', requests=0, tokens=0)
    """

    def __init__(self, policy: Policy, index: BlockIndexInterface) -> None:
        self.policy, self.index = policy, index
        self._open: dict[str, list[int]] = {}  # by replica, the tokens to compute of each request

    def load(self, name: str) -> ReplicaLoad:
        """What is open on a replica."""
        tokens = self._open.get(name, ())
        return ReplicaLoad(name, len(tokens), sum(tokens))

    @contextmanager
    def on(self, query: Query, names: Iterable[str]) -> Iterator[str]:
        """Where a request goes, of these; it is open there while this lasts.

        Raises NoReplicaError where there is none.
        """
        loads = [self.load(name) for name in names]
        if not loads:
            raise NoReplicaError("No replica is ready; wait until one is, or start one.")
        name = self.policy.choose(query, loads)
        cached = self.index.match(query.hashes).get(name, 0) * query.block_size
        tokens = max(0, query.num_tokens - cached)
        mine = self._open.setdefault(name, [])
        mine.append(tokens)
        try:
            yield name
        finally:
            mine.remove(tokens)


def text_blocks(text: str, size: int = 64) -> Sequence[str]:
    """The beginnings of a text of 1, 2, ... blocks of characters, hashed one into the next.

    For a router that has no tokenizer: equal texts begin with equal tokens.

    >>> a, b = text_blocks("abcdef", 2), text_blocks("abcdXf", 2)
    >>> [x == y for x, y in zip(a, b)]
    [True, True, False]
    """
    from hashlib import sha256

    found, parent = [], ""
    for end in range(size, len(text) + 1, size):
        parent = sha256((parent + text[end - size : end]).encode()).hexdigest()[:16]
        found.append(parent)
    return found

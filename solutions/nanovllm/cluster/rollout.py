"""From one version to the next: rolling, blue-green, canary; a conversation stays on its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from nanovllm.cluster.autoscaler import to_drain
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.fleet import Fleet


@dataclass(frozen=True)
class Actions:
    """What to do now: how many replicas of the new version to start, and which to drain."""

    start: int = 0
    drain: tuple[str, ...] = ()


def share_of(key: str, salt: str) -> float:
    """A number in [0, 1) that a key always has; with another salt, another.

    >>> share_of("Mia", "v2") == share_of("Mia", "v2") != share_of("Mia", "v3")
    True
    """
    digest = hashlib.sha256(f"{salt}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


@dataclass(frozen=True)
class Rolling:
    """At most `surge` replicas more than `size`, and never fewer than `size` ready while old
    ones are left to drain."""

    size: int
    surge: int = 1

    def __post_init__(self) -> None:
        if self.surge < 1:
            raise ClusterError(f"A rolling change needs a surge of at least 1, got {self.surge}.")

    def next(self, fleet: Fleet, old: str, new: str) -> Actions:
        """What to do now. Called again and again, it ends with `size` new ones and no old one.

        Draining replicas are no longer living, and count for nothing here. Old ones that are still
        starting are drained at once; of the ready ones, those with the fewest open requests first.
        Nothing is put off that the bounds allow.
        """
        ### BEGIN SOLUTION
        before, after = fleet.living(old), fleet.living(new)
        missing = max(0, self.size - len(after))
        start = min(missing, max(0, self.size + self.surge - len(before) - len(after)))
        ready = len(fleet.choosable(old)) + len(fleet.choosable(new))
        spare = max(0, ready - self.size)
        starting = len(before) - len(fleet.choosable(old))
        return Actions(start, tuple(to_drain(before, starting + spare)))
        ### END SOLUTION


@dataclass(frozen=True)
class BlueGreen:
    """A whole second fleet; the old one drains at one moment, when all of the new one are ready."""

    size: int

    def next(self, fleet: Fleet, old: str, new: str) -> Actions:
        """What to do now. One of the new ones that dies or drains is replaced; the switch waits
        for it. Then all of the old ones that are living drain, also those that are starting."""
        ### BEGIN SOLUTION
        start = max(0, self.size - len(fleet.living(new)))
        if len(fleet.choosable(new)) < self.size:
            return Actions(start)
        return Actions(start, tuple(replica.name for replica in fleet.living(old)))
        ### END SOLUTION


@dataclass(frozen=True)
class Canary:
    """A share of the conversations on the new version: a trial, or an A/B split.

    `version_for` gives a conversation the same version in every process, while share and versions
    stay; with a larger share, those that were on the new version stay there.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ClusterError(f"A canary's share must be from 0 to 1, got {self.share}.")

    def version_for(self, key: str, old: str, new: str) -> str:
        """The version that answers a conversation. About `share` of all keys get the new one.

        Another new version meets other conversations, also from the same old one.

        >>> canary, keys = Canary(0.2), [str(n) for n in range(1000)]
        >>> 150 < sum(canary.version_for(key, "v1", "v2") == "v2" for key in keys) < 250
        True
        """
        ### BEGIN SOLUTION
        return new if share_of(key, new) < self.share else old
        ### END SOLUTION


class Sticky:
    """Which version each open conversation began on.

    `version(key, wanted, available)`: the version it began on, while that is available; else
    `wanted`, or the first of `available` where that is missing too, and from now on that one.
    ClusterError where nothing is available.

    `end(key)`: the conversation is over.

    >>> sticky = Sticky()
    >>> [sticky.version("Mia", wanted, ["v1", "v2"]) for wanted in ("v1", "v2")]
    ['v1', 'v1']
    >>> sticky.version("Mia", "v2", ["v2"]), sticky.version("Mia", "v1", ["v1", "v2"])
    ('v2', 'v2')
    """

    ### BEGIN SOLUTION
    def __init__(self) -> None:
        self.began: dict[str, str] = {}

    def version(self, key: str, wanted: str, available: Sequence[str]) -> str:
        if not available:
            raise ClusterError("No version has a ready replica.")
        if self.began.get(key) not in available:
            self.began[key] = wanted if wanted in available else available[0]
        return self.began[key]

    def end(self, key: str) -> None:
        self.began.pop(key, None)

    ### END SOLUTION

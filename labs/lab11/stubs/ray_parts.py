"""What our policies and our autoscaler are to Ray Serve, without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanovllm.cluster.autoscaler import Autoscaler
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.routing_interface import Policy, Query, ReplicaLoad


@dataclass(frozen=True)
class Candidate:
    """A replica as Ray's router sees it. capacity: requests that it takes at a time; models: that
    are loaded there."""

    load: ReplicaLoad
    capacity: int = 8
    models: frozenset[str] = frozenset()

    @property
    def full(self) -> bool:
        """Whether it would refuse one more request."""
        return self.load.requests >= self.capacity


def rank_replicas(
    policy: Policy, query: Query, candidates: Sequence[Candidate], model: str = ""
) -> list[list[str]]:
    """Names of all candidates by rank; Ray asks those of a rank when all before it refuse.

    1. the policy's choice, alone: it is asked once, about candidates that are not full; of these,
       about those alone that have the model loaded, where there are such;
    2. the others that are not full and have the model;
    3. those that are not full, and do not have it;
    4. those that are full.

    Without a model ("") everybody has it. Within a rank the order is that of `candidates`. No rank
    is empty; without candidates there is none. Where all are full, the policy is not asked.

    >>> from types import SimpleNamespace
    >>> last = SimpleNamespace(choose=lambda query, replicas: replicas[-1].name)
    >>> some = [Candidate(ReplicaLoad(name, n), models=frozenset(m)) for name, n, m in
    ...         [("a", 8, "x"), ("b", 1, "x"), ("c", 2, "x"), ("d", 0, "y")]]
    >>> rank_replicas(last, Query(), some, "x")
    [['c'], ['b'], ['d'], ['a']]
    >>> rank_replicas(last, Query(), some)
    [['d'], ['b', 'c'], ['a']]
    """
    raise NotImplementedError("lab11 task 7: rank_replicas")


class Memory:
    """Which models a replica has loaded, as far as a router knows that only sees what it sends.

    A replica keeps `most` models; it unloads the one that was asked for the longest ago.

    `Memory(most)`: nothing is known of any replica. ClusterError for most below 1.
    `sent(replica, model)`: a request for this model went there.
    `lost(replica)`: it was restarted, or is gone.
    `models(replica)`: what it has loaded, a frozenset.

    >>> memory = Memory(2)
    >>> for model in ("x", "y", "x", "z"):
    ...     memory.sent("a", model)
    >>> sorted(memory.models("a")), sorted(memory.models("b"))
    (['x', 'z'], [])
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab11 task 7: Memory")


def deployment_options(scaler: Autoscaler, capacity: int, drain_seconds: float) -> dict[str, Any]:
    """Our autoscaler's settings as the options of a Ray Serve deployment.

    capacity: requests that a replica takes at a time. drain_seconds: how long it may finish what it
    has. Ray's names: `max_ongoing_requests` is the capacity, `graceful_shutdown_timeout_s` the time
    to drain; `autoscaling_config` has `min_replicas`, `max_replicas`, `target_ongoing_requests`,
    `upscale_delay_s`, `downscale_delay_s`. Ray's range without a decision is of its own.

    Raises:
        ClusterError: capacity is below the target: then a replica would refuse requests before
            Ray sees a reason to start another.

    >>> deployment_options(Autoscaler(4, 1, 3, 2.0, 9.0), 8, 30.0)["max_ongoing_requests"]
    8
    """
    raise NotImplementedError("lab11 task 7: deployment_options")

"""The replicas of a fleet: where each stands, and who may be asked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nanovllm.cluster.errors import ClusterError


class State(Enum):
    """Where a replica stands."""

    STARTING = "starting"  # it loads its model; it counts as capacity that is on its way
    READY = "ready"
    DRAINING = "draining"  # it finishes what it has, and gets nothing new
    DEAD = "dead"


@dataclass
class Replica:
    """One engine of the fleet."""

    name: str
    version: str
    state: State = State.STARTING
    open: int = 0  # requests that have not ended


class Fleet:
    """All replicas; a dead one is kept until its name is used again.

    `Fleet()`: without replicas. `replicas`: a Replica by each name, in order of start.

    Every method that names a replica raises ClusterError for an unknown one, and for a step that
    cannot be: only a starting one becomes ready, only a ready or starting one drains, none comes
    back from the dead.

    `start(name, version)`: a new replica, STARTING. ClusterError where one of that name lives.
    `ready(name)`, `crash(name)`: what was seen of it. `crash` gives how many requests were lost
    with it, and none is open there any more.
    `drain(name)`: nothing new goes there; one with nothing open is DEAD at once.
    `begin(name)`, `end(name)`: a request goes there, has ended. Only a READY one begins; whoever is
    DRAINING and ends its last is DEAD. An end where nothing is open means nothing, dead or alive.
    `choosable(version=None)`: names of those that are READY (of this version), in order of start.
    `living(version=None)`: STARTING and READY ones: what an autoscaler counts.

    >>> fleet = Fleet()
    >>> fleet.start("a", "v1")
    >>> fleet.choosable(), [replica.name for replica in fleet.living()]
    ([], ['a'])
    >>> fleet.ready("a"); fleet.begin("a"); fleet.drain("a"); fleet.choosable()
    []
    >>> fleet.end("a"); fleet.replicas["a"].state
    <State.DEAD: 'dead'>
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab11 task 5: Fleet")

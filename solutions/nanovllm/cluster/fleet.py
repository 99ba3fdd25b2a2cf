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

    ### BEGIN SOLUTION
    def __init__(self) -> None:
        self.replicas: dict[str, Replica] = {}

    def start(self, name: str, version: str) -> None:
        old = self.replicas.get(name)
        if old is not None and old.state is not State.DEAD:
            raise ClusterError(f"A replica {name!r} lives already; choose another name.")
        self.replicas.pop(name, None)  # the new one stands last
        self.replicas[name] = Replica(name, version)

    def ready(self, name: str) -> None:
        self._expect(name, State.STARTING).state = State.READY

    def drain(self, name: str) -> None:
        replica = self._expect(name, State.STARTING, State.READY)
        replica.state = State.DRAINING if replica.open else State.DEAD

    def crash(self, name: str) -> int:
        replica = self._expect(name, State.STARTING, State.READY, State.DRAINING)
        lost, replica.open, replica.state = replica.open, 0, State.DEAD
        return lost

    def begin(self, name: str) -> None:
        self._expect(name, State.READY).open += 1

    def end(self, name: str) -> None:
        replica = self._expect(name, *State)
        if replica.open:
            replica.open -= 1
            if replica.state is State.DRAINING and not replica.open:
                replica.state = State.DEAD

    def choosable(self, version: str | None = None) -> list[str]:
        return [r.name for r in self.living(version) if r.state is State.READY]

    def living(self, version: str | None = None) -> list[Replica]:
        return [
            replica
            for replica in self.replicas.values()
            if replica.state in (State.STARTING, State.READY) and version in (None, replica.version)
        ]

    def _expect(self, name: str, *states: State) -> Replica:
        replica = self.replicas.get(name)
        if replica is None:
            raise ClusterError(f"There is no replica {name!r}.")
        if replica.state not in states:
            raise ClusterError(f"Replica {name!r} is {replica.state.value}: this cannot be done.")
        return replica

    ### END SOLUTION

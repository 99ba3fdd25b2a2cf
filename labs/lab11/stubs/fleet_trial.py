"""A fleet in virtual time: a load comes and goes, replicas are started and drained (given)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanovllm.cluster.fleet import Fleet, State
from nanovllm.cluster.rollout import Actions, Rolling

Control = Callable[[float, Fleet, int], Actions]  # now, the fleet, requests open or waiting


@dataclass(frozen=True)
class Moment:
    """The fleet in a second: replicas by version and state, requests open and waiting."""

    now: int
    states: dict[tuple[str, State], int]
    open: int
    waiting: int

    def count(self, *states: State, version: str | None = None) -> int:
        """Replicas in one of these states (of this version)."""
        return sum(n for (v, s), n in self.states.items() if s in states and version in (None, v))


def run_fleet(
    load: Sequence[int],
    control: Control,
    *,
    size: int = 2,
    start_seconds: int = 5,
    request_seconds: int = 6,
    capacity: int = 8,
    change_at: int | None = None,
) -> list[Moment]:
    """What becomes of a fleet of `size` ready replicas while load[s] requests arrive in second s.

    A replica takes `capacity` requests at a time, each of which lasts `request_seconds`; one that
    finds no room waits. `control` is asked once a second, and its actions are carried out; from
    second `change_at` on, Rolling is asked in its place, until no replica of "v1" is left.
    """
    fleet, version, count = Fleet(), "v1", 0
    begun: dict[str, int] = {}  # when a replica was started
    ends: list[tuple[int, str]] = []
    waiting, moments = 0, []
    rolling: Rolling | None = None
    for _ in range(size):
        fleet.start(f"v1-{count}", "v1")
        fleet.ready(f"v1-{count}")
        count += 1
    for now, arriving in enumerate(load):
        for replica in fleet.living():
            if replica.state is State.STARTING and now >= begun[replica.name] + start_seconds:
                fleet.ready(replica.name)
        for end, name in ends:
            if end <= now:
                fleet.end(name)
        ends = [each for each in ends if each[0] > now]
        if now == change_at:
            rolling, version = Rolling(len(fleet.living())), "v2"
        if rolling is not None and fleet.living("v1"):
            actions = rolling.next(fleet, "v1", "v2")
        else:
            actions = control(now, fleet, len(ends) + waiting)
        for _ in range(actions.start):
            begun[f"{version}-{count}"] = now
            fleet.start(f"{version}-{count}", version)
            count += 1
        for name in actions.drain:
            fleet.drain(name)
        waiting += arriving
        while waiting:
            room = [n for n in fleet.choosable() if fleet.replicas[n].open < capacity]
            if not room:
                break
            name = min(room, key=lambda name: fleet.replicas[name].open)
            fleet.begin(name)
            ends.append((now + request_seconds, name))
            waiting -= 1
        states: dict[tuple[str, State], int] = {}
        for replica in fleet.replicas.values():
            place = replica.version, replica.state
            states[place] = states.get(place, 0) + 1
        moments.append(Moment(now, states, len(ends), waiting))
    return moments

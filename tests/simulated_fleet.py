"""Clients, router, servers, supervisors, engines, stores, journals in virtual time, under faults.

All of it is the real one, in one event loop whose clock jumps (virtual_loop.py). In place of
sockets there is a network that loses, delays, doubles and cuts messages (simulated_network.py); a
server may be killed or stopped at any moment, and is started again on its journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
from starlette.middleware import Middleware

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.cluster import router as plain_router
from nanovllm.cluster.router import RouterConfig
from nanovllm.paging.store import PagedStore
from nanovllm.resilience.careful_router import CarefulRouter
from nanovllm.resilience.checker import ladder_complaints
from nanovllm.resilience.durable import Durable
from nanovllm.resilience.errors import JournalFullError
from nanovllm.resilience.failures import Failure, Rules, Rung
from nanovllm.resilience.faults import FaultyEngine, draw_faults, shrink
from nanovllm.resilience.guardian import Guardian
from nanovllm.resilience.journal import Journal
from nanovllm.resilience.kinds import DEATHS, HANG_SECONDS, SLOW_SECONDS, Fault, Kind
from nanovllm.resilience.supervisor import SupervisedEngine
from nanovllm.resilience.take_deadline import TakeDeadline
from nanovllm.serving import app as serving_app
from nanovllm.serving.app import Server
from nanovllm.serving.async_engine import AsyncEngine
from nanovllm.serving.config import ServeConfig
from tests.serving_tools import MODEL, TEMPLATE, TOKENIZER
from tests.simulated_clients import AGAIN, Ask, Client, asks_of
from tests.simulated_network import Direct, Host, Network, belongs, place
from tests.virtual_loop import VirtualLoop, run

ROUND, DOWN = 0.02, 1.5  # seconds
URLS = ("http://one", "http://two")
CLIMBING = (Failure.CRASH, Failure.HANG, Failure.NAN)  # of the others the guardian has a table


@dataclass(frozen=True)
class FleetFaults:
    """Of each server's steps; of messages; of writes to journals; kills: server and moment; rests:
    server, moment, and for how long nothing of it runs."""

    steps: tuple[tuple[Fault, ...], ...] = ((), ())
    wire: tuple[Fault, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()  # of the message of this number, after so many pieces
    disk: tuple[Fault, ...] = ()
    kills: tuple[tuple[int, float], ...] = ()
    rests: tuple[tuple[int, float, float], ...] = ()

    @property
    def late(self) -> float:
        """Seconds that steps take more than they should, in the only loop."""
        kinds = [fault.kind for some in self.steps for fault in some]
        return kinds.count(Kind.HANG) * HANG_SECONDS + kinds.count(Kind.SLOW) * SLOW_SECONDS


def faults_of(seed: int) -> FleetFaults:
    """What goes wrong with a seed: each sort of fault in about half of all seeds."""
    draw = random.Random(f"fleet {seed}")
    deaths = [*DEATHS, Kind.SLOW, Kind.STORE_FULL]
    steps = tuple(
        draw_faults(4 * seed + server, 40, draw.choice((0, 2)), deaths) for server in range(2)
    )
    cuts = {draw.randrange(20): draw.randrange(20) for _ in range(draw.choice((0, 6)))}
    kills = [(draw.randrange(2), draw.uniform(0.05, 1.5)) for _ in range(draw.choice((0, 0, 1, 2)))]
    rests = [
        (draw.randrange(2), draw.uniform(0.05, 1.0), draw.choice((1.0, 12.0)))
        for _ in range(draw.choice((0, 0, 1)))
    ]
    return FleetFaults(
        steps,
        draw_faults(4 * seed + 2, 30, draw.choice((0, 4)), (Kind.LOST, Kind.LATE, Kind.DOUBLED)),
        tuple(sorted(cuts.items())),
        draw_faults(4 * seed + 3, 6, draw.choice((0, 2)), (Kind.DISK_FULL,)),
        tuple(sorted(kills, key=lambda kill: kill[1])),
        tuple(rests),
    )


class Stepped(AsyncEngine):
    """Lab 07's, but the event loop takes the steps itself, one every `ROUND` seconds."""

    def start(self) -> None:
        self._loop, self._due, self.node = asyncio.get_running_loop(), False, place.get()

    @property
    def alive(self) -> bool:
        return self.error is None

    async def stop(self) -> None:
        self._stopping = True

    def _note(self, *notes: Callable[[], object]) -> None:
        super()._note(*notes)
        self._wake()

    def _wake(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_later(ROUND, self._round)

    def _round(self) -> None:
        self._due = False
        if self._stopping or self.error is not None or (self.node and self.node.down):
            return
        if self.node and not self.node.awake.is_set():
            self._wake()
            return
        try:
            if self._notes or self.engine.has_unfinished:
                self._turn()
        except BaseException as error:
            self._close(error)
            return
        if self._notes or self.engine.has_unfinished:
            self._wake()


class FullAtTimes(Journal):
    """A journal whose disk is full at some of its writes, counted over all of a run."""

    def __init__(self, path: Path, full: set[int], numbers: Iterator[int]) -> None:
        super().__init__(path)
        self._full, self._numbers = full, numbers

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        if next(self._numbers) in self._full:
            raise JournalFullError("a full disk on purpose")
        with super()._writing():
            yield


class Node(Host):
    """One server and its disk."""

    def __init__(self, fleet: Fleet, url: str, faults: Sequence[Fault]) -> None:
        self.fleet, self.url, self.faults = fleet, url, faults
        super().__init__()
        self.steps = count()
        self.disk = Path(fleet.folder) / url.rpartition("/")[2]
        self.disk.mkdir()
        self.histories: list[Sequence[Rung]] = []

    def _engine(self) -> Any:
        loop = self.fleet.loop
        store = PagedStore(MODEL.config, 24, 8)
        config = EngineConfig(max_num_seqs=4)
        engine = Engine(MODEL, config, store=store, tokenizer=TOKENIZER, clock=loop)
        return FaultyEngine(engine, self.faults, self.steps, loop)

    async def start(self) -> None:
        """A process of its own, as far as one event loop can have one."""
        place.set(self)
        self.tasks, self.down = set(), False
        evidence = self.disk / "evidence.json"
        evidence.unlink(missing_ok=True)  # who starts it has read that
        loop = self.fleet.loop
        guardian = Guardian(self._engine, 2.0, evidence, loop)
        first = guardian.guard(self._engine())
        engine: Any = SupervisedEngine(guardian.make, clock=loop, engine=first)
        self.server = Server(engine, ServeConfig(model_name="tiny"), TEMPLATE)
        self.app = self.server.app
        guardian.attach(self.server)
        self.histories.append(guardian.history)
        self.app.add_middleware(TakeDeadline)
        self.journal = FullAtTimes(self.disk / "journal", self.fleet.full, self.fleet.writes)
        self.app.user_middleware.append(Middleware(Durable, journal=self.journal))
        started, self.stops = asyncio.Event(), asyncio.Event()
        messages = [{"type": "lifespan.startup"}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await self.stops.wait()
            return {"type": "lifespan.shutdown"}

        async def send(message: Any) -> None:
            assert "failed" not in message["type"], message
            started.set()

        self.living = asyncio.ensure_future(
            self.app({"type": "lifespan", "state": {}}, receive, send)
        )
        await started.wait()

    async def stop(self) -> None:
        self.stops.set()
        await self.living
        self.journal.close()

    def kill(self) -> None:
        """What it has on disk stays as it is."""
        self.journal.close()
        super().kill()

    def complaints(self) -> list[str]:
        """What is left of anything, once all have their answers."""
        engine = self.server.engine
        core: Any = engine.engine
        core.check()
        wrong = []
        if engine.streams or core.has_unfinished:
            wrong.append(f"{self.url}: requests are left")
        if core.store.free_tokens != core.store.total_tokens:
            wrong.append(f"{self.url}: places are held by nobody")
        if self.journal.open_requests():
            wrong.append(f"{self.url}: its journal has open requests")
        for history in self.histories:
            rungs = [rung for rung in history if rung.failure in CLIMBING]
            wrong += [f"{self.url}: {said}" for said in ladder_complaints(rungs, Rules())]
        return wrong


@dataclass
class Fleet:
    """A run: what was asked, what went wrong, and what each client has heard."""

    seed: int
    faults: FleetFaults
    folder: str
    asks: list[Ask]
    clients: list[Client] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    restarts: int = 0
    retries: int = 0
    seconds: float = 0.0

    async def run(self, loop: VirtualLoop) -> None:
        self.loop, self.writes = loop, count()
        self.full = {fault.step for fault in self.faults.disk}
        loop.set_task_factory(belongs)
        self.nodes = {
            url: Node(self, url, faults)
            for url, faults in zip(URLS, self.faults.steps, strict=True)
        }
        for node in self.nodes.values():
            await self._apart(node.start)
        client = httpx.AsyncClient(
            transport=Network(self.nodes, self.faults.wire, self.faults.cuts), timeout=600
        )
        router = CarefulRouter(RouterConfig(URLS, policy="round_robin"), client)
        outside = httpx.AsyncClient(
            transport=Direct(router.app), base_url="http://router", timeout=None
        )
        lifespan = router._lifespan(router.app)
        await lifespan.__aenter__()
        kills = [asyncio.ensure_future(self._kill(*kill)) for kill in self.faults.kills]
        kills += [asyncio.ensure_future(self._rest(*rest)) for rest in self.faults.rests]
        self.clients = [Client(ask, outside, loop, self.faults.late) for ask in self.asks]
        await asyncio.gather(*(client.run() for client in self.clients), *kills)
        await asyncio.sleep(2 * AGAIN)  # what nobody waits for any more ends, too
        for url, node in self.nodes.items():
            self.complaints += node.complaints()
            if router.pool.work.load(url).requests or router._waits[url]:
                self.complaints.append(f"the router still has requests at {url}")
        self.restarts = sum(node.server.engine.engine.restarts for node in self.nodes.values())
        self.retries = sum(client.retries for client in self.clients)
        self.seconds = loop.now
        await lifespan.__aexit__(None, None, None)
        for node in self.nodes.values():
            await node.stop()

    async def _apart(self, start: Callable[[], Any]) -> None:
        """In a context of its own, which what it begins inherits."""
        await asyncio.get_running_loop().create_task(start(), context=contextvars.copy_context())

    async def _kill(self, number: int, moment: float) -> None:
        await asyncio.sleep(moment)
        node = self.nodes[URLS[number]]
        if not node.down:
            node.kill()
            await asyncio.sleep(DOWN)
            await self._apart(node.start)

    async def _rest(self, number: int, moment: float, seconds: float) -> None:
        """SIGSTOP, and SIGCONT."""
        await asyncio.sleep(moment)
        node = self.nodes[URLS[number]]
        node.awake.clear()
        await asyncio.sleep(seconds)
        node.awake.set()


def run_fleet(seed: int, faults: FleetFaults | None = None) -> Fleet:
    """One seed: its requests under its faults, or under others."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # a journal syncs
        faults = faults_of(seed) if faults is None else faults
        fleet = Fleet(seed, faults, folder, asks_of(seed))

        async def main(loop: VirtualLoop) -> None:
            clock = SimpleNamespace(monotonic=loop, time=loop, perf_counter=loop)
            with (
                patch.object(serving_app, "AsyncEngine", Stepped),
                patch.object(plain_router, "time", clock),
            ):
                await fleet.run(loop)

        try:
            run(main)
        except RuntimeError as error:
            fleet.complaints.append(f"it came to an end: {error!r}")
    for client in fleet.clients:
        fleet.complaints += client.judged()
    return fleet


def least(fleet: Fleet) -> FleetFaults:
    """The few faults of a failing run that still make it fail."""
    f = fleet.faults
    parts: dict[str, Any] = {
        "steps": tuple((s, one) for s, some in enumerate(f.steps) for one in some),
        "wire": f.wire, "cuts": f.cuts, "disk": f.disk, "kills": f.kills, "rests": f.rests,
    }  # fmt: skip

    def made(parts: dict[str, Any]) -> FleetFaults:
        steps = tuple(tuple(one for at, one in parts["steps"] if at == s) for s in range(2))
        return FleetFaults(**(parts | {"steps": steps}))

    for name in parts:

        def fails(some: Sequence[Any], name: str = name) -> bool:
            return bool(run_fleet(fleet.seed, made(parts | {name: tuple(some)})).complaints)

        parts[name] = shrink(parts[name], fails)
    return made(parts)

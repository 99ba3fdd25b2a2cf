"""Lab 11: the router's index against brute force, policies, and a fleet in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from nanovllm.cluster.autoscaler import Autoscaler, to_drain
from nanovllm.cluster.block_index import BlockIndex
from nanovllm.cluster.errors import ClusterError, NoReplicaError
from nanovllm.cluster.fleet import Fleet, Replica, State
from nanovllm.cluster.model_pool import ModelPool
from nanovllm.cluster.model_specs import BudgetError, ModelSpec, prefix_salt
from nanovllm.cluster.open_work import OpenWork, text_blocks
from nanovllm.cluster.rollout import BlueGreen, Canary, Rolling, Sticky
from nanovllm.cluster.routing import make_policy
from nanovllm.cluster.routing_interface import POLICIES, Query, ReplicaLoad
from nanovllm.serving.virtual_time import run_virtual


@pytest.mark.parametrize("seed", range(20))
def test_the_index_equals_brute_force(seed: int) -> None:
    draw = random.Random(seed)
    index, plain = BlockIndex(), {name: set() for name in "abcd"}
    for _ in range(150):
        name, some = draw.choice("abcd"), draw.choices(range(12), k=draw.randrange(5))
        kind = draw.random()
        if kind < 0.55:
            index.stored(name, some)
            plain[name].update(some)
        elif kind < 0.95:
            index.removed(name, some)
            plain[name].difference_update(some)
        else:
            index.cleared(name)
            plain[name].clear()
        asked = draw.choices(range(12), k=draw.randrange(6))
        expected = {}
        for each, held in plain.items():
            count = next((i for i, h in enumerate(asked) if h not in held), len(asked))
            if count:
                expected[each] = count
            assert index.size(each) == len(held)
        assert index.match(asked) == expected
    for name in "abcd":
        index.cleared(name)
    assert not index.holders and not index.held  # nothing is kept of what is gone


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_takes_any_replicas_in_any_order(name: str) -> None:
    policy, draw = make_policy(name, BlockIndex()), random.Random(1)
    for _ in range(60):
        some = [ReplicaLoad(f"r{i}", draw.randrange(3)) for i in draw.sample(range(9), 3)]
        query = Query(str(draw.random()))
        assert policy.choose(query, some) in {replica.name for replica in some}


def test_what_each_policy_is_for() -> None:
    def chosen(name: str, loads: list[int], keys: list[str]) -> Counter[str]:
        policy = make_policy(name, BlockIndex())
        replicas = [ReplicaLoad(f"r{i}", load) for i, load in enumerate(loads)]
        return Counter(policy.choose(Query(key), replicas) for key in keys)

    keys = [str(n) for n in range(300)]
    assert chosen("round_robin", [0, 9, 0], keys) == {"r0": 100, "r1": 100, "r2": 100}
    assert chosen("least_loaded", [4, 1, 2], keys) == {"r1": 300}
    two = chosen("power_of_two", [0, 1, 2, 3], keys)
    assert "r3" not in two and two["r0"] > two["r1"] > two["r2"] > 0
    assert min(chosen("rendezvous", [0, 9, 0], keys).values()) > 60
    with pytest.raises(ClusterError, match="round_robin"):
        make_policy("random", BlockIndex())


def test_rendezvous_moves_only_the_keys_of_the_replica_that_left() -> None:
    policy = make_policy("rendezvous", BlockIndex())
    four = [ReplicaLoad(name) for name in "abcd"]
    for n in range(200):
        before = policy.choose(Query(str(n)), four)
        after = policy.choose(Query(str(n)), four[:3])
        assert after == before or before == "d"


def test_a_prefix_draws_until_too_much_waits_there() -> None:
    index = BlockIndex()
    policy = make_policy("prefix_aware", index)
    index.stored("a", [1, 2, 3, 4])
    query = Query("", (1, 2, 3, 4), num_tokens=70, block_size=16)
    assert policy.choose(query, [ReplicaLoad("a", 0, 40), ReplicaLoad("b")]) == "a"
    assert policy.choose(query, [ReplicaLoad("a", 3, 200), ReplicaLoad("b")]) == "b"
    unknown = Query("", (9,), num_tokens=20)
    assert policy.choose(unknown, [ReplicaLoad("a"), ReplicaLoad("b", 1, 5)]) == "a"
    assert policy.choose(unknown, [ReplicaLoad("a", 1, 5), ReplicaLoad("b")]) == "b"


def test_work_is_counted_down_after_errors() -> None:
    work = OpenWork(make_policy("least_loaded", BlockIndex()), BlockIndex())
    with pytest.raises(RuntimeError), work.on(Query(num_tokens=5), ["a"]):
        raise RuntimeError
    assert work.load("a") == ReplicaLoad("a", 0, 0)
    with pytest.raises(NoReplicaError), work.on(Query(), []):
        pass
    assert text_blocks("ab" * 64)[0] != text_blocks("ab" * 64)[1]


def test_what_cannot_be_is_refused() -> None:
    fleet = Fleet()
    fleet.start("a", "v1")
    for wrong in (
        lambda: fleet.start("a", "v2"),
        lambda: fleet.begin("a"),
        lambda: fleet.ready("b"),
        lambda: Autoscaler(target=0),
        lambda: Autoscaler(target=1, least=3, most=2),
        lambda: Canary(1.5),
        lambda: Rolling(2, surge=0),
        lambda: Sticky().version("k", "v1", []),
    ):
        with pytest.raises(ClusterError):
            wrong()
    fleet.crash("a")
    for wrong in (fleet.ready, fleet.drain, fleet.begin, fleet.crash):
        with pytest.raises(ClusterError):
            wrong("a")
    fleet.start("a", "v2")


def test_an_autoscaler_waits_and_is_not_shaken() -> None:
    scaler = Autoscaler(target=10, most=6, up_delay=5, down_delay=20)
    loads = [30, 30, 9, 30, 30, 30]
    assert [scaler.decide(4.0 * n, load, 1) for n, load in enumerate(loads)] == [1, 1, 1, 1, 1, 3]
    assert scaler.decide(24.0, 30, 3) == 3  # starting ones count: no fourth
    assert [scaler.decide(t, 0, 3) for t in (30.0, 49.0, 50.0)] == [3, 3, 1]
    assert scaler.decide(51.0, 0, 9) == 6
    some = [Replica("a", "v", State.READY, 5), Replica("b", "v", State.DRAINING)]
    assert to_drain(some, 2) == ["a"]


@pytest.mark.parametrize("plan", [Rolling(3), Rolling(3, surge=2), BlueGreen(3)])
def test_a_change_of_version_ends_and_never_lacks_replicas(plan: Rolling | BlueGreen) -> None:
    fleet, draw = Fleet(), random.Random(2)
    for name in "abc":
        fleet.start(name, "v1")
        fleet.ready(name)
        fleet.begin(name)
    most = 3 + (plan.surge if isinstance(plan, Rolling) else 3)
    for turn in range(60):
        actions = plan.next(fleet, "v1", "v2")
        for n in range(actions.start):
            fleet.start(f"n{turn}-{n}", "v2")
        for name in actions.drain:
            fleet.drain(name)
        assert len(fleet.choosable()) >= 3 and len(fleet.living()) <= most
        for replica in list(fleet.replicas.values()):
            if replica.state is State.STARTING and draw.random() < 0.4:
                fleet.ready(replica.name)
            elif replica.open and draw.random() < 0.3:
                fleet.end(replica.name)
    assert len(fleet.choosable("v2")) == 3 and not fleet.living("v1")
    assert all(fleet.replicas[name].state is State.DEAD for name in "abc")


def test_a_larger_canary_takes_nobody_back() -> None:
    keys = [str(n) for n in range(500)]
    small, large = (
        {k for k in keys if Canary(s).version_for(k, "v1", "v2") == "v2"} for s in (0.1, 0.4)
    )
    assert 20 < len(small) < len(large) and small < large
    assert {Canary(0.0).version_for(k, "v1", "v2") for k in keys} == {"v1"}
    assert {Canary(1.0).version_for(k, "v1", "v2") for k in keys} == {"v2"}


@pytest.mark.parametrize("seed", range(10))
def test_models_stay_within_their_budget(seed: int) -> None:
    draw, there, log = random.Random(seed), set(), []

    def load(spec: ModelSpec) -> str:
        if draw.random() < 0.1:
            raise OSError("no file")
        there.add(spec.name)
        return spec.name

    specs = [ModelSpec(f"m{n}", draw.randint(1, 6), n == 0, (f"alias{n}",)) for n in range(6)]
    pool = ModelPool(10, specs, load, lambda spec, loaded: there.remove(loaded))
    size, users = {s.name: s.nbytes for s in specs}, []
    for _ in range(200):
        if users and draw.random() < 0.5:
            pool.release(users.pop(draw.randrange(len(users))))
        else:
            number, before = draw.randrange(6), set(there)
            name = draw.choice([f"m{number}", f"alias{number}"])
            try:
                assert pool.acquire(name) == f"m{number}"
                users.append(name)
            except BudgetError:
                assert there == before
                kept = {n.replace("alias", "m") for n in users} | ({"m0"} & there)
                assert sum(map(size.get, kept)) + size[f"m{number}"] > 10
            except OSError:
                log.append(name)
        assert {pool.resolve(n).name for n in users} <= there == set(pool.resident)
        assert pool.used == sum(map(size.get, there)) <= 10
    assert log and len({prefix_salt(spec) for spec in specs}) == 6


def test_bad_models_are_refused() -> None:
    load, unload = (lambda spec: spec.name), (lambda spec, loaded: None)
    for specs in ([ModelSpec("a", 11)], [ModelSpec("a", 1), ModelSpec("b", 1, aliases=("a",))]):
        with pytest.raises(ClusterError):
            ModelPool(10, specs, load, unload)
    pool = ModelPool(10, [ModelSpec("a", 5)], load, unload)
    for wrong in (lambda: pool.acquire("b"), lambda: pool.release("a")):
        with pytest.raises(ClusterError):
            wrong()


class FleetInTime:
    """Replicas that take a while to start and to answer; some crash. Each request is asked until
    a replica has answered it."""

    def __init__(self, seed: int, count: int) -> None:
        self.draw, self.loop = random.Random(seed), asyncio.get_running_loop()
        self.fleet, self.names = Fleet(), 0
        self.work = OpenWork(make_policy(self.draw.choice(POLICIES), BlockIndex()), BlockIndex())
        self.gone: dict[str, asyncio.Event] = {}
        self.ended: Counter[int] = Counter()
        self.lost = 0
        self.count = count

    async def start(self, version: str) -> None:
        name, self.names = f"r{self.names}", self.names + 1
        self.fleet.start(name, version)
        self.gone[name] = asyncio.Event()
        await asyncio.sleep(self.draw.uniform(1, 8))
        if self.fleet.replicas[name].state is State.STARTING:
            self.fleet.ready(name)

    async def request(self, number: int) -> None:
        await asyncio.sleep(self.draw.uniform(0, 100))
        query = Query(str(number % 7), (number % 7,), 40)
        while True:
            try:
                with self.work.on(query, self.fleet.choosable()) as name:
                    self.fleet.begin(name)
                    lost = asyncio.ensure_future(self.gone[name].wait())
                    done = asyncio.ensure_future(asyncio.sleep(self.draw.uniform(0.5, 6)))
                    await asyncio.wait((lost, done), return_when=asyncio.FIRST_COMPLETED)
                    lost.cancel()
                    if done.done() and not self.gone[name].is_set():
                        self.ended[number] += 1
                        self.fleet.end(name)
                        return
                    done.cancel()
                    self.lost += 1
            except NoReplicaError:
                await asyncio.sleep(1)

    async def crashes(self) -> None:
        while True:
            await asyncio.sleep(self.draw.uniform(3, 20))
            living = self.fleet.living()
            if living:
                name = self.draw.choice(living).name
                self.fleet.crash(name)
                self.gone[name].set()

    async def manage(self, tasks: set[asyncio.Task[None]]) -> None:
        scaler = Autoscaler(target=3, least=2, most=self.count, up_delay=2, down_delay=8)
        while True:
            living = self.fleet.living()
            open_now = sum(replica.open for replica in self.fleet.replicas.values())
            wanted = scaler.decide(self.loop.time(), open_now, len(living))
            for _ in range(wanted - len(living)):
                tasks.add(asyncio.ensure_future(self.start("v1")))
            for name in to_drain(living, len(living) - wanted):
                self.fleet.drain(name)
            await asyncio.sleep(1)

    async def run(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        busy = [asyncio.ensure_future(self.crashes()), asyncio.ensure_future(self.manage(tasks))]
        await asyncio.gather(*(self.request(number) for number in range(200)))
        for task in (*busy, *tasks):
            task.cancel()
        await asyncio.gather(*busy, *tasks, return_exceptions=True)
        assert self.ended == dict.fromkeys(range(200), 1)
        assert all(not replica.open for replica in self.fleet.replicas.values())
        assert all(not self.work.load(name).requests for name in self.fleet.replicas)


async def live(seed: int) -> FleetInTime:
    fleet = FleetInTime(seed, 3 + seed * 7 % 48)
    await fleet.run()
    return fleet


def test_every_request_ends_once() -> None:
    fleets = [run_virtual(live(seed)) for seed in range(8)]
    assert sum(fleet.lost for fleet in fleets) > 20  # crashes met requests, which were asked again


@pytest.mark.proof
def test_every_request_ends_once_in_many_fleets() -> None:
    for seed in range(300):
        run_virtual(live(seed))

"""Hidden scenarios of lab 11: other paths than those of the visible checks."""

from grader.checks.scenarios import scenario

# task 1


def _cache(rng, num_blocks, block_size, dtype, layers=2, heads=2, dim=3):
    """A cache as lab 05's, of random numbers."""
    import torch

    from nanovllm.model.config import ModelConfig
    from nanovllm.paging.cache import PagedCache

    config = ModelConfig("llama", 9, heads * dim, layers, heads, heads, dim, 8, 16)
    cache = PagedCache(config, num_blocks, block_size, dtype)
    for x in (cache.k, cache.v):
        x.copy_(torch.from_numpy(rng.normal(size=tuple(x.shape))))
    return cache


def _digest(data):
    import hashlib

    return None if data is None else [len(data), hashlib.sha256(data).hexdigest()]


@scenario(task=1)
def handed_on_by_three_engines(nanovllm, rng):
    """What one engine got it sends on, in blocks of its own; every byte on the way."""
    import torch

    from nanovllm.cluster.header import Header
    from nanovllm.cluster.wire import load, pack, unpack

    dtype = (torch.float32, torch.bfloat16, torch.float16)[int(rng.integers(3))]
    count, story = int(rng.integers(1, 40)), []
    caches = [_cache(rng, 50, int(size), dtype) for size in rng.integers(1, 10, size=4)]
    tables = [rng.permutation(50)[: -(-count // c.block_size) + 2].tolist() for c in caches]
    for number in range(3):
        here, there = caches[number : number + 2]
        data = pack(Header.of(here, "m"), here, tables[number], count)
        got = unpack(data, Header.of(there, "m"))
        load(there, got.upto(count), tables[number + 1], int(number == 1) * (count // 2))
        story.append([_digest(data), got.num_tokens, got.k.float(), got.v.float()])
    return {"sizes": [c.block_size for c in caches], "story": story, "last": caches[3].k.float()}


@scenario(task=1)
def bytes_with_accidents(nanovllm, rng):
    """Cut, doubled, with something in front or behind: what is refused, what is read."""
    import torch

    from nanovllm.cluster.errors import WireError
    from nanovllm.cluster.header import Header
    from nanovllm.cluster.wire import pack, unpack

    story = []
    for _ in range(25):
        cache = _cache(rng, 9, int(rng.integers(1, 6)), torch.float32)
        header, count = Header.of(cache, "m"), int(rng.integers(1, 9))
        blocks = rng.permutation(9).tolist()
        data = pack(header, cache, blocks, count)
        at, kind = int(rng.integers(len(data))), int(rng.integers(5))
        sent = (data, data[:at], data + data[at:], data[:at] + b"\0" + data[at:], data)[kind]
        try:
            story.append([kind, unpack(sent, header).k])
        except WireError:
            story.append([kind, "refused"])
    return {"story": story}


@scenario(task=1)
def who_may_talk_to_whom(nanovllm, rng):
    """Headers of many engines, each with each."""
    from nanovllm.cluster.errors import ForeignError
    from nanovllm.cluster.header import Header

    made = [
        Header(
            *(int(n) for n in rng.integers(1, 3, size=4)),
            ("float32", "float16")[int(rng.integers(2))],
            "mn"[int(rng.integers(2))],
        )
        for _ in range(20)
    ]
    story = []
    for mine in made:
        for other in made:
            try:
                mine.refuse_foreign(other)
                story.append(True)
            except ForeignError:
                story.append(False)
    return {"sizes": [header.block_size for header in made], "story": story}


# task 2


@scenario(task=2)
def parked_in_a_real_pool(nanovllm, rng):
    """Transfers that share blocks with each other and with requests; who gets which block next."""
    from nanovllm.cluster.parking import Parking
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.holds import Holds

    now, pool, story = [0.0], BlockPool(12), []
    parking = Parking(Holds(pool), 7.0, lambda: now[0])
    requests = {}
    for step in range(60):
        kind, name = int(rng.integers(6)), f"t{int(rng.integers(6))}"
        if kind == 0 and pool.num_free >= 3:
            requests[step] = pool.allocate(int(rng.integers(1, 4)), step)
        elif kind == 1 and requests:
            owner = list(requests)[int(rng.integers(len(requests)))]
            story.append(parking.park(name, requests[owner], len(requests[owner])))
            if rng.random() < 0.6:
                pool.free(requests.pop(owner), owner)
        elif kind == 2:
            story.append(parking.acknowledge(name))
        elif kind == 3:
            now[0] += float(rng.integers(1, 4))
        elif kind == 4:
            found = parking.find(name)
            story.append(None if found is None else [found.num_tokens, found.expires])
        else:
            story.append(parking.expire())
        story.append([pool.num_free, len(parking)])
    return {"story": story}


def _request(number, prompt, transfer):
    from nanovllm.batching.request import Request
    from nanovllm.cluster.transfer_params import TransferParams
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence

    params = SamplingParams(max_tokens=9)
    if transfer is not None:
        params = TransferParams.of(params, transfer)
    sequence = Sequence(prompt, params, max_model_len=90, seed=0)
    sequence.request_id = number
    return Request(number, sequence, 0.0, len(prompt) + 8)


@scenario(task=2)
def a_store_that_sends_and_receives(nanovllm, rng):
    """Prompts with common beginnings, computed in pieces, received, parked, suspended, fetched."""
    import torch

    from nanovllm.batching.plan import Chunk, Plan
    from nanovllm.cluster.connected_store import ConnectedStore
    from nanovllm.cluster.sides import Decodes
    from nanovllm.cluster.wire import Received
    from nanovllm.model.config import ModelConfig

    config = ModelConfig("llama", 97, 8, 2, 2, 2, 4, 8, 96)
    store = ConnectedStore(config, 24, int(rng.integers(2, 5)), model="m")
    running, story = [], []
    for number in range(40):
        kind = int(rng.integers(5))
        if kind < 2:
            prompt = [int(rng.integers(2))] * int(rng.integers(1, 7))
            prompt += [int(t) for t in rng.integers(3, 5, size=int(rng.integers(1, 8)))]
            numbers = torch.from_numpy(rng.normal(size=(2, 2, len(prompt), 2, 4))).float()
            side = (None, Decodes(f"t{number % 5}"), Received(*numbers))[int(rng.integers(3))]
            request = _request(number, prompt, side)
            room = store.can_admit(request)
            story.append(room)
            if room:
                request.num_computed_tokens = store.admit(request)
                story.append([request.num_computed_tokens, store.loaded])
                running.append(request)
        elif running and kind == 2:
            request = running[int(rng.integers(len(running)))]
            start, total = request.num_computed_tokens, request.num_tokens
            length = min(int(rng.integers(1, 6)), total - start)
            if length > 0 and store.reserve(request, length):
                blocks = store.block_ids(request)
                store.make_copies()
                for token in range(start, start + length):
                    place = (
                        slice(None),
                        blocks[token // store.block_size],
                        token % store.block_size,
                    )
                    store.cache.k[place] = store.cache.v[place] = float(1000 * number + token)
                store.commit(Plan((Chunk(request, start, length, total),)))
                request.num_computed_tokens += length
        elif running and kind == 3:
            request = running.pop(int(rng.integers(len(running))))
            store.release(request)
        else:
            story.append(_digest(store.fetch(f"t{int(rng.integers(5))}")))
            if rng.random() < 0.3:
                story.append(store.parking.acknowledge(f"t{int(rng.integers(5))}"))
        story.append([store.free_tokens, len(store.parking)])
        store.check(running)
    return {"story": story}


@scenario(task=2)
def samples_of_a_received_prompt(nanovllm, rng):
    """Several samples, one transfer fetched twice, an abort, a small engine that preempts."""
    import torch

    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.cluster.connected_store import ConnectedStore
    from nanovllm.cluster.sides import Decodes
    from nanovllm.cluster.transfer_params import TransferParams
    from nanovllm.cluster.wire import unpack
    from nanovllm.generation.events import Finished
    from nanovllm.generation.params import SamplingParams
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.transformer import Transformer

    config = ModelConfig("llama", 61, 16, 2, 4, 2, 6, 24, 96)
    torch.manual_seed(int(rng.integers(1000)))
    model = Transformer(config).eval()
    settings = EngineConfig(max_num_seqs=4, max_num_batched_tokens=12)
    here, there = (
        Engine(model, settings, store=ConnectedStore(config, blocks, size, model="m"))
        for blocks, size in ((30, 4), (12, 3))
    )
    prompt = [int(t) for t in rng.integers(0, 61, size=int(rng.integers(5, 14)))]
    here.add_request(prompt, TransferParams.of(SamplingParams(max_tokens=1), Decodes("t")))
    left = here.add_request(prompt[::-1], TransferParams.of(SamplingParams(), Decodes("u")))
    here.step()
    here.abort(left)
    list(here.run())
    told = []
    for seed, count in ((3, 2), (4, 1)):
        came = unpack(here.store.fetch("t"), there.store.header)
        params = SamplingParams(n=count, seed=seed, max_tokens=7, ignore_eos=True)
        told.append(there.add_request(prompt, TransferParams.of(params, came)))
    found = sorted(
        [told.index(e.request_id), list(e.completion.token_ids)]
        for e in there.run()
        if isinstance(e, Finished)
    )
    there.check()
    return {
        "prompt": prompt,
        "texts": found,
        "acknowledged": [here.store.parking.acknowledge(name) for name in "tt"],
        "free": [e.store.free_tokens == e.store.total_tokens for e in (here, there)],
    }


# task 3


@scenario(task=3)
def a_decode_server_and_its_peers(nanovllm, rng):
    """Many requests to one server, whose transport does what it likes."""
    import asyncio

    import torch

    from nanovllm.cluster.errors import ClusterError, TransferError
    from nanovllm.cluster.handshake import Handshake
    from nanovllm.cluster.header import Header, encode
    from nanovllm.cluster.kv_transfer_params import Remote, answer_of
    from nanovllm.cluster.role import RoleConfig

    mine, heard = Header(1, 2, 1, 2, "float32", "m"), []

    class Line:
        async def receive(self, remote, headers):
            heard.append(["receive", remote.port, headers])
            if self.data is None:
                raise TransferError("gone")
            return self.data

        async def acknowledge(self, remote, headers):
            heard.append(["acknowledge", remote.port, headers])
            if self.deaf:
                raise TransferError("deaf")

    line, story = Line(), []
    ports = [int(p) for p in rng.integers(1000, 9000, size=3)]
    role = RoleConfig("decode", peers=tuple(f"h:{port}" for port in ports[:2]))
    handshake = Handshake(role, mine, line)
    for number in range(30):
        model = "m" if rng.random() < 0.8 else "n"
        sent = Header(1, int(rng.integers(1, 4)), 1, 2, "float32", model)
        count, tokens = int(rng.integers(1, 6)), int(rng.integers(3, 7))
        numbers = torch.from_numpy(rng.normal(size=sent.nbytes(count) // 2)).float()
        data = encode(sent, count) + numbers.numpy().tobytes()
        cut = int(rng.integers(len(data)))
        line.data = (data, data, data, data[:cut], None)[int(rng.integers(5))]
        line.deaf = bool(rng.random() < 0.3)
        given = answer_of(Remote("h", ports[int(rng.integers(3))], f"{number:032x}"), tokens)
        if rng.random() < 0.2:
            given["do_remote_prefill"] = bool(rng.integers(2))
            given["do_remote_decode"] = bool(rng.integers(2))
        try:
            side = asyncio.run(handshake.take_part(given, tokens, {"n": str(number)}))
            got = None if side.transfer is None else side.transfer.k
            story.append([got, side.answer, handshake.fallbacks])
        except ClusterError:
            story.append(["refused", handshake.fallbacks])
    return {"story": story, "heard": heard}


@scenario(task=3)
def prefill_and_decode_talk(nanovllm, rng):
    """What prefill answers goes to decode word for word."""
    import asyncio

    import torch

    from nanovllm.cluster.handshake import Handshake
    from nanovllm.cluster.header import Header
    from nanovllm.cluster.role import RoleConfig
    from nanovllm.cluster.wire import pack

    cache = _cache(rng, 30, int(rng.integers(1, 6)), torch.float32)
    header, shelf, story = Header.of(cache, "m"), {}, []

    class Shelf:
        async def receive(self, remote, headers):
            return shelf[remote.transfer_id]

        async def acknowledge(self, remote, headers):
            story.append([remote.host, remote.port, remote.transfer_id in shelf])
            del shelf[remote.transfer_id]

    port = int(rng.integers(1000, 9000))
    prefill = Handshake(RoleConfig("prefill", host="::1", port=port), header, Shelf())
    there = Header(*(2, int(rng.integers(1, 6)), 2, 3), "float32", "m")
    decode = Handshake(RoleConfig("decode", peers=(f"::1:{port}",)), there, Shelf())
    for _ in range(5):
        count = int(rng.integers(1, 12))
        ask = {"do_remote_decode": True}
        side = asyncio.run(prefill.take_part(ask, count, {}))
        blocks = rng.permutation(30).tolist()
        shelf[side.transfer.transfer_id] = pack(header, cache, blocks, count)
        got = asyncio.run(decode.take_part(side.answer, count, {})).transfer
        answer = {k: v for k, v in side.answer.items() if k != "remote_request_id"}
        story.append([answer, got.num_tokens, got.k, got.v])
    return {"story": story, "left": len(shelf), "fallbacks": decode.fallbacks}


def _jobs(rng, count):
    from nanovllm.cluster.replay import Job

    return [
        Job(float(rng.integers(0, 12)), int(rng.integers(1, 40)), int(rng.integers(1, 9)))
        for _ in range(count)
    ]


def _cost():
    from nanovllm.batching.simulator import StepCost

    return StepCost(base=0.5, per_token=0.125, per_place=0.015625)


def _told(spans):
    return [[s.lane, s.kind, sorted(s.jobs), s.start, s.end] for s in spans]


@scenario(task=3)
def instances_with_one_pool_and_with_their_own(nanovllm, rng):
    """The three rules for one instance, on one to three of them."""
    from nanovllm.cluster.replay import Limits, Progress, replay
    from nanovllm.cluster.strategies import chunked, prefill_first, static

    story = []
    for _ in range(4):
        jobs = _jobs(rng, int(rng.integers(1, 12)))
        limits = Limits(int(rng.integers(1, 6)), int(rng.integers(6, 40)))
        lanes = "abc"[: int(rng.integers(1, 4))]
        for strategy in (static, prefill_first, chunked):
            made = [Progress(n, job, job.arrival) for n, job in enumerate(jobs)]
            spans = replay(
                made, strategy, _cost(), limits, lanes=lanes, one_pool=bool(rng.integers(2))
            )
            story.append([_told(spans), [p.times for p in made]])
    return {"story": story}


@scenario(task=3)
def apart_on_other_wires(nanovllm, rng):
    """Disaggregated, with a price for places, and few seats."""
    from nanovllm.cluster.replay import Job, Limits
    from nanovllm.cluster.strategies import Wire, disaggregated

    story = []
    for _ in range(6):
        jobs = [Job(0.0, 1, 2), *_jobs(rng, int(rng.integers(1, 14)))]  # one is sent before 1 s
        wire = Wire(float(rng.integers(0, 3)), float(rng.integers(0, 4)) / 16)
        progress, spans = disaggregated(jobs, _cost(), wire, Limits(int(rng.integers(1, 5)), 64))
        starts = [span.start for span in spans]
        story.append([
            [[p.number, p.times, p.job.output] for p in progress],
            sorted(_told(spans)), starts == sorted(starts),
        ])  # fmt: skip
    return {"story": story}


# task 4


@scenario(task=4)
def events_of_many_replicas(nanovllm, rng):
    """Chains of blocks as tuples; replicas that are restarted, and come back with the same."""
    from nanovllm.cluster.block_index import BlockIndex

    index, story = BlockIndex(), []
    chains = [tuple((c, n) for n in range(int(rng.integers(1, 9)))) for c in range(6)]
    for _ in range(150):
        name = f"http://r{int(rng.integers(7))}:80"
        chain = chains[int(rng.integers(6))]
        begin, end = sorted(int(n) for n in rng.integers(0, len(chain) + 1, size=2))
        kind = rng.random()
        if kind < 0.5:
            index.stored(name, chain[:end])
        elif kind < 0.8:
            index.removed(name, chain[begin:end][::-1])
        elif kind < 0.85:
            index.cleared(name)
        asked = chains[int(rng.integers(6))]
        story.append([sorted(index.match(asked).items()), index.size(name)])
    return {"story": story}


@scenario(task=4)
def costs_without_a_choice_of_constant(nanovllm, rng):
    """Replicas with equally many open requests: only tokens decide."""
    from nanovllm.cluster.block_index import BlockIndex
    from nanovllm.cluster.routing import make_policy
    from nanovllm.cluster.routing_interface import Query, ReplicaLoad

    index, story = BlockIndex(), []
    policy = make_policy("prefix_aware", index)
    for _ in range(120):
        names = [f"r{n}" for n in rng.permutation(8)[: int(rng.integers(1, 6))]]
        chain = [(int(rng.integers(3)), n) for n in range(int(rng.integers(0, 7)))]
        event = (index.stored, index.stored, index.removed)[int(rng.integers(3))]
        event(names[0], chain[: int(rng.integers(0, 7))])
        size, busy = int(rng.integers(1, 40)), int(rng.integers(4))
        query = Query("k", tuple(chain), size * len(chain) + int(rng.integers(0, size)), size)
        loads = [ReplicaLoad(n, busy, int(rng.integers(0, 6)) * size) for n in names]
        story.append(policy.choose(query, loads))
    return {"story": story}


@scenario(task=4)
def turns_while_replicas_come_and_go(nanovllm, rng):
    """Round robin and least loaded behind a router that counts what is open."""
    from contextlib import ExitStack

    from nanovllm.cluster.block_index import BlockIndex
    from nanovllm.cluster.errors import NoReplicaError
    from nanovllm.cluster.open_work import OpenWork
    from nanovllm.cluster.routing import make_policy
    from nanovllm.cluster.routing_interface import Query

    story = []
    for name in ("round_robin", "least_loaded"):
        index = BlockIndex()
        work, opened = OpenWork(make_policy(name, index), index), []
        for _ in range(60):
            names = [f"s{n}" for n in range(12) if rng.random() < 0.4]
            if opened and rng.random() < 0.5:
                opened.pop(int(rng.integers(len(opened)))).close()
            stack = ExitStack()
            try:
                story.append(stack.enter_context(work.on(Query("q", (), 5), names)))
                opened.append(stack)
            except NoReplicaError:
                story.append(None)
    return {"story": story}


@scenario(task=4)
def a_growing_and_shrinking_ring(nanovllm, rng):
    """Keys of conversations over a long time: how many move that need not."""
    from nanovllm.cluster.block_index import BlockIndex
    from nanovllm.cluster.routing import make_policy
    from nanovllm.cluster.routing_interface import Query, ReplicaLoad

    policy = make_policy("rendezvous", BlockIndex())
    there, keys = ["p0", "p1", "p2"], [f"{int(n)}" for n in rng.integers(0, 10**9, size=150)]
    now = {key: policy.choose(Query(key), [ReplicaLoad(n) for n in there]) for key in keys}
    story = []
    for step in range(12):
        old = set(there)
        if len(there) < 3 or (len(there) < 8 and rng.random() < 0.6):
            there.append(f"p{step + 3}")
        else:
            there.remove(there[int(rng.integers(len(there)))])
        loads = [ReplicaLoad(n, int(rng.integers(9))) for n in rng.permutation(there).tolist()]
        new = {key: policy.choose(Query(key, (step,)), loads) for key in keys}
        came, gone = set(there) - old, old - set(there)
        story.append([
            sorted(there),
            sum(new[k] != now[k] and new[k] not in came and now[k] not in gone for k in keys),
            max(sum(new[k] == n for k in keys) for n in there) < 150 * 2.2 / len(there),
        ])  # fmt: skip
        now = new
    return {"story": story}


@scenario(task=4)
def two_of_many(nanovllm, rng):
    """Whether the share of each replica is what two draws of it make."""
    from nanovllm.cluster.block_index import BlockIndex
    from nanovllm.cluster.routing import make_policy
    from nanovllm.cluster.routing_interface import Query, ReplicaLoad

    size, seed = int(rng.integers(3, 7)), int(rng.integers(10**6))
    order = rng.permutation(size).tolist()
    loads = [ReplicaLoad(f"r{n}", 2 * n) for n in order]
    runs = []
    for _ in range(2):
        policy = make_policy("power_of_two", BlockIndex(), seed)
        runs.append([policy.choose(Query(), loads) for _ in range(3000)])
    pairs = size * (size - 1) / 2
    near = [abs(runs[0].count(f"r{n}") / 3000 - (size - 1 - n) / pairs) < 0.05 for n in range(size)]
    return {"order": order, "seed": seed, "near": near, "again": runs[0] == runs[1]}


# task 5


@scenario(task=5)
def a_day_of_a_fleet(nanovllm, rng):
    """Load that comes and goes; the autoscaler starts and drains, replicas crash."""
    from nanovllm.cluster.autoscaler import Autoscaler, to_drain
    from nanovllm.cluster.fleet import Fleet, State

    fleet, story, count = Fleet(), [], 0
    scaler = Autoscaler(
        float(rng.integers(2, 5)), int(rng.integers(0, 3)), 7, float(rng.integers(1, 4)), 6.0,
        float(rng.integers(0, 4)) / 10,
    )  # fmt: skip
    for now in range(90):
        living = fleet.living()
        opened = sum(r.open for r in fleet.replicas.values())
        wanted = scaler.decide(float(now), opened + int(rng.integers(0, 3)), len(living))
        for _ in range(wanted - len(living)):
            fleet.start(f"r{count}", f"v{count % 2}")
            count += 1
        for name in to_drain(living, max(0, len(living) - wanted)):
            fleet.drain(name)
        # Which of two equal replicas something happens to is nobody's business: by place.
        order = sorted(fleet.replicas.values(), key=lambda r: (r.state.value, r.open))
        for replica in order:
            if replica.state is State.STARTING and rng.random() < 0.4:
                fleet.ready(replica.name)
            elif replica.state is State.READY and rng.random() < 0.6:
                fleet.begin(replica.name)
            elif replica.open and rng.random() < (0.2 if now % 40 < 20 else 0.8):
                fleet.end(replica.name)
            elif replica.state is not State.DEAD and rng.random() < 0.03:
                story.append(fleet.crash(replica.name))
        shown = sorted([r.state.value, r.open] for r in fleet.replicas.values())
        story.append([wanted, len(fleet.choosable()), shown])
    return {"story": story}


@scenario(task=5)
def wishes_of_an_autoscaler(nanovllm, rng):
    """Decisions where the fleet does not follow, or follows late."""
    from nanovllm.cluster.autoscaler import Autoscaler

    story = []
    for _ in range(8):
        scaler = Autoscaler(
            float(rng.integers(1, 9)), int(rng.integers(0, 3)), int(rng.integers(3, 9)),
            float(rng.integers(0, 6)), float(rng.integers(0, 12)), float(rng.integers(0, 6)) / 10,
        )  # fmt: skip
        now, living, load = 0.0, 3, 10
        for _ in range(40):
            now += float(rng.integers(1, 4)) / 2
            load = max(0, load + int(rng.integers(-6, 8)))
            story.append([scaler.wanted(load, living), scaler.decide(now, load, living)])
            if rng.random() < 0.5:
                living = story[-1][1] if rng.random() < 0.8 else int(rng.integers(0, 10))
    return {"story": story}


@scenario(task=5)
def three_ways_to_a_version(nanovllm, rng):
    """Rolling and blue-green while replicas crash; each old one with its own number of requests."""
    from nanovllm.cluster.fleet import Fleet, State
    from nanovllm.cluster.rollout import BlueGreen, Rolling

    story = []
    for way in (Rolling, BlueGreen, Rolling):
        size = int(rng.integers(1, 6))
        plan = way(size, int(rng.integers(1, 4))) if way is Rolling else way(size)
        fleet, count = Fleet(), 0
        for n, requests in enumerate(rng.permutation(12)[: int(rng.integers(1, 7))].tolist()):
            fleet.start(f"old{n}", "v1")
            fleet.ready(f"old{n}")
            for _ in range(requests):
                fleet.begin(f"old{n}")
        for _ in range(25):
            actions = plan.next(fleet, "v1", "v2")
            story.append([actions.start, sorted(actions.drain)])
            for name in actions.drain:
                fleet.drain(name)
            for _ in range(actions.start):
                fleet.start(f"new{count}", "v2")
                count += 1
            for replica in fleet.living("v2"):
                if replica.state is State.STARTING and rng.random() < 0.5:
                    fleet.ready(replica.name)
                elif rng.random() < 0.08:
                    fleet.crash(replica.name)
            for name in fleet.choosable("v1"):
                if rng.random() < 0.03:
                    fleet.crash(name)
            story.append([len(fleet.choosable("v1")), len(fleet.choosable("v2"))])
    return {"story": story}


@scenario(task=5)
def conversations_through_releases(nanovllm, rng):
    """Sticky conversations, and shares that grow from release to release."""
    from nanovllm.cluster.errors import ClusterError
    from nanovllm.cluster.rollout import Canary, Sticky

    sticky, story = Sticky(), []
    for _ in range(120):
        key, wanted = f"k{int(rng.integers(6))}", f"v{int(rng.integers(4))}"
        there = [f"v{n}" for n in rng.permutation(4) if rng.random() < 0.6]
        if rng.random() < 0.1:
            sticky.end(key)
        try:
            story.append(sticky.version(key, wanted, there))
        except ClusterError:
            story.append(None)
    keys = [f"{int(n)}" for n in rng.integers(0, 10**9, size=300)]
    before, kept = set(), []
    for share in sorted(float(s) for s in rng.uniform(size=5)):
        on = {k for k in keys if Canary(share).version_for(k, "v8", "v9") == "v9"}
        kept.append([before <= on, abs(len(on) / 300 - share) < 0.12])
        before = on
    return {"story": story, "kept": kept}


# task 6


@scenario(task=6)
def models_that_come_and_go(nanovllm, rng):
    """Random sizes, pins, aliases, loads that fail; used within each other."""
    from contextlib import ExitStack

    from nanovllm.cluster.errors import ClusterError
    from nanovllm.cluster.model_pool import ModelPool
    from nanovllm.cluster.model_specs import ModelSpec

    specs = [
        ModelSpec(f"m{n}", int(rng.integers(1, 9)), bool(rng.random() < 0.2), (f"a{n}", f"b{n}"))
        for n in range(7)
    ]
    log, story, opened = [], [], []

    def load(spec):
        log.append(["load", spec.name])
        if rng.random() < 0.1:
            raise OSError("broken")
        return spec.nbytes

    pool = ModelPool(
        16, specs, load, lambda spec, loaded: log.append(["unload", spec.name, loaded])
    )
    for _ in range(120):
        if opened and rng.random() < 0.45:
            opened.pop(int(rng.integers(len(opened)))).close()
        else:
            stack, name = ExitStack(), f"{'mab'[int(rng.integers(3))]}{int(rng.integers(8))}"
            try:
                story.append(stack.enter_context(pool.using(name)))
                opened.append(stack)
            except (ClusterError, OSError) as error:
                story.append(type(error).__name__)
        story.append([pool.resident, pool.used])
    return {"story": story, "log": log}


@scenario(task=6)
def salts_of_random_names(nanovllm, rng):
    """How many different salts random pairs of names and salts have."""
    from nanovllm.cluster.model_specs import ModelSpec, prefix_salt

    letters = ["a", "b", ":", "/", " ", "1", "2", "\0", "|", '"', "\\", ",", "[", "é"]

    def word():
        return "".join(letters[int(n)] for n in rng.integers(14, size=int(rng.integers(0, 4))))

    pairs = {(word(), word()) for _ in range(1500)}
    made = {prefix_salt(ModelSpec(name, 1), salt) for name, salt in pairs}
    return {"pairs": len(pairs), "some": sorted(pairs)[:3], "salts": len(made)}


# task 7


@scenario(task=7)
def ranks_by_a_real_policy(nanovllm, rng):
    """Replicas of a deployment with models that a router remembers."""
    from nanovllm.cluster.ray_parts import Candidate, Memory, rank_replicas
    from nanovllm.cluster.routing_interface import Query, ReplicaLoad

    class Busiest:
        def choose(self, query, replicas):
            return max(
                replicas, key=lambda r: (r.requests, r.tokens, query.num_tokens, r.name)
            ).name

    memory, story = Memory(int(rng.integers(1, 4))), []
    for _ in range(60):
        names = [f"r{n}" for n in rng.permutation(6)[: int(rng.integers(0, 6))]]
        some = [
            Candidate(
                ReplicaLoad(n, int(rng.integers(0, 6)), int(rng.integers(3))),
                int(rng.integers(1, 6)), memory.models(n),
            )
            for n in names
        ]  # fmt: skip
        model = ("", "x", "y", "z")[int(rng.integers(4))]
        ranks = rank_replicas(Busiest(), Query(num_tokens=3), some, model)
        story.append([list(rank) for rank in ranks])
        if ranks and model:
            memory.sent(ranks[0][0], model)
        if names and rng.random() < 0.1:
            memory.lost(names[0])
        story.append([sorted(memory.models(f"r{n}")) for n in range(6)])
    return {"story": story}


@scenario(task=7)
def options_of_random_scalers(nanovllm, rng):
    """Options of deployments, and which of them are refused."""
    from nanovllm.cluster.autoscaler import Autoscaler
    from nanovllm.cluster.errors import ClusterError
    from nanovllm.cluster.ray_parts import deployment_options

    story = []
    for _ in range(30):
        numbers = [int(n) for n in rng.integers(1, 9, size=6)]
        scaler = Autoscaler(numbers[0] / 2, 0, numbers[1], float(numbers[2]), float(numbers[3]))
        try:
            made = deployment_options(scaler, numbers[4], float(numbers[5]))
            story.append([sorted(made.pop("autoscaling_config").items()), sorted(made.items())])
        except ClusterError:
            story.append("refused")
    return {"story": story}

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
    sizes = [int(rng.integers(2, 10)), *rng.integers(1, 10, size=3).tolist()]
    count, story = 1 + sizes[0] * int(rng.integers(1, 5)), []  # the last block is not full
    caches = [_cache(rng, 50, size, dtype) for size in sizes]
    tables = [rng.permutation(50)[: -(-count // c.block_size) + 2].tolist() for c in caches]
    for number in range(3):
        here, there = caches[number : number + 2]
        data = pack(Header.of(here, "m"), here, tables[number], count)
        got = unpack(data, Header.of(there, "m"))
        load(there, got.upto(count), tables[number + 1], int(number == 1) * (count // 2))
        story.append([_digest(data), got.num_tokens, got.k.float(), got.v.float()])
    kept = [_digest(x.float().numpy().tobytes()) for c in caches for x in (c.k, c.v)]
    return {"sizes": sizes, "story": story, "kept": kept, "last": caches[3].k.float()}


@scenario(task=1)
def bytes_with_accidents(nanovllm, rng):
    """Cut, doubled, for another engine, of more tokens than there are: what is refused or read."""
    from dataclasses import replace

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
    changes = [{"num_layers": 1}, {"num_kv_heads": 1}, {"head_dim": 6}, {"dtype": "float16"},
               {"dtype": "bfloat16"}, {"model": "n"}, {"block_size": 7}, {}]  # fmt: skip
    cache = _cache(rng, 9, int(rng.integers(2, 6)), torch.float32)
    header, size = Header.of(cache, "m"), cache.block_size
    for change in rng.permutation(changes).tolist():
        blocks, room = rng.permutation(9)[: int(rng.integers(1, 5))].tolist(), []
        for count in (0, 1, size * len(blocks), size * len(blocks) + 1, 99):
            data = None
            try:
                data = pack(header, cache, blocks, count)
                room.append([count, unpack(data, replace(header, **change)).v])
            except WireError:
                room.append([count, "no room" if data is None else "refused"])
        story.append([list(change), room])
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


@scenario(task=2)
def a_book_of_transfers(nanovllm, rng):
    """A manager that writes down what is held and dropped, in which order, for which transfer."""
    from nanovllm.cluster.parking import Parking

    book, now, story = [], [0.0], []

    class Books:
        def hold(self, block_ids, owner):
            book.extend(["hold", owner.transfer_id, block] for block in block_ids)

        def drop(self, block_ids, owner):
            book.extend(["drop", owner.transfer_id, block] for block in block_ids)

    parking = Parking(Books(), 4.0, lambda: now[0])
    for _ in range(200):
        kind, name = int(rng.integers(6)), f"t{int(rng.integers(3))}"
        if kind < 2:
            blocks = rng.permutation(20)[: int(rng.integers(1, 6))].tolist()
            said = parking.park(name, blocks, int(rng.integers(1, 20)))
        elif kind == 2:
            said = parking.acknowledge(name) if rng.random() < 0.5 else parking.expire()
        else:
            found = [parking.find(each) for each in ("t0", "t1", "t2")]
            said = [one and [list(one.block_ids), one.num_tokens, one.expires] for one in found]
            now[0] += 1.0
        # Which of two transfers is dropped first is nobody's business.
        story.append([said, len(parking), sorted(book, key=lambda line: line[1])])
        book.clear()
    return {"story": story}


@scenario(task=2)
def tokens_from_elsewhere(nanovllm, rng):
    """How many of many requests: received more or less than is here, or all of it."""
    from nanovllm.cluster.connected_store import external_tokens

    story = []
    for num_tokens in rng.permutation(range(2, 30)).tolist():
        local = int(rng.integers(num_tokens))
        some = [num_tokens, num_tokens - 1, max(1, local - 1), max(1, local), 1, num_tokens + 3]
        some += rng.integers(1, num_tokens, 4).tolist()
        story += [[n, num_tokens, local, external_tokens(n, num_tokens, local)] for n in some]
    return {"story": story}


def _request(number, prompt, transfer, sample=0):
    from nanovllm.batching.request import Request
    from nanovllm.cluster.transfer_params import TransferParams
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence

    params = SamplingParams(max_tokens=9)
    if transfer is not None:
        params = TransferParams.of(params, transfer)
    sequence = Sequence(prompt, params, max_model_len=90, seed=0)
    sequence.request_id, sequence.index = number, sample
    return Request(100 * number + sample, sequence, 0.0, len(prompt) + 8)


def _came_in(store, request):
    """Admitted as the engine does it: where `can_admit` has just said yes."""
    if not store.can_admit(request):
        raise ValueError(f"can_admit has no room for {request}")
    request.num_computed_tokens = store.admit(request)


def _compute(store, request, end):
    """As a step would: K and V of each token are numbers of their own."""
    from nanovllm.batching.plan import Chunk, Plan

    start, blocks = request.num_computed_tokens, store.block_ids(request)
    store.make_copies()
    for token in range(start, end):
        place = slice(None), blocks[token // store.block_size], token % store.block_size
        store.cache.k[place] = store.cache.v[place] = float(1000 * request.number + token)
    store.commit(Plan((Chunk(request, start, end - start, request.num_tokens),)))
    request.num_computed_tokens = end


def _content(store, request):
    """K and V of a request's computed tokens, in short."""
    import torch

    blocks, size = torch.tensor(store.block_ids(request)), store.block_size
    places = torch.arange(request.num_computed_tokens)
    found = [x[:, blocks[places // size], places % size] for x in (store.cache.k, store.cache.v)]
    return _digest(b"".join(x.numpy().tobytes() for x in found))


@scenario(task=2)
def a_store_that_sends_and_receives(nanovllm, rng):
    """Prompts with common beginnings, computed in pieces, received, parked, suspended, fetched."""
    import torch

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
                _compute(store, request, start + length)
        elif running and kind == 3:
            request = running.pop(int(rng.integers(len(running))))
            store.release(request)
        else:
            story.append(_digest(store.fetch(f"t{int(rng.integers(5))}")))
            if rng.random() < 0.3:
                story.append(store.parking.acknowledge(f"t{int(rng.integers(5))}"))
        story.append([store.free_tokens, len(store.parking), [_content(store, r) for r in running]])
        store.check(running)
    return {"story": story}


@scenario(task=2)
def what_came_behind_what_is_here(nanovllm, rng):
    """Behind blocks of others, of another sample, too; after a preemption; and found by others.

    Last, into the blocks of a request whose copies to host memory are due.
    """
    import torch

    from nanovllm.cluster.connected_store import ConnectedStore
    from nanovllm.cluster.wire import Received
    from nanovllm.model.config import ModelConfig

    config, story = ModelConfig("llama", 97, 8, 2, 2, 2, 4, 8, 96), []
    for case in rng.permutation(["sample", "beside", "after", "plain"] * 2).tolist():
        size, caching = int(rng.integers(2, 6)), case != "plain"
        store = ConnectedStore(config, 40, size, model="m", enable_prefix_caching=caching)
        prompt = rng.integers(3, 97, 3 * size + int(rng.integers(2, size + 1))).tolist()
        shape = (2, 2, int(rng.integers(3 * size, len(prompt) + 1)), 2, 4)
        came = Received(*torch.from_numpy(rng.normal(size=shape)).float())
        first = _request(1, prompt, None)
        _came_in(store, first)
        store.reserve(first, len(prompt))
        part = size + int(rng.integers(1, size))
        _compute(store, first, len(prompt) if case == "sample" else part)
        second = _request(1 if case == "sample" else 2, prompt, came, sample=1)
        third = _request(3, prompt, None)
        running = [first, second]
        if case == "after":
            store.release(running.pop(0))
        for _ in range(2):
            _came_in(store, second)
            store.make_copies()
            found = [_content(store, each) for each in running]
            story.append([case, second.num_computed_tokens, store.loaded, found])
            _came_in(store, third)
            story.append([third.num_computed_tokens, _content(store, third), store.free_tokens])
            store.release(third)
            store.suspend(second)  # preempted: its prompt is computed again
            second.num_computed_tokens, second.num_preemptions = 0, 1
            third = _request(4, prompt, None)
        _came_in(store, second)
        for each in running:
            store.release(each)
        story.append([len(store.used), store.free_tokens, store.loaded])
    for size in rng.permutation([2, 3, 5]).tolist():  # room for one
        store = ConnectedStore(config, 3, size, model="m", preemption="swap", num_host_blocks=3)
        length = 2 * size + int(rng.integers(1, size + 1))
        came = Received(*torch.from_numpy(rng.normal(size=(2, 2, length, 2, 4))).float())
        first = _request(1, rng.integers(3, 97, length).tolist(), None)
        second = _request(2, rng.integers(3, 97, length).tolist(), came)
        _came_in(store, first)
        _compute(store, first, length - 1)
        store.suspend(first)
        first.num_computed_tokens, first.num_preemptions = 0, 1
        for each in (second, first):
            _came_in(store, each)
            store.make_copies()
            story.append([size, each.num_computed_tokens, _content(store, each)])
            store.release(each)
    return {"story": story}


@scenario(task=2)
def parked_for_too_long(nanovllm, rng):
    """A small store in which nobody acknowledges; prompts with answers behind them."""
    from nanovllm.cluster.connected_store import ConnectedStore
    from nanovllm.cluster.parking import Parking
    from nanovllm.cluster.sides import Decodes
    from nanovllm.model.config import ModelConfig

    config, now, story = ModelConfig("llama", 97, 8, 2, 2, 2, 4, 8, 96), [0.0], []
    size = int(rng.integers(2, 5))
    store = ConnectedStore(config, 12, size, model="m")
    store.parking = Parking(store.manager, 8.0, lambda: now[0])
    for number in range(30):
        prompt = rng.integers(3, 97, int(rng.integers(1, 4 * size))).tolist()
        request = _request(number, prompt, Decodes(f"t{number}"))
        room = store.can_admit(request)
        story.append([room, len(store.parking), store.free_tokens])
        if room:
            request.num_computed_tokens = store.admit(request)
            more = size + 1 if number % 2 else 0
            request.sequence.output_token_ids += [1] * more
            end = len(prompt) + more
            if store.reserve(request, end - request.num_computed_tokens):
                _compute(store, request, end - (rng.random() < 0.2))
            store.release(request)
            parked = store.parking.find(f"t{number}")
            story.append(parked and [len(parked.block_ids), parked.num_tokens])
        now[0] += float(rng.integers(3, 6))
        story.append([_digest(store.fetch(f"t{number - int(rng.integers(3))}")), store.free_tokens])
        story.append(len(store.parking))
        now[0] += float(rng.integers(4))
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
        count, tokens = int(rng.integers(1, 9)), int(rng.integers(3, 7))
        numbers = torch.from_numpy(rng.normal(size=sent.nbytes(count) // 2)).float()
        data = encode(sent, count) + numbers.numpy().tobytes()
        cut = int(rng.integers(len(data)))
        spoiled = data[:cut] if model == "m" else data  # never both cut and of another model
        line.data = (data, data, data, spoiled, None)[int(rng.integers(5))]
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

    from nanovllm.cluster.errors import ClusterError
    from nanovllm.cluster.handshake import Handshake
    from nanovllm.cluster.header import Header
    from nanovllm.cluster.kv_transfer_params import Remote, answer_of
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
    peers = (f"::1:{port}",)
    prefill = Handshake(RoleConfig("prefill", host="::1", port=port, peers=peers), header, Shelf())
    there = Header(*(2, int(rng.integers(1, 6)), 2, 3), "float32", "m")
    decode = Handshake(RoleConfig("decode", peers=peers), there, Shelf())
    counts, names = rng.integers(1, 12, 4).tolist(), set()
    for count in (*counts, *counts):  # one by one, and never under one name
        ask = {"do_remote_decode": True}
        side = asyncio.run(prefill.take_part(ask, count, {}))
        blocks = rng.permutation(30).tolist()
        names.add(side.transfer.transfer_id)
        shelf[side.transfer.transfer_id] = pack(header, cache, blocks, count)
        got = asyncio.run(decode.take_part(side.answer, count, {})).transfer
        answer = {k: v for k, v in side.answer.items() if k != "remote_request_id"}
        story.append([answer, got.num_tokens, got.k, got.v])
    shelf["e" * 32] = pack(header, cache, blocks, count)
    remote = answer_of(Remote("::1", port, "e" * 32), count)
    asks = [{}, {"do_remote_decode": True}, remote, remote | {"do_remote_decode": True},
            {"do_remote_prefill": False, "do_remote_decode": False}]  # fmt: skip
    for ask in rng.permutation(asks).tolist():
        for server in (prefill, decode):
            try:
                side = asyncio.run(server.take_part(ask, count, {}))
                found = [side.transfer is None, side.answer is None]
            except ClusterError:
                found = "refused"
            story.append([len(ask), server is prefill, found])
    fallbacks = prefill.fallbacks, decode.fallbacks
    return {"story": story, "left": len(shelf), "fallbacks": fallbacks, "names": len(names)}


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
    for seats in (*rng.permutation([1, 2, 3, 4, 5]), 2, 3):
        jobs = _jobs(rng, int(rng.integers(seats + 3, 13)))
        limits = Limits(int(seats), int(rng.integers(6, 40)))
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
            [[p.number, p.times] for p in progress],
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
def what_an_index_looks_at_and_keeps(nanovllm, rng):
    """Hashes that note who looks at them; results that their callers change; what is forgotten."""
    import gc
    import weakref

    from nanovllm.cluster.block_index import BlockIndex

    class Watched:
        touched = set()

        def __init__(self, number):
            self.number = number

        def __hash__(self):
            self.touched.add(self.number)
            return self.number

        def __eq__(self, other):
            self.touched.add(self.number)
            return isinstance(other, Watched) and self.number == other.number

    index, story, there = BlockIndex(), [], set()
    for name in ("a", "b", "c"):
        numbers = rng.permutation(60)[:25].tolist()
        index.stored(name, [Watched(n) for n in numbers])
        there.update(numbers)
    for _ in range(20):
        asked = rng.permutation(60)[: int(rng.integers(2, 20))].tolist()
        blocks = [Watched(n) for n in asked]
        kept = index.match(blocks)
        before = sorted(kept.items())
        Watched.touched.clear()
        found = index.match(blocks)
        first = next((n for n, one in enumerate(asked) if one not in there), len(asked))
        beyond = Watched.touched - set(asked[: first + 1])  # nobody holds that one
        found["z"] = 7
        story.append([before, before == sorted(index.match(blocks).items()), len(beyond)])
        index.match([Watched(int(n)) for n in rng.permutation(60)[:2]])
        story.append(before == sorted(kept.items()))
    blocks = [Watched(100 + n) for n in range(12)]
    seen = [weakref.ref(block) for block in blocks]
    held = {name: rng.permutation(12)[:6].tolist() for name in ("a", "b", "d")}
    for name, numbers in held.items():
        index.stored(name, [blocks[n] for n in numbers])
    index.cleared("b")
    index.removed("a", [blocks[n] for n in held["a"][2:]])
    index.removed("d", [blocks[n] for n in held["a"]])
    blocks.clear()
    gc.collect()
    return {"story": story, "held": held, "kept": [ref() is not None for ref in seen]}


@scenario(task=4)
def what_an_open_request_costs(nanovllm, rng):
    """From 1 to 64 tokens; of equal costs the one with fewer open requests, whatever its name."""
    from nanovllm.cluster.block_index import BlockIndex
    from nanovllm.cluster.routing import make_policy
    from nanovllm.cluster.routing_interface import Query, ReplicaLoad

    policy, story = make_policy("prefix_aware", BlockIndex()), []
    for more in rng.permutation(range(1, 8)).tolist():  # as many open requests more
        low, high = sorted(f"r{n}" for n in rng.permutation(90)[:2])
        base, query = int(rng.integers(3)), Query("k", (), int(rng.integers(1, 50)))
        chosen = []
        for idle, busy in ((low, high), (high, low)):
            counts = range(64 * more + 3)  # tokens that wait on the one with fewer requests
            loads = [[ReplicaLoad(idle, base, n), ReplicaLoad(busy, base + more)] for n in counts]
            chosen.append([policy.choose(query, some) == idle for some in loads])
        edges = [[some[more], some[64 * more + 1], some == sorted(some)[::-1]] for some in chosen]
        story.append([low, high, more, edges, chosen[0] == chosen[1]])
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
    """Keys of conversations over a long time: how many move that need not; prompts without."""
    from random import Random

    from nanovllm.cluster.block_index import BlockIndex
    from nanovllm.cluster.routing import make_policy
    from nanovllm.cluster.routing_interface import Query, ReplicaLoad

    draws = Random(0)

    class Restless(str):
        def __hash__(self):  # as that of a text is another one in another process
            return draws.randrange(2**40)

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
        first = [{policy.choose(Query("", (key, n), n), loads) for n in range(3)} for key in keys]
        story.append([{len(names) for names in first} == {1}, len(set().union(*first))])
        story.append(len({policy.choose(Query("", (), n), loads) for n in range(20)}))
        new = {key: policy.choose(Query(key, (step,)), loads) for key in keys}
        came, gone = set(there) - old, old - set(there)
        story.append([
            sorted(there),
            sum(new[k] != now[k] and new[k] not in came and now[k] not in gone for k in keys),
            max(sum(new[k] == n for k in keys) for n in there) < 150 * 2.2 / len(there),
            sum(policy.choose(Query(Restless(k)), loads) == new[k] for k in keys),
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
    for number in (seed, seed, seed + 1 + int(rng.integers(1000))):
        policy = make_policy("power_of_two", BlockIndex(), number)
        runs.append([policy.choose(Query(), loads) for _ in range(3000)])
    pairs = size * (size - 1) / 2
    near = [abs(runs[0].count(f"r{n}") / 3000 - (size - 1 - n) / pairs) < 0.05 for n in range(size)]
    last = runs[0].count(f"r{size - 1}")  # never the better one of two
    again = [runs[0] == run for run in runs]
    return {"order": order, "seed": seed, "near": near, "last": last, "again": again}


# task 5


@scenario(task=5)
def a_fleet_that_is_told_anything(nanovllm, rng):
    """Steps that can be, and steps that cannot, of replicas in every state and of unknown ones."""
    from nanovllm.cluster.errors import ClusterError
    from nanovllm.cluster.fleet import Fleet

    fleet, story = Fleet(), []
    steps = ["start", "ready", "begin", "begin", "begin", "end", "end", "drain", "crash"]
    for _ in range(400):
        step, name = steps[int(rng.integers(9))], "abcd"[int(rng.integers(4))]
        args = (name, f"v{int(rng.integers(2))}") if step == "start" else (name,)
        try:
            said = getattr(fleet, step)(*args)
        except ClusterError:
            said = "refused"
        story.append([step, name, said if step == "crash" or said == "refused" else ""])
        story.append([[r.name, r.version, r.state.value, r.open] for r in fleet.replicas.values()])
        version = (None, "v0", "v1")[int(rng.integers(3))]
        living = [replica.name for replica in fleet.living(version)]
        story.append([version, living, fleet.choosable(version)])
    return {"story": story}


@scenario(task=5)
def a_day_of_a_fleet(nanovllm, rng):
    """Load that comes and goes; the autoscaler starts and drains, replicas crash."""
    from nanovllm.cluster.autoscaler import Autoscaler, to_drain
    from nanovllm.cluster.fleet import Fleet, State

    fleet, story, count = Fleet(), [], 0
    scaler = Autoscaler(
        float(rng.integers(2, 5)), int(rng.integers(0, 3)), 7, float(rng.integers(1, 4)), 6.0,
        float(rng.integers(0, 4)) / 8,
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
    """Decisions where the fleet does not follow, or follows late; whom it costs least to lose."""
    from nanovllm.cluster.autoscaler import Autoscaler, to_drain
    from nanovllm.cluster.fleet import Replica, State

    story = []
    for _ in range(8):
        scaler = Autoscaler(
            float(rng.integers(1, 9)), int(rng.integers(0, 3)), int(rng.integers(3, 9)),
            float(rng.integers(1, 6)), float(rng.integers(1, 12)), float(rng.integers(0, 6)) / 8,
        )  # fmt: skip
        now, living, load = 0.0, 3, 10
        for _ in range(40):
            now += float(rng.integers(1, 4)) / 2
            load = max(0, load + int(rng.integers(-6, 8)))
            story.append([scaler.wanted(load, living), scaler.decide(now, load, living)])
            if rng.random() < 0.5:
                living = story[-1][1] if rng.random() < 0.8 else int(rng.integers(0, 10))
    for _ in range(8):
        states = rng.permutation([*State, State.READY, State.READY, State.STARTING]).tolist()
        some = {
            name: Replica(name, "v", state, 0 if state is State.STARTING else number)
            for name, state, number in zip("abcdefg", states, rng.permutation(7), strict=True)
        }
        goes = [to_drain(some.values(), count) for count in range(7)]
        story.append([[[some[n].state.value, int(some[n].open)] for n in names] for names in goes])
    return {"story": story}


@scenario(task=5)
def three_ways_to_a_version(nanovllm, rng):
    """Rolling and blue-green while replicas crash and drain; some old ones are starting still."""
    from nanovllm.cluster.fleet import Fleet, State
    from nanovllm.cluster.rollout import BlueGreen, Rolling

    story = []
    for way in (Rolling, BlueGreen) * 3:
        size = int(rng.integers(1, 6))
        plan = way(size, int(rng.integers(1, 4))) if way is Rolling else way(size)
        fleet, count = Fleet(), 0
        for n, requests in enumerate(rng.permutation(12)[: int(rng.integers(2, 8))].tolist()):
            fleet.start(f"old{n}", "v1")
            if n:  # one at least is starting, and each ready one has its own number of requests
                fleet.ready(f"old{n}")
            for _ in range(requests if n else 0):
                fleet.begin(f"old{n}")
        for step in range(25):
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
            if step == 3 and fleet.choosable("v2"):
                fleet.begin(fleet.choosable("v2")[0])
                fleet.drain(fleet.choosable("v2")[0])
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
    trials = [{k for k in keys if Canary(0.4).version_for(k, "v1", new) == new} for new in "abc"]
    others = [trials[n] != trials[n - 1] for n in range(3)]  # each trial meets others
    return {"story": story, "kept": kept, "others": others}


# task 6


@scenario(task=6)
def models_that_come_and_go(nanovllm, rng):
    """Random sizes, pins, aliases, loads that fail; used within each other."""
    from contextlib import ExitStack

    from nanovllm.cluster.errors import ClusterError
    from nanovllm.cluster.model_pool import ModelPool
    from nanovllm.cluster.model_specs import BudgetError, ModelSpec

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
            opened.pop(int(rng.integers(len(opened))))[1].close()
        else:
            stack, name = ExitStack(), f"{'mab'[int(rng.integers(3))]}{int(rng.integers(8))}"
            try:
                story.append(stack.enter_context(pool.using(name)))
                opened.append((name[1], stack))
            except (ClusterError, OSError) as error:
                kinds = (BudgetError, ClusterError, OSError)
                story.append(next(k.__name__ for k in kinds if isinstance(error, k)))
        idle = [n for n in "01234567" if n not in [used for used, _ in opened]]
        for number in idle:  # nobody uses it: there is nothing to release
            try:
                pool.release(f"{'mab'[int(rng.integers(3))]}{number}")
            except ClusterError:
                story.append(number)
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
    memory = Memory(int(rng.integers(2, 4)))
    for _ in range(60):
        memory.sent("r0", "vwxyz"[int(rng.integers(5))])
        story.append(sorted(memory.models("r0")))
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

"""Task 2: the connector, on the side of prefill and on that of decode."""

import random

import pytest
import torch

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.cluster.connected_store import ConnectedStore, external_tokens
from nanovllm.cluster.header import decode
from nanovllm.cluster.parking import Parked, Parking
from nanovllm.cluster.sides import Decodes
from nanovllm.cluster.transfer_params import TransferParams
from nanovllm.cluster.wire import Received, unpack
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence
from nanovllm.model.config import ModelConfig
from nanovllm.model.transformer import Transformer

CONFIG = ModelConfig("llama", 97, 16, 2, 4, 2, 6, 24, 96)


class Books:
    """A block manager that only writes down who holds what, and in which order it was dropped."""

    def __init__(self):
        self.held, self.dropped, self.wrong = {}, [], []

    def hold(self, block_ids, owner):
        for block in list(block_ids):
            if block in self.held.setdefault(owner, []):
                self.wrong.append(f"{block} is held twice")
            self.held[owner].append(block)

    def drop(self, block_ids, owner):
        for block in list(block_ids):
            if block not in self.held.get(owner, []):
                self.wrong.append(f"{block} is dropped by somebody who does not hold it")
            else:
                self.held[owner].remove(block)
                self.dropped.append(block)

    @property
    def counts(self):
        """How often each block is held."""
        every = sorted(block for blocks in self.held.values() for block in blocks)
        return {block: every.count(block) for block in every}


def a_parking(seconds=10.0):
    now = [0.0]
    books = Books()
    return Parking(books, seconds, lambda: now[0]), books, now


@pytest.mark.check(task=2, points=1, title="Finished prefills wait for whom they are for")
def test_park():
    parking, books, now = a_parking()
    now[0] = 3.0
    said = [parking.park("t1", [4, 2, 7], 11), parking.park("t2", [5], 1)]
    expect(
        [said, books.counts, len(parking)],
        [[True, True], {2: 1, 4: 1, 5: 1, 7: 1}, 2],
        call="what park('t1', [4, 2, 7], 11) and park('t2', [5], 1) say, how often each block is "
        "held, len(parking)",
        cause="park holds the blocks by the manager's `hold`",
    )
    found = parking.find("t1")
    expect(
        [found, parking.find("t1"), parking.find("t3")],
        [Parked("t1", (4, 2, 7), 11, 13.0), Parked("t1", (4, 2, 7), 11, 13.0), None],
        call="find('t1'), again, and find('t3'), after park at 3 s for 10 s",
        cause="a transfer that was cut is fetched again",
    )
    expect(
        {owner: blocks for owner, blocks in books.held.items() if blocks}.get(found),
        [4, 2, 7],
        call="the blocks that the Parked itself holds",
        cause="the owner of a parked block is the Parked, so no two transfers are one owner",
    )


@pytest.mark.check(task=2, points=1, title="An acknowledgement, a second, a late one")
def test_acknowledge():
    parking, books, now = a_parking()
    parking.park("t1", [4, 2, 7], 11)
    parking.park("t2", [4, 2], 8)
    said = [parking.acknowledge("t1"), parking.acknowledge("t1"), parking.acknowledge("t9")]
    expect(
        [said, books.counts, books.wrong, parking.find("t1") is None, len(parking)],
        [[True, False, False], {2: 1, 4: 1}, [], True, 1],
        call="acknowledge('t1') twice and of an unknown transfer; which blocks are held, what was "
        "wrong about the drops, whether find('t1') is None, len(parking)",
        given={"parked": "t1 in blocks 4, 2, 7 and t2 in blocks 4, 2"},
        cause="the first one drops the blocks of its own transfer; the others find none, and the "
        "blocks may belong to somebody else by then",
    )
    parking.park("t3", [6], 2)
    now[0] = 30.0
    expect(
        [parking.acknowledge("t3"), books.counts, books.wrong, len(parking)],
        [True, {2: 1, 4: 1}, [], 1],
        call="acknowledge('t3') when its time is over and nobody has dropped it, the blocks held, "
        "wrong drops, len(parking)",
        cause="its blocks are its own until they are dropped",
    )
    parking.expire()
    expect(
        [parking.acknowledge("t2"), books.counts, books.wrong],
        [False, {}, []],
        call="acknowledge('t2') after expire() has dropped it, the blocks held, and wrong drops",
        cause="whoever comes after that frees nothing",
    )


@pytest.mark.check(task=2, points=1, title="A name that is in use")
def test_in_use():
    parking, books, now = a_parking()
    parking.park("t1", [1, 2], 8)
    said = parking.park("t1", [3], 2)
    expect(
        [said, books.counts, parking.find("t1")],
        [False, {1: 1, 2: 1}, Parked("t1", (1, 2), 8, 10.0)],
        call="park('t1', ...) again, the blocks held, and find('t1')",
        cause="nothing changes: somebody waits for the first ones",
    )
    now[0] = 11.0
    expect(
        [parking.park("t1", [3], 2), books.counts],
        [False, {1: 1, 2: 1}],
        call="park('t1', ...) when the first is over its time, not yet dropped; the blocks held",
        cause="else the first one's blocks would be held for ever",
    )
    parking.expire()
    expect(
        [parking.park("t1", [3], 2), parking.find("t1"), books.counts],
        [True, Parked("t1", (3,), 2, 21.0), {3: 1}],
        call="park('t1', [3], 2) after expire(), find('t1'), and the blocks held",
    )


@pytest.mark.check(task=2, points=1, title="Nobody waits for ever")
def test_expire():
    parking, books, now = a_parking(10.0)
    for at, name in enumerate(("a", "b", "c")):
        now[0] = float(at)
        parking.park(name, [at], 1)
    found = []
    for at in (9.9, 10.0, 11.5, 12.0, 50.0):
        now[0] = at
        there = [name for name in "abc" if parking.find(name) is not None]
        found.append((at, there, parking.expire(), sorted(books.counts)))
    expect(
        found,
        [
            (9.9, ["a", "b", "c"], 0, [0, 1, 2]),
            (10.0, ["b", "c"], 1, [1, 2]),
            (11.5, ["c"], 1, [2]),
            (12.0, [], 1, []),
            (50.0, [], 0, []),
        ],
        call="at each time: who is found, what expire() says, and the blocks that are held then",
        given={"parked": "a at 0 s, b at 1 s, c at 2 s, each for 10 s"},
        cause="at its end a transfer is over: found no more, and dropped by expire",
    )


@pytest.mark.check(task=2, points=1, title="The last block goes first")
def test_order():
    for how in ("acknowledge", "expire"):
        parking, books, now = a_parking()
        parking.park("t", [5, 1, 8, 3], 16)
        if how == "acknowledge":
            parking.acknowledge("t")
        else:
            now[0] = 99.0
            parking.expire()
        expect(
            books.dropped,
            [3, 8, 1, 5],
            call=f"the order in which {how} drops blocks 5, 1, 8, 3",
            cause="of free blocks the one that was freed first is given away first; a prefix whose "
            "first block is gone is of no use",
        )


def drawn(rng, length):
    kinds = rng.choice(["park", "ack", "expire", "find", "wait"], size=length)
    return [(str(k), "abcd"[int(rng.integers(4))], int(rng.integers(1, 7))) for k in kinds]


def beside_a_list(calls):
    """The calls up to the first after which a parking differs from a list of what waits, with
    what it gave and what was expected; nothing if it never does."""
    parking, books, now = a_parking(10.0)
    waits, story = {}, []
    for kind, name, n in calls:
        got = want = None
        story.append(f"{kind} {n}" if kind == "wait" else f"{kind} {name}")
        if kind == "wait":
            now[0] += n
        elif kind == "park":
            blocks = [n, n + 1, n + 2][: 1 + n % 3]
            want = name not in waits
            got = parking.park(name, blocks, n)
            if want:
                waits[name] = (blocks, now[0] + 10)
        elif kind == "ack":
            want, got = waits.pop(name, None) is not None, parking.acknowledge(name)
        elif kind == "expire":
            late = [key for key, (_, end) in waits.items() if end <= now[0]]
            want, got = len(late), parking.expire()
            for key in late:
                del waits[key]
        else:
            want = name in waits and now[0] < waits[name][1]
            got = parking.find(name) is not None
        every = [block for blocks, _ in waits.values() for block in blocks]
        held = {block: every.count(block) for block in sorted(every)}
        if books.wrong or (got, books.counts, len(parking)) != (want, held, len(waits)):
            return (
                story,
                [got, books.counts, len(parking), books.wrong],
                [want, held, len(waits), []],
            )
    return ()


@pytest.mark.check(task=2, points=1, title="Parking beside a list (random)", stress=True)
def test_parking_random(rng):
    for _ in range(60):
        calls = drawn(rng, 25)
        at = 0
        while beside_a_list(calls) and at < len(calls):
            fewer = calls[:at] + calls[at + 1 :]
            calls, at = (fewer, 0) if beside_a_list(fewer) else (calls, at + 1)
        story, got, want = beside_a_list(calls) or ([], [], [])
        expect(
            got,
            want,
            call="what the last call says, how often each block is held, len(parking), wrong drops",
            given={"history": "\n".join(("a parking of 10 s:", *story))},
            cause="the shortest history found in which it differs from a list of what waits",
        )


@pytest.mark.check(task=2, points=1, title="How many tokens come from elsewhere")
def test_external():
    cases = {
        (10, 10, 0): 9,
        (10, 10, 4): 5,
        (8, 10, 4): 4,
        (8, 10, 8): 0,
        (8, 10, 9): 0,
        (4, 10, 8): 0,
        (1, 1, 0): 0,
        (12, 30, 0): 12,
        (10, 12, 0): 10,
    }
    found = {case: external_tokens(*case) for case in cases}
    expect(
        found,
        cases,
        call="external_tokens(received, num_tokens, local)",
        cause="those behind the tokens that are here; the request's last token is computed in any "
        "case, for its logits; never fewer than 0",
    )


def a_store(num_blocks=20, block_size=4, **options):
    return ConnectedStore(CONFIG, num_blocks, block_size, model="m", **options)


def a_request(number, prompt, transfer=None):
    """A request of lab 04."""
    params = SamplingParams(max_tokens=9)
    if transfer is not None:
        params = TransferParams.of(params, transfer)
    sequence = Sequence(prompt, params, max_model_len=90, seed=0)
    sequence.request_id, sequence.index = number, 0
    return Request(number, sequence, 0.0, len(prompt) + 8)


def came_in(store, request):
    """`admit` as the engine calls it: where `can_admit` has just said yes."""
    expect.that(store.can_admit(request), "there is room", call="can_admit(request)")
    return store.admit(request)


def received(count, generator):
    shape = (CONFIG.num_layers, count, CONFIG.num_kv_heads, CONFIG.head_dim)
    return Received(*(torch.randn(shape, generator=generator) for _ in range(2)))


def computed(store, request, start, end):
    """As when tokens start .. end - 1 were computed: their K and V are the token's number."""
    size = store.block_size
    blocks = store.block_ids(request)
    store.make_copies()
    for token in range(start, end):
        for x in (store.cache.k, store.cache.v):
            x[:, blocks[token // size], token % size] = 1000.0 + token
    store.commit(Plan((Chunk(request, start, end - start, request.num_tokens),)))
    request.num_computed_tokens = end


def content(store, request, count):
    blocks, size = store.block_ids(request), store.block_size
    places = [(blocks[t // size], t % size) for t in range(count)]
    return [
        torch.stack([x[:, block, place] for block, place in places], 1)
        for x in (store.cache.k, store.cache.v)
    ]


@pytest.mark.check(task=2, points=2, title="What came is there when the request is admitted")
def test_admit(generator):
    for size, prompt, count in ((4, 11, 11), (4, 12, 12), (3, 11, 7), (8, 5, 5), (4, 9, 8)):
        store = a_store(block_size=size)
        came = received(count, generator)
        request = a_request(1, list(range(prompt)), came)
        other = a_request(2, [90] * 9)
        came_in(store, other)
        computed(store, other, 0, 9)
        before = [x.clone() for x in content(store, other, 9)]
        here = min(count, prompt - 1)
        given = {"block_size": size, "prompt": prompt, "received": count}
        expect(
            [came_in(store, request), store.loaded],
            [here, here],
            call="admit(request), and store.loaded after it",
            given=given,
            cause="what is loaded counts as computed, all but the last token of the request",
        )
        expect(
            content(store, request, here),
            [came.k[:, :here], came.v[:, :here]],
            call="K and V in the request's blocks after admit",
            given=given,
            cause="the received tokens belong where the request will look for them",
        )
        expect(
            content(store, other, 9),
            before,
            call="K and V of another request after that",
            given=given,
        )
    store = a_store()
    plain = a_request(3, list(range(9)))
    expect(
        [came_in(store, plain), store.loaded],
        [0, 0],
        call="admit of a request without a transfer, and store.loaded",
        cause="requests that have no side in a transfer are as always",
    )


@pytest.mark.check(task=2, points=2, title="What is here stays as it is")
def test_local(generator):
    prompt = list(range(11))
    for also_running in (True, False):
        store = a_store()
        first = a_request(1, prompt)
        came_in(store, first)
        computed(store, first, 0, 11)
        if not also_running:
            store.release(first)
        came = received(11, generator)
        second = a_request(2, prompt, came)
        given = {
            "first": "the same prompt of 11 tokens in blocks of 4, computed here, "
            + ("still running" if also_running else "ended; its blocks are kept"),
            "received": 11,
        }
        expect(
            [came_in(store, second), store.loaded],
            [10, 2],
            call="admit(second), and store.loaded",
            given=given,
            cause="8 tokens were found in this engine's own prefix cache, 2 are loaded",
        )
        own = torch.arange(1000.0, 1008.0).view(1, 8, 1, 1)
        wanted = [torch.cat((own.expand(2, 8, 2, 6), x[:, 8:10]), 1) for x in (came.k, came.v)]
        expect(
            content(store, second, 10),
            wanted,
            call="K and V of the second after admit",
            given=given,
            cause="blocks that were found are read by others as well: nothing is written into them",
        )


@pytest.mark.check(task=2, points=1, title="A block that is about to be copied")
def test_copies(generator):
    store = a_store(num_blocks=3, preemption="swap", num_host_blocks=3)
    first = a_request(1, list(range(11)))
    came_in(store, first)
    computed(store, first, 0, 10)
    store.suspend(first)
    first.num_computed_tokens, first.num_preemptions = 0, 1
    came = received(11, generator)
    second = a_request(2, [90 - token for token in range(11)], came)
    given = {
        "store": "3 blocks of 4, preemption by swap",
        "first": "10 of 11 tokens computed, then preempted: its blocks go to host memory",
        "second": "11 tokens received; it gets the blocks that the first one had",
    }
    cause = (
        "copies of these blocks are still due: make them before you write, or they take along "
        "what you loaded"
    )
    found = [came_in(store, second)]
    store.make_copies()
    expect(
        content(store, second, 10),
        [came.k[:, :10], came.v[:, :10]],
        call="K and V of the second when all copies are made",
        given=given,
        cause=cause,
    )
    store.release(second)
    found.append(came_in(store, first))
    store.make_copies()
    expect(found, [10, 10], call="admit(second), and admit(first) when the second has ended",
           given=given)  # fmt: skip
    own = torch.arange(1000.0, 1010.0).view(1, 10, 1, 1).expand(2, 10, 2, 6)
    expect(
        content(store, first, 10),
        [own, own],
        call="K and V of the first when it is back",
        given=given,
        cause=cause,
    )


@pytest.mark.check(task=2, points=1, title="Others find what was loaded")
def test_found_later(generator):
    store = a_store()
    prompt = list(range(11))
    came_in(store, a_request(1, prompt, received(11, generator)))
    later = a_request(2, [*prompt[:9], 50, 51])
    expect(
        came_in(store, later),
        8,
        call="admit of a later request whose first 9 tokens are those of one that was loaded",
        given={"block_size": 4},
        cause="loaded tokens count as computed: commit them, so that the prefix cache knows them",
    )


@pytest.mark.check(task=2, points=1, title="Loaded once in a request's life")
def test_once(generator):
    store = a_store(enable_prefix_caching=False)
    request = a_request(1, list(range(11)), received(11, generator))
    found = [came_in(store, request), store.loaded]
    store.suspend(request)
    request.num_computed_tokens, request.num_preemptions = 0, 1
    found += [came_in(store, request), store.loaded]
    expect(
        found,
        [10, 10, 0, 10],
        call="admit(request), store.loaded, and both again after the request was preempted",
        given={"prefix caching": False, "received": 11},
        cause="whoever was preempted computes its prompt again, as any other",
    )
    store.release(request)
    expect.that(
        request not in store.used,
        "the request stands in `used` no more",
        call="release(request)",
        cause="else `used` grows for ever",
    )
    fresh = a_request(2, list(range(11)), received(11, generator))
    expect(
        [came_in(store, fresh), store.loaded],
        [10, 20],
        call="admit of another request with a transfer of its own, and store.loaded",
    )


@pytest.mark.check(task=2, points=1, title="A finished prefill is parked")
def test_release():
    for prompt, size, here, output, blocks in (
        (11, 4, 11, 0, 3),
        (12, 4, 12, 0, 3),
        (12, 4, 13, 1, 3),
        (11, 4, 12, 1, 3),
        (5, 8, 5, 1, 1),
        (11, 4, 10, 0, 0),
        (11, 4, 0, 0, 0),
        (12, 4, 8, 2, 0),
    ):
        store = a_store(block_size=size)
        request = a_request(1, list(range(prompt)), Decodes("t1"))
        came_in(store, request)
        request.sequence.output_token_ids += [1] * output
        store.reserve(request, here)
        computed(store, request, 0, here)
        mine = store.block_ids(request)
        store.release(request)
        parked = store.parking.find("t1")
        given = {
            "prompt": prompt,
            "block_size": size,
            "tokens computed": here,
            "output tokens": output,
        }
        expect(
            None if parked is None else [list(parked.block_ids), parked.num_tokens],
            [mine[:blocks], prompt] if blocks else None,
            call="the blocks and tokens of store.parking.find('t1') after release(request)",
            given=given,
            cause="the blocks and tokens of the prompt, no others; nothing before the last chunk "
            "of the prompt is computed, also after a preemption",
        )
        expect(
            [sorted(store.manager.owners()), len(store.parking)],
            [sorted(mine[:blocks]), 1 if blocks else 0],
            call="the blocks that have an owner after release, and len(store.parking)",
            given=given,
            cause="the request has let go; what is parked is held until it is acknowledged",
        )
    store = a_store()
    plain = a_request(3, list(range(9)))
    came_in(store, plain)
    computed(store, plain, 0, 9)
    store.release(plain)
    expect(
        [len(store.parking), store.manager.owners()],
        [0, {}],
        call="len(store.parking) and owners of blocks after release of a request without transfer",
    )


@pytest.mark.check(task=2, points=1, title="Fetched while others work")
def test_fetch():
    store = a_store(num_blocks=6)
    now = [0.0]
    store.parking = Parking(store.manager, 10.0, lambda: now[0])
    request = a_request(1, list(range(7)), Decodes("t1"))
    came_in(store, request)
    computed(store, request, 0, 7)
    store.release(request)
    other = a_request(2, [70 + i for i in range(16)])
    came_in(store, other)
    computed(store, other, 0, 16)
    wanted = torch.arange(1000.0, 1007.0).view(1, 7, 1, 1).expand(2, 7, 2, 6)
    for when in ("once", "twice"):
        data = store.fetch("t1")
        expect.that(
            data is not None,
            "the bytes are there",
            call=f"fetch('t1') {when}, while another request fills all other blocks",
            cause="fetching ends nothing: what was cut on the way is fetched again",
        )
        got = unpack(data, store.header)
        expect(
            [decode(data)[1], got.k, got.v],
            [7, wanted, wanted],
            call=f"tokens, K and V of fetch('t1') {when}, while another request fills all other "
            "blocks",
            cause="parked blocks are nobody else's until they are acknowledged",
        )
    now[0] = 10.5
    expect(
        [store.fetch("t1"), store.fetch("t2"), len(store.parking), store.free_tokens],
        [None, None, 0, 8],
        call="fetch('t1') when its time is over, fetch of a name that nobody parked, "
        "len(store.parking), store.free_tokens",
        cause="fetch drops what is over its time first",
    )


@pytest.mark.check(task=2, points=1, title="What waited too long makes room")
def test_room():
    store = a_store(num_blocks=4)
    now = [0.0]
    store.parking = Parking(store.manager, 10.0, lambda: now[0])
    request = a_request(1, list(range(12)), Decodes("t1"))
    came_in(store, request)
    computed(store, request, 0, 12)
    store.release(request)
    big = a_request(2, [50 + i for i in range(13)])
    found = []
    for at in (9.0, 10.5):
        now[0] = at
        found.append((at, store.can_admit(big), len(store.parking)))
    expect(
        found,
        [(9.0, False, 1), (10.5, True, 0)],
        call="at each time: can_admit of a request of 4 blocks, and len(store.parking)",
        given={"store": "4 blocks", "parked": "3 blocks at 0 s, for 10 s"},
        cause="nobody acknowledges what the other side has forgotten",
    )


def drained(engine):
    """The tokens of each request; the engine's invariants hold after every step."""
    found = {}
    for _ in range(600):
        if not engine.has_unfinished:
            return found
        for event in engine.step():
            if isinstance(event, Finished):
                found[event.request_id] = list(event.completion.token_ids)
        engine.check()
    expect.that(False, "the engine comes to an end", call="600 steps of an engine")
    return found


@pytest.mark.check(task=2, points=1, title="Two engines say what one says (random)", stress=True)
def test_two_engines(seed):
    torch.manual_seed(5)
    model = Transformer(CONFIG).eval()
    draw = random.Random(seed)
    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=9)
    sizes = draw.choice([(4, 4), (4, 3), (3, 5)])
    alone = Engine(model, config)
    prefill, decoding = (
        Engine(model, config, store=ConnectedStore(CONFIG, count, size, model="m"))
        for count, size in zip((40, 40 // sizes[1]), sizes, strict=True)
    )
    shared = [draw.randrange(97) for _ in range(12)]
    asked, ids = [], []
    for number in range(4):
        own = [draw.randrange(97) for _ in range(draw.randint(1, 9))]
        prompt = shared[: draw.choice((0, 6, 12))] + own
        params = SamplingParams(
            temperature=draw.choice((0.0, 1.0)), seed=number, max_tokens=6, ignore_eos=True
        )
        asked.append((prompt, params))
        one = SamplingParams(temperature=0.0, max_tokens=1)
        prefill.add_request(prompt, TransferParams.of(one, Decodes(f"t{number}")))
    ids = [alone.add_request(*each) for each in asked]
    texts = drained(alone)
    drained(prefill)
    mine = []
    for number, (prompt, params) in enumerate(asked):
        data = prefill.store.fetch(f"t{number}")
        expect.that(
            data is not None,
            "K and V wait when prefill has ended",
            call=f"fetch('t{number}')",
        )
        came = unpack(data, decoding.store.header)
        mine.append(decoding.add_request(prompt, TransferParams.of(params, came)))
    found = drained(decoding)
    given = {"block sizes": sizes, "prompts": [len(prompt) for prompt, _ in asked]}
    expect(
        [found[n] for n in mine],
        [texts[n] for n in ids],
        call="the tokens of 4 requests, prefilled by one engine and decoded by another that often "
        "preempts",
        given=given,
        cause="the text does not depend on where K and V were computed",
    )
    expect(
        [prefill.store.parking.acknowledge(f"t{n}") for n in range(4)]
        + [e.store.free_tokens == e.store.total_tokens for e in (prefill, decoding)],
        [True] * 6,
        call="four acknowledgements, and whether all blocks of both engines are free then",
        given=given,
    )

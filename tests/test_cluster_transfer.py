"""Lab 11: K and V on the wire, and two engines that say together what one says alone."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from typing import Any

import httpx
import pytest
import torch

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Preempted
from nanovllm.cluster.connected_store import ConnectedStore
from nanovllm.cluster.connectors import SharedMemory
from nanovllm.cluster.errors import TransferError, WireError
from nanovllm.cluster.header import MAGIC, Header, decode, fingerprint
from nanovllm.cluster.kv_transfer_params import Remote
from nanovllm.cluster.parking import Parking
from nanovllm.cluster.sides import Decodes
from nanovllm.cluster.transfer_params import TransferParams
from nanovllm.cluster.transport import HttpTransport
from nanovllm.cluster.wire import Received, load, pack, unpack
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.transformer import Transformer
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.cache import PagedCache
from nanovllm.paging.holds import Holds
from tests import virtual_loop

CONFIG = ModelConfig("llama", 97, 16, 2, 4, 2, 6, 24, 96)


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(5)
    return Transformer(CONFIG).eval()


def filled(block_size: int, dtype: torch.dtype = torch.float32, num_blocks: int = 9) -> PagedCache:
    cache = PagedCache(CONFIG, num_blocks, block_size, dtype)
    cache.k.copy_(torch.randn(cache.k.shape))
    cache.v.copy_(torch.randn(cache.v.shape))
    return cache


def tokens(cache: PagedCache, block_ids: list[int], count: int) -> tuple[Any, Any]:
    return tuple(x[:, block_ids].flatten(1, 2)[:, :count] for x in (cache.k, cache.v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(4, 4), (4, 3), (3, 8), (16, 1)])
def test_what_is_packed_arrives_in_blocks_of_another_size(sizes: Any, dtype: torch.dtype) -> None:
    here, there = filled(sizes[0], dtype), filled(sizes[1], dtype, 40)
    blocks, count = [7, 2, 5], min(11, 3 * sizes[0])
    data = pack(Header.of(here, "m"), here, blocks, count)
    got = unpack(data, Header.of(there, "m"))
    assert got.num_tokens == count
    for mine, theirs in zip(tokens(here, blocks, count), (got.k, got.v), strict=True):
        assert torch.equal(mine, theirs)
    before, table = there.k.clone(), random.Random(1).sample(range(40), -(-count // sizes[1]))
    load(there, got, table, start=2)
    new = tokens(there, table, count)
    for mine, theirs in zip(tokens(here, blocks, count), new, strict=True):
        assert torch.equal(mine[:, 2:], theirs[:, 2:])
    slots = set(BlockTable(sizes[1], table).slots(2, count))
    others = [s for s in range(40 * sizes[1]) if s not in slots]
    assert torch.equal(there.k.flatten(1, 2)[:, others], before.flatten(1, 2)[:, others])


def test_what_others_left_in_the_last_block_is_not_sent() -> None:
    cache = filled(8)
    header = Header.of(cache, "m")
    first = pack(header, cache, [1, 2], 11)
    cache.k[:, 2, 3:] = 99.0
    assert pack(header, cache, [1, 2, 6], 11) == first
    for count in (0, 17):
        with pytest.raises(WireError):
            pack(header, cache, [1, 2], count)


@pytest.mark.parametrize(
    "wrong",
    [{"num_layers": 3}, {"num_kv_heads": 1}, {"head_dim": 12}, {"dtype": "float16"}, {"model": ""}],
)
def test_a_foreign_header_is_refused(wrong: dict[str, Any]) -> None:
    cache = filled(4)
    header = Header.of(cache, "m")
    data = pack(header, cache, [1], 4)
    with pytest.raises(WireError, match=next(iter(wrong))):
        unpack(data, replace(header, **wrong))


def test_bytes_that_were_cut_or_spoiled_are_refused() -> None:
    cache = filled(4)
    header = Header.of(cache, "m")
    data = pack(header, cache, [1, 3], 7)
    for size in [*range(0, 200, 7), len(data) // 2, len(data) - 1]:
        with pytest.raises(WireError):
            unpack(data[:size], header)
    for spoiled in (
        b"X" + data[1:],
        data + b"\0",
        data.replace(b'"num_tokens": 7', b'"num_tokens":-7'),
    ):
        with pytest.raises(WireError):
            unpack(spoiled, header)


@pytest.mark.parametrize("wrong", [
    {"dtype": ["float32"]}, {"dtype": {}}, {"dtype": None}, {"dtype": "float8"}, {"model": [1]},
    {"num_layers": "2"}, {"num_layers": True}, {"num_tokens": 7.0}, {"num_tokens": None},
    {"further": 1}, [], "oops", 5, None,
])  # fmt: skip
def test_a_header_of_other_values_is_refused(wrong: Any) -> None:
    cache = filled(4)
    header = Header.of(cache, "m")
    payload = pack(header, cache, [1, 3], 7)[decode(pack(header, cache, [1, 3], 7))[2] :]
    said = asdict(header) | {"num_tokens": 7}
    text = json.dumps(said | wrong if isinstance(wrong, dict) else wrong).encode()
    with pytest.raises(WireError):
        unpack(MAGIC + len(text).to_bytes(4, "big") + text + payload, header)


def test_a_header_that_nests_deeply_is_refused() -> None:
    text = b"[" * 4000
    with pytest.raises(WireError, match="cannot be read"):
        decode(MAGIC + len(text).to_bytes(4, "big") + text)


REMOTE = Remote("prefill", 1, "0" * 32)


def over(answer: Callable[[httpx.Request], Any], seconds: float = 30.0) -> HttpTransport:
    """A transport to a server that answers so."""
    made = HttpTransport(seconds, SharedMemory())
    made.client = httpx.AsyncClient(transport=httpx.MockTransport(answer), timeout=seconds)
    return made


@pytest.mark.parametrize("content", [
    b"[]", b"oops", b'"shm"', b"5", b"null", b"", b"\xff", pytest.param(b"[" * 100_000, id="deep"),
    b"{}", b'{"connector": ["shm"]}', b'{"connector": "shm"}', b'{"connector": "shm", "name": {}}',
])  # fmt: skip
def test_an_offer_that_is_spoiled_is_a_transfer_that_failed(content: bytes) -> None:
    json_ = {"content-type": "application/json"}
    transport = over(lambda _: httpx.Response(200, content=content, headers=json_))

    async def main() -> None:
        with pytest.raises(TransferError):
            await transport.receive(REMOTE, {})

    asyncio.run(main())


@pytest.mark.parametrize("pieces", [1, 100])
def test_seconds_are_for_the_whole_of_a_transfer(pieces: int) -> None:
    """A server that sends a byte a second, or nothing for long, in virtual time."""

    class Drips(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(pieces):
                await asyncio.sleep(100 / pieces)
                yield b"x"

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            await asyncio.sleep(100)
        return httpx.Response(200, stream=Drips())

    async def main(loop: virtual_loop.VirtualLoop) -> None:
        for seconds, call in itertools.product((3.0, 30.0), ("receive", "acknowledge")):
            begun = loop.time()
            with pytest.raises(TransferError, match="prefill"):
                await getattr(over(answer, seconds), call)(REMOTE, {})
            assert loop.time() - begun == seconds
        assert await over(answer, 101.0).receive(REMOTE, {}) == b"x" * pieces

    virtual_loop.run(main)


def test_models_have_fingerprints_of_their_own(model: Transformer) -> None:
    other = Transformer(CONFIG)
    assert fingerprint(model) == fingerprint(model) != fingerprint(other)


def test_parking_survives_doubled_late_and_expired_acknowledgements() -> None:
    now = [0.0]
    pool = BlockPool(4)
    parking = Parking(Holds(pool), 10.0, lambda: now[0])
    blocks = pool.allocate(2, "request")
    assert parking.park("a", blocks, 7) and not parking.park("a", blocks, 7)
    assert parking.park("b", blocks[:1], 3)
    pool.free(blocks, "request")
    assert parking.acknowledge("a") and not parking.acknowledge("a")
    assert pool.num_free == 3  # the other transfer has its block still
    now[0] = 10.0
    assert parking.find("b") is None and pool.num_free == 3
    assert parking.expire() == 1 and parking.expire() == 0 and pool.num_free == 4
    pool.allocate(4, "somebody else")
    assert not parking.acknowledge("b") and pool.num_free == 0


class Pair:
    """A prefill and a decode engine in one process; `answer` is a router of one request."""

    def __init__(self, model: Transformer, sizes: tuple[int, int], blocks: tuple[int, int]) -> None:
        mark = fingerprint(model)
        self.p, self.d = (
            Engine(
                model,
                EngineConfig(max_num_seqs=4, max_num_batched_tokens=16),
                store=ConnectedStore(CONFIG, count, size, model=mark),
            )
            for size, count in zip(sizes, blocks, strict=True)
        )
        self.bytes = 0

    def prefill(self, prompt: list[int], params: SamplingParams, name: str) -> Received:
        one = replace(params, max_tokens=1)
        self.p.add_request(prompt, TransferParams.of(one, Decodes(name)))
        steps(self.p)
        data = self.p.store.fetch(name)
        assert data is not None
        self.bytes += len(data)
        return unpack(data, self.d.store.header)


def steps(engine: Engine, preempted: set[int] | None = None) -> dict[int, tuple[int, ...]]:
    """Run to the end; the tokens of each request. Its invariants hold after every step."""
    found = {}
    for _ in range(2000):
        if not engine.has_unfinished:
            return found
        for event in engine.step():
            if isinstance(event, Finished):
                found[event.request_id] = event.completion.token_ids
            elif isinstance(event, Preempted) and preempted is not None:
                preempted.add(event.request_id)
        engine.check()
    raise AssertionError("the engine does not come to an end")


def requests(count: int, seed: int, temperature: float) -> list[tuple[list[int], SamplingParams]]:
    draw = random.Random(seed)
    shared = [draw.randrange(97) for _ in range(20)]
    made = []
    for number in range(count):
        tail = [draw.randrange(97) for _ in range(draw.randint(1, 20))]
        prompt = shared[: draw.choice((0, 8, 12, 20))] + tail
        most = draw.randint(1, 12)
        made.append(
            (
                prompt,
                SamplingParams(
                    temperature=temperature, seed=number, max_tokens=most, ignore_eos=True
                ),
            )
        )
    return made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sizes", [(4, 4), (4, 3), (8, 5)])
@pytest.mark.few(2)
def test_two_engines_say_what_one_says(
    model: Transformer, sizes: tuple[int, int], temperature: float
) -> None:
    asked = requests(10, 3, temperature)
    alone = Engine(model, EngineConfig(max_num_seqs=4, max_num_batched_tokens=16))
    ids = [alone.add_request(prompt, params) for prompt, params in asked]
    texts = steps(alone)
    pair = Pair(
        model, sizes, (60, 80 // sizes[1])
    )  # the decoding side is so small that it preempts
    got = {}
    for number, (prompt, params) in enumerate(asked):
        received = pair.prefill(prompt, params, f"t{number}")
        got[number] = pair.d.add_request(prompt, TransferParams.of(params, received))
    preempted: set[int] = set()
    found = steps(pair.d, preempted)
    assert [found[got[n]] for n in range(len(asked))] == [texts[i] for i in ids]
    assert preempted
    assert 0 < pair.d.store.loaded < sum(len(prompt) - 1 for prompt, _ in asked)  # hits on D, too
    assert all(pair.p.store.parking.acknowledge(f"t{n}") for n in range(len(asked)))
    for engine in (pair.p, pair.d):
        assert engine.store.free_tokens == engine.store.total_tokens
        engine.check()


@pytest.mark.parametrize("when", range(6))
def test_an_abort_at_any_moment_leaves_nothing_behind(model: Transformer, when: int) -> None:
    pair = Pair(model, (4, 4), (20, 20))
    prompt, params = list(range(40)), SamplingParams(max_tokens=3, seed=1)
    number = pair.p.add_request(prompt, TransferParams.of(params, Decodes("t")))
    for _ in range(when):
        pair.p.step()
    pair.p.abort(number)
    steps(pair.p)
    data = pair.p.store.fetch("t")
    if data is not None:  # its prompt had been computed
        received = unpack(data, pair.d.store.header)
        mine = pair.d.add_request(prompt, TransferParams.of(params, received))
        for _ in range(when % 3):
            pair.d.step()
        pair.d.abort(mine)
        steps(pair.d)
        assert pair.p.store.parking.acknowledge("t")
    for engine in (pair.p, pair.d):
        assert engine.store.free_tokens == engine.store.total_tokens
        engine.check()


def test_a_pool_that_is_all_parked_comes_back_when_the_time_is_over(model: Transformer) -> None:
    """Nobody runs and nothing is free: a step without a budget asks for nobody's admission."""
    now, store = [0.0], ConnectedStore(CONFIG, 4, 4, model=fingerprint(model))
    store.parking = Parking(store.manager, 10.0, lambda: now[0])
    engine, params = Engine(model, store=store), SamplingParams(max_tokens=1, seed=1)
    engine.add_request(list(range(16)), TransferParams.of(params, Decodes("t")))
    steps(engine)
    assert len(store.parking) == 1 and store.free_tokens == 0
    number = engine.add_request([50, 51], params)
    for _ in range(3):
        assert not any(isinstance(event, Finished) for event in engine.step())
    assert len(store.parking) == 1
    now[0] = 10.0
    assert list(steps(engine)) == [number] and len(store.parking) == 0


def test_samples_that_share_a_prompt_load_it_once(model: Transformer) -> None:
    asked = list(range(30)), SamplingParams(n=3, seed=4, max_tokens=6, ignore_eos=True)
    alone = Engine(model, EngineConfig())
    alone.add_request(*asked)
    expected = sorted(e.completion.token_ids for e in alone.run() if isinstance(e, Finished))
    pair = Pair(model, (4, 7), (20, 20))
    received = pair.prefill(asked[0], replace(asked[1], n=1), "t")
    pair.d.add_request(asked[0], TransferParams.of(asked[1], received))
    got = sorted(e.completion.token_ids for e in pair.d.run() if isinstance(e, Finished))
    assert got == expected and pair.d.store.loaded == 29
    pair.d.check()


def test_a_transfer_fetched_twice_or_by_two_is_the_same(model: Transformer) -> None:
    pair = Pair(model, (4, 4), (20, 40))
    prompt, params = list(range(17)), SamplingParams(temperature=0.0, max_tokens=4)
    received = pair.prefill(prompt, params, "t")
    pair.p.add_request(
        [3] * 50, SamplingParams(max_tokens=8, ignore_eos=True)
    )  # tries to reuse the blocks
    steps(pair.p)
    again = unpack(pair.p.store.fetch("t") or b"", pair.d.store.header)
    assert torch.equal(received.k, again.k) and torch.equal(received.v, again.v)
    both = [pair.d.add_request(prompt, TransferParams.of(params, r)) for r in (received, again)]
    found = steps(pair.d)
    assert found[both[0]] == found[both[1]]

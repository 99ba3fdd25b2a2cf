"""Task 1: K and V on the wire."""

from dataclasses import asdict, replace

import pytest
import torch

from grader import expect
from nanovllm.cluster.errors import ForeignError, WireError
from nanovllm.cluster.header import Header, decode, encode
from nanovllm.cluster.wire import Received, load, pack, unpack

LAYERS, HEADS, DIM = 3, 2, 4
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WHOLE = "whole blocks of K in the order of the block table, all layers, then the same of V"


class Cache:
    """As lab 05's: k and v [L, B, P, G, D]; numbers of one block and place are its own."""

    def __init__(self, generator, num_blocks=9, block_size=4, dtype=torch.float32):
        shape = (LAYERS, num_blocks, block_size, HEADS, DIM)
        self.k = torch.randn(shape, generator=generator).to(dtype)
        self.v = torch.randn(shape, generator=generator).to(dtype)
        self.num_blocks, self.block_size, self.device = num_blocks, block_size, self.k.device

    def write(self, layer, k, v, slots):
        self.k[layer].flatten(0, 1)[slots] = k
        self.v[layer].flatten(0, 1)[slots] = v

    def header(self, model="m"):
        return Header.of(self, model)

    def tokens(self, blocks, count):
        """K and V [L, T, G, D] of a table's first tokens, one by one."""
        places = [(blocks[i // self.block_size], i % self.block_size) for i in range(count)]
        return tuple(
            torch.stack([x[:, block, place] for block, place in places], 1)
            for x in (self.k, self.v)
        )

    def both(self):
        return torch.stack((self.k, self.v))


def sent(cache, blocks, count):
    """What stands on the wire behind the header, written out by hand."""
    per_block = cache.block_size
    used = blocks[: -(-count // per_block)]
    flat = []
    for x in (cache.k, cache.v):
        taken = torch.stack([x[:, block] for block in used], 1)
        for place in range(count, len(used) * per_block):
            taken[:, place // per_block, place % per_block] = 0
        flat.append(taken)
    return torch.stack(flat)


def given_of(cache, blocks, count):
    return {
        "block_ids": blocks,
        "num_tokens": count,
        "block_size": cache.block_size,
        "dtype": str(cache.k.dtype),
    }


def payload(data, dtype):
    _, _, start = decode(data)
    return torch.frombuffer(bytearray(data[start:]), dtype=dtype)


@pytest.mark.check(task=1, points=1, title="Blocks become bytes")
def test_pack(generator):
    for dtype in DTYPES:
        cache = Cache(generator, dtype=dtype)
        for blocks, count in (([3], 4), ([7, 2, 5], 12), ([8, 0], 8)):
            given = given_of(cache, blocks, count)
            data = pack(cache.header(), cache, blocks, count)
            expect(
                decode(data)[:2],
                (cache.header(), count),
                call="the header and the number of tokens that pack(...) begins with",
                given=given,
                cause="encode(header, num_tokens) comes first",
            )
            expect(
                payload(data, dtype),
                sent(cache, blocks, count).flatten(),
                call="the numbers behind the header of pack(...)",
                given=given,
                cause=WHOLE,
            )


@pytest.mark.check(task=1, points=1, title="As many blocks as the tokens need")
def test_pack_needed(generator):
    cache = Cache(generator)
    for blocks, count in (([1, 2, 6], 5), ([1, 2, 6], 8), ([4, 3], 1), ([4, 3, 7], 4)):
        data = pack(cache.header(), cache, blocks, count)
        used = -(-count // 4)
        expect(
            len(data) - decode(data)[2],
            2 * LAYERS * used * 4 * HEADS * DIM * 4,
            call="bytes behind the header of pack(...)",
            given=given_of(cache, blocks, count),
            cause=f"{count} tokens lie in {used} blocks of 4, whatever else the request has",
        )


@pytest.mark.check(task=1, points=2, title="What others left is nobody's business")
def test_pack_zeros(generator):
    for count in (9, 10, 11, 1):
        cache = Cache(generator)
        blocks = [7, 2, 5]
        cache.v[:, blocks[-(-count // 4) - 1], 3] = torch.inf
        before = cache.both().clone()
        data = pack(cache.header(), cache, blocks, count)
        expect(
            payload(data, torch.float32),
            sent(cache, blocks, count).flatten(),
            call="the numbers behind the header of pack(...)",
            given=given_of(cache, blocks, count),
            cause="places behind the last token are sent as zeros: another request's K and V may "
            "still lie there",
        )
        expect(
            cache.both(),
            before,
            call="the cache after pack(...)",
            given=given_of(cache, blocks, count),
            cause="packing reads; other requests are still using what lies in these blocks",
        )


@pytest.mark.check(task=1, points=1, title="Tokens that are not in these blocks")
def test_pack_refuses(generator):
    cache = Cache(generator)
    for blocks, count in (([1, 2], 9), ([1], 5), ([], 1), ([1, 2], 0), ([1], -3)):
        expect.raises(
            WireError,
            lambda b=blocks, c=count: pack(cache.header(), cache, b, c),
            call="pack(...)",
            given=given_of(cache, blocks, count),
            cause="at least one token, and no more than the blocks have room for",
        )


@pytest.mark.check(task=1, points=1, title="Bytes become tokens")
def test_unpack(generator):
    for dtype in DTYPES:
        for size, blocks, count in ((4, [7, 2, 5], 12), (4, [7, 2, 5], 10), (3, [1], 1)):
            cache = Cache(generator, block_size=size, dtype=dtype)
            data = encode(cache.header(), count)
            data += sent(cache, blocks, count).view(torch.uint8).numpy().tobytes()
            got = unpack(data, cache.header())
            expect(
                [got.num_tokens, got.k.dtype, got.k, got.v],
                [count, dtype, *cache.tokens(blocks, count)],
                call="num_tokens, dtype, k and v of unpack(data, header)",
                given=given_of(cache, blocks, count),
                cause="[L, T, G, D]: the places of the blocks one behind another, without those "
                "that hold no token",
            )


@pytest.mark.check(task=1, points=1, title="Cut, spoiled, or with more behind it")
def test_unpack_whole(generator):
    cache = Cache(generator)
    header = cache.header()
    data = encode(header, 7) + sent(cache, [1, 3], 7).view(torch.uint8).numpy().tobytes()
    start = decode(data)[2]
    size = len(data)
    cases = {
        "nothing": b"",
        "half a header": data[: start - 5],
        "a header alone": data[:start],
        "K alone": data[: start + (size - start) // 2],
        "all but the last byte": data[:-1],
        "all but the last number": data[:-4],
        "one byte more": data + b"\0",
        "a block more": data + bytes(2 * LAYERS * 4 * HEADS * DIM * 4),
        "other bytes first": b"GET " + data[4:],
        "twice the same": data + data,
    }
    for what, wrong in cases.items():
        expect.raises(
            WireError,
            lambda wrong=wrong: unpack(wrong, header),
            call=f"unpack({what}, header) of 7 tokens in blocks of 4",
            cause="count the bytes that the header promises before you read them",
        )


@pytest.mark.check(task=1, points=1, title="K and V of another model")
def test_foreign(generator):
    cache = Cache(generator)
    mine = cache.header()
    others = {
        "num_layers": LAYERS + 1,
        "num_kv_heads": HEADS * 2,
        "head_dim": DIM * 2,
        "dtype": "bfloat16",
        "model": "another",
    }
    found = {}
    for name, value in others.items():
        try:
            mine.refuse_foreign(replace(mine, **{name: value}))
            found[name] = "accepted"
        except ForeignError as error:
            found[name] = "refused by name" if name in str(error) else "refused without the name"
    expect(
        found,
        dict.fromkeys(others, "refused by name"),
        call="refuse_foreign(other) of an other that differs in one thing",
        given={"mine": asdict(mine), "others": others},
        cause="all but the block size must be the same; the sentence names a field that differs",
    )
    for size in (1, 3, 4, 64):
        expect(
            mine.refuse_foreign(replace(mine, block_size=size)),
            None,
            call="refuse_foreign(other) of another block size alone",
            given={"mine": 4, "other": size},
            cause="tokens come in order, so they can be cut into blocks of any size",
        )


@pytest.mark.check(task=1, points=1, title="Only the header tells them apart")
def test_header_first(generator):
    cache = Cache(generator)
    data = encode(cache.header(), 4) + sent(cache, [1], 4).view(torch.uint8).numpy().tobytes()
    swapped = replace(cache.header(), num_kv_heads=DIM, head_dim=HEADS)
    wider = replace(cache.header(), dtype="float16", head_dim=2 * DIM)
    found = {}
    for what, mine in (
        ("as many heads as the other has dimensions, and the other way round", swapped),
        ("twice the dimensions in half the bytes", wider),
        ("of the same shape, with other weights", replace(cache.header(), model="other")),
    ):
        try:
            found[what] = list(unpack(data, mine).k.shape)
        except ForeignError:
            found[what] = "refused"
    expect(
        found,
        dict.fromkeys(found, "refused"),
        call="unpack(data, mine) for an engine ...",
        cause="the number of bytes is the same: only the header tells these apart",
    )


@pytest.mark.check(task=1, points=1, title="Into blocks of another size")
def test_load(generator):
    for size, count, table in (
        (3, 11, [4, 9, 0, 7]),
        (8, 11, [5, 2]),
        (1, 3, [6, 1, 8]),
        (4, 8, [3, 2]),
        (16, 5, [7]),
    ):
        cache = Cache(generator, num_blocks=12, block_size=size)
        shape = (LAYERS, count, HEADS, DIM)
        came = Received(*(torch.randn(shape, generator=generator) for _ in range(2)))
        load(cache, came, table, 0)
        given = {"T": count, "block_size": size, "block_ids": table, "start": 0}
        expect(
            list(cache.tokens(table, count)),
            [came.k, came.v],
            call="K and V of the request after load(cache, received, block_ids, 0)",
            given=given,
            cause="token t belongs into place t % P of the table's block t // P",
        )


@pytest.mark.check(task=1, points=1, title="Nothing but these tokens is written")
def test_load_alone(generator):
    for size, count, start, table in (
        (4, 10, 5, [8, 2, 6, 1]),
        (4, 9, 8, [0, 3, 5]),
        (3, 7, 0, [9, 1, 4]),
        (4, 6, 6, [2, 7]),
    ):
        cache = Cache(generator, num_blocks=10, block_size=size)
        before = cache.both().clone()
        shape = (LAYERS, count, HEADS, DIM)
        came = Received(*(torch.randn(shape, generator=generator) for _ in range(2)))
        wanted = before.clone()
        for token in range(start, count):
            for at, x in enumerate((came.k, came.v)):
                wanted[at, :, table[token // size], token % size] = x[:, token]
        load(cache, came, table, start)
        expect(
            cache.both(),
            wanted,
            call="the whole cache after load(cache, received, block_ids, start)",
            given={"T": count, "start": start, "block_size": size, "block_ids": table},
            cause="tokens before `start` are here already, in blocks that others may read too; "
            "behind the last token the request's own next tokens will stand",
        )


@pytest.mark.check(task=1, points=1, title="There and back (random)", stress=True)
def test_random(rng, generator):
    for number in range(12):
        sizes = [int(n) for n in rng.integers(1, 9, size=2)]
        count = int(rng.integers(1, 30))
        dtype = DTYPES[int(rng.integers(3))]
        here, there = (Cache(generator, 40, size, dtype) for size in sizes)
        tables = [[int(b) for b in rng.permutation(40)[: -(-count // size) + 1]] for size in sizes]
        start = int(rng.integers(0, count + 1)) if number % 2 else 0
        wanted, before = here.tokens(tables[0], count), there.tokens(tables[1], count)
        got = unpack(pack(here.header(), here, tables[0], count), there.header())
        load(there, got, tables[1], start)
        found = there.tokens(tables[1], count)
        expect(
            list(found),
            [
                torch.cat((old[:, :start], new[:, start:]), 1)
                for old, new in zip(before, wanted, strict=True)
            ],
            call="K and V after load(there, unpack(pack(here, ...)), table, start)",
            given={
                "block sizes": sizes,
                "T": count,
                "start": start,
                "dtype": str(dtype),
                "block_ids": tables,
            },
            cause="what is not cut at the end of a block is cut at the end of the tokens",
        )

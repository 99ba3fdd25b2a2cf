"""Task 6: the prefix cache."""

import pytest

from grader import expect
from nanovllm.batching.errors import InvariantError
from nanovllm.batching.request import Request
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.prefix_cache import PrefixCache
from nanovllm.paging.prefix_index import CachedBlock, PrefixIndex, block_hash


def request_of(tokens, number=0, output=()):
    sequence = Sequence(tokens, SamplingParams(max_tokens=9), max_model_len=64, seed=0)
    sequence.request_id = number
    sequence.output_token_ids += output
    return Request(number, sequence, 0.0, len(tokens) + 8)


def chain(index, *blocks, salt="", hash_of=block_hash):
    """Insert a chain of (block number, tokens); the last entry."""
    parent = None
    for block_id, tokens in blocks:
        key = hash_of(parent.key if parent else b"", tokens, salt)
        parent = index.insert(key, parent, tokens, salt, block_id)
    return parent


def known(index):
    """The blocks that the index knows, of the first dozen."""
    return [block for block in range(12) if block in index]


def _blocks(table):
    return [entry.block_id for entry in table.cached]


def table_of(pool, num_tokens, size=4):
    """A table with blocks for so many stored tokens."""
    table = BlockTable(size, num_tokens=num_tokens)
    table.block_ids = pool.allocate(-(-num_tokens // size), table)
    return table


@pytest.mark.check(task=6, points=2, title="A key for the block and all its past")
def test_hash():
    first = block_hash(b"", (5, 6, 7), "")
    names = ("same again", "behind a parent", "with a salt", "other order", "one more token")
    others = (
        block_hash(b"", (5, 6, 7), ""),
        block_hash(first, (5, 6, 7), ""),
        block_hash(b"", (5, 6, 7), "x"),
        block_hash(b"", (6, 5, 7), ""),
        block_hash(b"", (5, 6, 7, 0), ""),
    )
    expect(
        {name: key == first for name, key in zip(names, others, strict=True)},
        {name: name == "same again" for name in names},
        call="whether the key of (5, 6, 7) is also the key of ...",
        cause="K and V of a token depend on all tokens before it",
    )
    kinds = [block_hash(b"", tokens, "") for tokens in ((1, 23), (12, 3), (123,))]
    salted = [block_hash(b"", tokens, salt) for tokens, salt in (((5, 6), "7"), ((5, 67), ""))]
    behind = {block_hash(first, (5,), salt) for salt in ("", "x", "y")}
    expect(
        [len(set(kinds)), len(set(salted)), len(behind)],
        [3, 2, 3],
        call='different keys of (1, 23), (12, 3), (123,); of (5, 6) with salt "7" and (5, 67) '
        "without; of three salts behind a parent",
        cause="digits must not run together, and a salt counts in every block of a chain",
    )
    expect([type(first), len(first) >= 8], [bytes, True], call="type(key), len(key) >= 8")


@pytest.mark.check(task=6, points=3, title="Contents are compared, and the first of a key stays")
def test_collisions():
    entry = CachedBlock(b"k", None, (1, 2), "", 5)
    other = CachedBlock(b"p", None, (9, 9), "", 6)
    asked = [(None, (1, 2), ""), (None, (1, 3), ""), (other, (1, 2), ""), (None, (1, 2), "x")]
    expect(
        [entry.holds(*question) for question in asked],
        [True, False, False, False],
        call="holds of a first block (1, 2): itself, other tokens, another parent, another salt",
        cause="a key of few bits proves nothing",
    )
    salted = CachedBlock(b"k", None, (1, 2), "x", 5)
    expect(
        [salted.holds(None, (1, 2), salt) for salt in ("x", "", "a", "y")],
        [True, False, False, False],
        call='holds of a block salted "x": with the salts "x", "", "a", "y"',
        cause="the salts of tenants must be equal",
    )
    index = PrefixIndex()
    one = index.insert(b"k", None, (1, 2), "", 5)
    expect(
        [one.block_id, index.find(b"k", None, (1, 2), "") is one, 5 in index],
        [5, True, True],
        call="insert of block 5: the entry's block; whether find gives it; whether 5 is in the "
        "index",
    )
    got = [index.find(b"k", None, (3, 4), ""), index.find(b"q", None, (1, 2), "")]
    expect(
        got,
        [None, None],
        call="find by the same key with other tokens, and by a key that nobody has",
        cause="the contents decide",
    )
    again = index.insert(b"k", None, (1, 2), "", 6)
    clash = index.insert(b"k", None, (3, 4), "", 7)
    expect(
        [again is one, clash is None, known(index), index.find(b"k", None, (1, 2), "") is one],
        [True, True, [5], True],
        call="insert of block 6 with the same contents and key (the old entry?), of block 7 with "
        "other contents and the same key (None?); blocks in the index; whether find still gives 5",
        cause="an entry that is replaced would leave a block that is known, but not to be found",
    )
    index.check()


@pytest.mark.check(task=6, points=1, title="What is evicted is found no more; what moves is")
def test_evict():
    index = PrefixIndex()
    last = chain(index, (4, (1, 2)), (7, (3, 4)))
    find = last.key, last.parent, (3, 4), ""
    index.move(7, 9)
    expect(
        [index.find(*find) is last, last.block_id, known(index)],
        [True, 9, [4, 9]],
        call="after move(7, 9) of blocks 4, 7: whether its entry is found, its block, all blocks",
    )
    index.move(2, 3)
    index.evict(9)
    expect(
        [index.find(*find), 9 in index, known(index)],
        [None, False, [4]],
        call="after evict(9): what find gives, whether it is in the index, blocks that are left",
    )
    again = index.insert(last.key, last.parent, (3, 4), "", 2)
    expect(
        [again is not None and again.block_id, known(index)],
        [2, [2, 4]],
        call="after insert of the same contents in block 2: its block, all blocks",
        cause="what is forgotten by block must be forgotten by key",
    )
    index.check()
    index.evict(4)
    expect.raises(
        InvariantError,
        index.check,
        call="check when the first block of a chain was evicted before the second",
    )


@pytest.mark.check(task=6, points=3, title="Full blocks of computed tokens are registered, once")
def test_register():
    cache = PrefixCache(4)
    pool = BlockPool(12, cache.index)
    request = request_of(list(range(10, 23)), output=[30, 31, 32])
    table = table_of(pool, 16)
    blocks = list(table.block_ids)
    seen = []
    for stored in (7, 8, 11, 12, 15):
        table.num_tokens = stored
        cache.register(pool, request, table)
        right = known(cache.index) == sorted(blocks[: stored // 4])
        seen.append([stored, right, len(table.cached)])
    expect(
        seen,
        [[7, True, 1], [8, True, 2], [11, True, 2], [12, True, 3], [15, True, 3]],
        call="register with so many tokens stored, of a request of 13 + 3 in blocks of 4: [stored, "
        "whether the index knows exactly the full blocks, blocks of the table that are cached]",
        cause="a block that is not full, or not computed, must not be hit",
    )
    table.num_tokens = 16
    cache.register(pool, request, table)
    expect(
        [table.cached[-1].token_ids, table.cached[-1].parent is table.cached[-2]],
        [(22, 30, 31, 32), True],
        call="the tokens of the fourth block, and whether its parent is the third",
        cause="generated tokens are cached like those of the prompt",
    )
    twin = request_of([*range(10, 18), 1, 2, 3, 4], number=1)
    copy = table_of(pool, 12)
    mine = list(copy.block_ids)
    cache.register(pool, twin, copy)
    want = [*blocks[:2], mine[2]]
    expect(
        [copy.block_ids, _blocks(copy), [pool.ref_count(b) for b in (*blocks[:2], *mine[:2])]],
        [want, want, [2, 2, 0, 0]],
        call="register of a second table whose first two blocks hold what the first's hold: its "
        "blocks, those of them that are cached, references of the first's two and of its own two",
        given={"the first's blocks": blocks, "its own": mine},
        cause="one content, one block: the table changes to the known one",
    )
    expect(known(cache.index), sorted([*blocks, mine[2]]), call="all blocks of the index then")
    weak = PrefixCache(4, hash_of=lambda parent, tokens, salt: b"same")
    pool = BlockPool(6, weak.index)
    for number in range(2):
        weak.register(pool, request_of([number] * 8, number), table_of(pool, 8))
    expect(
        len(known(weak.index)),
        1,
        call="blocks in the index after two requests whose blocks all have one key",
        cause="behind a block that is not registered nothing can be",
    )
    weak = PrefixCache(4, hash_of=lambda parent, tokens, salt: bytes(tokens) if parent else b"same")
    pool, tables = BlockPool(4, weak.index), []
    for number in range(2):
        tables.append(table_of(pool, 8))
        weak.register(pool, request_of([number] * 8, number), tables[-1])
    expect(
        [len(known(weak.index)), len(tables[1].cached)],
        [2, 0],
        call="blocks in the index, and cached blocks of the second table, after two requests of 2 "
        "blocks each, whose first blocks have one key",
        cause="behind a block that is not registered nothing can be",
    )
    cache.index.check()


@pytest.mark.check(
    task=6, points=3, title="A hit ends at the first miss, and before the last token"
)
def test_lookup():
    cache = PrefixCache(4, salt_of=lambda request: "b" if request.number == 9 else "")
    blocks = [(5, (1, 2, 3, 4)), (0, (5, 6, 7, 8)), (3, (1, 2, 3, 4))]
    chain(cache.index, *blocks)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]
    cases = {
        "13 tokens, of which 12 are cached": (request_of([*prompt, 9]), [5, 0, 3]),
        "12 tokens, all cached": (request_of(prompt, 1), [5, 0]),
        "4 tokens, all cached": (request_of(prompt[:4], 3), []),
        "5 tokens": (request_of(prompt[:5], 4), [5]),
        "the second block first": (request_of(prompt[4:], 5), []),
        "another token in the middle": (request_of([*prompt[:7], 9, *prompt[8:], 9], 6), [5]),
        "the same 13 tokens with another salt": (request_of([*prompt, 9], 9), []),
    }  # fmt: skip
    for case, (request, want) in cases.items():
        expect(
            [entry.block_id for entry in cache.lookup(request)],
            want,
            call=f"lookup of {case}",
            given={"cached": "1..4 in block 5, then 5..8 in block 0, then 1..4 in block 3"},
            cause="the last token must be computed, and a block counts only behind its parent",
        )
    resumed = request_of(prompt[:4], 2, [*prompt[4:], 9])
    expect(
        [entry.block_id for entry in cache.lookup(resumed)],
        [5, 0, 3],
        call="lookup of 4 tokens of a prompt and 9 generated ones, of which 12 are cached",
        cause="a request that comes back has its answer so far, too",
    )
    blind = PrefixCache(4, hash_of=lambda parent, tokens, salt: b"same")
    chain(blind.index, (2, (1, 2, 3, 4)), hash_of=lambda *_: b"same")
    expect(
        [entry.block_id for entry in blind.lookup(request_of([5, 6, 7, 8, 9]))],
        [],
        call="lookup of (5, 6, 7, 8, 9) where (1, 2, 3, 4) has the same key",
        cause="a key may be shared by chance",
    )


@pytest.mark.check(task=6, points=2, title="A random index beside a dictionary", stress=True)
def test_random(rng):
    index, contents, story = PrefixIndex(), {}, []
    for _ in range(120):
        block = int(rng.integers(12))
        if block in index and rng.random() < 0.5:
            if not any(parent is contents[block][0] for _, parent, _ in contents.values()):
                index.evict(block)
                del contents[block]
                story.append(f"evict {block}")
        elif block not in index:
            parents = [None, *(entry for entry, _, _ in contents.values())]
            parent = parents[int(rng.integers(len(parents)))]
            tokens = (int(rng.integers(2)),)
            key = b"%d" % int(rng.integers(3))  # keys of few bits
            same = [e for e, p, t in contents.values() if p is parent and t == tokens]
            same = [entry for entry in same if entry.key == key]
            clash = any(entry.key == key for entry, _, _ in contents.values()) and not same
            got = index.insert(key, parent, tokens, "", block)
            story.append(f"insert {block} with key {key.decode()}")
            right = got is None if clash else got is same[0] if same else got.block_id == block
            expect.that(right, "insert gives the entry of these contents", given={"calls": story})
            if not clash and not same:
                contents[block] = got, parent, tokens
        index.check()
        expect(known(index), sorted(contents), call="blocks in the index", given={"calls": story})
        for entry, parent, tokens in contents.values():
            found = index.find(entry.key, parent, tokens, "")
            expect.that(found is entry, "find gives every entry", given={"calls": story})

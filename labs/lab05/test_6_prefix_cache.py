"""Task 6: the prefix cache."""

import pytest

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.generation.events import Finished
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.prefix_cache import PrefixCache
from nanovllm.paging.prefix_index import CachedBlock, PrefixIndex, block_hash
from nanovllm.paging.store import PagedStore

CONFIG = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 64, qk_norm=True, eos_token_ids=(2,))


def request_of(tokens, number=0, output=()):
    sequence = Sequence(tokens, SamplingParams(max_tokens=9), max_model_len=64, seed=0)
    sequence.request_id = number
    sequence.output_token_ids += output
    return Request(number, sequence, 0.0, len(tokens) + 8)


def chain(index, *blocks, salt="", hash_of=block_hash):
    """Put a chain of (block number, tokens) into an index, without insert."""
    parent = None
    for block_id, tokens in blocks:
        key = hash_of(parent.key if parent else b"", tokens, salt)
        entry = CachedBlock(key, parent, tokens, salt, block_id)
        index.by_key[key] = index.by_block[block_id] = parent = entry
    return parent


def _blocks(table):
    return [entry.block_id for entry in table.cached]


def table_of(pool, block_ids, num_tokens, size=4):
    """A table that holds these blocks, without grow."""
    table = BlockTable(size, list(block_ids), num_tokens)
    for block_id in block_ids:
        pool.owners.setdefault(block_id, {})[table] = None
        pool.free_queue.pop(block_id, None)
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
        [again is one, clash is None, sorted(index.by_block), index.by_key[b"k"].block_id],
        [True, True, [5], 5],
        call="insert of block 6 with the same contents and key (the old entry?), of block 7 with "
        "other contents and the same key (None?); blocks in the index; block of the key",
        cause="an entry that is replaced would leave a block that is known, but not to be found",
    )


@pytest.mark.check(task=6, points=1, title="What is evicted is found no more")
def test_evict():
    index = PrefixIndex()
    last = chain(index, (4, (1, 2)), (7, (3, 4)))
    index.evict(7)
    found = [last.key in index.by_key, 7 in index, sorted(index.by_block), len(index.by_key)]
    expect(
        found,
        [False, False, [4], 1],
        call="after evict(7) of blocks 4, 7: whether its key is there, whether it is in the index, "
        "blocks and number of keys that are left",
    )


@pytest.mark.check(task=6, points=3, title="Full blocks of computed tokens are registered, once")
def test_register():
    cache = PrefixCache(4)
    pool = BlockPool(12, cache.index)
    request = request_of(list(range(10, 23)), output=[30, 31, 32])
    table = table_of(pool, [6, 2, 8, 0], 7)
    seen = []
    for stored in (7, 8, 11, 12, 15):
        table.num_tokens = stored
        cache.register(pool, request, table)
        seen.append([stored, sorted(cache.index.by_block), len(table.cached)])
    expect(
        seen,
        [[7, [6], 1], [8, [2, 6], 2], [11, [2, 6], 2], [12, [2, 6, 8], 3], [15, [2, 6, 8], 3]],
        call="register with so many tokens stored, of a request of 13 + 3 in blocks [6, 2, 8, 0] "
        "of 4: [stored, blocks in the index, blocks of the table that are cached]",
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
    copy = table_of(pool, [9, 4, 5], 12)
    cache.register(pool, twin, copy)
    expect(
        [copy.block_ids, _blocks(copy), [pool.ref_count(block) for block in (6, 2, 9, 4)]],
        [[6, 2, 5], [6, 2, 5], [2, 2, 0, 0]],
        call="register of [9, 4, 5], whose first two blocks hold what 6 and 2 hold: its blocks, "
        "those of them that are cached, references of 6, 2, 9, 4",
        cause="one content, one block: the table changes to the known one",
    )
    expect(sorted(cache.index.by_block), [0, 2, 5, 6, 8], call="all blocks of the index then")
    weak = PrefixCache(4, hash_of=lambda parent, tokens, salt: b"same")
    pool = BlockPool(6, weak.index)
    for number, blocks in enumerate(([0, 1], [2, 3])):
        request = request_of([number] * 8, number)
        weak.register(pool, request, table_of(pool, blocks, 8))
    expect(
        sorted(weak.index.by_block),
        [0],
        call="blocks in the index after two requests whose blocks all have one key",
        cause="behind a block that is not registered nothing can be",
    )


@pytest.mark.check(
    task=6, points=2, title="A hit ends at the first miss, and before the last token"
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
    manager = BlockManager(8, 4)
    sibling, sample = request_of([*prompt, 9]), request_of([*prompt, 9], 1)
    sibling.sequence.request_id = sample.sequence.request_id = 0
    manager.admit(sibling)
    manager.commit(Plan((Chunk(sibling, 0, 3, 13),)))
    chain(manager.prefix.index, *blocks)
    source, tokens = manager.source(sample)
    expect(
        [source.block_ids, tokens],
        [[5, 0, 3], 12],
        call="source of 13 tokens, 12 of them cached; another sample of the request has stored 3",
        cause="it begins with whichever holds more (task 5)",
    )


@pytest.mark.check(
    task=6, points=2, title="Enough blocks, hits that are free now not counted twice"
)
def test_can_admit():
    prompt = list(range(1, 14))  # 13 tokens: 4 blocks, of which 2 are cached
    seen = []
    for free, held in ((1, True), (2, True), (2, False), (3, False), (4, False)):
        manager = BlockManager(8, 4)
        chain(manager.prefix.index, (0, tuple(prompt[:4])), (1, tuple(prompt[4:8])))
        if held:
            table_of(manager.pool, [0, 1], 8)
        others = list(range(2, 8))
        table_of(manager.pool, others[: 6 - free + (0 if held else 2)], 8)
        seen.append([manager.pool.num_free, manager.can_admit(request_of(prompt))])
    expect(
        seen,
        [[1, False], [2, True], [2, False], [3, False], [4, True]],
        call="[free blocks, can_admit] of 13 tokens in blocks of 4, of which 8 are cached in two "
        "blocks that somebody holds (twice), or that are free (three times)",
        cause="4 blocks less 2 that others hold; if they are free, all 4 come from the free ones",
    )
    seen = []
    for stored, num_blocks in ((4, 8), (10, 8), (10, 4), (10, 3)):
        manager = BlockManager(num_blocks, 4, enable_prefix_caching=False)
        first = Request(0, SimulatedSequence(0, 10, 5, index=0), 0.0, 14)
        manager.admit(first)
        manager.commit(Plan((Chunk(first, 0, stored, 10),)))
        second = Request(1, SimulatedSequence(0, 10, 5, index=1), 0.0, 14)
        seen.append([stored, num_blocks, manager.can_admit(second)])
    expect(
        seen,
        [[4, 8, False], [10, 8, True], [10, 4, True], [10, 3, False]],
        call="[prompt tokens stored by another sample of the request, of 10; blocks of the pool, "
        "3 of them its; can_admit]",
        cause="to come in before the prompt is read is to read it again; and a block that is "
        "shared in part will be copied, which takes a free one",
    )


@pytest.mark.check(task=6, points=1, title="The hit rate, in tokens")
def test_hit_rate():
    cache = PrefixCache(4)
    back = request_of(range(20), number=2)
    back.num_preemptions = 1
    for request, hits in ((request_of(range(10)), 8), (request_of(range(30), 1), 0), (back, 16)):
        cache.count(request, hits)
    expect(
        [cache.stats.queries, cache.stats.hits, cache.stats.hit_rate],
        [40, 8, 0.2],
        call="queries, hits and hit_rate after 10 tokens with 8 found, 30 with 0, and 20 with 16 "
        "of a request that had been preempted",
        cause="tokens, not requests; and what a request left itself is no shared prefix",
    )


@pytest.mark.check(
    task=6, points=2, title="The next turn finds the last one, and nobody's text changes"
)
def test_turns(rng):
    block_hash(b"", (1,), "")
    model = dummy_model(CONFIG)
    store = PagedStore(CONFIG, num_blocks=24, block_size=4)
    engine = Engine(model, EngineConfig(max_num_batched_tokens=16), store=store)
    params = SamplingParams(temperature=0, max_tokens=7, ignore_eos=True)
    prompt, hits, queries = rng.integers(3, 50, size=9).tolist(), 0, 0
    for turn in range(2):
        engine.add_request(prompt, params)
        others = [rng.integers(3, 50, size=6).tolist() for _ in range(turn)]
        for other in others:
            engine.add_request(other, params)
        done, steps = {}, 0
        while engine.has_unfinished and steps < 60:
            steps += 1
            for event in engine.step():
                if isinstance(event, Finished):
                    done[event.request_id] = list(event.completion.token_ids)
            engine.check()
        expect(engine.has_unfinished, False, call=f"has_unfinished after {steps} steps")
        for given, tokens in zip([prompt, *others], [done[i] for i in sorted(done)], strict=True):
            want = [e.completion for e in generate(model, given, params) if isinstance(e, Finished)]
            expect(
                tokens,
                list(want[0].token_ids),
                call=f"the tokens of a request in turn {turn}",
                given={"prompt": given},
                cause="a hit must not change what is generated",
            )
        queries += len(prompt) + 6 * turn
        hits += (len(prompt) - 4) // 4 * 4 if turn else 0
        expect(
            [store.prefix_stats.queries, store.prefix_stats.hits],
            [queries, hits],
            call=f"prefix_stats.queries and hits after turn {turn}",
            given={"prompt tokens of the turns so far": [9 + 10 * i for i in range(turn + 1)]},
            cause="the next turn's prompt begins with 7 + 9 tokens of the last, of which 15 are "
            "stored: whole blocks of them are hit",
        )
        prompt = prompt + done[min(done)] + rng.integers(3, 50, size=3).tolist()

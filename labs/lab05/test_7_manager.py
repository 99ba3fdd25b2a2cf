"""Task 7: the block manager, and preemption by recompute and by swap."""

import gc
import weakref

import pytest
import torch

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import ConfigError, InvariantError
from nanovllm.batching.events import Preempted
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence
from nanovllm.model.config import ModelConfig
from nanovllm.model.transformer import Transformer
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.errors import BlockOwnershipError
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.store import PagedStore
from nanovllm.paging.swap import SwapSpace
from nanovllm.paging.swap_cost import swap_pays

CONFIG = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 64, qk_norm=True, eos_token_ids=(2,))


def random_model():
    """A small model of random weights, on one thread: for so few numbers more only wait."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Transformer(CONFIG).eval().requires_grad_(False)


def moves(transfers):
    return [(move.direction.value, move.old, move.new) for move in transfers]


def request_of(tokens, number=0, output=(), group=None, index=0):
    """A request of these tokens; samples of one request have the same group."""
    sequence = Sequence(list(tokens), SamplingParams(max_tokens=9), max_model_len=64, seed=0)
    sequence.request_id = number if group is None else group
    sequence.index = index
    sequence.output_token_ids += output
    return Request(number, sequence, 0.0, len(sequence.prompt_token_ids) + 8)


def store_tokens(manager, request, end):
    """Count tokens as stored, up to `end`."""
    start = request.num_computed_tokens
    manager.commit(Plan((Chunk(request, start, end - start, request.num_tokens),)))
    request.num_computed_tokens = end


def running(manager, request, num_tokens=None):
    """Admit a request and store so many of its tokens (all); its blocks."""
    manager.can_admit(request)  # `admit` is called where it said yes
    request.num_computed_tokens = manager.admit(request)
    store_tokens(manager, request, request.num_tokens if num_tokens is None else num_tokens)
    return manager.block_ids(request)


@pytest.mark.check(task=7, points=3, title="A request comes, grows and goes")
def test_life():
    manager = BlockManager(5, 4)
    first, second = request_of(range(10)), request_of(range(20, 25), 1)
    expect(
        [manager.total_tokens, manager.free_tokens, manager.fits(20), manager.fits(21)],
        [20, 20, True, False],
        call="total_tokens, free_tokens, fits(20), fits(21) of 5 blocks of 4",
    )
    expect(
        [manager.can_admit(first), manager.admit(first), len(set(manager.block_ids(first)))],
        [True, 0, 3],
        call="can_admit, admit, number of blocks of a request of 10 tokens",
        cause="blocks for all its tokens, though none is computed yet",
    )
    expect(
        [manager.can_admit(second), manager.owners(), manager.free_tokens],
        [True, {b: [first] for b in manager.block_ids(first)}, 20],
        call="can_admit of 5 tokens with 2 blocks free, owners, free_tokens before anything is "
        "stored",
        cause="a slot in its block that holds no token is free, too",
    )
    store_tokens(manager, first, 6)
    expect(manager.free_tokens, 14, call="free_tokens when 6 tokens are stored")
    store_tokens(manager, first, 10)
    running(manager, second)
    before = manager.block_ids(first)
    manager.block_ids(first).append(99)
    got = [manager.reserve(first, 2), manager.reserve(first, 3), manager.block_ids(first) == before]
    expect(
        got,
        [True, False, True],
        call="reserve of 2, reserve of 3 behind 10 tokens in 3 blocks with none free, and whether "
        "its blocks are the same",
        cause="without room nothing changes; block_ids gives a list of its own",
    )
    expect(manager.can_admit(request_of([7], 2)), False, call="can_admit of one token then")
    manager.check([first, second])
    manager.release(second)
    expect(
        [manager.reserve(first, 3), manager.reserve(first, 3), len(manager.block_ids(first))],
        [True, True, 4],
        call="reserve of 3, twice, when the second has been released; the first's blocks",
        cause="asking twice for the same room takes it once",
    )
    expect(manager.block_ids(first)[:3], before, call="the blocks that the first had before")
    manager.check([first])
    for wrong in ([], [first, second]):
        expect.raises(
            InvariantError,
            lambda wrong=wrong: manager.check(wrong),
            call=f"check of {len(wrong)} requests, when only the first is admitted",
        )
    manager.release(first)
    expect([manager.owners(), manager.free_tokens], [{}, 20], call="owners, free_tokens at the end")
    manager.check([])
    for how in ("release", "suspend and forget"):
        manager = BlockManager(4, 4)
        request = request_of(range(9))
        blocks = running(manager, request)
        for name in how.split(" and "):
            getattr(manager, name)(request)
        expect(
            manager.cached_blocks(),
            sorted(blocks[:2]),
            call=f"cached_blocks after {how} of a request of 9 tokens in blocks of 4",
            given={"its blocks": blocks},
            cause="its full blocks, by number",
        )
        seen = weakref.ref(request)
        del request
        gc.collect()
        expect(
            seen() is None,
            True,
            call=f"whether a request can go out of memory after {how}",
            cause="the manager keeps nothing of it but its cached blocks",
        )
    expect(
        BlockManager(4, 4, enable_prefix_caching=False).prefix_stats,
        None,
        call="prefix_stats without prefix caching",
    )


@pytest.mark.check(task=7, points=1, title="Who holds a block keeps it")
def test_hold():
    manager = BlockManager(4, 4)
    request, other = request_of(range(6)), request_of(range(20, 30), 1)
    one, two = running(manager, request)
    manager.hold([one, two], "a transfer")
    owners = {block: set(names) for block, names in manager.owners().items()}
    expect(
        owners,
        {one: {request, "a transfer"}, two: {request, "a transfer"}},
        call="owners after hold of both blocks of a request",
    )
    free = next(block for block in range(4) if block not in owners)
    for blocks in ([free], [one], [two, free]):
        expect.raises(
            BlockOwnershipError,
            lambda blocks=blocks: manager.hold(blocks, "a transfer"),
            call="hold of a free block, of one that it has, of both kinds",
        )
    expect.raises(
        BlockOwnershipError,
        lambda: manager.hold([one], request),
        call="hold by the request whose block it is",
    )
    for blocks, owner in (
        ([one], "nobody"),
        ([one, one], "a transfer"),
        ([one, free], "a transfer"),
    ):
        expect.raises(
            BlockOwnershipError,
            lambda blocks=blocks, owner=owner: manager.drop(blocks, owner),
            call="drop by who holds nothing, of one block twice, of a free block",
        )
    expect(
        {block: set(names) for block, names in manager.owners().items()},
        owners,
        call="owners after all of these were refused",
        cause="all or nothing",
    )
    ready = manager.reserve(request, 1)
    blocks = manager.block_ids(request)
    expect(
        [ready, blocks[0], blocks[1] == two, moves(manager.transfers)],
        [True, one, False, [("copy", two, blocks[1])]],
        call="reserve of one token behind 6: done, its first block, whether its second is still "
        "the held one, and the copies that are noted",
        cause="what a transfer reads must not be written",
    )
    manager.check([request])
    manager.release(request)
    expect(
        [set(manager.owners()), manager.can_admit(other)],
        [{one, two}, False],
        call="held blocks when the request has ended, and can_admit of 3 blocks",
        cause="they outlive the request, and nobody gets them",
    )
    manager.drop([one, two], "a transfer")
    expect(
        [manager.owners(), manager.can_admit(other), manager.free_tokens],
        [{}, True, 16],
        call="owners, can_admit, free_tokens after drop",
    )
    manager.check([])
    for turn in (1, -1):
        manager = BlockManager(4, 4)
        request = request_of(range(13))
        blocks = running(manager, request)
        manager.release(request)
        expect(
            manager.cached_blocks(),
            sorted(blocks[:3]),
            call="cached_blocks after release of a request of 13 tokens in blocks of 4",
            given={"its blocks": blocks},
        )
        manager.hold(blocks[:3], "a transfer")
        expect(
            sorted(manager.owners()),
            sorted(blocks[:3]),
            call="held blocks after hold of the 3 cached blocks of a request that was released",
        )
        manager.drop(blocks[:3][::turn], "a transfer")
        running(manager, request_of(range(20, 28), 1))
        expect(
            manager.cached_blocks(),
            sorted(blocks[:2]),
            call="cached_blocks after drop of all 3, and admit of another request, which takes 2 "
            "of 4 blocks",
            given={"held": blocks[:3], "dropped": blocks[:3][::turn]},
            cause="the last of a chain is freed first, and evicted first",
        )
        manager.check()


@pytest.mark.check(task=7, points=2, title="A further sample begins with its sibling's prompt")
def test_siblings():
    cases = {
        "a new sample": (request_of(range(10), 2, group=0, index=1), 9),
        "a sample of 10 + 2 tokens that was preempted": (
            request_of(range(10), 3, [40, 41], group=0, index=2),
            10,
        ),
        "a request of its own": (request_of(range(30, 40), 4), 0),
    }
    for case, (request, want) in cases.items():
        manager = BlockManager(20, 4, enable_prefix_caching=False)
        whole = running(manager, request_of(range(10), 0, [30, 31, 32], group=0))
        can, tokens = manager.can_admit(request), manager.admit(request)
        shared = sum(block in whole for block in manager.block_ids(request))
        expect(
            [can, tokens, shared, len(manager.transfers)],
            [True, want, 2 if want else 0, 1 if want else 0],
            call=f"of {case}: can_admit, tokens that admit finds, blocks it shares then, copies",
            given={"sibling": "10 prompt tokens and 3 generated ones are stored, blocks of 4"},
            cause="shared is what both have in common, but for the last token; the third block is "
            "shared in part, and will be written: it is copied",
        )
    seen = []
    for stored, num_blocks in ((4, 8), (9, 8), (10, 8), (10, 4), (10, 3)):
        manager = BlockManager(num_blocks, 4, enable_prefix_caching=False)
        running(manager, request_of(range(10), 0, group=5), stored)
        sample = request_of(range(10), 1, group=5, index=1)
        seen.append([stored, num_blocks, manager.can_admit(sample)])
    expect(
        seen,
        [[4, 8, False], [9, 8, False], [10, 8, True], [10, 4, True], [10, 3, False]],
        call="[prompt tokens stored by another sample of the request, of 10; blocks of the pool, "
        "3 of them its; can_admit]",
        cause="to come in before the prompt is read is to read it again; and a block that is "
        "shared in part will be copied, which takes a free one",
    )
    manager = BlockManager(9, 4)
    samples = [request_of(range(10), number, group=5, index=number) for number in range(2)]
    running(manager, samples[0], 4)
    running(manager, request_of(range(10), 2))
    expect(
        manager.can_admit(samples[1]),
        False,
        call="can_admit of a sample whose sibling has stored 4 of 10 prompt tokens, when 8 are in "
        "the prefix cache",
        cause="none of its siblings has stored the whole prompt yet",
    )


@pytest.mark.check(task=7, points=2, title="The sibling's blocks or the prefix cache's")
def test_source():
    prompt, answer, seen = list(range(13)), [50] * 9, []
    for own, known in ((4, 0), (4, 4), (9, 8), (0, 4)):
        manager = BlockManager(30, 4)
        running(manager, request_of(prompt, 0, group=7))
        whole = running(manager, request_of(prompt + answer[:known], 1))
        stats = manager.prefix_stats
        before = stats.queries, stats.hits
        sample = request_of(prompt, 2, answer[:own], group=7, index=1)
        can, tokens = manager.can_admit(sample), manager.admit(sample)
        sample.num_computed_tokens = tokens
        counted = stats.queries - before[0], stats.hits - before[1]
        seen.append([13 + own, (13 + known) // 4 * 4, can, tokens, *counted])
        full = tokens // 4
        expect(
            manager.block_ids(sample)[:full],
            whole[:full],
            call="the blocks of the sample that are full of the tokens it found",
            cause="one content, one block",
        )
        manager.check()
    expect(
        seen,
        [
            [17, 12, True, 13, 0, 0],
            [17, 16, True, 16, 17, 16],
            [22, 20, True, 20, 22, 20],
            [13, 16, True, 12, 0, 0],
        ],
        call="[tokens of a sample, tokens in the prefix cache, can_admit, tokens that it finds, "
        "what its admission adds to queries, and to hits], where its sibling has stored the "
        "prompt of 13; blocks of 4",
        cause="whichever gives more, and in a tie the sibling; an admission that begins with a "
        "sibling's tokens is not counted at all",
    )


@pytest.mark.check(task=7, points=3, title="Enough blocks, and no block is counted twice")
def test_can_admit():
    prompt = list(range(13))  # 4 blocks, of which 2 are cached
    seen = []
    for free, held in ((1, True), (2, True), (2, False), (3, False), (4, False)):
        manager = BlockManager(8, 4)
        first = request_of(prompt[:8], 0)
        running(manager, first)
        if not held:
            manager.release(first)
        taken = 8 - free - (2 if held else 0)
        if taken:
            running(manager, request_of(range(20, 20 + 4 * taken), 1))
        can = manager.can_admit(request_of(prompt, 2))
        seen.append([manager.free_tokens // 4, can])
    expect(
        seen,
        [[1, False], [2, True], [2, False], [3, False], [4, True]],
        call="[free blocks, can_admit] of 13 tokens in blocks of 4, of which 8 are cached in two "
        "blocks that somebody holds (twice), or that are free (three times)",
        cause="4 blocks less 2 that others hold; if they are free, all 4 come from the free ones",
    )
    seen = []
    for free, own in ((1, 3), (2, 3), (1, 5)):
        manager = BlockManager(4 + free, 4, enable_prefix_caching=False)
        running(manager, request_of(range(10), 0, [30, 31, 32], group=0))
        back = request_of(range(10), 1, range(40, 40 + own), group=0, index=1)
        seen.append([free, 10 + own, manager.can_admit(back)])
    expect(
        seen,
        [[1, 13, False], [2, 13, True], [1, 15, False]],
        call="[free blocks of 4, tokens, can_admit] of a sample that was preempted, of whose "
        "tokens a sibling shares 10",
        cause="4 blocks, of which 2 are shared in full; the third, shared in part, is copied",
    )
    manager = BlockManager(12, 4, salt_of=lambda request: "ab"[request.number % 2])
    running(manager, request_of(prompt, 0))
    others = [request_of(prompt, 1), request_of(prompt, 2)]
    got = [manager.can_admit(one) and manager.admit(one) for one in others]
    expect(got, [0, 12], call="tokens that the same prompt finds with another salt, with the same")
    for wrong in (
        {"num_blocks": 0},
        {"num_blocks": 4, "block_size": 0},
        {"num_blocks": 4, "num_host_blocks": -1},
        {"num_blocks": 4, "preemption": "pray"},
    ):
        expect.raises(ConfigError, lambda wrong=wrong: BlockManager(**wrong), call=f"{wrong}")


@pytest.mark.check(task=7, points=2, title="To host memory and back")
def test_swap():
    pool, table, transfers, swap = BlockPool(12), BlockTable(4, num_tokens=9), [], SwapSpace(4)
    table.grow(pool, 16)
    blocks = list(table.block_ids)
    done = swap.swap_out("r", table, transfers)
    hosts = [move.new for move in transfers]
    expect(
        [done, moves(transfers), len({*hosts} & {0, 1, 2, 3}), swap.pool.num_free],
        [True, [("out", b, h) for b, h in zip(blocks, hosts, strict=False)][:3], 3, 1],
        call="swap_out of a table of 4 blocks with 9 tokens in blocks of 4, into 4 host blocks: "
        "done, transfers, different host blocks, free host blocks",
        cause="the fourth block holds nothing yet; in order",
    )
    expect(
        [table.block_ids, table.num_tokens], [blocks, 9], call="the table's blocks, its tokens then"
    )
    more = BlockTable(4, num_tokens=8)
    more.grow(pool, 8)
    expect(
        [
            swap.swap_out("s", more, transfers),
            len(transfers),
            swap.pool.num_free,
            swap.stats.blocks_out,
            swap.stats.times_full,
        ],
        [False, 3, 1, 3, 1],
        call="swap_out of 2 blocks with 1 host block free: done, transfers in all, free; and "
        "stats.blocks_out and times_full",
        cause="half a request is of no use, and a full host pool is no error",
    )
    table.free(pool)
    pool, swap, story = BlockPool(12), SwapSpace(4), []
    for name in "abc":  # 2 blocks each: room for two of them
        some = BlockTable(4, num_tokens=8)
        some.grow(pool, 8)
        story.append(swap.swap_out(name, some, []))
    story.append(swap.swap_out("d", more, []))
    for name in "ab":
        swap.swap_in(name, BlockTable(4), pool, [])
    stats = swap.stats
    expect(
        [story, stats.blocks_out, stats.blocks_in, stats.times_full],
        [[True, True, False, False], 4, 4, 2],
        call="swap_out of three requests of 2 blocks into 4 host blocks, of one more, and swap_in "
        "of the first two: done; stats.blocks_out, blocks_in, times_full",
        cause="all are counted since the start",
    )
    for shared, copied in ((0, 3), (4, 2), (6, 2), (8, 1), (9, 0), (12, 0)):
        swap, transfers, pool = SwapSpace(3), [], BlockPool(12)
        origin = BlockTable(4, num_tokens=9)
        origin.grow(pool, 12)
        swap.swap_out("r", origin, transfers)
        hosts = [move.new for move in transfers]
        transfers.clear()
        back = BlockTable(4, origin.block_ids[: -(-shared // 4)], shared)
        for block in back.block_ids:
            pool.share(block, back)
        swap.swap_in("r", back, pool, transfers)
        full = 3 if shared >= 9 else shared // 4
        want = [("in", h, b) for h, b in zip(hosts[full:], back.block_ids[full:], strict=False)]
        want = [] if not copied else want
        expect(
            [moves(transfers), len(transfers), back.block_ids[:full] == origin.block_ids[:full]],
            [want, copied, True],
            call=f"swap_in of 9 tokens into a table that shares {shared}: transfers, their number, "
            "whether the full shared blocks stay",
            cause="what is there need not be copied; what others hold must not be written",
        )
        fresh = back.block_ids[full:] if copied else []
        expect(
            [
                back.num_tokens,
                swap.pool.num_free,
                [pool.owners_of(b) == [back] for b in fresh],
                sum(back in pool.owners_of(b) for b in range(12)),
                swap.stats.blocks_in,
            ],
            [max(9, shared), 3, [True] * copied, 3, copied],
            call=f"then, with {shared} shared: the table's tokens, free host blocks, whether it is "
            "the only owner of its new blocks, blocks that it owns, and stats.blocks_in",
            cause="a partly used block is given back to the pool, not only struck off the table",
        )


@pytest.mark.check(task=7, points=1, title="When it pays to swap")
def test_swap_pays(rng):
    for _ in range(20):
        rate, bandwidth = float(rng.integers(100, 9000)), float(rng.integers(1, 90)) * 1e6
        tokens = int(rng.integers(5, 2000))
        even = tokens / rate * bandwidth / 2  # bytes that take as long, out and in
        for share in (0.4, 0.6, 0.9, 1.1, 1.9, 2.1):
            size = int(even * share)
            expect(
                swap_pays(size, bandwidth, tokens, rate),
                share < 1,
                call=f"swap_pays({size}, {bandwidth:.0f}, {tokens}, {rate:.0f})",
                cause="every byte is copied twice, out and in; every token is computed once",
            )
    expect(
        swap_pays(500, 1000.0, 10, 10.0),
        False,
        call="swap_pays(500, 1000.0, 10, 10.0)",
        cause="both take a second: what brings nothing should not fill host memory",
    )


@pytest.mark.check(task=7, points=2, title="Suspended, resumed, and nobody's text changes")
def test_suspend(rng):
    for mode in ("recompute", "swap"):
        manager = BlockManager(6, 4, preemption=mode, num_host_blocks=4)
        request = request_of(range(6))
        first, second = running(manager, request)
        request.sequence.output_token_ids.append(30)  # drawn, but not computed yet
        manager.suspend(request)
        out = [(kind, old) for kind, old, _ in moves(manager.transfers)]
        expect(
            [out, manager.free_tokens, manager.owners()],
            [[("out", first), ("out", second)] if mode == "swap" else [], 24, {}],
            call=f'suspend with preemption="{mode}": transfers, free slots, owners',
            cause="its blocks are free at once, in both modes",
        )
        request.num_preemptions, request.num_computed_tokens = 1, 0
        before = manager.prefix_stats.queries
        found = manager.can_admit(request) and manager.admit(request)
        expect(
            [found, manager.prefix_stats.queries - before],
            [6 if mode == "swap" else 4, 0],
            call=f'tokens found when it is admitted again ("{mode}"), and tokens asked for more',
            cause="swapped: all 6 stored ones of its 7; recompute: what is still cached; and it is "
            "not counted twice",
        )
    manager, copied = BlockManager(6, 4, preemption="swap", num_host_blocks=2), []
    for number in range(3):
        request = request_of(range(10 * number, 10 * number + 6), number)
        running(manager, request)
        manager.transfers.clear()
        manager.suspend(request)
        manager.forget(request)
        copied.append(len(manager.transfers))
    expect(
        copied,
        [2, 2, 2],
        call="blocks swapped out for each of three requests, if the one before was forgotten",
        cause="who will not come back leaves host memory",
    )
    hashed = []

    def counted(parent, tokens, salt):
        hashed.append(tokens)
        return bytes(tokens)

    manager = BlockManager(6, 4, hash_of=counted)
    request = request_of(range(9))
    running(manager, request)
    manager.suspend(request)
    request.num_computed_tokens, request.num_preemptions = 0, 1
    running(manager, request)
    expect(
        len(hashed),
        2,
        call="blocks hashed for a request with 2 full blocks that was preempted and came back",
        cause="each block is hashed once a request: it comes back with the same tokens",
    )
    model = random_model()
    prompts = [rng.integers(3, 50, size=int(n)).tolist() for n in (7, 5, 9)]
    params = SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True, seed=3)
    want = [_tokens(generate(model, prompt, params))[0] for prompt in prompts]
    for mode, host in (("recompute", 0), ("swap", 3), ("swap", 20)):
        store = PagedStore(CONFIG, 6, 4, preemption=mode, num_host_blocks=host)
        engine = Engine(model, EngineConfig(max_num_batched_tokens=16), store=store)
        for prompt in prompts:
            engine.add_request(prompt, params)
        events, steps = [], 0
        while engine.has_unfinished and steps < 150:
            events += engine.step()
            engine.check()
            steps += 1
        tokens = _tokens(events)
        call = f'6 blocks for 3 requests, preemption="{mode}", {host} host blocks'
        expect(
            [tokens.get(i) for i in range(3)],
            want,
            call=f"the tokens generated with {call}",
            cause="a resumed request goes on where it was: nothing lost, nothing said twice",
        )
        expect.that(
            any(isinstance(event, Preempted) for event in events),
            "somebody was preempted",
            call=call,
        )
        expect(store.free_tokens, 24, call=f"free slots in the end, with {call}")


def _tokens(events):
    found = {}
    for event in events:
        if isinstance(event, TokenGenerated):
            found.setdefault(event.request_id, []).append(event.token_id)
    return found


@pytest.mark.check(
    task=7, points=2, title="The next turn finds the last one, and nobody's text changes"
)
def test_turns(rng):
    model = random_model()
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


def play(calls, mode):
    """What goes wrong first when these calls are made of a manager of 9 blocks, or None.

    Memory is a dictionary: in each slot stands the whole past of the token that was written.
    """
    manager = BlockManager(9, 3, preemption=mode, num_host_blocks=4)
    memory, live, waiting, story = {}, [], [], []
    for kind, a, b in calls:
        story.append(f"{kind} {a} {b}")
        if kind == "arrive":
            group = len(story)
            for index in range(1 + (b == 0)):
                prompt = [(a >> i) & 1 for i in range(1 + b % 4 + 4 * (a % 3))]
                waiting.append(request_of(prompt, 10 * group + index, group=group, index=index))
        elif kind == "preempt" and live:
            one = live.pop(a % len(live))
            manager.suspend(one)
            one.num_computed_tokens = 0
            one.num_preemptions += 1
            waiting.insert(0, one)
        elif kind == "end" and live:
            manager.release(live.pop(a % len(live)))
        elif kind == "end" and waiting:
            manager.forget(waiting.pop(a % len(waiting)))
        elif kind == "step":
            if waiting and manager.can_admit(waiting[0]):
                live.append(waiting.pop(0))
                live[-1].num_computed_tokens = manager.admit(live[-1])
            steps = []
            for one in live:
                n = min(one.num_tokens - one.num_computed_tokens, 1 + (a + len(steps)) % 5)
                if manager.reserve(one, n):
                    steps.append((one, n))
            for move in manager.transfers:
                target = "host" if move.direction.value == "out" else "gpu"
                source = "host" if move.direction.value == "in" else "gpu"
                for i in range(3):
                    memory[target, move.new, i] = memory.get((source, move.old, i))
            manager.transfers.clear()
            for one, n in steps:
                table, start = manager.block_ids(one), one.num_computed_tokens
                owners = manager.owners()
                for t in range(start, start + n):
                    if len(owners[table[t // 3]]) > 1:
                        return story, f"block {table[t // 3]} has two owners and is written"
                    memory["gpu", table[t // 3], t % 3] = tuple(one.token_ids(0, t + 1))
            for one, n in steps:
                store_tokens(manager, one, one.num_computed_tokens + n)
                if one.num_computed_tokens == one.num_tokens:
                    one.sequence.output_token_ids.append((a + one.sequence.index) % 2)
        for one in live:
            table = manager.block_ids(one)
            for t in range(one.num_computed_tokens):
                held = memory.get(("gpu", table[t // 3], t % 3))
                if held != tuple(one.token_ids(0, t + 1)):
                    return story, f"token {t} of request {one.number} is not where its table says"
        manager.check(live)
        held = len(manager.owners())
        used = sum(3 * len(manager.block_ids(x)) - x.num_computed_tokens for x in live)
        if manager.free_tokens != 3 * (9 - held) + used:
            return story, f"free_tokens is {manager.free_tokens}"
    return None


@pytest.mark.check(
    task=7, points=2, title="Random histories beside a dictionary of tokens", stress=True
)
def test_random(rng):
    for number in range(16):
        mode = ("recompute", "swap")[number % 2]
        kinds = rng.choice(["arrive", "step", "preempt", "end"], p=[0.2, 0.6, 0.1, 0.1], size=36)
        calls = [(str(k), int(rng.integers(64)), int(rng.integers(8))) for k in kinds]
        found, i = play(calls, mode), 0
        while found and i < len(calls):
            fewer = calls[:i] + calls[i + 1 :]
            again = play(fewer, mode)
            calls, found, i = (fewer, again, 0) if again else (calls, found, i + 1)
        expect(
            found,
            None,
            call="the shortest history found after which a request reads a wrong token, and why",
            given={"preemption": mode, "blocks of 3": 9},
        )

"""Task 7: preemption, by recompute and by swap."""

import pytest

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Preempted
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.generation.events import TokenGenerated
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.store import PagedStore
from nanovllm.paging.swap import Swapped, SwapSpace

CONFIG = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 64, qk_norm=True, eos_token_ids=(2,))


def moves(transfers):
    return [(move.direction.value, move.old, move.new) for move in transfers]


@pytest.mark.check(task=7, points=3, title="What is stored goes to host memory")
def test_swap_out():
    swap = SwapSpace(6)
    swap.pool = BlockPool.holding(6, {"old": [0, 3]})
    table, transfers = BlockTable(4, [9, 5, 7, 2], num_tokens=9), []
    done = swap.swap_out("r", table, transfers)
    expect(
        [done, moves(transfers)],
        [True, [("out", 9, 1), ("out", 5, 2), ("out", 7, 4)]],
        call="swap_out of a table [9, 5, 7, 2] with 9 tokens in blocks of 4, host blocks 1, 2, 4, "
        "5 free",
        cause="block 2 holds nothing yet; from the device to host memory, in order",
    )
    expect(
        [swap.kept.get("r"), sorted(swap.pool.owners), list(swap.pool.owners[4])],
        [Swapped((1, 2, 4), 9), [0, 1, 2, 3, 4], ["r"]],
        call='kept["r"], host blocks in use, and the owner of host block 4',
    )
    expect(
        [table.block_ids, table.num_tokens, swap.stats.blocks_out],
        [[9, 5, 7, 2], 9, 3],
        call="the table's blocks and tokens afterwards, and stats.blocks_out",
        cause="its owner frees the table, not the swap space",
    )


@pytest.mark.check(task=7, points=2, title="A full host pool is no error")
def test_host_full():
    swap, transfers = SwapSpace(2), []
    table = BlockTable(4, [0, 1, 2, 3], num_tokens=9)
    expect(
        [swap.swap_out("r", table, transfers), transfers, swap.kept, swap.pool.num_free],
        [False, [], {}, 2],
        call="swap_out of 3 blocks with 2 host blocks: done, transfers, kept, free host blocks",
        cause="half a request is of no use",
    )
    table = BlockTable(4, [0, 1], num_tokens=8)
    expect(
        [swap.swap_out("r", table, transfers), len(transfers), swap.pool.num_free],
        [True, 2, 0],
        call="swap_out of 2 blocks: done, number of transfers, free host blocks",
        cause="as many as there are may be had",
    )
    expect(swap.stats.times_full, 1, call="stats.times_full")


@pytest.mark.check(task=7, points=3, title="And back, in order")
def test_swap_in():
    swap, transfers = SwapSpace(6), []
    swap.pool = BlockPool.holding(6, {"r": [4, 1, 2], "other": [0]})
    swap.kept["r"] = Swapped((4, 1, 2), 9)
    table = BlockTable(4)
    pool = BlockPool.holding(8, {"x": [0, 2, 4]})
    swap.swap_in("r", table, pool, transfers)
    expect(
        moves(transfers),
        [("in", 4, 1), ("in", 1, 3), ("in", 2, 5)],
        call="swap_in of host blocks (4, 1, 2) with 9 tokens, blocks 1, 3, 5 are next",
        cause="from host memory to the device, the request's first block first",
    )
    expect(
        [
            table.block_ids,
            table.num_tokens,
            [table in pool.owners.get(b, ()) for b in (1, 3, 5)],
        ],
        [[1, 3, 5], 9, [True] * 3],
        call="the table's blocks, its tokens, and whether it owns blocks 1, 3, 5",
        cause="the generated tokens are there, too: nothing is computed twice",
    )
    expect(
        ["r" in swap.kept, sorted(swap.pool.owners), swap.stats.blocks_in],
        [False, [0], 3],
        call='whether "r" is kept, host blocks in use, stats.blocks_in',
        cause="it is in one memory at a time",
    )


@pytest.mark.check(task=7, points=2, title="Only what is not there already")
def test_swap_in_behind_a_hit():
    seen = []
    for shared in (8, 6, 9, 12):
        swap, transfers = SwapSpace(3), []
        swap.pool = BlockPool.holding(3, {"r": [2, 0, 1]})
        swap.kept["r"] = Swapped((2, 0, 1), 11)
        blocks = [6, 7, 5][: -(-shared // 4)]
        table = BlockTable(4, list(blocks), shared)
        pool = BlockPool.holding(8, {"leader": [6, 7, 5], table: blocks})
        swap.swap_in("r", table, pool, transfers)
        seen.append([shared, table.block_ids, moves(transfers), table.num_tokens, pool.num_free])
        seen[-1].append(swap.pool.num_free)
        expect(
            sorted(block for block, owners in pool.owners.items() if table in owners),
            sorted(table.block_ids),
            call=f"blocks of which the pool says that the table owns them, {shared} tokens shared",
            cause="a partly used block is given back to the pool, not only struck off the table",
        )
    expect(
        seen,
        [
            [8, [6, 7, 0], [("in", 1, 0)], 11, 4, 3],
            [6, [6, 0, 1], [("in", 0, 0), ("in", 1, 1)], 11, 3, 3],
            [9, [6, 7, 0], [("in", 1, 0)], 11, 4, 3],
            [12, [6, 7, 5], [], 12, 5, 3],
        ],
        call="swap_in of 11 tokens, host blocks (2, 0, 1), into a table that shares its first 8, "
        "6, 9, 12 tokens in blocks 6, 7, 5: [shared, blocks, transfers, tokens, free, free host]",
        cause="what is there need not be copied, and a block that others hold must not be written",
    )


@pytest.mark.check(task=7, points=2, title="Suspended, resumed, and nobody's text changes")
def test_suspend(rng):
    for mode in ("recompute", "swap"):
        manager = BlockManager(6, 4, preemption=mode, num_host_blocks=4)
        request = Request(0, SimulatedSequence(0, 6, 9), 0.0, 14)
        manager.admit(request)
        manager.commit(Plan((Chunk(request, 0, 6, 6),)))
        request.num_computed_tokens = 6
        first, second = manager.block_ids(request)
        manager.suspend(request)
        swapped = [("out", first, 0), ("out", second, 1)] if mode == "swap" else []
        expect(
            [moves(manager.transfers), manager.swap.pool.num_used, manager.free_tokens],
            [swapped, len(swapped), 24],
            call=f'suspend with preemption="{mode}": transfers, host blocks in use, free slots',
            cause="its blocks are free at once, in both modes",
        )
    hashed = []

    def counted(parent, tokens, salt):
        hashed.append(tokens)
        return bytes(tokens)

    manager = BlockManager(6, 4, hash_of=counted)
    request = Request(0, SimulatedSequence(0, 9, 5), 0.0, 14)
    manager.prefix.contents(request, 1)
    manager.admit(request)
    manager.suspend(request)
    manager.prefix.contents(request, 1)
    expect(
        len(hashed),
        2,
        call="blocks hashed before and after suspend, of a request with 2 full blocks",
        cause="each block is hashed once a request: it comes back with the same tokens",
    )
    model = dummy_model(CONFIG)
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
        expect(
            [store.free_tokens, store.manager.swap.pool.num_free],
            [24, host],
            call=f"free slots and free host blocks in the end, with {call}",
        )
        if host != 3:  # 3 blocks may be too few for anybody
            used = store.manager.swap.stats.blocks_out
            claim = "blocks went to host memory if there is enough of it"
            expect.that((used > 0) == (host > 0), claim, observed=used, call=call)


def _tokens(events):
    found = {}
    for event in events:
        if isinstance(event, TokenGenerated):
            found.setdefault(event.request_id, []).append(event.token_id)
    return found

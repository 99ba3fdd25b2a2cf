"""Hidden scenarios of lab 05: random histories, other sizes than those of the visible checks."""

from grader.checks.scenarios import scenario


def _config(**more):
    from nanovllm.model.config import ModelConfig

    sizes = {"vocab_size": 60, "hidden_size": 24, "num_layers": 2, "num_heads": 6}
    sizes |= {"num_kv_heads": 3, "head_dim": 4, "intermediate_size": 40, "max_position": 64}
    return ModelConfig("qwen3", **{**sizes, "qk_norm": True, "eos_token_ids": (2,), **more})


def _request(number, tokens, output=(), index=0, group=None):
    from nanovllm.batching.request import Request
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence

    params = SamplingParams(max_tokens=20)
    group = number if group is None else group  # samples of one request have the same
    sequence = Sequence(tokens, params, max_model_len=64, seed=0, request_id=group, index=index)
    sequence.output_token_ids += output
    return Request(number, sequence, 0.0, len(tokens) + 19)


def _stored(manager, request, end):
    """Count tokens as stored, up to `end`."""
    from nanovllm.batching.plan import Chunk, Plan

    start = request.num_computed_tokens
    manager.commit(Plan((Chunk(request, start, end - start, request.num_tokens),)))
    request.num_computed_tokens = end


def _running(manager, request, end=None):
    """Admit a request and store so many of its tokens (all); how many were there."""
    manager.can_admit(request)  # admit may build on what it found
    found = request.num_computed_tokens = manager.admit(request)
    _stored(manager, request, request.num_tokens if end is None else end)
    return found


def _refused(call, *args):
    """The name of the error that a call raises."""
    from nanovllm.batching.errors import InvariantError
    from nanovllm.paging.errors import BlockOwnershipError, OutOfBlocksError

    try:
        call(*args)
    except (BlockOwnershipError, InvariantError, OutOfBlocksError) as error:
        return type(error).__name__
    return "none"


@scenario(task=1)
def a_random_life_of_memory(nanovllm, rng):
    from nanovllm.paging.fragmentation import Blocks, Buddy, FirstFit

    found = {}
    kinds = {"first": FirstFit(90), "buddy": Buddy(128), "blocks": Blocks(90, 7)}
    for name, memory in {**kinds, "small buddies": Buddy(64)}.items():
        live, story, most = [], [], 5 if "small" in name else 25
        for number in range(80):
            if live and rng.random() < 0.45:
                memory.free(live.pop(int(rng.integers(len(live)))))
            elif memory.allocate(number, int(rng.integers(1, most))):
                live.append(number)
            stored = {n: int(rng.integers(1, memory.reserved[n] + 1)) for n in live}
            wasted = memory.external_fragmentation(), memory.internal_fragmentation(stored)
            story.append([len(live), memory.num_free, memory.largest_hole, *wasted])
            if name == "blocks" and live:  # who lives may grow, up to all that is free
                one = live[int(rng.integers(len(live)))]
                more = memory.reserved[one] + int(rng.integers(-9, memory.num_free + 9))
                story.append([memory.allocate(one, max(more, 1)), memory.reserved[one]])
        if memory.largest_hole:
            story.append([memory.allocate("exactly", memory.largest_hole), memory.num_free])
        found[name] = story
    return found


@scenario(task=2)
def a_random_pool(nanovllm, rng):
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.errors import BlockOwnershipError, OutOfBlocksError

    class Some(set):
        evict = set.remove

    kept, leases, story = Some(), [], []  # a lease: an owner of its own, and its blocks
    pool = BlockPool(int(rng.integers(8, 20)), kept)
    for number in range(150):
        kind, pick = int(rng.integers(4)), int(rng.integers(1000))
        try:
            if kind == 0 or not leases:
                got = pool.allocate(pick % 5, number)
                leases.append((number, got))
                kept.update(got[: pick % 3])
                story.append(len(got))
            elif kind == 1:
                blocks = leases[pick % len(leases)][1]
                for block in blocks:
                    pool.share(block, number)
                leases.append((number, list(blocks)))
            elif kind == 2:
                owner, blocks = leases.pop(pick % len(leases))
                pool.free(iter(blocks), owner)
            else:
                owner, blocks = leases[pick % len(leases)]
                pool.free(blocks[:1] * 2, owner)
        except (OutOfBlocksError, BlockOwnershipError) as error:
            story.append(type(error).__name__)
        counts = sorted(pool.ref_count(b) for b in range(pool.num_blocks))
        story.append([pool.num_free, counts, len(kept), pool.stats.num_evicted])
        pool.check()
    return {"story": story, "peak": pool.stats.peak_used}


@scenario(task=2)
def what_the_keeper_is_told(nanovllm, rng):
    from nanovllm.paging.block_pool import BlockPool

    gone = []

    class Texts(dict):  # by block, for those that are kept
        def evict(self, block):
            gone.append(self.pop(block))

    texts, leases, story = Texts(), {}, []  # leases: blocks by owner
    pool = BlockPool(12, texts)
    for number in range(160):
        kind, pick = number % 5, int(rng.integers(1000))
        names = sorted(leases)
        name = names[pick % len(names)] if names else None
        kept = sorted((text, block) for block, text in texts.items() if pool.is_free(block))
        plain = [b for b in range(12) if pool.is_free(b) and b not in texts]
        if kind == 0 and pool.num_free:
            leases[number] = pool.allocate(1 + pick % min(pool.num_free, 4), number)
            for i, block in enumerate(leases[number][pick % 2 :]):
                texts[block] = f"{number}.{i}"
        elif kind == 1 and kept:
            leases[number] = [kept[pick % len(kept)][1]]
            pool.share(leases[number][0], number)
            story.append(kept[pick % len(kept)][0])
        elif kind == 2 and name is not None:
            pool.free(rng.permutation(leases.pop(name)).tolist(), name)
        elif kind == 3 and name is not None:
            old = next((b for b in leases[name] if b not in texts), None)
            if old is not None and plain:
                pool.move(old, plain[pick % len(plain)])
                leases[name][leases[name].index(old)] = plain[pick % len(plain)]
        elif kind == 4 and name is not None:
            first = leases[name][0]
            story.append(_refused(pool.free, [first], "a stranger"))
            story.append(_refused(pool.share, first, name))
            story.append(_refused(pool.move, first, first))
            story.append(_refused(pool.allocate, pool.num_free + 1, "greedy"))
        pool.check()
        refs = [[pool.ref_count(b) for b in leases[n]] for n in sorted(leases)]
        story.append([refs, pool.num_free, pool.num_used, sorted(gone)])
        gone.clear()
    stats = pool.stats
    counts = [stats.num_allocated, stats.num_freed, stats.num_evicted, stats.num_failed]
    return {"story": story, "counts": [*counts, stats.peak_used]}


@scenario(task=3)
def random_tables(nanovllm, rng):
    from nanovllm.paging.batch import make_batch
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.block_table import BlockTable

    size = int(rng.integers(2, 9))
    pool = BlockPool(300)  # room for the longest tables of the smallest blocks
    tables, sizes = [BlockTable(size) for _ in range(5)], []
    for _ in range(3):
        for table in tables:
            table.grow(pool, int(rng.integers(1, 40)))
            sizes.append([len(table.block_ids), pool.num_free])
    missing = [table.num_missing(50) for table in tables]
    tables[2].free(pool)
    spans, order = [], rng.permutation(60).tolist()
    for number in range(5):
        table = BlockTable(size, order[12 * number : 12 * number + 12])
        start = int(rng.integers(0, table.num_slots))
        spans.append((table, start, int(rng.integers(start + 1, table.num_slots + 1))))
    batch = make_batch(spans)
    return {
        "batch": [batch.slot_mapping, batch.block_tables, batch.context_lens],
        "starts": batch.query_start_loc,
        "most": [batch.max_query_len, batch.max_context_len],
        "sizes": sizes,
        "missing": missing,
        "free": pool.num_free,
    }


@scenario(task=3)
def tables_that_are_freed(nanovllm, rng):
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.block_table import BlockTable
    from nanovllm.paging.prefix_index import CachedBlock

    class Kept(dict):
        def evict(self, block):
            gone.append(self.pop(block))

    found = []
    for _ in range(3):
        gone, kept, size = [], Kept(), int(rng.integers(2, 6))
        pool, table = BlockPool(12, kept), BlockTable(size)
        for _ in range(2):
            table.grow(pool, int(rng.integers(1, 9)) * size - int(rng.integers(size)))
        found.append(_refused(table.grow, pool, 12 * size + 1))
        table.num_tokens = int(rng.integers(1, table.num_slots + 1))
        table.cached = [CachedBlock(b"k", None, (1,), "", table.block_ids[0])]
        kept.update({block: i for i, block in enumerate(table.block_ids)})
        found.append(len(table.block_ids))
        table.free(pool)
        found.append([list(table.block_ids), table.num_tokens, len(table.cached), pool.num_free])
        for _ in range(12):
            pool.allocate(1, table)
        found.append(gone)
    return found


@scenario(task=4)
def what_is_written_and_copied(nanovllm, rng):
    import torch

    from nanovllm.paging.cache import PagedCache

    size, blocks = int(rng.integers(2, 5)), int(rng.integers(5, 9))
    cache = PagedCache(_config(), blocks, size)
    for layer in range(2):
        slots = torch.from_numpy(rng.permutation(blocks * size - 1)[: 2 * size])
        slots[torch.from_numpy(rng.permutation(2 * size)[:2])] = -1  # all but the last place
        k, v = (torch.from_numpy(rng.normal(size=(2 * size, 3, 4)).astype("float32")) for _ in "kv")
        cache.write(layer, k, v, slots)
    written = cache.k.clone(), cache.v.clone()
    order = rng.permutation(blocks).tolist()
    cache.copy_blocks([(order[0], order[1]), (order[0], order[2]), (order[3], order[4])])
    return {"written": written, "copied": [cache.k, cache.v]}


@scenario(task=4)
def random_ragged_attention(nanovllm, rng):
    import torch

    from nanovllm.paging.attention import paged_attention
    from nanovllm.paging.batch import PagedBatch
    from nanovllm.paging.cache import PagedCache

    config, found = _config(), []
    for scale, window in ((None, None), (0.2 + rng.random() / 9, None), (None, 4), (0.9, 3)):
        size, count = int(rng.integers(1, 8)), int(rng.integers(3, 6))
        queries = [1, 3, 1, *rng.choice([1, 1, 3, 7], size=count - 3).tolist()]
        contexts = [q + int(rng.integers(0, 20)) for q in queries]
        contexts[0] = contexts[2] + int(rng.integers(1, 9))  # not in order of length
        most = -(-max(contexts) // size)
        cache = PagedCache(config, count * most + 2, size)
        order = rng.permutation(count * most + 2)
        tables = torch.tensor(order[: count * most].reshape(count, most), dtype=torch.int32)
        cache.k.fill_(torch.nan)
        cache.v.fill_(torch.nan)
        for i, n in enumerate(contexts):
            places = torch.arange(n)
            slots = tables[i, places // size] * size + places % size
            k, v = (torch.from_numpy(rng.normal(size=(n, 3, 4)).astype("float32")) for _ in "kv")
            cache.write(1, k, v, slots.long())
        starts = [sum(queries[:i]) for i in range(count + 1)]
        lengths = [torch.tensor(x, dtype=torch.int32) for x in (contexts, starts)]
        none = torch.zeros(sum(queries), dtype=torch.int64)
        batch = PagedBatch(none, tables, *lengths, max(queries), max(contexts))
        q = torch.from_numpy(rng.normal(size=(sum(queries), 6, 4)).astype("float32"))
        cached = cache.k[1], cache.v[1]
        found.append(paged_attention(q, *cached, batch, scale=scale, window=window))
        q, *cached = (x.to(torch.bfloat16) for x in (q, *cached))
        found.append(str(paged_attention(q, *cached, batch, scale=scale, window=window).dtype))
    return {"attended": found}


@scenario(task=5)
def random_forks(nanovllm, rng):
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.block_table import BlockTable
    from nanovllm.paging.sharing import fork, needs_copy, reserve

    pool, tables, story = BlockPool(24), [BlockTable(3)], []
    for _ in range(60):
        table = tables[int(rng.integers(len(tables)))]
        if rng.random() < 0.3 and len(tables) < 6:
            tables.append(fork(pool, table, int(rng.integers(0, table.num_tokens + 1))))
        elif rng.random() < 0.2 and len(tables) > 1:
            tables.remove(table)
            pool.free(table.block_ids, table)
        else:
            transfers, end = [], table.num_tokens + int(rng.integers(1, 5))
            story.append(needs_copy(pool, table, table.num_tokens))
            if reserve(pool, table, table.num_tokens, end, transfers):
                table.num_tokens = end
            story.append(len(transfers))
        refs = [[pool.ref_count(b) for b in t.block_ids] for t in tables]
        story.append([[t.num_tokens for t in tables], refs])
    return {"story": story, "free": pool.num_free}


@scenario(task=5)
def forks_with_hardly_any_room(nanovllm, rng):
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.block_table import BlockTable
    from nanovllm.paging.sharing import fork, reserve

    story = []
    for missing in (0, 1, 2, 0, 1, 2):
        size = int(rng.integers(2, 6))
        stored = size * int(rng.integers(1, 4)) + int(rng.integers(1, size))
        end = stored - stored % size + size * (missing + 1) - int(rng.integers(size - 1))
        for free in range(5):
            pool, table = BlockPool(stored // size + 1 + free), BlockTable(size, num_tokens=stored)
            table.grow(pool, stored)
            child, transfers = fork(pool, table, stored), []
            before = list(child.block_ids)
            for one in (child, table):
                story.append([reserve(pool, one, stored, max(end, stored + 1), transfers)])
                story[-1] += [len(transfers), pool.num_free, len(one.block_ids)]
            same = [old == new for old, new in zip(before, child.block_ids, strict=False)]
            refs = [[pool.ref_count(b) for b in t.block_ids] for t in (table, child)]
            story.append([same, refs])
            pool.check()
    return story


def _serve(rng, store, prompts, params, budget):
    """Run all prompts through an engine with this store; tokens by request, and who failed."""
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.batching.events import Failed
    from nanovllm.generation.events import TokenGenerated
    from nanovllm.generation.latency import ManualClock
    from nanovllm.model.loader import dummy_model

    model = dummy_model(store.config, seed=int(rng.integers(1000)))
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=budget)
    engine = Engine(model, config, store=store, clock=ManualClock())
    for number, prompt in enumerate(prompts):
        engine.add_request(prompt, params, seed=number)
    tokens, failed, steps = {}, [], 0
    while engine.has_unfinished and steps < 400:
        for event in engine.step():
            if isinstance(event, TokenGenerated):
                name = f"{event.request_id}.{event.index}"
                tokens.setdefault(name, []).append(event.token_id)
            elif isinstance(event, Failed):
                failed.append(type(event.error).__name__)
        steps += 1
        engine.check()
    return {"tokens": tokens, "failed": failed, "free": store.free_tokens}


@scenario(task=7)
def random_registrations(nanovllm, rng):
    from nanovllm.batching.plan import Chunk, Plan
    from nanovllm.paging.manager import BlockManager

    manager = BlockManager(16, 3, salt_of=lambda request: "ab"[request.number % 2])
    live, story, trunk = [], [], rng.integers(3, 9, size=30).tolist()
    for number in range(40):
        tokens = trunk[: int(rng.integers(1, 25))] + rng.integers(3, 5, size=3).tolist()
        request = _request(number, tokens)
        story.append(manager.can_admit(request))
        if story[-1]:
            request.num_computed_tokens = manager.admit(request)
            live.append(request)
            story.append([request.num_computed_tokens, len(manager.block_ids(request))])
        for one in live:
            length = min(one.num_tokens - one.num_computed_tokens, int(rng.integers(1, 9)))
            if length and manager.reserve(one, length):
                start = one.num_computed_tokens
                manager.commit(Plan((Chunk(one, start, length, one.num_tokens),)))
                one.num_computed_tokens = start + length
        if live and rng.random() < 0.6:
            manager.release(live.pop(int(rng.integers(len(live)))))
        manager.check(live)
        story.append([manager.free_tokens, len(manager.owners()), len(manager.cached_blocks())])
    return {"story": story, "hits": [manager.prefix_stats.queries, manager.prefix_stats.hits]}


def _kinds(manager):
    """What copies are noted, in order; they are struck off."""
    kinds = [move.direction.value for move in manager.transfers]
    manager.transfers.clear()
    return kinds


@scenario(task=7)
def samples_that_come_later(nanovllm, rng):
    from nanovllm.paging.manager import BlockManager

    size, found = int(rng.integers(2, 6)), []
    for rest in (1, int(rng.integers(1, size))):  # with one token more than full blocks: a tie
        prompt = rng.integers(3, 60, size=size * int(rng.integers(1, 4)) + rest).tolist()
        ahead = rng.integers(3, 30, size=int(rng.integers(1, 2 * size))).tolist()
        blocks = -(-len(prompt + ahead) // size)
        for own in (0, size, int(rng.integers(1, 2 * size))):
            answer = rng.integers(30, 60, size=own).tolist()
            for free in range(6):
                manager = BlockManager(blocks + free, size, enable_prefix_caching=free % 2 == 0)
                reading = free == 5 and int(rng.integers(1, len(prompt)))
                first = _request(0, prompt, () if reading else ahead, group=7)
                _running(manager, first, reading or None)
                sample = _request(1, prompt, answer, index=1, group=7)
                sample.num_preemptions = int(own > 0 and free < 4)
                found.append([manager.can_admit(sample)])
                if found[-1][0]:
                    found[-1].append(_running(manager, sample))
                    shared = set(manager.block_ids(first)) & set(manager.block_ids(sample))
                    found[-1] += [len(shared), _kinds(manager), manager.free_tokens]
                    manager.check([first, sample])
                stats = manager.prefix_stats
                found[-1].append(stats and [stats.queries, stats.hits])
    return found


@scenario(task=7)
def to_host_memory_and_back(nanovllm, rng):
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.block_table import BlockTable
    from nanovllm.paging.swap import SwapSpace

    found, size = [], int(rng.integers(2, 6))
    stored = size * int(rng.integers(2, 5)) + int(rng.integers(1, size))
    count = stored // size + 1
    partly = size * int(rng.integers(1, count - 1)) + int(rng.integers(1, size))
    for room in (count - 1, count, count + 2):
        for shared in (0, size, partly, stored, stored + size):
            pool, swap, transfers = BlockPool(30), SwapSpace(room), []
            table = BlockTable(size, num_tokens=stored)
            table.grow(pool, stored + 2 * size)  # the last blocks hold nothing yet
            blocks = list(table.block_ids)
            done = swap.swap_out("r", table, transfers)
            hosts = [move.new for move in transfers]
            out = [[move.direction.value, blocks.index(move.old)] for move in transfers]
            found.append([done, out, len(set(hosts)), swap.pool.num_free, swap.stats.times_full])
            if not done:
                continue
            found.append(swap.swap_out("s", table, transfers))
            transfers.clear()
            back = BlockTable(size, blocks[: -(-shared // size)], shared)
            for block in back.block_ids:
                pool.share(block, back)
            swap.swap_in("r", back, pool, transfers)
            came = [
                [move.direction.value, hosts.index(move.old), back.block_ids.index(move.new)]
                for move in transfers
            ]
            refs = [[pool.ref_count(b) for b in ids] for ids in (blocks, back.block_ids)]
            found.append([came, refs, back.num_tokens, swap.pool.num_free, pool.num_free])
            found.append([swap.stats.blocks_out, swap.stats.blocks_in])
    return found


@scenario(task=7)
def what_pays(nanovllm, rng):
    from nanovllm.paging.swap_cost import swap_pays

    found = []
    for _ in range(12):
        rate, width, seconds = (int(n) for n in 2 ** rng.integers(2, 9, size=3))
        for more in (0, int(rng.integers(-9, 10)), -1, 1):  # in bytes; at 0 both take as long
            size = max(seconds * width // 2 + more, 1)
            found.append(swap_pays(size, float(width), seconds * rate, float(rate)))
        halves = seconds * width * float(rng.uniform(0.1, 1.4))
        found.append(swap_pays(int(halves), float(width), seconds * rate, float(rate)))
    return found


@scenario(task=7)
def suspended_held_and_forgotten(nanovllm, rng):
    from nanovllm.paging.manager import BlockManager

    found, size = [], int(rng.integers(2, 6))
    for mode in ("recompute", "swap"):
        host = int(rng.integers(3, 6))
        manager = BlockManager(16, size, preemption=mode, num_host_blocks=host)
        for number in range(6):  # each needs all of host memory
            tokens = rng.integers(3, 60, size=host * size - int(rng.integers(size))).tolist()
            request = _request(number, tokens)
            _running(manager, request)
            manager.block_ids(request).append(99)  # a list of its own
            blocks = manager.block_ids(request)
            found.append([len(blocks), _refused(manager.hold, blocks[:1], request)])
            manager.reserve(request, int(rng.integers(1, 2 * size)))
            request.sequence.output_token_ids.append(number)
            if number % 2:
                manager.hold(blocks, "a transfer")
            manager.suspend(request)
            found.append([_kinds(manager), manager.free_tokens, len(manager.owners())])
            if number % 2:
                manager.drop(blocks[::-1], "a transfer")
            request.num_computed_tokens, request.num_preemptions = 0, 1
            if number % 3 == 2:
                manager.forget(request)
            found.append([_running(manager, request), _kinds(manager)])
            manager.check([request])
            manager.release(request)
            found.append([manager.free_tokens, manager.prefix_stats.queries])
            manager.check([])
    return found


@scenario(task=7)
def a_sibling_behind_the_cache(nanovllm, rng):
    """Somebody else has stored the prompt while the sibling still reads it."""
    from nanovllm.paging.manager import BlockManager

    found, size = [], int(rng.integers(2, 6))
    for _ in range(3):
        full = size * int(rng.integers(2, 6))
        prompt = rng.integers(3, 60, size=full + int(rng.integers(1, size + 1))).tolist()
        manager = BlockManager(40, size)
        first, sample = (_request(i, prompt, index=i, group=7) for i in range(2))
        _running(manager, first, int(rng.integers(1, full)))
        found.append([_running(manager, _request(5, prompt)), manager.can_admit(sample)])
        found.append([_refused(manager.check, requests) for requests in ([], [first, sample])])
        _stored(manager, first, len(prompt))
        found.append([manager.can_admit(sample), _running(manager, sample), manager.free_tokens])
    return found


@scenario(task=7)
def cached_blocks_that_are_held(nanovllm, rng):
    import gc
    import weakref

    from nanovllm.paging.manager import BlockManager

    found, size = [], int(rng.integers(2, 6))
    for rounds in range(3):
        count, more = int(rng.integers(3, 7)), int(rng.integers(3))
        prompt = rng.integers(3, 60, size=count * size).tolist()
        manager = BlockManager(count + more, size)
        request = _request(0, prompt)
        _running(manager, request)
        blocks = manager.block_ids(request)  # none of the others is cached
        if rounds:
            manager.release(request)
        else:
            manager.suspend(request)
            manager.forget(request)
            seen = weakref.ref(request)
            del request
            gc.collect()
            found.append(seen() is None)
        found.append([_refused(manager.hold, blocks, "a transfer"), len(manager.owners())])
        other = next((b for b in range(count + more) if b not in blocks), count + more)
        found.append(_refused(manager.drop, [*blocks[1:], other], "a transfer"))
        found.append([manager.free_tokens, len(manager.cached_blocks())])
        manager.drop(blocks, "a transfer")
        found.append([manager.free_tokens, len(manager.cached_blocks())])
        gone = int(rng.integers(1, count))  # so many of them are evicted, those held last
        filler = _request(1, rng.integers(60, 90, size=(more + gone) * size).tolist())
        manager.can_admit(filler)
        manager.admit(filler)
        manager.release(filler)
        again = _request(2, [*prompt[:-1], 1][: (count + more) * size])
        found.append(_running(manager, again))
        manager.check([again])
    return found


@scenario(task=7)
def many_samples_of_one_prompt(nanovllm, rng):
    from nanovllm.generation.params import SamplingParams
    from nanovllm.paging.store import PagedStore

    store = PagedStore(_config(windows=(None, 6)), 30, int(rng.integers(2, 6)))
    trunk = rng.integers(3, 60, size=9).tolist()
    prompts = [trunk + rng.integers(3, 60, size=int(n)).tolist() for n in rng.integers(1, 8, 5)]
    params = SamplingParams(n=3, max_tokens=6, ignore_eos=True)
    return _serve(rng, store, prompts, params, 20)


@scenario(task=7)
def hardly_any_room(nanovllm, rng):
    from nanovllm.generation.params import SamplingParams
    from nanovllm.paging.store import PagedStore

    found, params = {}, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for mode, host in (("recompute", 0), ("swap", 4), ("swap", 30)):
        store = PagedStore(_config(), 9, 3, preemption=mode, num_host_blocks=host)
        prompts = [rng.integers(3, 60, size=int(n)).tolist() for n in rng.integers(1, 14, size=6)]
        found[f"{mode} {host}"] = _serve(rng, store, prompts, params, 12)
    return found


@scenario(task=6)
def keys_of_one_bit(nanovllm, rng):
    """Another path than the checks: nearly every key collides, and samples fork and come back."""
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.block_table import BlockTable
    from nanovllm.paging.prefix_cache import PrefixCache

    cache = PrefixCache(2, hash_of=lambda parent, tokens, salt: bytes([sum(tokens) % 2]))
    pool, story = BlockPool(40, cache.index), []
    for number in range(12):
        tokens = rng.integers(0, 2, size=int(rng.integers(3, 9))).tolist()
        request = _request(number, tokens)
        hits = cache.lookup(request)
        table = BlockTable(2, num_tokens=len(tokens))
        table.grow(pool, len(tokens))
        cache.register(pool, request, table)
        cache.count(request, 2 * len(hits))
        story.append([len(hits), len(table.cached), pool.num_free])
        cache.index.check()
        table.free(pool)
    return {"story": story, "hits": [cache.stats.queries, cache.stats.hits]}


@scenario(task=6)
def entries_whose_parent_is_gone(nanovllm, rng):
    from nanovllm.paging.prefix_index import PrefixIndex

    index, entries, story = PrefixIndex(), [], []
    for number, block in enumerate(rng.permutation(30)[:12].tolist()):
        parent = entries[int(rng.integers(number)) if number > 1 else 0] if number else None
        parent = None if number > 1 and rng.random() < 0.3 else parent
        tokens = tuple(rng.integers(3, 60, size=2).tolist())
        entries.append(index.insert(bytes([number]), parent, tokens, "", block))
        index.check()
    for number in (0, *(1 + rng.permutation(11)).tolist()):  # the second stands behind the first
        index.evict(entries[number].block_id)
        story.append([number, _refused(index.check)])
    return story


@scenario(task=6)
def which_keys_differ(nanovllm, rng):
    from nanovllm.paging.prefix_index import block_hash

    one, two, three = (int(n) for n in rng.integers(1, 100, size=3))
    kinds = [(one, two), (int(f"{one}{two}"),), (one, int(f"{two}{three}")), (two, one)]
    kinds += [(one, two, 0)] * int(rng.integers(1, 4))
    firsts = [block_hash(b"", tokens, "") for tokens in kinds[:3]]
    salts = ["", str(three), str(two), "x", "xy"]
    keys = [block_hash(p, t, s) for p in (b"", *firsts) for t in kinds for s in salts]
    keys = [keys[i] for i in rng.permutation(len(keys))]
    return {"same": [keys.index(key) for key in keys], "long": min(map(len, keys)) >= 8}


@scenario(task=6)
def prefixes_of_a_trunk(nanovllm, rng):
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.block_table import BlockTable
    from nanovllm.paging.prefix_cache import PrefixCache

    size, story = int(rng.integers(2, 5)), []
    cache = PrefixCache(size, salt_of=lambda request: "ab"[request.number % 2])
    pool, live, origin = BlockPool(20, cache.index), [], {}
    trunk, other = (rng.integers(3, 60, size=5 * size).tolist() for _ in range(2))
    for number in range(24):
        tokens = (trunk, other)[number % 5 == 4][: size * int(rng.integers(1, 5))]
        tokens = tokens + other[: int(rng.choice([0, 0, 1, size]))]  # often nothing but full blocks
        request, table = _request(number, tokens), BlockTable(size)
        hits = [[hit.token_ids, origin[hit.block_id]] for hit in cache.lookup(request)]
        table.grow(pool, len(tokens))
        own = list(table.block_ids)
        for table.num_tokens in (*sorted(rng.integers(1, len(tokens), size=2)), len(tokens)):
            cache.register(pool, request, table)
            known = sum(block in cache.index for block in range(20))
            story.append([len(table.cached), known, pool.num_free])
            cache.index.check()
        blocks = list(zip(own, table.block_ids, strict=True))[: len(table.cached)]
        origin |= {old: [number, i] for i, (old, new) in enumerate(blocks) if old == new}
        live.append(table)
        story.append([hits, [pool.ref_count(block) for block in table.block_ids]])
        if len(live) > 3:
            live.pop(int(rng.integers(3))).free(pool)
        cache.forget(request)
    return story


@scenario(task=8)
def a_heap_with_a_cache(nanovllm, rng):
    from nanovllm.paging.compaction import compact, span
    from nanovllm.paging.manager import BlockManager

    size, wide, found = int(rng.integers(2, 5)), int(rng.integers(2, 5)), []
    count = int(rng.integers(5, 9))
    manager = BlockManager(count * wide, size)
    length = size * wide - int(rng.integers(size - 1))  # the last block may have room left
    prompts = [
        [3 + number, *rng.integers(3, 60, size=length - 1).tolist()] for number in range(count)
    ]
    requests = [_request(number, prompt) for number, prompt in enumerate(prompts)]
    memory = {}  # what stands in each block: the number of a request, and which of its blocks

    def stands(number, blocks):
        return [memory.get(block) == [number, i] for i, block in enumerate(blocks)]

    def copied():
        count = len(manager.transfers)
        for move in manager.transfers:
            memory[move.new] = memory.get(move.old)
        manager.transfers.clear()
        return count

    for request in requests:
        manager.can_admit(request)
        request.num_computed_tokens = manager.admit(request)
    low, empty, *others = sorted(requests, key=lambda request: min(manager.block_ids(request)))
    for request in (low, *others):
        _stored(manager, request, length)
        memory |= {b: [request.number, i] for i, b in enumerate(manager.block_ids(request))}
    found.append([len(manager.cached_blocks()), manager.free_tokens])
    kept = manager.block_ids(low)[:1]
    pinned = max(manager.block_ids(others[-1]))
    manager.hold([pinned], "a transfer")
    manager.release(low)  # its blocks stay findable
    manager.release(empty)  # nothing was stored in its blocks: they are gaps
    found.append(len(manager.cached_blocks()))
    manager.hold(kept, "another")
    found.append(len(manager.cached_blocks()))
    manager.drop(kept, "another")
    before = manager.block_ids(others[0])
    for stay in (others[:1], []):
        cached, held = manager.cached_blocks(), len(manager.owners())
        found.append(compact(manager, stay) == copied())
        found.append([manager.cached_blocks() == cached, len(manager.owners()) == held])
        found.append([not stay or manager.block_ids(others[0]) == before])
        found.append(pinned in manager.block_ids(others[-1]))
        found.append([stands(one.number, manager.block_ids(one)) for one in others])
        manager.check(others)
    manager.drop([pinned], "a transfer")
    gone = others.pop()
    manager.release(gone)
    for number in (low.number, gone.number):
        again = _request(20, [*prompts[number], 1])
        manager.can_admit(again)
        again.num_computed_tokens = manager.admit(again)
        full = again.num_computed_tokens // size
        found.append(stands(number, manager.block_ids(again)[:full]))
        manager.release(again)
    found.append(
        [span(manager) <= count * wide, len(manager.owners()), len(manager.cached_blocks())]
    )
    manager.check(others)
    return found


@scenario(task=8)
def a_random_heap(nanovllm, rng):
    from nanovllm.paging.compaction import compact, plan_moves, span
    from nanovllm.paging.manager import BlockManager

    order = rng.permutation(50).tolist()
    plans = [plan_moves(order[:k], order[k : k + 15]) for k in (0, 7, 30)]
    manager, live, story = BlockManager(40, 4, enable_prefix_caching=False), [], []
    for number in range(25):
        request = _request(number, rng.integers(3, 60, size=int(rng.integers(1, 14))).tolist())
        if manager.can_admit(request):
            manager.admit(request)
            live.append(request)
        if live and rng.random() < 0.5:
            manager.release(live.pop(int(rng.integers(len(live)))))
    before = span(manager)
    compact(manager, live[::2])
    story.append(span(manager) <= before)
    compact(manager)
    story.append([span(manager), len(manager.owners())])
    manager.check(live)
    wide = int(rng.integers(2, 5))
    manager = BlockManager(5 * wide, 4)
    prompts = rng.integers(3, 60, size=(6, 4 * wide)).tolist()
    requests = [_request(number, prompt) for number, prompt in enumerate(prompts)]
    for request in requests[:5]:
        manager.can_admit(request)
        manager.admit(request)
    empty, cached, *held = sorted(requests[:5], key=lambda one: max(manager.block_ids(one)))
    for request in (cached, *held):
        _stored(manager, request, 4 * wide)
    manager.release(cached)
    manager.release(empty)
    story.append([compact(manager) > 0, len(manager.cached_blocks())])
    manager.can_admit(requests[5])
    manager.admit(requests[5])  # takes the blocks whose content was moved, not those cached
    story.append([len(manager.cached_blocks()), manager.free_tokens])
    manager.check([*held, requests[5]])
    return {"plans": plans, "story": story}

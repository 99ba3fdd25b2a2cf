"""Hidden scenarios of lab 05: random histories, other sizes than those of the visible checks."""

from grader.checks.scenarios import scenario


def _config(**more):
    from nanovllm.model.config import ModelConfig

    sizes = {"vocab_size": 60, "hidden_size": 24, "num_layers": 2, "num_heads": 6}
    sizes |= {"num_kv_heads": 3, "head_dim": 4, "intermediate_size": 40, "max_position": 64}
    return ModelConfig("qwen3", **{**sizes, "qk_norm": True, "eos_token_ids": (2,), **more})


def _request(number, tokens, output=(), index=0):
    from nanovllm.batching.request import Request
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence

    params = SamplingParams(max_tokens=20)
    sequence = Sequence(tokens, params, max_model_len=64, seed=0, request_id=number, index=index)
    sequence.output_token_ids += output
    return Request(number, sequence, 0.0, len(tokens) + 19)


@scenario(task=1)
def a_random_life_of_memory(nanovllm, rng):
    from nanovllm.paging.fragmentation import Blocks, Buddy, FirstFit

    found = {}
    for name, memory in (("first", FirstFit(90)), ("buddy", Buddy(128)), ("blocks", Blocks(90, 7))):
        live, story = [], []
        for number in range(80):
            if live and rng.random() < 0.45:
                memory.free(live.pop(int(rng.integers(len(live)))))
            elif memory.allocate(number, int(rng.integers(1, 25))):
                live.append(number)
            stored = {n: int(rng.integers(1, memory.reserved[n] + 1)) for n in live}
            wasted = memory.external_fragmentation(), memory.internal_fragmentation(stored)
            story.append([len(live), memory.num_free, memory.largest_hole, *wasted])
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


@scenario(task=4)
def random_ragged_attention(nanovllm, rng):
    import torch

    from nanovllm.paging.attention import paged_attention
    from nanovllm.paging.batch import PagedBatch
    from nanovllm.paging.cache import PagedCache

    config, found = _config(), []
    for _ in range(3):
        size, count = int(rng.integers(1, 8)), int(rng.integers(2, 6))
        queries = [int(q) for q in rng.choice([1, 1, 3, 7], size=count)]
        contexts = [q + int(rng.integers(0, 20)) for q in queries]
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
        none = torch.empty(0, dtype=torch.int64)
        batch = PagedBatch(none, tables, *lengths, max(queries), max(contexts))
        q = torch.from_numpy(rng.normal(size=(sum(queries), 6, 4)).astype("float32"))
        window = [None, 4][int(rng.integers(2))]
        found.append(paged_attention(q, cache.k[1], cache.v[1], batch, window=window))
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
    return {"plans": plans, "story": story}

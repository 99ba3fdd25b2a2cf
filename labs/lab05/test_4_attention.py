"""Task 4: the paged cache, and attention over it."""

from itertools import product

import pytest
import torch

from grader import expect
from nanovllm.model.config import ModelConfig
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.cache import PagedCache

CONFIG = ModelConfig("mistral", 50, 32, 3, 6, 2, 8, 48, 64)  # L 3, H 6, G 2, D 8


def oracle(q, k, v, window):
    """One query and one head at a time; the queries are the last of the keys' tokens."""
    out = torch.empty_like(q)
    share = q.shape[1] // k.shape[1]
    for t in range(len(q)):
        end = len(k) - len(q) + t + 1
        start = 0 if window is None else max(0, end - window)
        for head in range(q.shape[1]):
            keys, values = k[start:end, head // share], v[start:end, head // share]
            weights = (keys @ q[t, head] * q.shape[2] ** -0.5).softmax(dim=0)
            out[t, head] = weights @ values
    return out


class Paged:
    """Sequences of random k and v, put by hand into shuffled blocks whose other slots are NaN."""

    def __init__(self, rng, generator, block_size, contexts, queries):
        self.contexts, self.queries = contexts, queries
        counts = [-(-n // block_size) for n in contexts]
        num_blocks = sum(counts) + 3
        self.k_cache = torch.full((num_blocks, block_size, 2, 8), torch.nan)
        self.v_cache = self.k_cache.clone()
        order, most = rng.permutation(num_blocks).tolist(), max(counts)
        self.k, self.v, rows = [], [], []
        for n, count in zip(contexts, counts, strict=True):
            blocks, order = order[:count], order[count:]
            slots = [b * block_size + i for b in blocks for i in range(block_size)][:n]
            for kept, cache in ((self.k, self.k_cache), (self.v, self.v_cache)):
                values = torch.randn(n, 2, 8, generator=generator)
                cache.view(-1, 2, 8)[slots] = values
                kept.append(values)
            rows.append(blocks + [0] * (most - count))
        self.q = torch.randn(sum(queries), 6, 8, generator=generator)
        starts = [sum(queries[:i]) for i in range(len(queries) + 1)]
        self.batch = PagedBatch(
            slot_mapping=torch.zeros(sum(queries), dtype=torch.int64),  # attention does not write
            block_tables=torch.tensor(rows, dtype=torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            max_query_len=max(queries),
            max_context_len=max(contexts),
        )

    def answer(self, window=None):
        parts = self.q.split(self.queries)
        return torch.cat([oracle(*x, window) for x in zip(parts, self.k, self.v, strict=True)])


@pytest.mark.check(task=4, points=3, title="Every token into its slot")
def test_write(generator):
    cache = PagedCache(CONFIG, num_blocks=4, block_size=4)
    k, v = (torch.randn(5, 2, 8, generator=generator) for _ in range(2))
    cache.write(1, k, v, torch.tensor([13, 2, -1, 0, 7]))
    want_k, want_v = torch.zeros(4, 4, 2, 8), torch.zeros(4, 4, 2, 8)
    for token, (block, place) in {0: (3, 1), 1: (0, 2), 3: (0, 0), 4: (1, 3)}.items():
        want_k[block, place], want_v[block, place] = k[token], v[token]
    expect(
        [bool(cache.k[layer].any() or cache.v[layer].any()) for layer in (0, 2)],
        [False, False],
        call="whether anything was written into the other layers",
    )
    call = "the layer after write to slots 13, 2, -1, 0, 7, with 4 slots a block"
    expect(cache.k[1], want_k, call=f"k of {call}", cause="-1 is written nowhere")
    expect(cache.v[1], want_v, call=f"v of {call}")


@pytest.mark.check(task=4, points=2, title="Whole blocks are copied")
def test_copy_blocks(generator):
    cache = PagedCache(CONFIG, num_blocks=6, block_size=2)
    cache.k.copy_(torch.randn(cache.k.shape, generator=generator))
    cache.v.copy_(torch.randn(cache.v.shape, generator=generator))
    want_k, want_v = (old[:, [0, 4, 2, 3, 4, 5]].clone() for old in (cache.k, cache.v))
    cache.copy_blocks([(4, 1)])
    cache.copy_blocks([])
    call = "[L, B, P, G, D] after copy_blocks([(4, 1)])"
    cause = "from block 4 to block 1, in every layer, K and V"
    expect(cache.k, want_k, call=f"k {call}", cause=cause)
    expect(cache.v, want_v, call=f"v {call}", cause=cause)
    before_k, before_v = cache.k.clone(), cache.v.clone()
    cache.copy_blocks([(0, 3), (0, 5)])
    expect(
        [cache.k[:, [3, 5, 0]], cache.v[:, [3, 5, 0]]],
        [before_k[:, [0, 0, 0]], before_v[:, [0, 0, 0]]],
        call="blocks 3, 5 and 0 after copy_blocks([(0, 3), (0, 5)])",
    )


def attended(paged, k_cache, v_cache, **more):
    return paged_attention(paged.q, k_cache, v_cache, paged.batch, **more)


@pytest.mark.check(task=4, points=2, title="One sequence reads its own blocks, in order")
def test_alone(rng, generator):
    for block_size in (1, 4, 16):
        for queries in (1, 5):
            paged = Paged(rng, generator, block_size, contexts=[11], queries=[queries])
            expect(
                attended(paged, paged.k_cache.nan_to_num(), paged.v_cache.nan_to_num()),
                paged.answer(),
                call=f"paged_attention of {queries} queries, context 11, blocks of {block_size}",
                given={"block_tables": paged.batch.block_tables},
                cause="in the order of the table, and no further than the context",
            )
            low = [x.nan_to_num().bfloat16() for x in (paged.q, paged.k_cache, paged.v_cache)]
            expect(
                str(paged_attention(*low, paged.batch).dtype),
                "torch.bfloat16",
                call=f"dtype of paged_attention of {queries} bfloat16 queries over bfloat16 caches",
            )


@pytest.mark.check(task=4, points=4, title="Decodes, whatever lies in the slots behind")
def test_decodes(rng, generator):
    for window in (None, 5):
        paged = Paged(rng, generator, 4, contexts=[13, 1, 8, 6], queries=[1, 1, 1, 1])
        caches = paged.k_cache, paged.v_cache
        clean = [cache.nan_to_num(0.0) for cache in caches]
        call = f"paged_attention of one query each, contexts 13, 1, 8, 6, window {window}"
        expect(
            attended(paged, *clean, window=window),
            paged.answer(window),
            call=call,
            cause="each query sees its own context, itself included, and nothing behind it",
        )
        empty = "are NaN in every slot that holds no token"
        cause = "what nobody should see must not be multiplied, not even by 0"
        out = attended(paged, clean[0], caches[1], window=window)
        expect(out, paged.answer(window), call=f"{call}; values {empty}", cause=cause)
        out = attended(paged, caches[0], clean[1], window=window)
        expect(out, paged.answer(window), call=f"{call}; keys {empty}", cause=cause)
        scaled = attended(paged, *clean, scale=0.5, window=window)
        paged.q = paged.q * (0.5 * 8**0.5)
        expect(scaled, paged.answer(window), call=f"{call}, scale=0.5")


@pytest.mark.check(task=4, points=5, title="Prompts, chunks and decodes in one step")
def test_mixed(rng, generator):
    sizes = [(9, 9), (17, 5), (12, 1), (1, 1), (20, 1), (16, 2)]
    for block_size, window in product((1, 4, 16), (None, 3)):
        order = rng.permutation(6).tolist()
        contexts, queries = zip(*(sizes[i] for i in order), strict=True)
        paged = Paged(rng, generator, block_size, list(contexts), list(queries))
        expect(
            paged_attention(paged.q, paged.k_cache, paged.v_cache, paged.batch, window=window),
            paged.answer(window),
            call=f"paged_attention of a mixed batch, blocks of {block_size}, window {window}",
            given={"context_lens": list(contexts), "queries": list(queries)},
            cause="query t of T, in a context of n, is token n - T + t",
        )
    paged = Paged(rng, generator, 4, [7, 9], [3, 1])
    out = paged_attention(paged.q, paged.k_cache, paged.v_cache, paged.batch, scale=0.25)
    paged.q = paged.q * (0.25 * 8**0.5)
    expect(out, paged.answer(), call="paged_attention with scale=0.25")

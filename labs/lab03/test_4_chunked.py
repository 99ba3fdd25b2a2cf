"""Task 4: chunked prefill."""

import pytest
import torch

from grader import expect
from nanovllm.generation.chunked import Chunk, chunked_prefill, plan_chunks, prefill_cost
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model


def _model(seed: int, window: int | None = None):
    windows = (window, None) if window else ()
    config = ModelConfig("llama", 50, 32, 2, 4, 2, 8, 48, 64, windows=windows)
    return dummy_model(config, seed=seed % 1000)


def _whole(model, token_ids):
    """The logits of every token of a text, read in one pass."""
    ids = torch.as_tensor(token_ids)
    return model.logits(forward_cached(model, ContiguousCache(model.config, len(ids)), ids))


def _counting(model) -> dict[str, list[int]]:
    """Note the positions of each forward pass and the rows of each call of logits."""
    seen: dict[str, list] = {"positions": [], "rows": []}
    forward, logits = model.forward, model.logits

    def watched_forward(token_ids, positions, attend):
        seen["positions"].append(positions.tolist())
        return forward(token_ids, positions, attend)

    def watched_logits(hidden):
        seen["rows"].append(len(hidden))
        return logits(hidden)

    model.forward, model.logits = watched_forward, watched_logits
    return seen


@pytest.mark.check(
    task=4,
    points=3,
    title="Chunks cover what is left, once",
)
def test_plan_chunks():
    def plan(*given, **more):
        return [[chunk.start, chunk.length] for chunk in plan_chunks(*given, **more)]

    expect(
        [plan(8, 4), plan(9, 4), plan(3, 4), plan(1, 1), plan(4, 1)],
        [[[0, 4], [4, 4]], [[0, 4], [4, 4], [8, 1]], [[0, 3]], [[0, 1]],
         [[0, 1], [1, 1], [2, 1], [3, 1]]],
        call="plan_chunks(n, size) for (8, 4), (9, 4), (3, 4), (1, 1), (4, 1): [start, length]",
        cause="no empty chunk when the size divides the length, no token left out when it does not",
    )  # fmt: skip
    expect(
        [plan(10, 4, computed=3), plan(10, 4, computed=9), plan(10, 4, computed=10)],
        [[[3, 4], [7, 3]], [[9, 1]], []],
        call="plan_chunks(10, 4, computed=c) for c = 3, 9, 10",
        cause="tokens that are computed already are not planned again",
    )
    for size, computed in ((0, 0), (-2, 0), (-2, 5)):
        expect.raises(
            ValueError,
            lambda size=size, computed=computed: plan_chunks(5, size, computed),
            call=f"plan_chunks(5, {size}, computed={computed})",
        )


@pytest.mark.check(
    task=4,
    points=4,
    title="Any split gives the same logits",
)
def test_any_split(rng, seed):
    for window in (None, 5):
        model = _model(seed, window)
        count = 13
        ids = torch.from_numpy(rng.integers(0, 50, size=count))
        wanted = _whole(model, ids)[-1:]
        for size in (1, 2, 4, 5, 12, 13, 40):
            cache = ContiguousCache(model.config, capacity=count)
            expect(
                chunked_prefill(model, cache, ids, size),
                wanted,
                call=f"chunked_prefill(model, cache, token_ids [{count}], chunk_size={size})",
                given={"sliding window of layer 0": window},
                atol=2e-4,
                cause="chunking must not show: positions, earlier chunks in the cache, and the "
                "logits of the very last token",
            )
            expect(cache.length, count, call="cache.length afterwards")


@pytest.mark.check(
    task=4,
    points=2,
    title="Each token is computed once, and only the last asks for logits",
)
def test_counts(rng, seed):
    model = _model(seed)
    seen = _counting(model)
    ids = torch.from_numpy(rng.integers(0, 50, size=11))
    cache = ContiguousCache(model.config, capacity=16)
    reported = []

    def on_chunk(chunk):
        reported.append((chunk, cache.length))

    chunked_prefill(model, cache, ids[:5], 3, on_chunk=on_chunk)
    chunked_prefill(model, cache, ids, 4, on_chunk=on_chunk)
    expect(
        {**seen, "stored": cache.length},
        {"positions": [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9, 10]], "rows": [1, 1], "stored": 11},
        call="positions of each pass, rows of logits, cache.length: 5 tokens in chunks of 3, then "
        "all 11 in chunks of 4 with the same cache",
        cause="start at cache.length; logits for the last token only",
    )
    expect(
        reported,
        [(Chunk(0, 3), 3), (Chunk(3, 2), 5), (Chunk(5, 4), 9), (Chunk(9, 2), 11)],
        call="the chunks that on_chunk was told, each with cache.length at that time",
        cause="on_chunk is called after each chunk, when the cache holds it",
    )
    expect.raises(
        ValueError,
        lambda: chunked_prefill(model, cache, ids, 4),
        call="chunked_prefill of a sequence whose tokens are all in the cache",
    )


@pytest.mark.check(
    task=4,
    points=1,
    title="What chunks cost: the same tokens, a lower peak",
)
def test_prefill_cost():
    costs = [prefill_cost(1000, size) for size in (1000, 300, 1)]
    expect(
        [[c.steps, c.tokens_computed, c.score_elements, c.peak_score_elements] for c in costs],
        [
            [1, 1000, 1_000_000, 1_000_000],
            [4, 1000, 300 * (300 + 600 + 900) + 100 * 1000, 270_000],
            [1000, 1000, 500_500, 1000],
        ],
        call="steps, tokens, scores and peak of prefill_cost(1000, size) for 1000, 300, 1",
        cause="a chunk scores its own tokens against everything up to its end",
    )

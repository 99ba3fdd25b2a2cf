"""Task 4: chunked prefill."""

import pytest
import torch

from grader import expect
from nanovllm.generation.chunked import Chunk, chunked_prefill, plan_chunks, prefill_cost
from nanovllm.model.attention import RecomputeAttend
from nanovllm.model.cache import ContiguousCache
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model


def _model(seed: int, window: int | None = None):
    windows = (window, None) if window else ()
    config = ModelConfig("llama", 50, 32, 2, 4, 2, 8, 48, 64, windows=windows)
    return dummy_model(config, seed=seed % 1000)


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


@pytest.mark.check(task=4, points=3, title="Chunks cover what is left, once")
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
    for size in (0, -2):
        expect.raises(
            ValueError,
            lambda size=size: plan_chunks(5, size),
            match="chunk_size",
            call=f"plan_chunks(5, {size})",
        )


@pytest.mark.check(task=4, points=4, title="Any split gives the same logits")
def test_any_split(rng, seed):
    for window in (None, 5):
        model = _model(seed, window)
        count = 13
        ids = torch.from_numpy(rng.integers(0, 50, size=count))
        whole = model(ids, torch.arange(count), RecomputeAttend(model.config))
        wanted = model.logits(whole[-1:])
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
    task=4, points=2, title="Each token is computed once, and only the last asks for logits"
)
def test_counts(rng, seed):
    model = _model(seed)
    seen = _counting(model)
    ids = torch.from_numpy(rng.integers(0, 50, size=11))
    cache = ContiguousCache(model.config, capacity=16)
    reported = []
    chunked_prefill(model, cache, ids[:5], 3, on_chunk=reported.append)
    chunked_prefill(model, cache, ids, 4, on_chunk=reported.append)
    expect(
        {**seen, "stored": cache.length},
        {"positions": [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9, 10]], "rows": [1, 1], "stored": 11},
        call="positions of each pass, rows of logits, cache.length: 5 tokens in chunks of 3, then "
        "all 11 in chunks of 4 with the same cache",
        cause="start at cache.length; logits for the last token only",
    )
    expect(
        reported,
        [Chunk(0, 3), Chunk(3, 2), Chunk(5, 4), Chunk(9, 2)],
        call="the chunks that on_chunk was told",
    )
    expect.raises(
        ValueError,
        lambda: chunked_prefill(model, cache, ids, 4),
        call="chunked_prefill of a sequence whose tokens are all in the cache",
    )


@pytest.mark.check(task=4, points=1, title="What chunks cost: the same tokens, a lower peak")
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

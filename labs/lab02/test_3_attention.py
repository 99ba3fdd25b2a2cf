"""Task 3: attention of T queries over S keys."""

import pytest
import torch

from grader import expect
from nanovllm.model.attention import attention, causal_mask, masked_softmax


def _oracle(q, k, v, mask, scale=None):
    """One head at a time, in float64, by the definition."""
    group = q.shape[1] // k.shape[1]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    out = torch.zeros_like(q, dtype=torch.float64)
    for head in range(q.shape[1]):
        keys, values = k[:, head // group].double(), v[:, head // group].double()
        for t in range(q.shape[0]):
            seen = mask[t]
            if seen.any():
                weights = torch.softmax(keys[seen] @ q[t, head].double() * scale, 0)
                out[t, head] = weights @ values[seen]
    return out.float()


def _mask(queries, keys, window=None):
    rows = []
    for t in range(queries):
        position = t + keys - queries
        first = 0 if window is None else position - window + 1
        rows.append([first <= key <= position for key in range(keys)])
    return torch.tensor(rows)


def _qkv(generator, queries, keys, heads, groups, dim):
    shapes = ((queries, heads, dim), (keys, groups, dim), (keys, groups, dim))
    return [1.5 * torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.check(task=3, points=3, title="The causal mask is aligned bottom-right")
def test_bottom_right():
    for queries, keys in ((3, 3), (1, 6), (2, 5), (4, 2)):
        actual = causal_mask(queries, keys)
        expect(
            actual.int(),
            _mask(queries, keys).int(),
            call=f"causal_mask({queries}, {keys})",
            cause="with fewer queries than keys the corner that counts is the bottom right one.",
        )
    expect(str(actual.dtype), "torch.bool", call="causal_mask(4, 2).dtype")


@pytest.mark.check(task=3, points=3, title="A sliding window counts the query itself")
def test_window():
    for queries, keys, window in ((6, 6, 1), (6, 6, 3), (3, 8, 4), (2, 3, 10)):
        expect(
            causal_mask(queries, keys, window=window).int(),
            _mask(queries, keys, window).int(),
            call=f"causal_mask({queries}, {keys}, window={window})",
            cause="of the keys up to the query's own, the last `window` are visible.",
        )


@pytest.mark.check(task=3, points=3, title="Softmax does not overflow")
def test_stable_softmax(generator):
    scores = torch.randn(2, 4, 7, generator=generator)
    scores += torch.tensor([0.0, 200.0, -300.0, 30_000.0])[:, None]
    mask = _mask(4, 7)
    scores[:, :3, 6] = 90_000.0  # the future, louder than all the rest
    expected = torch.softmax(scores.double().masked_fill(~mask, -torch.inf), -1).float()
    actual = masked_softmax(scores, mask)
    expect(
        actual,
        expected,
        call="masked_softmax(scores, mask), rows of size 1, 200, -300 and 30000",
        given={"scores": scores},
        cause="subtract the row's largest visible score before exp.",
        rtol=2e-3,
    )
    low = masked_softmax(scores[:, :2].bfloat16(), mask[:2])
    expect(
        str(low.dtype),
        "torch.float32",
        call="masked_softmax(scores.bfloat16(), mask).dtype",
        cause="the exponentials and their sum are taken in float32.",
    )


@pytest.mark.check(task=3, points=3, title="A query that sees nothing gets zeros")
def test_blind_rows(generator):
    scores = torch.randn(3, 4, 5, generator=generator)
    mask = torch.tensor([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    expected = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1).nan_to_num(0.0)
    expect(
        masked_softmax(scores, mask),
        expected,
        call="masked_softmax(scores, mask), rows 1 and 3 of the mask all False",
        given={"mask": mask.int()},
        cause="a row without a visible key is 0/0: it must come out as zeros, not nan.",
    )
    q, k, v = _qkv(generator, 4, 2, 4, 2, 6)
    expect(
        attention(q, k, v),
        _oracle(q, k, v, _mask(4, 2)),
        call="attention(q, k, v), 4 queries and 2 keys",
        given={"q": q, "k": k},
        cause="the first two queries stand before the first key: zeros.",
    )


@pytest.mark.check(task=3, points=2, title="Scores are divided by the root of D")
def test_scale(generator):
    q, k, v = _qkv(generator, 5, 5, 3, 3, 20)
    for scale in (None, 0.7):
        expect(
            attention(q, k, v, scale=scale),
            _oracle(q, k, v, _mask(5, 5), scale),
            call=f"attention(q, k, v, scale={scale})",
            given={"q": q},
            cause="the default scale is 20 ** -0.5 here; a given one replaces it.",
        )


@pytest.mark.check(task=3, points=4, title="Query heads share key/value heads in groups")
def test_grouped_heads(generator):
    for heads, groups in ((6, 2), (4, 1), (3, 3)):
        q, k, v = _qkv(generator, 7, 7, heads, groups, 8)
        expect(
            attention(q, k, v),
            _oracle(q, k, v, _mask(7, 7)),
            call="attention(q, k, v)",
            given={"q": q, "k": k},
            cause="query head h reads key/value head h // (H / G): repeat_interleave, not repeat.",
        )


@pytest.mark.check(task=3, points=2, title="Chunks, windows and given masks")
def test_masks_in_attention(generator):
    q, k, v = _qkv(generator, 3, 8, 4, 2, 8)
    free = torch.rand(3, 8, generator=generator) < 0.5
    free[:, 7] = True
    expect(
        causal_mask(3, 8, window=2).int(),
        _mask(3, 8, 2).int(),
        call="causal_mask(3, 8, window=2)",
        cause="attention can be no better than its mask: see the checks of causal_mask first.",
    )
    for window in (None, 2):
        expect(
            attention(q, k, v, window=window),
            _oracle(q, k, v, _mask(3, 8, window)),
            call=f"attention(q, k, v, window={window})",
            given={"q": q, "k": k},
            cause="3 queries are the last 3 of 8 tokens; the window goes on to causal_mask.",
        )
    for window in (None, 2):
        expect(
            attention(q, k, v, window=window, mask=free),
            _oracle(q, k, v, free),
            call=f"attention(q, k, v, window={window}, mask=mask)",
            given={"q": q, "k": k, "mask": free.int()},
            cause="a given mask is used as it is, in place of the causal one and the window.",
        )

"""Task 3: attention of T queries over S keys."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grader import expect
from nanovllm.model.attention import attention


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


@pytest.mark.check(task=3, points=2, title="A weighted mean of the values")
def test_weighted_mean(generator):
    k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])[:, None]
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])[:, None]
    expect(
        attention(torch.tensor([[[1.0, 0.0]]]), k, v, scale=1.0),
        torch.tensor([[[1.2670, 1.0000]]]),
        call="attention(q, k, v, scale=1.0): one query, three keys, scores 1, 0, 1",
        cause="weights are exp(score) / sum of exp(scores), here 0.422, 0.155, 0.422.",
        rtol=1e-3,
    )
    q, k, v = _qkv(generator, 1, 6, 1, 1, 5)
    expect(
        attention(q, k, v, scale=1.0),
        _oracle(q, k, v, _mask(1, 6), scale=1.0),
        call="attention(q, k, v, scale=1.0), one query, one head, six keys that it all sees",
        given={"q": q, "k": k},
        cause="softmax over the keys of one query, then the sum of weight times value.",
    )


@pytest.mark.check(task=3, points=2, title="Scores are divided by the root of D")
def test_scale(generator):
    for dim in (20, 64):
        for scale in (None, 0.7, 0.0):
            q, k, v = _qkv(generator, 1, 5, 3, 3, dim)
            expect(
                attention(q, k, v, scale=scale),
                _oracle(q, k, v, _mask(1, 5), scale),
                call=f"attention(q, k, v, scale={scale}), D = {dim}",
                given={"q": q},
                cause="the default scale is 1 / sqrt(D); a given one replaces it.",
            )


@pytest.mark.check(task=3, points=4, title="The queries are the last tokens")
def test_bottom_right(generator):
    for queries, keys in ((4, 4), (1, 6), (2, 5), (5, 7)):
        q, k, v = _qkv(generator, queries, keys, 1, 1, 8)
        expect(
            attention(q, k, v),
            _oracle(q, k, v, _mask(queries, keys)),
            call=f"attention(q, k, v), {queries} queries and {keys} keys",
            given={"q": q, "k": k},
            cause=f"query t is token t + {keys - queries} and sees the keys up to that one: the "
            "triangle is aligned bottom-right."
            if keys > queries
            else "as many queries as keys: query t sees keys 0 to t, its own included, none after.",
        )


@pytest.mark.check(task=3, points=3, title="A sliding window counts the query itself")
def test_window(generator):
    for queries, keys, window in ((6, 6, 1), (6, 6, 3), (3, 8, 4), (1, 9, 3), (2, 3, 10)):
        q, k, v = _qkv(generator, queries, keys, 2, 2, 8)
        expect(
            attention(q, k, v, window=window),
            _oracle(q, k, v, _mask(queries, keys, window)),
            call=f"attention(q, k, v, window={window}), {queries} queries and {keys} keys",
            given={"q": q, "k": k},
            cause="of the keys up to the query's own, the last `window` are visible: with "
            "window 1 a token sees itself alone.",
        )


@pytest.mark.check(task=3, points=2, title="A given mask replaces the causal one")
def test_given_mask(generator):
    q, k, v = _qkv(generator, 3, 8, 2, 2, 8)
    free = torch.rand(3, 8, generator=generator) < 0.5
    free[0, 7] = True  # the future of query 0
    free[:, 0] = True
    for window in (None, 2):
        expect(
            attention(q, k, v, window=window, mask=free),
            _oracle(q, k, v, free),
            call=f"attention(q, k, v, window={window}, mask=mask)",
            given={"q": q, "k": k, "mask": free.int()},
            cause="a given mask is used as it is, in place of the causal one and of the window.",
        )
    one = attention(q[:1], k, v, mask=free[:1])
    expect(
        one,
        _oracle(q[:1], k, v, free[:1]),
        call="attention(q, k, v, mask=mask), one query",
        given={"mask": free[:1].int()},
        cause="a single query may be told not to see some keys, too.",
    )


@pytest.mark.check(task=3, points=3, title="Query heads share key/value heads in groups")
def test_grouped_heads(generator):
    for heads, groups in ((6, 2), (4, 1), (3, 3)):
        q, k, v = _qkv(generator, 7, 7, heads, groups, 8)
        expect(
            attention(q, k, v),
            _oracle(q, k, v, _mask(7, 7)),
            call=f"attention(q, k, v), H = {heads}, G = {groups}",
            given={"q": q, "k": k},
            cause="query head h reads key/value head h // (H / G): neighbours share, as with "
            "repeat_interleave, not as with repeat.",
        )


@pytest.mark.check(task=3, points=2, title="Scores of thousands do not overflow")
def test_large_scores(generator):
    q, k, v = _qkv(generator, 4, 7, 2, 1, 6)
    size = torch.tensor([1.0, 60.0, -40.0, 3000.0])[:, None, None]
    k[6] *= 50.0  # the last key, which only the last query sees, is louder than all the rest
    expect(
        attention(size * q, k, v),
        _oracle(size * q, k, v, _mask(4, 7)),
        call="attention(q, k, v), queries of size 1, 60, 40 and 3000",
        given={"q": size * q, "k": k},
        cause="exp(89) is infinite in float32: subtract the row's largest visible score first.",
        rtol=2e-3,
    )


@pytest.mark.check(task=3, points=2, title="A query that sees nothing gets zeros")
def test_blind_rows(generator):
    q, k, v = _qkv(generator, 4, 2, 2, 2, 6)
    expect(
        attention(q, k, v),
        _oracle(q, k, v, _mask(4, 2)),
        call="attention(q, k, v), 4 queries and 2 keys",
        given={"q": q, "k": k},
        cause="the first two queries stand before the first key: zeros, not nan.",
    )
    q, k, v = _qkv(generator, 4, 5, 2, 2, 6)
    mask = torch.tensor([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    expect(
        attention(q, k, v, mask=mask),
        _oracle(q, k, v, mask),
        call="attention(q, k, v, mask=mask), rows 1 and 3 of the mask all False",
        given={"mask": mask.int()},
        cause="a row without a visible key is 0/0: it must come out as zeros, not as nan and not "
        "as the mean of all values.",
    )


@pytest.mark.check(task=3, points=2, title="Sums in float32, the result in q's dtype")
def test_low_precision(generator):
    q, k, v = (x.bfloat16() for x in _qkv(generator, 6, 200, 4, 2, 64))
    q = 4 * q  # scores of some tens, which bfloat16 holds to 0.1 or 0.2 only
    actual = attention(q, k, v)
    expect.that(
        actual.dtype == torch.bfloat16,
        "the result has q's dtype, bfloat16",
        observed=str(actual.dtype),
        call="attention(q, k, v).dtype, all in bfloat16",
    )
    gap = (actual.float() - _oracle(q, k, v, _mask(6, 200))).abs().max().item()
    expect.that(
        gap < 0.03,
        "no entry is off by 0.03 or more (rounding the result alone costs up to 0.016)",
        observed=round(gap, 3),
        call="largest error of attention(q, k, v) in bfloat16, scores of some tens",
        given={"q": q, "k": k},
        cause="a score that is rounded to bfloat16 is off by up to 0.25, and its weight by 25 %: "
        "compute scores, weights and their sums in float32, and round the result once."
        if gap < 0.5
        else "no rounding is off by so much: look at the cards of the other checks first.",
    )
    q, k, v = (x.bfloat16() for x in _qkv(generator, 40, 60, 4, 2, 16))
    once = _oracle(q, k, v, _mask(40, 60)).bfloat16()
    share = (attention(q, k, v) == once).double().mean().item()
    expect.that(
        share > 0.97,
        "at least 97 % of the entries are bit for bit those that are rounded once, at the end",
        observed=round(share, 2),
        call="share of equal entries of attention(q, k, v) in bfloat16",
        cause="the weights stay in float32 until the values have been summed with them.",
    )
    # 400 * 400 * 2: more than float16 can hold, before the division and as a score
    q, k = torch.full((1, 1, 2), 400.0).half(), torch.full((3, 1, 2), 400.0).half()
    v = torch.tensor([1.0, 2.0, 6.0]).half()[:, None, None].expand(3, 1, 2)
    expect(
        attention(q, k, v).float(),
        torch.full((1, 1, 2), 3.0),
        call="attention(q, k, v) in float16, three equal scores of 226,274",
        cause="float16 ends at 65,504: the product of q and k needs float32, too.",
        rtol=2e-3,
    )


class Operations(TorchDispatchMode):
    """Counts the torch operations that are called while it is active."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.check(task=3, points=1, title="No loop over heads or tokens")
def test_operations(generator):
    for more in ("", ", window=2", ", mask=mask"):
        counts = []
        for tokens, keys, heads, groups in ((3, 5, 4, 2), (24, 40, 32, 16)):
            q, k, v = _qkv(generator, tokens, keys, heads, groups, 8)
            mask = _mask(tokens, keys) if "mask" in more else None
            with Operations() as operations:
                attention(q, k, v, window=2 if "window" in more else None, mask=mask)
            counts.append(operations.count)
        expect.that(
            counts[1] <= counts[0] + 8,
            "24 queries, 40 keys and 32 heads take as many torch operations as 3, 5 and 4",
            observed=counts,
            call=f"torch operations of attention(q, k, v{more}), small and large",
            cause="work on all heads and tokens in one operation: a loop in Python costs time for "
            "every head of every layer of every step.",
        )


def _wrong(case):
    """What expect needs for a random case, or None where the result is right."""
    generator = torch.Generator().manual_seed(case["seed"])
    tokens, keys = case["tokens"], case["keys"]
    heads = case["groups"] * case["share"]
    q, k, v = _qkv(generator, tokens, keys, heads, case["groups"], case["dim"])
    mask = torch.rand(tokens, keys, generator=generator) < 0.5 if case["masked"] else None
    visible = _mask(tokens, keys, case["window"]) if mask is None else mask
    expected = _oracle(q, k, v, visible, case["scale"])
    actual = attention(q, k, v, scale=case["scale"], window=case["window"], mask=mask)
    if actual.shape == expected.shape and torch.allclose(actual, expected, 1e-3, 1e-4):
        return None
    return actual, expected


def _shrunk(case):
    """The same case with every size as small as it can be while the result stays wrong."""
    for name in ("tokens", "keys", "groups", "share", "dim"):
        for size in range(1, case[name]):
            if _wrong({**case, name: size}) is not None:
                case = {**case, name: size}
                break
    return case


@pytest.mark.check(task=3, points=1, title="Random shapes, masks, windows and scales", stress=True)
def test_random(rng):
    for _ in range(25):
        case = {
            "tokens": int(rng.integers(1, 8)),
            "keys": int(rng.integers(1, 10)),
            "groups": int(rng.integers(1, 4)),
            "share": int(rng.integers(1, 4)),
            "dim": int(rng.integers(1, 9)),
            "scale": None if rng.random() < 0.5 else float(rng.uniform(0.1, 2.0)),
            "window": None if rng.random() < 0.5 else int(rng.integers(1, 6)),
            "masked": bool(rng.random() < 0.3),
            "seed": int(rng.integers(1 << 30)),
        }
        if _wrong(case) is not None:
            case = _shrunk(case)
            actual, expected = _wrong(case)
            expect(
                actual,
                expected,
                call="attention(q, k, v, ...), the smallest wrong case found",
                given=case,
                rtol=1e-3,
                atol=1e-4,
            )

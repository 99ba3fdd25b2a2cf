"""Task 5: store K and V by slot mapping."""

import pytest
import torch

from grader import expect
from grader.checks import kernel_calls
from grader.checks.compiled import takes
from grader.checks.guard_regions import ODD, Guard
from nanovllm.kernels.runtime import DEVICE
from nanovllm.kernels.store_kv import store_kv


def stored(k, v, slots, blocks, size):
    """K and V caches [2, B, P, G, D] that were zeros, by plain indexing."""
    caches = torch.zeros(2, blocks * size, *k.shape[1:], dtype=k.dtype)
    for cache, values in zip(caches, (k, v), strict=True):
        for token, slot in enumerate(slots):
            if slot >= 0:
                cache[slot] = values[token]
    return caches.view(2, blocks, size, *k.shape[1:])


def normal(generator, *shape, dtype=torch.float32):
    return torch.randn(2, *shape, generator=generator).to(dtype)


@pytest.mark.check(task=5, points=2, title="A slot is a block and a position in it")
def test_places(generator):
    k, v = normal(generator, 4, 2, 8)
    slots = [7, 0, 10, 5]
    caches = Guard(DEVICE).place(torch.zeros(2, 3, 4, 2, 8), gap=0)
    store_kv(k.to(DEVICE), v.to(DEVICE), *caches, torch.tensor(slots, device=DEVICE))
    expect(
        caches,
        stored(k, v, slots, 3, 4),
        given={"slots": slots, "P": 4},
        call="K and V caches [2, B, P, G, D] after store_kv(k, v, ...)",
        cause="slot = block * P + position",
    )


@pytest.mark.check(task=5, points=2, title="Slot -1 is written nowhere")
def test_skipped(generator):
    k, v = normal(generator, 3, 1, 8)
    guard = Guard(DEVICE)
    caches = [guard.place(torch.zeros(2, 4, 1, 8), poison=ODD) for _ in range(2)]
    slots = [-1, 6, -1]
    mapping = torch.tensor(slots, device=DEVICE)
    k_placed, v_placed = guard.place(k), guard.place(v)
    with guard.watched() as trace:
        store_kv(k_placed, v_placed, *caches, mapping)
    expect(
        torch.stack(caches),
        stored(k, v, slots, 2, 4),
        given={"slots": slots},
        call="K and V caches [2, B, P, G, D] after store_kv(k, v, ...)",
        cause="a token of slot -1 was written to a place of somebody else",
    )
    guard.check("store_kv with slots -1, 6, -1")
    if trace is not None:
        loads = [
            sum(
                len(elements)
                for access, elements in trace.elements(whole(x))
                if not access.is_store
            )
            for x in (k_placed, v_placed)
        ]
        expect(
            loads,
            [8, 8],
            call="numbers of k and of v that store_kv loads",
            given={"slots": slots, "G": 1, "D": 8},
            cause="a token without a place is not read, either",
        )


def whole(view):
    """All elements of the memory that a view belongs to."""
    size = view.untyped_storage().nbytes() // view.element_size()
    return view.as_strided((size,), (1,), 0)


@pytest.mark.check(task=5, points=1, title="From slices of any layout into a cache of any layout")
def test_strides(generator):
    k, v = normal(generator, 3, 2, 6)
    slots = [2, 5, 4]
    want = stored(k, v, slots, 2, 4)
    guard = Guard(DEVICE)
    k, v = guard.place(k, order=(0, 2, 1)), guard.place(v, order=(2, 1, 0))
    zeros = torch.zeros(2, 4, 2, 6)
    k_cache = guard.place(zeros, order=(0, 2, 3, 1), poison=ODD)
    v_cache = guard.place(zeros, order=(1, 2, 3, 0), poison=ODD)
    store_kv(k, v, k_cache, v_cache, torch.tensor(slots, device=DEVICE))
    expect(
        torch.stack([k_cache, v_cache]),
        want,
        given={"slots": slots},
        call="caches stored [B, G, D, P] and [P, G, D, B] after store_kv(k, v, ...)",
        cause="a stride was left out, or one tensor's used for another",
    )


@pytest.mark.check(task=5, points=2, title="Sizes that are no power of 2, every type")
def test_sizes(generator):
    cases = ((3, 48, torch.float32), (1, 80, torch.float16), (5, 96, torch.bfloat16))
    for heads, dim, dtype in cases:
        guard = Guard(DEVICE)
        k, v = normal(generator, 2, heads, dim, dtype=dtype)
        zeros = torch.zeros(2, 3, heads, dim, dtype=dtype)
        caches = [guard.place(zeros, poison=ODD) for _ in range(2)]
        slots = [5, 1]
        mapping = torch.tensor(slots, device=DEVICE)
        with guard.watched():
            store_kv(guard.place(k), guard.place(v), *caches, mapping)
        given = {"G": heads, "D": dim, "dtype": str(dtype), "slots": slots}
        expect(
            torch.stack(caches),
            stored(k, v, slots, 2, 3),
            rtol=0.0,
            atol=0.0,
            given=given,
            call="K and V caches [2, B, P, G, D] after store_kv(k, v, ...)",
            cause="a block reaches beyond a head, or beyond the last head",
        )
        guard.check("store_kv(k, v, ...)", given)


@pytest.mark.check(task=5, points=2, title="Random shapes, layouts and slots", stress=True)
def test_random(generator):
    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    sizes = sorted((draw(1, 6), draw(1, 5), draw(1, 40)) for _ in range(4))
    for tokens, heads, dim in sizes:
        blocks, size = draw(2, 4), draw(1, 7)
        k, v = normal(generator, tokens, heads, dim)
        slots = torch.randperm(blocks * size, generator=generator)[:tokens].tolist()
        slots = [slot if draw(0, 3) else -1 for slot in slots]
        tokens = len(slots)
        k, v = k[:tokens], v[:tokens]
        guard = Guard(DEVICE)
        orders = [torch.randperm(n, generator=generator).tolist() for n in (3, 3, 4, 4)]
        zeros = torch.zeros(blocks, size, heads, dim)
        caches = [guard.place(zeros, order=order, poison=ODD) for order in orders[2:]]
        new = [guard.place(x, order=order) for x, order in zip((k, v), orders, strict=False)]
        mapping = torch.tensor([[slot, 0] for slot in slots]).to(torch.int32).to(DEVICE)[:, 0]
        with guard.watched():
            store_kv(*new, *caches, mapping)
        given = {"slots": slots, "B": blocks, "P": size, "G": heads, "D": dim}
        given["k, v and caches stored in order"] = orders
        expect(
            torch.stack(caches),
            stored(k, v, slots, blocks, size),
            rtol=0.0,
            atol=0.0,
            given=given,
            call="K and V caches [2, B, P, G, D] after store_kv, slots with a stride",
            cause="any strides, of slot_mapping, too",
        )
        guard.check("store_kv(k, v, ...)", given)


@pytest.mark.check(task=5, points=1, title="A GPU's compiler takes it")
def test_compiled():
    takes(kernel_calls.store, "store_kv")

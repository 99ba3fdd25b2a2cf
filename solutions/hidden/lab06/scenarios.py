"""Hidden scenarios of lab 06: other sizes, strides, types and layouts than the visible checks'."""

import torch

from grader.checks.scenarios import scenario


def normal(rng, *shape, dtype=torch.float32):
    return torch.tensor(rng.standard_normal(shape), dtype=torch.float32).to(dtype)


def gaps(values):
    """The same values as a view with room between and behind them, on the kernels' device."""
    from nanovllm.kernels.runtime import DEVICE

    room = torch.full([2 * size + 1 for size in values.shape], 7.0, dtype=values.dtype)
    room = torch.nn.functional.pad(room, [0, 2048], value=7.0).to(DEVICE)
    view = room[tuple(slice(1, 2 * size, 2) for size in values.shape)]
    view.copy_(values)
    return view, room


def changed(room):
    """Where something was written, guards too, and what: the whole room is too much to send."""
    flat = room.cpu().flatten()
    places = (flat != 7.0).nonzero().flatten()
    return [places.to(torch.int32), flat[places]]


def paged(rng, contexts, lengths, heads, kv_heads, dim, block_size, dtype=torch.float32):
    """q, caches, tables, contexts and starts of a ragged batch, on the kernels' device."""
    from nanovllm.kernels.runtime import DEVICE

    widths = [max(1, -(-context // block_size)) for context in contexts]
    order = rng.permutation(sum(widths) + 1)
    tables = torch.zeros(len(contexts), max(widths) + 1, dtype=torch.int32)
    taken = 0
    for row, width in zip(tables, widths, strict=True):
        row[:width] = torch.tensor(order[taken : taken + width])
        taken += width
    shape = (sum(widths) + 1, block_size, kv_heads, dim)
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    tensors = (
        normal(rng, sum(lengths), heads, dim, dtype=dtype),
        normal(rng, *shape, dtype=dtype),
        normal(rng, *shape, dtype=dtype),
        tables,
        torch.tensor(contexts, dtype=torch.int32),
        starts,
    )
    return tuple(tensor.to(DEVICE) for tensor in tensors)


@scenario(task=1)
def vectors_and_rows(nanovllm, rng):
    from nanovllm.kernels.add import add
    from nanovllm.kernels.softmax import softmax

    seen = {}
    for n in (1, 31, 32, int(rng.integers(65, 130))):
        (x, _), (y, _), (out, room) = (gaps(normal(rng, n)) for _ in range(3))
        add(x, y, out, block=32)
        seen[f"add {n}"] = room.cpu()
    for rows, columns in ((1, 1), (3, 13), (2, int(rng.integers(17, 40)))):
        (x, _), (out, room) = (gaps(normal(rng, rows, columns) * 20) for _ in range(2))
        softmax(x, out)
        seen[f"softmax {rows} {columns}"] = room.cpu()
    return seen


@scenario(task=2)
def norms(nanovllm, rng):
    from nanovllm.kernels.rms_norm import fused_add_rms_norm_
    from nanovllm.kernels.runtime import DEVICE

    seen = {}
    for dtype in (torch.float32, torch.float16):
        for tokens, width in ((1, 3), (4, int(rng.integers(17, 63)))):
            x, room = gaps(normal(rng, tokens, width, dtype=dtype) * 100)
            residual, other = gaps(normal(rng, tokens, width, dtype=dtype))
            weight = normal(rng, width, dtype=dtype).to(DEVICE)
            fused_add_rms_norm_(x, residual, weight, 1e-3)
            seen[f"{tokens} {width} {dtype}"] = [room.cpu(), other.cpu()]
    return seen


@scenario(task=3)
def turns(nanovllm, rng):
    from nanovllm.kernels.rope import rope_
    from nanovllm.kernels.runtime import DEVICE

    seen = {}
    for heads, kv_heads, dim in ((7, 1, 10), (2, 2, 36), (5, 3, 64)):
        q, room = gaps(normal(rng, 3, heads, dim))
        k, other = gaps(normal(rng, 3, kv_heads, dim))
        angles = torch.tensor(rng.uniform(-3, 3, size=(3, dim // 2)), dtype=torch.float32)
        rope_(q, k, angles.cos().to(DEVICE), angles.sin().to(DEVICE))
        seen[f"{heads} {kv_heads} {dim}"] = [room.cpu(), other.cpu()]
    return seen


@scenario(task=4)
def gates(nanovllm, rng):
    from nanovllm.kernels.silu import silu_and_mul

    seen = {}
    for width, block in ((5, 16), (70, 32), (int(rng.integers(33, 64)), 8)):
        gate_up, _ = gaps(normal(rng, 2, 2 * width) * 4)
        out, room = gaps(normal(rng, 2, width))
        silu_and_mul(gate_up, out, block=block)
        seen[f"{width} {block}"] = room.cpu()
    return seen


@scenario(task=5)
def stores(nanovllm, rng):
    from nanovllm.kernels.runtime import DEVICE
    from nanovllm.kernels.store_kv import store_kv

    seen = {}
    for kv_heads, dim, size in ((3, 20, 4), (1, 80, 1), (2, 48, 16)):
        slots = rng.permutation(4 * size)[:4]
        slots[int(rng.integers(4))] = -1
        k, v = (gaps(normal(rng, 4, kv_heads, dim))[0] for _ in range(2))
        (k_cache, room), (v_cache, other) = (
            gaps(torch.zeros(4, size, kv_heads, dim)) for _ in range(2)
        )
        store_kv(k, v, k_cache, v_cache, torch.tensor(slots).to(DEVICE))
        seen[f"{kv_heads} {dim} {size}"] = [changed(room), changed(other)]
    return seen


@scenario(task=6)
def decodes(nanovllm, rng):
    from nanovllm.kernels.paged_decode import paged_decode

    seen = {}
    for heads, kv_heads, dim, size, window in ((7, 1, 20, 2, None), (8, 4, 40, 16, 7)):
        contexts = [1, size, size + 1, 0, int(rng.integers(33, 50))]
        q, k, v, tables, lens, _ = paged(rng, contexts, [1] * 5, heads, kv_heads, dim, size)
        seen[f"{heads} {size}"] = paged_decode(q, k, v, tables, lens, window=window, tile=16).cpu()
    return seen


@scenario(task=7)
def splits(nanovllm, rng):
    from nanovllm.kernels.split_decode import choose_splits, split_decode

    seen = {"choices": [choose_splits(n, 84, int(rng.integers(1, 9000)), 32) for n in (1, 8, 90)]}
    contexts = [2, 0, int(rng.integers(50, 80)), 16]
    q, k, v, tables, lens, _ = paged(rng, contexts, [1] * 4, 6, 2, 24, 8)
    for count, window in ((1, None), (4, None), (3, 30)):
        out = split_decode(q, k, v, tables, lens, count, window=window, tile=16)
        seen[f"{count} {window}"] = out.cpu()
    return seen


@scenario(task=8)
def prefills(nanovllm, rng):
    from nanovllm.kernels.paged_prefill import paged_prefill

    seen = {}
    for heads, kv_heads, dim, size, window in ((3, 1, 20, 2, None), (4, 2, 40, 16, 6)):
        lengths = [1, 0, int(rng.integers(17, 30)), 4]
        contexts = [6, 0, lengths[2] + int(rng.integers(0, 9)), 4]
        q, k, v, tables, lens, starts = paged(rng, contexts, lengths, heads, kv_heads, dim, size)
        seen[f"{heads} {size}"] = paged_prefill(
            q, k, v, tables, lens, starts, max(lengths), window=window, rows=16, tile=16
        ).cpu()
    return seen

"""Hidden scenarios of lab 06: histories and combinations that no visible check goes through."""

import torch

from grader.checks.guard_regions import Guard, dirty_memory
from grader.checks.kernel_plans import launched
from grader.checks.scenarios import scenario


def normal(rng, *shape, dtype=torch.float32):
    return torch.tensor(rng.standard_normal(shape), dtype=torch.float32).to(dtype)


def gaps(values, order=None, fill=7.0):
    """The same values as a view with room between and behind them, on the kernels' device.

    order: the dimensions as they lie in memory.
    """
    from nanovllm.kernels.runtime import DEVICE

    order = range(values.dim()) if order is None else order
    values = values.permute(*order)
    room = torch.full([2 * size + 1 for size in values.shape], fill, dtype=values.dtype)
    room = torch.nn.functional.pad(room, [0, 2048], value=fill).to(DEVICE)
    view = room[tuple(slice(1, 2 * size, 2) for size in values.shape)]
    view.copy_(values)
    return view.permute([list(order).index(dim) for dim in range(values.dim())]), room


def changed(room):
    """Where something was written, guards too, and what: the whole room is too much to send."""
    flat = room.cpu().flatten().float()
    places = (flat != 7.0).nonzero().flatten()
    return [places.to(torch.int32), flat[places]]


def stored_twice(trace):
    """Elements that two programs of one launch store; None: compiled kernels are not watched."""
    if trace is None:
        return None
    owners, twice = {}, set()
    for access in trace.accesses:
        for address in access.addresses.tolist() if access.is_store else ():
            place = access.launch, address
            if owners.setdefault(place, access.program) != access.program:
                twice.add(place)
    return len(twice)


def touched(trace, tensor, stored):
    """Of each program that stores to (or loads from) a contiguous tensor: which elements."""
    found = {}
    for access, elements in trace.elements(tensor) if trace is not None else ():
        if access.is_store == stored:
            found.setdefault((access.launch, access.program), set()).update(elements.tolist())
    return found


def loaded(trace, *caches):
    """How many elements of contiguous caches are loaded."""
    return trace and [
        sum(len(elements) for access, elements in trace.elements(cache) if not access.is_store)
        for cache in caches
    ]


def unused_entries(trace, tables, lens, size):
    """How many entries behind the contexts are read of contiguous block tables."""
    if trace is None:
        return None
    read = {int(n) for _, elements in trace.elements(tables) for n in elements}
    width = tables.shape[1]
    return sum(n % width * size >= lens[n // width] for n in read)


def idle_readers(trace, *tensors):
    """How many programs load of contiguous tensors, but store nothing."""
    if trace is None:
        return None
    readers = {program for tensor in tensors for program in touched(trace, tensor, stored=False)}
    stores = [access for access in trace.accesses if access.is_store and len(access.addresses)]
    return len(readers - {(access.launch, access.program) for access in stores})


class Cache:
    """Sequences that grow in blocks taken at random; some begin with the blocks of another."""

    def __init__(self, rng, lengths, kv_heads, dim, size, dtype=torch.float32, shared=0):
        from nanovllm.kernels.runtime import DEVICE

        self.size, self.device = size, DEVICE
        widths = [-(-length // size) for length in lengths]
        order = rng.permutation(sum(widths) + 2).tolist()
        self.tables = torch.zeros(len(lengths), max(widths) + 1, dtype=torch.int64)
        for row, width in zip(self.tables, widths, strict=True):
            row[:width] = torch.tensor([order.pop() for _ in range(width)], dtype=torch.int64)
        self.tables[1:, :shared] = self.tables[0, :shared]
        shape = (sum(widths) + 2, size, kv_heads, dim)
        # Positions that nobody has written yet hold NaN.
        self.k, self.v = (torch.full(shape, torch.nan).to(dtype).to(DEVICE) for _ in range(2))

    def write(self, rng, sequence, start, end):
        """New keys and values for positions start .. end - 1."""
        places = torch.arange(start, end)
        blocks = self.tables[sequence, places // self.size]
        for cache in (self.k, self.v):
            cache[blocks, places % self.size] = normal(rng, len(places), *cache.shape[2:]).to(cache)

    def given(self, lens):
        tables = self.tables.to(torch.int32).to(self.device)
        return self.k, self.v, tables, torch.tensor(lens, dtype=torch.int32, device=self.device)


@scenario(task=1)
def kernels_of_the_warmup(nanovllm, rng):
    """The kernels by themselves, in an ordinary case: what is computed in torch comes to nothing.

    Without it a task has no points (`grading/report.py`), so any kernel that works passes here.
    """
    x, y = normal(rng, int(rng.integers(40, 90))), normal(rng, 3, int(rng.integers(5, 40)))
    return {
        "add": launched("kernels.add:add", x, x.flip(0)),
        "softmax": launched("kernels.softmax:softmax", y),
    }


@scenario(task=1)
def in_place_and_repeated(nanovllm, rng):
    """The result over one of the operands; one number or one row repeated by a stride of 0."""
    from nanovllm.kernels.add import add
    from nanovllm.kernels.softmax import softmax

    seen = {}
    for n in (1, 33, int(rng.integers(65, 130))):
        (x, room), (y, _) = (gaps(normal(rng, n)) for _ in range(2))
        add(x, y, x, block=32)
        add(x, y[:1].expand(n), x, block=64)
        seen[f"add {n}"] = changed(room)
    for rows, columns in ((1, 1), (3, 13), (2, int(rng.integers(17, 40)))):
        x, room = gaps(normal(rng, rows, columns) * 20 + 300)
        softmax(x, x)
        seen[f"softmax {rows} {columns}"] = changed(room)
        out, room = gaps(torch.zeros(3, columns))
        softmax(x[:1].expand(3, columns), out)
        seen[f"row three times {columns}"] = changed(room)
        new = softmax(x.half())
        seen[f"new {columns}"] = [new.cpu(), str(new.dtype)]
        out, room = gaps(torch.zeros(rows, columns))
        softmax(gaps(normal(rng, rows, columns, dtype=torch.bfloat16))[0], out)
        seen[f"of half {columns}"] = changed(room)
    return seen


@scenario(task=2)
def kernels_of_the_norm(nanovllm, rng):
    """The kernel by itself."""
    tokens, width = int(rng.integers(2, 5)), int(rng.integers(17, 63))
    x, residual, weight = (normal(rng, *size) for size in [(tokens, width)] * 2 + [(width,)])
    return {"norm": launched("kernels.rms_norm:fused_add_rms_norm_", x, residual, weight, 1e-3)}


@scenario(task=2)
def a_residual_stream(nanovllm, rng):
    """Some layers one after another; x, the residual, or both in half precision."""
    from nanovllm.kernels.rms_norm import fused_add_rms_norm_

    seen = {}
    half, single, brain = torch.float16, torch.float32, torch.bfloat16
    for x_type, residual_type, weight_type in (
        (half, single, single),
        (half, half, single),
        (single, half, single),
        (single, single, brain),
    ):
        tokens, width = int(rng.integers(1, 5)), int(rng.integers(17, 63))
        residual, room = gaps(normal(rng, tokens, width, dtype=residual_type))
        for layer in range(3):
            values = normal(rng, tokens, width, dtype=x_type) * 100
            x, other = gaps(values, (1, 0), 5.0)
            weight = normal(rng, width, dtype=weight_type).to(x.device)
            fused_add_rms_norm_(x, residual, weight, 1e-3)
            seen[f"{x_type} {residual_type} {layer}"] = x.cpu().clone()
            seen[f"{x_type} {residual_type} {layer} beside"] = int((other.float() == 5.0).sum())
        seen[f"{x_type} {residual_type}"] = changed(room)
    return seen


@scenario(task=3)
def kernels_of_rope(nanovllm, rng):
    """The kernel by itself."""
    q, k = normal(rng, 3, int(rng.integers(2, 6)), 16), normal(rng, 3, 2, 16)
    angles = torch.tensor(rng.uniform(-3, 3, size=(3, 8)), dtype=torch.float32)
    return {"rope": launched("kernels.rope:rope_", q, k, angles.cos(), angles.sin())}


@scenario(task=3)
def there_and_back(nanovllm, rng):
    """Turned forwards in one step and backwards in the next, by slices of a table of angles."""
    from nanovllm.kernels.rope import rope_

    seen = {}
    for heads, kv_heads, dim in ((7, 1, 10), (2, 3, 36)):
        fused, room = gaps(normal(rng, 3, heads + 2 * kv_heads, dim))
        q, k = fused[:, :heads], fused[:, heads : heads + kv_heads]
        angles = torch.tensor(rng.uniform(-3, 3, size=(3, dim)), dtype=torch.float32)
        cos, sin = angles.cos().to(q.device), angles.sin().to(q.device)
        rope_(q, k, cos[:, : dim // 2], sin[:, : dim // 2])
        seen[f"{heads} forwards"] = changed(room)
        rope_(q, k, cos[:, 1::2], -sin[:, 1::2])
        seen[f"{heads} backwards"] = changed(room)
    return seen


@scenario(task=4)
def kernels_of_the_gate(nanovllm, rng):
    """The kernel by itself."""
    return {
        "silu": launched("kernels.silu:silu_and_mul", normal(rng, 2, 2 * int(rng.integers(20, 90))))
    }


@scenario(task=4)
def gates(nanovllm, rng):
    """A slice of a wider tensor, the default block, results of another type and new ones."""
    from nanovllm.kernels.runtime import DEVICE
    from nanovllm.kernels.silu import silu_and_mul

    seen = {}
    for width in (1, 70, int(rng.integers(1025, 1400))):
        wide = (normal(rng, 2, 2 * width + 3) * 4).to(DEVICE)
        seen[f"{width}"] = silu_and_mul(wide[:, 2:-1]).cpu()
        apart, _ = gaps(normal(rng, 2, 2 * width), fill=5.0)
        seen[f"{width} apart"] = silu_and_mul(apart).cpu()
        new = silu_and_mul(wide[:, 2:-1].half())
        seen[f"{width} new of half"] = [new.cpu(), str(new.dtype)]
        out, room = gaps(torch.zeros(2, width))
        silu_and_mul(wide[:, 2:-1].half(), out, block=2 ** int(rng.integers(5, 9)))
        seen[f"{width} of half"] = changed(room)
    return seen


@scenario(task=5)
def kernels_of_the_store(nanovllm, rng):
    """The kernel by itself."""
    caches, rows = torch.zeros(2, 4, 4, 2, 16), normal(rng, 2, 4, 2, 16)
    slots = torch.tensor(rng.permutation(16)[:4].astype("int32"))
    return {
        "store": launched("kernels.store_kv:store_kv", *map(torch.clone, (*rows, *caches)), slots)
    }


@scenario(task=5)
def steps_of_a_cache(nanovllm, rng):
    """Several steps into one cache: later tokens over earlier ones, steps of padding alone."""
    from nanovllm.kernels.runtime import DEVICE
    from nanovllm.kernels.store_kv import store_kv

    seen = {}
    for kv_heads, dim, size in ((3, 20, 4), (1, 40, 1)):
        (k_cache, room), (v_cache, other) = (
            gaps(torch.zeros(4, size, kv_heads, dim), order)
            for order in ((0, 1, 2, 3), (2, 0, 1, 3))
        )
        for step in range(3):
            tokens = min(4 * size, int(rng.integers(2, 6)))
            slots = rng.permutation(4 * size)[:tokens].astype("int32")
            slots[rng.random(tokens) < (1.0 if step == 1 else 0.3)] = -1
            k, _ = gaps(normal(rng, tokens, kv_heads, dim), fill=5.0)
            v, _ = gaps(normal(rng, tokens, kv_heads, dim), (2, 0, 1), fill=5.0)
            between = (slots + 1) % (4 * size)  # beside each slot, and not to be used
            mapping = torch.tensor([*zip(slots.tolist(), between.tolist(), strict=True)])
            store_kv(k, v, k_cache, v_cache, mapping.to(torch.int32).to(DEVICE)[:, 0])
        seen[f"{kv_heads} {dim} {size}"] = [changed(room), changed(other)]
    return seen


def filled(rng, lens):
    """A cache that holds these sequences, as the kernels are given it; nothing in it is NaN."""
    cache = Cache(rng, lens, 2, 16, 16)
    cache.device = "cpu"
    for sequence, length in enumerate(lens):
        cache.write(rng, sequence, 0, length)
    k_cache, v_cache, *rest = cache.given(lens)
    return k_cache.nan_to_num(7.0), v_cache.nan_to_num(7.0), *rest


@scenario(task=6)
def kernels_of_decode(nanovllm, rng):
    """The kernels by themselves."""
    given = filled(rng, [int(rng.integers(20, 90)), int(rng.integers(1, 20))])
    return {"decode": launched("kernels.paged_decode:paged_decode", normal(rng, 2, 4, 16), *given)}


@scenario(task=6)
def growing_contexts(nanovllm, rng):
    """Two sequences behind a shared prefix, token by token; blocks not yet written hold NaN."""
    from nanovllm.kernels.paged_decode import paged_decode

    seen = {}
    for heads, kv_heads, dim, size, window in ((7, 1, 20, 4, None), (6, 2, 40, 16, 9)):
        lens = [2 * size + int(rng.integers(0, 30)), 2 * size]
        cache = Cache(rng, [n + 4 for n in lens], kv_heads, dim, size, shared=2)
        cache.write(rng, 0, 0, lens[0])
        for step in range(3):
            lens = [n + 1 for n in lens]
            for sequence, length in enumerate(lens):
                cache.write(rng, sequence, length - 1, length)
            q = (4 * normal(rng, 2, heads, dim)).to(cache.device)
            out = paged_decode(q, *cache.given(lens), window=window)
            seen[f"{heads} {step}"] = out.cpu()
            apart = q.permute(2, 0, 1).contiguous().permute(1, 2, 0)
            k_cache, v_cache, tables, contexts = cache.given(lens)
            tables, contexts = tables.long(), contexts.long()
            out = paged_decode(apart, k_cache, v_cache, tables, contexts, 0.3, 1 + 8 * step)
            seen[f"{heads} {step} new"] = [out.cpu(), out.is_contiguous()]
    return seen


@scenario(task=6)
def long_contexts(nanovllm, rng):
    """Sharp scores over several tiles, few keys beside them, and none; any layout."""
    from nanovllm.kernels.paged_decode import paged_decode

    seen = {}
    for window in (None, int(rng.integers(70, 140))):
        lens = [int(rng.integers(150, 280)), 0, int(rng.integers(1, 60)), 129]
        cache = Cache(rng, lens, 2, 20, 16)
        for sequence, length in enumerate(lens):
            cache.write(rng, sequence, 0, length)
        q, _ = gaps(3 * normal(rng, 4, 6, 20), (2, 0, 1), fill=5.0)
        out, room = gaps(torch.full((4, 6, 20), 9.0), (1, 2, 0))
        given = cache.given(lens)
        with Guard(cache.device).watched() as trace:
            paged_decode(q, *given, window=window, out=out)
        seen[f"{window}"] = [changed(room), stored_twice(trace)]
        unused = unused_entries(trace, given[2], lens, 16)
        seen[f"{window} read"] = [loaded(trace, *given[:2]), unused]
    return seen


@scenario(task=6)
def wide_heads_and_large_groups(nanovllm, rng):
    """More query heads to a key head than 16, and more dims than 128."""
    from nanovllm.kernels.paged_decode import paged_decode

    seen = {}
    for kv_heads, group, dim in (
        (1, int(rng.integers(17, 40)), int(rng.integers(20, 60))),
        (2, 2, int(rng.integers(129, 200))),
    ):
        lens = [int(rng.integers(2, 40)), int(rng.integers(2, 40))]
        cache = Cache(rng, lens, kv_heads, dim, 4)
        for sequence, length in enumerate(lens):
            cache.write(rng, sequence, 0, length)
        q, given = normal(rng, 2, kv_heads * group, dim).to(cache.device), cache.given(lens)
        with Guard(cache.device).watched() as trace:
            out = paged_decode(q, *given)
        seen[f"{kv_heads}"] = [out.cpu(), loaded(trace, *given[:2])]
    return seen


@scenario(task=6)
def scores_and_sums_of_half(nanovllm, rng):
    """Scores of hundreds that differ by little; equal weights, whose sum of values is large."""
    from nanovllm.kernels.paged_decode import paged_decode

    seen = {}
    for dtype in (torch.float16, torch.bfloat16):
        lens = [int(rng.integers(20, 60)), int(rng.integers(300, 400))]
        cache = Cache(rng, lens, 1, 16, 16, dtype)
        for sequence, length in enumerate(lens):
            cache.write(rng, sequence, 0, length)
        cache.k += 100
        q = torch.ones(2, 3, 16, dtype=dtype, device=cache.device)
        seen[f"{dtype} scores"] = paged_decode(q, *cache.given(lens)).cpu()
        cache.k.zero_()
        values = torch.tensor(rng.integers(8, 24, size=cache.v.shape)) / 8
        cache.v.copy_(values)
        out = torch.empty(2, 3, 16, device=cache.device)
        seen[f"{dtype} sums"] = paged_decode(q, *cache.given(lens), out=out).cpu()
    return seen


@scenario(task=7)
def kernels_of_split_decode(nanovllm, rng):
    """The kernels by themselves: what they leave for each other is their own."""
    given = filled(rng, [int(rng.integers(90, 180)), int(rng.integers(1, 20))])
    return {
        "split": launched("kernels.split_decode:split_decode", normal(rng, 2, 4, 16), *given, 2)
    }


@scenario(task=7)
def splits(nanovllm, rng):
    """One batch by many numbers of splits; sharp scores, so that parts differ in weight."""
    from nanovllm.kernels.split_decode import choose_splits, split_decode

    few, many = rng.integers(1, 2500, size=3).tolist(), rng.integers(1, 9000, size=3).tolist()
    asked = [*((1, length) for length in few), *zip((1, 8, 90), many, strict=True)]
    chosen = [choose_splits(n, 84, length, 32) for n, length in asked]
    seen = {"choices": [int(number) for number in chosen]}
    for dtype, window in ((torch.float32, None), (torch.float16, int(rng.integers(30, 90)))):
        lens = [2, 0, int(rng.integers(190, 240))]
        cache = Cache(rng, lens, 2, 24, 8, dtype)
        for sequence, length in enumerate(lens):
            cache.write(rng, sequence, 0, length)
        q = (6 * normal(rng, 3, 4, 24, dtype=dtype)).to(cache.device)
        for count in (1, 5):
            out, room = gaps(torch.zeros(3, 4, 24, dtype=dtype))
            with Guard(cache.device).watched() as trace, dirty_memory():
                split_decode(q, *cache.given(lens), count, window=window, out=out)
            seen[f"{dtype} {count}"] = changed(room) if dtype == torch.float32 else out.cpu()
            seen[f"{dtype} {count} twice"] = stored_twice(trace)
        apart = q.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        new = split_decode(apart, *cache.given(lens), 9, scale=0.3, window=window)
        seen[f"{dtype} new"] = [new.cpu(), new.is_contiguous()]
    return seen


@scenario(task=7)
def a_long_context_for_many(nanovllm, rng):
    """What one program reads at most, whatever the window."""
    from nanovllm.kernels.split_decode import split_decode

    seen, length = {}, int(rng.integers(300, 380))
    cache = Cache(rng, [length], 1, 16, 32)
    cache.write(rng, 0, 0, length)
    for count, window in ((3, None), (4, 270)):
        q = normal(rng, 1, 2, 16).to(cache.device)
        with Guard(cache.device).watched() as trace, dirty_memory():
            out = split_decode(q, *cache.given([length]), count, window=window)
        most = -(-min(length, window or length) // count)
        loads = touched(trace, cache.k, stored=False).values()
        few = [len(elements) // 16 <= -(-most // 128) * 128 for elements in loads]
        seen[f"{count}"] = [out.cpu(), all(few), stored_twice(trace)]
    return seen


@scenario(task=7)
def many_parts(nanovllm, rng):
    """More parts than 16, each with keys where a part has as few as it may."""
    from nanovllm.kernels.split_decode import split_decode

    seen = {}
    for count in (17, int(rng.integers(18, 40))):
        length = 64 * count - int(rng.integers(63))
        cache = Cache(rng, [length], 1, 16, 32)
        cache.write(rng, 0, 0, length)
        q = normal(rng, 1, 2, 16).to(cache.device)
        with dirty_memory():
            seen[f"{count}"] = split_decode(q, *cache.given([length]), count).cpu()
    return seen


@scenario(task=8)
def kernels_of_prefill(nanovllm, rng):
    """The kernels by themselves."""
    chunks = [int(rng.integers(1, 20)), int(rng.integers(20, 40))]
    starts = torch.tensor([0, *chunks]).cumsum(0).to(torch.int32)
    given = *filled(rng, [chunks[0] + 30, chunks[1]]), starts, max(chunks)
    q = normal(rng, sum(chunks), 4, 16)
    return {"prefill": launched("kernels.paged_prefill:paged_prefill", q, *given)}


@scenario(task=8)
def a_long_prompt(nanovllm, rng):
    """Which keys a program reads: none far behind its last query, or before the first's window."""
    from nanovllm.kernels.paged_prefill import paged_prefill

    seen, length = {}, int(rng.integers(290, 350))
    cache = Cache(rng, [length], 1, 16, 32)
    cache.write(rng, 0, 0, length)
    where = {block: i for i, block in enumerate(cache.tables[0, : -(-length // 32)].tolist())}
    for window in (None, 5):
        q = normal(rng, length, 1, 16).to(cache.device)
        starts = torch.tensor([0, length], dtype=torch.int32, device=cache.device)
        out = torch.empty_like(q)
        more = length + int(rng.integers(70, 200))  # some programs have no query
        with Guard(cache.device).watched() as trace:
            paged_prefill(q, *cache.given([length]), starts, more, window=window, out=out)
        loads, near = touched(trace, cache.k, stored=False), []
        for program, elements in touched(trace, out, stored=True).items():
            rows = {element // 16 for element in elements}
            keys = {where[n // 512] * 32 + n // 16 % 32 for n in loads.get(program, ())}
            first = max(0, min(rows) - (window or length) + 1)
            near.append(all(first - 128 < key < max(rows) + 128 for key in keys))
        seen[f"{window}"] = [out.cpu(), all(near), stored_twice(trace)]
        seen[f"{window} idle"] = idle_readers(trace, q, cache.k, cache.v)
    return seen


@scenario(task=8)
def scores_of_hundreds(nanovllm, rng):
    """All alike, so that nothing is rounded: the mean of the values, though exp overflows."""
    from nanovllm.kernels.paged_prefill import paged_prefill

    seen = {}
    for size in (10.0, -10.0):
        lens = [int(rng.integers(20, 150)), int(rng.integers(20, 150))]
        cache = Cache(rng, lens, 1, 16, 16)
        for sequence, length in enumerate(lens):
            cache.write(rng, sequence, 0, length)
        cache.k[~cache.k.isnan()] = size
        chunks = [int(rng.integers(1, 20)) for _ in lens]
        starts = torch.tensor([0, *chunks]).cumsum(0).to(torch.int32).to(cache.device)
        q = torch.full((sum(chunks), 2, 16), 10.0, device=cache.device)
        seen[f"{size}"] = paged_prefill(q, *cache.given(lens), starts, max(chunks)).cpu()
    return seen


@scenario(task=8)
def prompts_in_chunks(nanovllm, rng):
    """Prompts that are computed chunk by chunk beside a decode; the future holds NaN."""
    from nanovllm.kernels.paged_prefill import paged_prefill

    seen = {}
    for heads, kv_heads, dim, size, window in ((3, 1, 20, 8, None), (4, 2, 40, 16, 21)):
        totals = [int(rng.integers(40, 90)), int(rng.integers(5, 30)), 24, 0]
        cache = Cache(rng, totals, kv_heads, dim, size)
        done = [0, 0, 20, 0]
        cache.write(rng, 2, 0, 20)
        step = 0
        while done != totals:
            chunks = [
                min(total - n, int(rng.integers(0, 41)))
                for n, total in zip(done, totals, strict=True)
            ]
            chunks[2] = min(1, totals[2] - done[2])
            if not sum(chunks):
                continue
            for sequence, length in enumerate(chunks):
                cache.write(rng, sequence, done[sequence], done[sequence] + length)
            done = [n + length for n, length in zip(done, chunks, strict=True)]
            starts = torch.tensor([0, *chunks]).cumsum(0).to(torch.int32).to(cache.device)
            q = normal(rng, sum(chunks), heads, dim).to(cache.device)
            apart = q.permute(1, 2, 0).contiguous().permute(2, 0, 1)
            out = paged_prefill(apart, *cache.given(done), starts, max(chunks), None, window)
            seen[f"{heads} {step}"] = [out.cpu(), out.is_contiguous()]
            if step % 2 == 0:
                out = torch.empty(q.shape, dtype=torch.float16, device=cache.device)
                more = max(chunks) + int(rng.integers(0, 70))
                paged_prefill(q, *cache.given(done), starts, more, scale=0.6, out=out)
                seen[f"{heads} {step} of another type"] = out.cpu()
            step += 1
    return seen

"""Task 8: quantized KV cache."""

import gc
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.llm.read_options import BUNDLED
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model, load_model
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.batch import make_batch
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.cache import PagedCache
from nanovllm.paging.store import attend_to_blocks
from nanovllm.quantization.errors import QuantizationError
from nanovllm.quantization.held_out import held_out_rows
from nanovllm.quantization.kv_cache import QuantizedCache
from nanovllm.quantization.kv_store import QuantizedStore, attend_to_codes

KINDS = ("int8", "int4", "fp8")
WIDTH = "a row is what one token has in one key head of one layer, K or V"


def shape(layers=2, kv_heads=2, head_dim=8):
    return ModelConfig(
        "qwen3", 50, 32, layers, 2 * kv_heads, kv_heads, head_dim, 48, 64, qk_norm=True
    )


CONFIG = shape()


def random_kv(generator, tokens, config=CONFIG, scale=1.0):
    size = (2, tokens, config.num_kv_heads, config.head_dim)
    return scale * torch.randn(size, generator=generator)


def rows_at(cache, layer, slots):
    """What `read` gives for these slots: [2, T, G, D]."""
    blocks = torch.arange(cache.num_blocks)
    k, v = cache.read(layer, blocks)
    return torch.stack([k.flatten(0, 1)[slots], v.flatten(0, 1)[slots]])


def bound(kind, x):
    """The most that each value of these rows may be off."""
    largest = x.abs().amax(-1, keepdim=True)
    if kind == "int8":
        return (0.51 * largest / 127).expand_as(x)
    if kind == "int4":
        reach = x.amax(-1, keepdim=True).clamp(min=0) - x.amin(-1, keepdim=True).clamp(max=0)
        return (0.55 * reach / 15).expand_as(x)
    return x.abs() / 15 + largest / 400_000


def judge(kind, given, read, what, cause=""):
    """End the check unless each value is within its bound."""
    off = (read - given).abs()
    worst = (off / bound(kind, given).clamp(min=1e-30)).nan_to_num(nan=torch.inf)
    at = int(worst.flatten().argmax())
    row = at // given.shape[-1]
    expect.that(
        bool((off <= bound(kind, given)).all()),
        f"no value of a row in {kind} is off by more than the handout allows",
        observed={
            "written": given.flatten()[at].item(),
            "read": read.flatten()[at].item(),
            "allowed": bound(kind, given).flatten()[at].item(),
        },
        call=what,
        given={"its row": given.flatten(0, -2)[row]},
        cause=cause,
    )


def tensors_of(thing):
    """Bytes of all tensors and arrays that can be reached from here, each piece of memory once."""
    seen, todo, pieces = {id(thing)}, [thing], []
    while todo:
        for other in gc.get_referents(todo.pop()):
            if id(other) in seen or isinstance(other, (type, ModuleType, FunctionType)):
                continue
            seen.add(id(other))
            if isinstance(other, torch.Tensor):
                storage = other.untyped_storage()
                pieces.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
            elif isinstance(other, np.ndarray):
                while isinstance(other.base, np.ndarray):
                    other = other.base
                pieces.append((other.ctypes.data, other.ctypes.data + other.nbytes))
            else:
                todo.append(other)
    total = counted = 0  # bytes, and up to which address
    for start, end in sorted(pieces):
        total += max(0, end - max(start, counted))
        counted = max(end, counted)
    return total


@pytest.mark.check(task=8, points=3, title="Bytes a token, scales and all")
def test_bytes():
    for config, sizes in (
        (shape(4, 4, 32), (1152, 640, 1152)),
        (shape(1, 1, 128), (264, 136, 264)),
        (shape(3, 2, 9), (156, 108, 156)),
    ):
        given = {"layers": config.num_layers, "key heads": config.num_kv_heads,
                 "head_dim": config.head_dim}  # fmt: skip
        for kind, most in zip(KINDS, sizes, strict=True):
            told = QuantizedCache.bytes_per_token(config, kind)
            expect.that(
                0 < told <= most,
                f"a token takes at most {most} bytes",
                observed=told,
                call=f"QuantizedCache.bytes_per_token(config, {kind!r})",
                given=given,
                cause="K and V, all layers and heads; two codes of 4 bits a byte; four bytes a row "
                "for what else you need",
            )
            cache = QuantizedCache(config, 50, 4, kind=kind)
            expect(
                [cache.num_blocks, cache.block_size, cache.nbytes / told, cache.device],
                [50, 4, 200, torch.device("cpu")],
                call="num_blocks, block_size, nbytes over bytes_per_token, and device of "
                f"QuantizedCache(config, 50, 4, kind={kind!r})",
                given=given,
            )
            held = tensors_of(cache)
            expect.that(
                held <= cache.nbytes + 4096,
                f"it holds {cache.nbytes} bytes in tensors, and 4,096 more at most",
                observed=held,
                call=f"bytes of the tensors that QuantizedCache(config, 50, 4, kind={kind!r}) "
                "holds",
                given=given,
                cause="what is stored is what is told",
            )
    for action in (
        lambda: QuantizedCache.bytes_per_token(CONFIG, "int2"),
        lambda: QuantizedCache(CONFIG, 2, kind="int2"),
    ):
        expect.raises(QuantizationError, action, call='kind="int2"')


def check_bounds(kind, generator, causes):
    for config in (CONFIG, shape(1, 3, 32), shape(1, 1, 5)):
        cache = QuantizedCache(config, 6, 4, kind=kind)
        slots = torch.randperm(24, generator=generator)[:20]
        size = 10 ** torch.empty(2, 20, config.num_kv_heads, 1).uniform_(-5, 5, generator=generator)
        plain = random_kv(generator, 20, config)
        for name, x in (
            ("of one size", plain),
            ("of sizes from 1e-5 to 1e5, a token and head each", plain * size),
            ("all above 0", plain.abs() * size),
            ("all below 0", -plain.abs() * size),
            ("with one large value each", torch.where(plain == plain.amax(-1, True), 50, plain)),
        ):
            cache.write(0, *x, slots)
            judge(
                kind,
                x,
                rows_at(cache, 0, slots),
                f"write, then read, of 20 tokens in {config.num_kv_heads} heads of "
                f"{config.head_dim}, rows {name}",
                causes,
            )

    config = shape(1, 1, 7)
    cache, x = QuantizedCache(config, 1, 1, kind=kind), random_kv(generator, 1, config)
    cache.write(0, *x, torch.tensor([0]))
    what = "write, then read, of one token in one head of 7, in one block of one place"
    judge(kind, x, rows_at(cache, 0, torch.tensor([0])), what, causes)


@pytest.mark.check(task=8, points=3, title="Int8: half a step, row by row")
def test_int8(generator):
    check_bounds("int8", generator, "a step is 1/127 of the row's own largest value")


@pytest.mark.check(task=8, points=4, title="Int4: half a step, from the row's own range")
def test_int4(generator):
    check_bounds(
        "int4",
        generator,
        "a step is 1/15 of the row's own range, from its least value (or 0) to its greatest (or 0)",
    )


@pytest.mark.check(task=8, points=2, title="Fp8: a share of each value")
def test_fp8(generator):
    check_bounds("fp8", generator, "e4m3 has 3 bits behind the point; its largest value is 448")


@pytest.mark.check(task=8, points=2, title="Into its slot, and nowhere else")
def test_slots(generator):
    for kind in KINDS:
        cache = QuantizedCache(CONFIG, 4, 4, kind=kind)
        for layer in (0, 1):  # no slot is unused: what such a one reads is open
            cache.write(layer, *random_kv(generator, 16), torch.arange(16))
        others = torch.tensor([1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 15])
        first = [rows_at(cache, layer, others) for layer in (0, 1)]
        wide = torch.randn(2, 2, 6, 16, generator=generator)  # [2, G, T, 2 * D]
        k, v = wide[..., ::2].transpose(1, 2)
        slots = torch.tensor([9, -1, 4, 14, -1, 0])
        before = wide.clone()
        for layer in (0, 1):
            cache.write(layer, k * (layer + 1), v * (layer + 1), slots)
        expect(wide, before, call=f"k and v after write, {kind}", cause="they are the caller's")
        kept = slots >= 0
        for layer in (0, 1):
            judge(
                kind,
                torch.stack([k[kept], v[kept]]) * (layer + 1),
                rows_at(cache, layer, slots[kept]),
                f"write of tokens to the slots 9, -1, 4, 14, -1, 0 of layer {layer}; k and v are "
                "views that are not contiguous",
                "slot s is place s % 4 of block s // 4",
            )
            expect(
                rows_at(cache, layer, others),
                first[layer],
                call=f"the other slots of layer {layer}, {kind}; expected: what they read before",
                cause="slot -1 is written nowhere, not into the last slot",
                rtol=0,
                atol=0,
            )
        whole = cache.read(1, torch.arange(4))
        some = cache.read(1, torch.tensor([3, 0, 3], dtype=torch.int32))
        expect(
            [some[0], some[1]],
            [x[[3, 0, 3]] for x in whole],
            call=f"read(1, [3, 0, 3]), {kind}; expected: those blocks of read(1, [0, 1, 2, 3])",
        )


@pytest.mark.check(task=8, points=2, title="In the model's dtype")
def test_dtype(generator):
    for kind in KINDS:
        for dtype in (torch.bfloat16, torch.float16):
            x = random_kv(generator, 7).to(dtype)
            slots = torch.arange(7)
            caches = [QuantizedCache(CONFIG, 2, 4, given, kind=kind)
                      for given in (dtype, torch.float32)]  # fmt: skip
            for cache in caches:
                cache.write(0, *x, slots)
            half, full = (rows_at(cache, 0, slots) for cache in caches)
            expect(
                str(half.dtype), str(dtype), call=f"dtype of what a cache of {dtype} reads, {kind}"
            )
            expect(
                half,
                full.to(dtype),
                call=f"read of a cache of {dtype}, {kind}; expected: what one of float32 reads, "
                "rounded once",
                given={"written": f"the same rows of {dtype}"},
            )
            judge(kind, x.float(), full, f"write of rows of {dtype}, {kind}", WIDTH)


@pytest.mark.check(task=8, points=3, title="A row depends on nothing but itself")
def test_alone(generator):
    x = random_kv(generator, 16) * torch.logspace(-3, 3, 16)[:, None, None]
    slots = torch.arange(16)
    for kind in KINDS:
        caches = [QuantizedCache(CONFIG, 4, 4, kind=kind) for _ in range(2)]
        caches[0].write(0, *x, slots)
        together = rows_at(caches[0], 0, slots)
        for t in (2, 0, 1, 7, 3, 5, 4, 6, 15, 14, 13, 12, 8, 9, 10, 11):
            caches[1].write(0, *x[:, t : t + 1], slots[t : t + 1])
        expect.that(
            torch.equal(rows_at(caches[1], 0, slots), together),
            "tokens written one at a time read as those written together, bit for bit",
            call=f"rows of 16 tokens of very different sizes in blocks of 4, {kind}",
            cause="a chunk, a block and the order of arrival are no part of a row",
        )
        caches[0].write(0, *(1e4 * x[:, 5:7]), slots[5:7])
        others = [t for t in range(16) if t not in (5, 6)]
        expect.that(
            torch.equal(rows_at(caches[0], 0, others), together[:, others]),
            "the other rows read as before, bit for bit",
            call=f"rows beside two that were written again, 10,000 times as large, {kind}",
            cause="a scale that is renewed for a block needs new codes, and these are less exact",
        )
        caches[0].write(0, *x[:, 5:7], slots[5:7])
        expect.that(
            torch.equal(rows_at(caches[0], 0, slots), together),
            "all rows read as at first, bit for bit",
            call=f"all rows, when two were written again 10,000 times as large and then once more "
            f"as they were, {kind}",
            cause="a block is freed and given out again: nothing of its old rows counts",
        )


@pytest.mark.check(task=8, points=2, title="Zero rows, and rows that are not numbers")
def test_special(generator):
    for kind in KINDS:
        x = random_kv(generator, 8)
        cache = QuantizedCache(CONFIG, 2, 4, kind=kind)
        x[:, 2] = 0.0
        x[0, 5, 1] = 0.0
        slots = torch.arange(8)
        cache.write(0, *x, slots)
        read = rows_at(cache, 0, slots)
        expect(
            [read[:, 2], read[0, 5, 1]],
            [torch.zeros(2, 2, 8), torch.zeros(8)],
            call=f"rows of zeros, {kind}",
            cause="their range is 0",
            atol=0.0,
        )
        judge(kind, x, read, f"rows beside rows of zeros, {kind}")
        for bad in (torch.nan, torch.inf, -torch.inf):
            y = x.clone()
            y[0, 3, 1, 4] = bad
            cache.write(0, *y, slots)
            found = rows_at(cache, 0, slots)
            expect.that(
                not found[0, 3, 1].isfinite().all(),
                "a row with NaN or an infinity does not read as numbers alone",
                observed=found[0, 3, 1],
                call=f"the row of K of token 3 in head 1, one value of which is {bad}, {kind}",
                cause="the engine finds NaN in the logits and fails that request; numbers would "
                "hide it",
            )
            found[0, 3, 1] = read[0, 3, 1]
            expect.that(
                torch.equal(found, read),
                "all other rows read as without it, bit for bit",
                call=f"rows beside one that has {bad}, {kind}",
                cause=WIDTH,
            )


@pytest.mark.check(task=8, points=3, title="Copied, swapped out and in, bit for bit")
def test_moves(generator):
    for kind in KINDS:
        cache = QuantizedCache(CONFIG, 7, 4, num_host_blocks=3, kind=kind)
        x = [random_kv(generator, 12, scale=10.0**n) for n in (0, 2)]
        slots = torch.arange(12)
        for layer in (0, 1):
            cache.write(layer, *x[layer], slots)
        before = [rows_at(cache, layer, slots).unflatten(1, (3, 4)) for layer in (0, 1)]

        def blocks(ids, layer, cache=cache):
            return torch.stack(cache.read(layer, torch.tensor(ids)))

        cache.copy_blocks([(0, 5), (0, 3), (2, 6)])
        for layer in (0, 1):
            expect.that(
                torch.equal(
                    blocks([5, 3, 6, 0, 1, 2], layer), before[layer][:, [0, 0, 2, 0, 1, 2]]
                ),
                "copies and the blocks themselves read as the blocks did, bit for bit",
                call=f"layer {layer} after copy_blocks([(0, 5), (0, 3), (2, 6)]), {kind}",
            )
        cache.swap_out([(1, 2), (2, 0)])
        for layer in (0, 1):
            cache.write(layer, *random_kv(generator, 12, scale=1e3), slots)
        cache.swap_in([(0, 4), (2, 0)])
        for layer in (0, 1):
            expect.that(
                torch.equal(blocks([4, 0], layer), before[layer][:, [2, 1]]),
                "blocks that come back read as before they went, bit for bit",
                call=f"layer {layer}, {kind}: swap_out([(1, 2), (2, 0)]), other rows written over "
                "blocks 0 to 2, then swap_in([(0, 4), (2, 0)])",
                cause="the scales travel with the codes",
            )
        k, v = (rows[2:3] for rows in x[0])
        cache.write(0, k, v, torch.tensor([14]))
        expect.that(
            torch.equal(blocks([3], 0)[:, :, [0, 1, 3]], before[0][:, [0]][:, :, [0, 1, 3]]),
            "the other places of a copy read as before when one is written",
            call=f"copy on write: block 3 is a copy of block 0, then slot 14 is written, {kind}",
        )


PROMPTS = ([5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 7, 8, 9, 10, 11, 30], [40, 41])
LAYOUTS = (  # kind, blocks, block size, prefix caching, preemption, host blocks, tokens a step
    ("int4", 40, 2, True, "recompute", 0, 64),
    ("int4", 9, 4, False, "recompute", 0, 5),
    ("int4", 5, 5, True, "swap", 9, 6),
    ("int8", 3, 16, True, "recompute", 0, 4),
    ("fp8", 9, 4, True, "swap", 4, 7),
)


def texts(model, kind, blocks, block_size, caching, preemption, host_blocks, budget):
    store = QuantizedStore(
        model.config, blocks, block_size, kind=kind, enable_prefix_caching=caching,
        preemption=preemption, num_host_blocks=host_blocks,
    )  # fmt: skip
    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=budget)
    engine, found = Engine(model, config, store=store), {}
    for i, prompt in enumerate(PROMPTS):
        params = SamplingParams(
            temperature=0.9 * (i == 1), n=2 if i == 1 else 1, max_tokens=7, ignore_eos=True
        )
        engine.add_request(prompt, params, seed=i, request_id=i)
    while engine.has_unfinished:
        for event in engine.step():
            if isinstance(event, Finished):
                found[event.request_id, event.index] = list(event.completion.token_ids)
        engine.check()
    return found


@pytest.mark.check(task=8, points=3, title="In the engine: one text for every layout")
def test_engine():
    model, wanted = dummy_model(CONFIG), {}
    for kind, *layout in LAYOUTS:
        if kind not in wanted:
            wanted[kind] = texts(model, kind, 8, 64, False, "recompute", 0, 64)
        names = ("blocks", "block size", "prefix caching", "preemption", "host blocks",
                 "tokens a step")  # fmt: skip
        expect(
            texts(model, kind, *layout),
            wanted[kind],
            call=f"texts of three requests, one with two samples, {kind}; expected: those of "
            "prompts in one chunk, in blocks of 64",
            given=dict(zip(names, layout, strict=True)),
            cause="the K and V that a token reads depend on nothing but the tokens before it",
        )


@pytest.mark.check(task=8, points=1, title="What a text loses")
def test_loss():
    model, row = load_model(BUNDLED, torch.float32), held_out_rows(1)[0, :257]
    config = model.config
    batch = make_batch([(BlockTable(16, list(range(16))), 0, 256)])

    def loss(attend):
        with torch.inference_mode():
            logits = model.logits(model(row[:-1], torch.arange(256), attend))
            return F.cross_entropy(logits, row[1:]).item()

    exact = loss(attend_to_blocks(PagedCache(config, 16, 16), config, batch, paged_attention))
    for kind, most in (("int8", 0.002), ("fp8", 0.004), ("int4", 0.02)):
        found = loss(attend_to_codes(QuantizedCache(config, 16, 16, kind=kind), config, batch))
        expect.that(
            abs(found - exact) <= most,
            f"it differs by at most {most} from the loss with exact K and V, {exact:.4f}",
            observed=round(found, 4),
            call=f"mean loss of the bundled model on 256 tokens of the first held-out row, {kind}",
        )


BLOCKS, PLACES, HOST = 5, 3, 3


def play(kind, calls):
    """What is wrong after these calls, beside a dictionary of what was written; None if nothing.

    A call is (name, numbers); numbers are taken modulo what there is.
    """
    cache = QuantizedCache(CONFIG, BLOCKS, PLACES, num_host_blocks=HOST, kind=kind)
    here, there = {}, {}  # (layer, slot): the rows written, and how they first read
    for name, numbers in calls:
        if name == "write":
            layer, seed = numbers[0] % 2, numbers[1]
            generator = torch.Generator().manual_seed(seed)
            slots = torch.randperm(BLOCKS * PLACES, generator=generator)[: 1 + seed % 6]
            x = random_kv(generator, len(slots), scale=10.0 ** (seed % 7 - 3))
            if seed % 3 == 0:
                slots[0] = -1
            cache.write(layer, *x, slots)
            read = rows_at(cache, layer, slots.clamp(min=0))
            for t, slot in enumerate(slots.tolist()):
                if slot >= 0:
                    here[layer, slot] = read[:, t]
                    if not ((read - x).abs() <= bound(kind, x))[:, t].all():
                        return f"slot {slot} of layer {layer} does not read as it was written"
        else:
            source = BLOCKS if name != "in" else HOST
            target = BLOCKS if name != "out" else HOST
            old, new = numbers[0] % source, numbers[1] % target
            if name == "copy" and old == new:
                continue
            move = {"copy": cache.copy_blocks, "out": cache.swap_out, "in": cache.swap_in}[name]
            move([(old, new)])
            a, b = here if name != "in" else there, here if name != "out" else there
            for layer in (0, 1):
                for place in range(PLACES):
                    b.pop((layer, new * PLACES + place), None)
                    if (layer, old * PLACES + place) in a:
                        b[layer, new * PLACES + place] = a[layer, old * PLACES + place]
        for layer in (0, 1):
            read = rows_at(cache, layer, torch.arange(BLOCKS * PLACES))
            for (its, slot), rows in here.items():
                if its == layer and not torch.equal(read[:, slot], rows):
                    return f"after {name}, slot {slot} of layer {layer} reads differently"
    return None


@pytest.mark.check(
    task=8, points=2, title="Random histories beside a dictionary of rows", stress=True
)
def test_random(rng):
    for number in range(9):
        kind = KINDS[number % 3]
        names = rng.choice(["write", "copy", "out", "in"], p=[0.5, 0.2, 0.15, 0.15], size=24)
        calls = [(str(n), (int(rng.integers(60)), int(rng.integers(1000)))) for n in names]
        found, i = play(kind, calls), 0
        while found and i < len(calls):
            fewer = calls[:i] + calls[i + 1 :]
            again = play(kind, fewer)
            calls, found, i = (fewer, again, 0) if again else (calls, found, i + 1)
        expect(
            found,
            None,
            call=f"{kind}: the shortest history found after which a row reads wrong, and why: "
            + "; ".join(f"{name} {numbers}" for name, numbers in calls),
            given={"blocks of 3": BLOCKS, "host blocks": HOST},
        )

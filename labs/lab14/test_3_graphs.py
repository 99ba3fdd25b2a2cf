"""Task 3: static buffers, buckets, and decodes that are captured and replayed."""

import random
from dataclasses import replace

import pytest
import torch

from grader import expect
from nanovllm.performance.buckets import batch_buckets, bucket_for
from nanovllm.performance.buffers import DecodeBuffers, DecodeRow, slot_at
from nanovllm.performance.errors import PerformanceError
from nanovllm.performance.graphs import DecodeGraphs
from nanovllm.performance.replay import recorded_capture


def buffers_of(rows=8, blocks=3, size=4):
    return DecodeBuffers(rows, blocks, size, "cpu", vocab_size=10)


def random_rows(draw, count, blocks=3, size=4):
    made = []
    for _ in range(count):
        position = draw.randrange(blocks * size)
        ids = [draw.randrange(1, 50) for _ in range(position // size + 1)]
        source = draw.choice([None, draw.randrange(4)])
        slot = ids[-1] * size + position % size
        made.append(DecodeRow(position, slot, ids, draw.randrange(1, 40), source))
    return made


def inputs(buffers, bucket):
    found = {name: x[:bucket].tolist() for name, x in buffers.on_device.items()}
    found.pop("block_tables")
    return found


@pytest.mark.check(task=3, points=1, title="Buckets: 1, 2, 4, 8, then every 16")
def test_buckets(seed):
    draw = random.Random(seed)
    for most in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, draw.randrange(34, 512), 777):
        sizes = [1, 2, 4, 8, *range(16, 800, 16)]
        last = next(i for i, size in enumerate(sizes) if size >= most)
        expect(
            list(batch_buckets(most)),
            sizes[: last + 1],
            call=f"batch_buckets({most})",
            cause="the last one is the first that holds all",
        )


@pytest.mark.check(task=3, points=1, title="The smallest bucket that holds the batch")
def test_bucket_for(seed):
    buckets = tuple(sorted(random.Random(seed).sample(range(1, 40), 5)))
    for count in range(42):
        expect(
            bucket_for(count, buckets),
            min((b for b in buckets if b >= count), default=None),
            call=f"bucket_for({count}, {buckets})",
            cause="rounded up, never down; None above the largest",
        )


@pytest.mark.check(task=3, points=1, title="A position's slot")
def test_slot(seed):
    draw = random.Random(seed)
    size, ids = draw.choice([1, 3, 4, 16]), draw.sample(range(99), 5)
    for position in range(5 * size):
        expect(
            slot_at(position, ids, size),
            ids[position // size] * size + position % size,
            call=f"slot_at({position}, {ids}, block_size={size})",
            cause="its block's number times the size, and its place in the block",
        )


@pytest.mark.check(task=3, points=2, title="A batch in the buffers")
def test_load(seed):
    draw = random.Random(seed)
    buffers = buffers_of()
    rows = random_rows(draw, 4)
    buffers.load(rows, 4)
    found = inputs(buffers, 4)
    wanted = {
        "source": [-1 if r.source is None else r.source for r in rows],
        "positions": [r.position for r in rows],
        "slot_mapping": [r.slot for r in rows],
        "context_lens": [r.position + 1 for r in rows],
    }
    for name, values in wanted.items():
        expect(
            found[name],
            values,
            call=f"{name} after load",
            given={"rows": [str(r) for r in rows]},
            cause="a context is the position and all before it; source -1 where the host knows it",
        )
    known = [(t, r.token_id) for t, r in zip(found["token_ids"], rows, strict=True)
             if r.source is None]  # fmt: skip
    expect([t for t, _ in known], [t for _, t in known], call="token_ids", cause="where known")
    tables = buffers.on_device["block_tables"]
    expect(
        [tables[i, : len(r.block_ids)].tolist() for i, r in enumerate(rows)],
        [list(r.block_ids) for r in rows],
        call="block_tables after load",
        cause="each row's blocks from the left",
    )


@pytest.mark.check(task=3, points=2, title="Padding after a larger batch")
def test_padding(seed):
    draw = random.Random(seed)
    buffers = buffers_of()
    for _ in range(2):  # both sets in host memory
        buffers.load(random_rows(draw, 8), 8)
    rows = random_rows(draw, 3, blocks=1)
    buffers.load(rows, 4)
    found = inputs(buffers, 4)
    expect(
        [found["slot_mapping"][3], found["context_lens"][3], found["source"][3]],
        [-1, 0, -1],
        call="slot, context and source of a padding row, after two batches of 8",
        cause="padding stores nothing, reads nothing and takes nobody's token",
    )
    expect(
        [found["positions"][3], found["token_ids"][3]],
        [0, 0],
        call="its position and token",
        cause="they must be valid ones, not those of an old batch",
    )
    expect(
        buffers.on_device["block_tables"][:3, 1:],
        torch.zeros(3, 2, dtype=torch.int32),
        call="tables behind each row's own block",
        cause="nothing of the old batch is left there",
    )


@pytest.mark.check(task=3, points=1, title="Buffers stay where they are")
def test_addresses(seed):
    draw = random.Random(seed)
    buffers = buffers_of()
    before = {name: x.data_ptr() for name, x in buffers.on_device.items()}
    for _ in range(3):
        buffers.load(random_rows(draw, 2), 2)
    loaded = inputs(buffers, 8)
    expect(
        {name: x.data_ptr() == before[name] for name, x in buffers.on_device.items()},
        dict.fromkeys(before, True),
        call="whether each device tensor is where it was",
        cause="a graph has their addresses: copy into them, do not bind new ones",
    )
    expect.raises(
        PerformanceError,
        lambda: buffers.load(random_rows(draw, 3), 2),
        call="load(3 rows, bucket=2)",
        cause="the batch is larger than the bucket",
    )
    expect(inputs(buffers, 8), loaded, call="the buffers after that", cause="nothing has changed")


@pytest.mark.check(task=3, points=1, title="Host memory is not written while it is fetched")
def test_two_sets(monkeypatch):
    from nanovllm.performance.buffers import HostInputs

    log = []
    for name in ("wait", "send"):
        method = getattr(HostInputs, name)

        def noted(self, *args, name=name, method=method):
            row = int(self.arrays["positions"][0])
            log.append([name, id(self), row])
            return method(self, *args)

        monkeypatch.setattr(HostInputs, name, noted)
    buffers = buffers_of()
    for position in (1, 2, 3, 4):
        rows = [DecodeRow(position, position, [0], 5)]
        if position == 3:
            with pytest.raises(PerformanceError):
                buffers.load(rows * 2, 1)
        buffers.load(rows, 1)
    names = {each: "AB"[i] for i, each in enumerate(dict.fromkeys(x for _, x, _ in log))}
    expect(
        [[name, names.get(each, "?"), row] for name, each, row in log],
        [
            ["wait", "A", 0], ["send", "A", 1], ["wait", "B", 0], ["send", "B", 2],
            ["wait", "A", 1], ["send", "A", 3], ["wait", "B", 2], ["send", "B", 4],
        ],
        call="waits and sends of four loads, the third behind one that was refused, with the set "
        "and the position in it at that moment",
        cause="the sets take turns; each is waited for before it is filled, and sent after",
    )  # fmt: skip


@pytest.mark.check(task=3, points=1, title="Tokens that never visit the host")
def test_token_ids(seed):
    draw = random.Random(seed)
    buffers = buffers_of()
    sources = draw.sample([None, 0, 1, 7, 8, draw.randrange(9, 15), 15], 7)
    rows = [replace(row, source=s) for row, s in zip(random_rows(draw, 7), sources, strict=True)]
    buffers.load(rows, 8)
    buffers.sampled[:] = torch.arange(20, 36)
    buffers.sampled[1] = -1
    sampled = [20, 0, *range(22, 36)]
    wanted = [r.token_id if r.source is None else sampled[r.source] for r in rows]
    expect(
        buffers.token_ids(8)[:7].tolist(),
        wanted,
        call="token_ids(8)",
        given={"source": sources, "sampled": buffers.sampled.tolist()},
        cause="the token at source, 0 where that is -1; else the row's own",
    )
    expect(buffers.token_ids(8)[7:].tolist(), [0], call="of a padding row", cause="a valid token")
    expect(buffers.token_ids(2).tolist(), wanted[:2], call="token_ids(2)", cause="the first rows")


@pytest.mark.check(task=3, points=1, title="What attention is told")
def test_batch(seed):
    draw = random.Random(seed)
    buffers = buffers_of()
    batch = buffers.batch(4)
    buffers.load(random_rows(draw, 3), 4)
    now = buffers.on_device
    expect(
        [batch.slot_mapping, batch.context_lens, batch.block_tables, batch.query_start_loc],
        [now["slot_mapping"][:4], now["context_lens"][:4], now["block_tables"][:4],
         torch.arange(5, dtype=torch.int32)],
        call="batch(4), made before load",
        cause="views of the buffers: what is loaded later is seen",
    )  # fmt: skip
    for bucket in (1, 4, 8):
        batch = buffers.batch(bucket)
        expect(
            [batch.max_query_len, batch.max_context_len],
            [1, 12],
            call=f"the largest lengths of batch({bucket})",
            cause="a captured call must hold for every batch: 3 blocks of 4",
        )


@pytest.mark.check(task=3, points=1, title="Captured largest first, replayed by bucket")
def test_graphs():
    log = []

    def capture(function, pool):
        start = len(log)
        function()
        size = log[start]
        log.append(("captured", pool))
        return (lambda: log.append(("replay", size))), f"pool of {size}"

    graphs = DecodeGraphs(log.append, (1, 2, 4), capture)
    expect(
        [list(x) if isinstance(x, tuple) else x for x in log],
        [4, ["captured", None], 2, ["captured", "pool of 4"], 1, ["captured", "pool of 2"]],
        call="DecodeGraphs(run, (1, 2, 4), capture): what ran, and with which pool",
        cause="the largest first; each capture gets the pool of the one before",
    )
    log.clear()
    for count in (3, 1, 2, 4, 6):
        graphs(graphs.rows_for(count))
    graphs(3)
    expect(
        [list(x) if isinstance(x, tuple) else x for x in log],
        [["replay", 4], ["replay", 1], ["replay", 2], ["replay", 4], 6, 3],
        call="graphs(graphs.rows_for(n)) for 3, 1, 2, 4 and 6 sequences, then graphs(3)",
        cause="the bucket's replay; what was not captured, as it is",
    )


@pytest.mark.check(task=3, points=2, title="A replay computes new inputs")
def test_replay(seed):
    draw = random.Random(seed)
    buffers = buffers_of()
    table = torch.randn(50, 10, generator=torch.Generator().manual_seed(seed))

    def run(rows):
        batch = buffers.batch(rows)
        scores = table[buffers.token_ids(rows)] + batch.context_lens[:, None]
        scores = scores * (batch.slot_mapping[:, None] + 2) + batch.block_tables[:, :1]
        buffers.logits[:rows] = scores
        buffers.sampled[:rows] = scores.argmax(dim=-1)

    buffers.load([], 8)
    graphs = DecodeGraphs(run, (1, 2, 4, 8), recorded_capture)
    sampled = buffers.sampled[:8].tolist()
    for _ in range(5):
        rows = random_rows(draw, draw.randrange(1, 9))
        ids = [r.token_id if r.source is None else sampled[r.source] for r in rows]
        bucket = graphs.rows_for(len(rows))
        buffers.load(rows, bucket)
        graphs(bucket)
        scores = torch.stack([
            (table[i] + r.position + 1) * (r.slot + 2) + r.block_ids[0]
            for i, r in zip(ids, rows, strict=True)
        ])  # fmt: skip
        expect(
            buffers.logits[: len(rows)],
            scores,
            call=f"a replay of {bucket} rows after load of {len(rows)}",
            given={"rows": [str(r) for r in rows]},
            cause="operations are replayed on the same memory: what Python read, or bound anew, "
            "is what it was at the capture",
            atol=1e-3,
        )
        sampled = buffers.sampled[:8].tolist()

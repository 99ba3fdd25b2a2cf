"""Task 1: collectives."""

import pytest
import torch

from grader import expect
from grader.checks.on_ranks import on_ranks
from nanovllm.parallel.collectives import all_gather, all_reduce, gather_last, reduce_scatter

SIZES = ((1, 5), (2, 6), (3, 7), (4, 3), (5, 12))  # ranks, values; one has an empty run
RING = (
    "a rank sends to the next one and receives from the one before at the same time, with "
    "comm.exchange: were all to send first, none would receive"
)


def whole(rng, *shape):
    """Whole numbers, whose sums are exact in any order."""
    return torch.from_numpy(rng.integers(-9, 10, size=shape)).float()


def runs(x, size):
    return [run.clone() for run in x.reshape(-1).tensor_split(size)]


@pytest.mark.check(task=1, points=2, title="Each rank gets a run of the sum")
def test_reduce_scatter(rng):
    for size, count in SIZES:
        xs = [whole(rng, count) for _ in range(size)]
        call = f"reduce_scatter(comm, x [{count}]) on {size} ranks"
        found = on_ranks(
            size, lambda comm, xs=xs: reduce_scatter(comm, xs[comm.rank]), call=call, cause=RING
        )
        expect(
            [run.tolist() for run in found],
            [run.tolist() for run in runs(sum(xs), size)],
            call=f"{call}: the results by rank",
            given={"x of each rank": [x.tolist() for x in xs]},
            cause="rank r ends with run r, to which every rank has added its own once; runs "
            "are those of torch.tensor_split, longer ones first",
        )
    grid = [whole(rng, 2, 3).T for _ in range(2)]
    found = on_ranks(2, lambda comm: reduce_scatter(comm, grid[comm.rank]),
                     call="reduce_scatter of x [3, 2], a transposed view", cause=RING)  # fmt: skip
    expect(
        [run.tolist() for run in found],
        [run.tolist() for run in runs(sum(grid), 2)],
        call="reduce_scatter of x [3, 2], a transposed view, on 2 ranks",
        cause="x of any shape is cut as one dimension, in the order of its indices",
    )


@pytest.mark.check(task=1, points=2, title="Runs joined on each rank")
def test_all_gather(rng):
    for size, count in SIZES:
        x = whole(rng, count)
        mine = runs(x, size)
        call = f"all_gather(comm, run, total={count}) on {size} ranks"
        found = on_ranks(
            size,
            lambda comm, mine=mine, n=count: all_gather(comm, mine[comm.rank], n),
            call=call,
            cause=RING,
        )
        expect(
            [result.tolist() for result in found],
            [x.tolist()] * size,
            call=f"{call}: the results by rank",
            given={"runs": [run.tolist() for run in mine]},
            cause="each rank passes on what it got last, and runs may have another length than "
            "its own",
        )
    x = whole(rng, 7)
    call = "all_gather(comm, run, total=7), each run a view with gaps, on 3 ranks"
    found = on_ranks(
        3,
        lambda comm: all_gather(comm, runs(x, 3)[comm.rank].repeat_interleave(2)[::2], 7),
        call=call,
        cause="a view is sent as it lies in memory: make it contiguous",
    )
    expect([result.tolist() for result in found], [x.tolist()] * 3, call=call)


@pytest.mark.check(task=1, points=2, title="The sum on each rank")
def test_all_reduce(rng):
    shapes = ((7,), (2, 3), (3, 1, 4), (), (0, 4), (1,))
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        for shape in shapes:
            size = int(rng.integers(1, 5))
            xs = [whole(rng, *shape).to(dtype) for _ in range(size)]
            call = f"all_reduce(comm, x {list(shape)}) of {dtype} on {size} ranks"
            found = on_ranks(
                size, lambda comm, xs=xs: all_reduce(comm, xs[comm.rank]), call=call, cause=RING
            )
            for rank, result in enumerate(found):
                expect([list(result.shape), result.dtype], [list(shape), dtype],
                       call=f"shape and dtype of {call}, rank {rank}")  # fmt: skip
                expect(result, sum(xs), call=f"{call}, rank {rank}",
                       cause="the sum of all ranks' x, each once", rtol=0, atol=0)  # fmt: skip
    for dtype, base in ((torch.int64, 2**40), (torch.float64, 2.0**40)):
        xs = [torch.tensor([base + rank, -rank, 1]).to(dtype) for rank in range(3)]
        call = f"all_reduce(comm, x [3]) of {dtype}, numbers beyond 2 to the 40th, on 3 ranks"
        for result in on_ranks(3, lambda comm, xs=xs: all_reduce(comm, xs[comm.rank]), call=call):
            expect(result, sum(xs), call=call, cause="sums have x's dtype, on the way, too",
                   rtol=0, atol=0)  # fmt: skip
    views = [whole(rng, 4, 6)[:, ::2].T for _ in range(3)]
    for result in on_ranks(
        3, lambda comm: all_reduce(comm, views[comm.rank]), call="all_reduce of a view [3, 4]"
    ):
        expect(result, sum(views), call="all_reduce(comm, x [3, 4]), x a view, on 3 ranks")


@pytest.mark.check(task=1, points=2, title="Bytes of a ring")
def test_bytes(rng):
    kinds = (torch.float32, torch.bfloat16)
    for number, (size, count) in enumerate(((1, 9), (2, 7), (3, 12), (4, 10), (6, 8))):
        x = whole(rng, count).to(kinds[number % 2])
        lengths = [len(run) for run in runs(x, size)]

        def counted(comm, name, work):
            comm.counts.clear()
            work()
            cost = comm.counts[name]
            return {
                "calls": {kind: found.calls for kind, found in comm.counts.by_kind.items()},
                "messages": cost.messages,
                "bytes": comm.counts.bytes,
                "to": sorted(comm.counts.sent_to),
            }

        def all_three(comm, x=x, size=size, counted=counted):
            run = runs(x, size)[comm.rank]
            return [
                counted(comm, "reduce_scatter", lambda: reduce_scatter(comm, x)),
                counted(comm, "all_gather", lambda: all_gather(comm, run, x.numel())),
                counted(comm, "all_reduce", lambda: all_reduce(comm, x)),
                counted(comm, "gather_last", lambda: gather_last(comm, run, x.numel())),
            ]

        names = ("reduce_scatter", "all_gather", "all_reduce", "gather_last")
        call = f"four collectives of {count} values on {size} ranks"
        found = on_ranks(size, all_three, call=call, cause=RING)
        for rank, of_rank in enumerate(found):
            for name, cost in zip(names, of_rank, strict=True):
                summed = x.itemsize * (count - lengths[rank])
                passed = x.itemsize * (count - lengths[(rank + 1) % size])
                wanted = {
                    "reduce_scatter": (summed, size - 1),
                    "all_gather": (passed, size - 1),
                    "gather_last": (passed, size - 1),
                    "all_reduce": (summed + passed, 2 * (size - 1)),
                }[name]
                expect(
                    cost,
                    {
                        "calls": {name: 1},
                        "messages": wanted[1],
                        "bytes": wanted[0],
                        "to": [(rank + 1) % size] if size > 1 else [],
                    },
                    call=f"what {name} of {count} {x.dtype} values sends on rank {rank} of {size}",
                    cause="a run a message, n - 1 messages for each half, all to the next rank, "
                    f"counted within comm.counting({name!r})",
                )


@pytest.mark.check(task=1, points=1, title="The same bits on each rank, and x as it was")
def test_same_bits(generator):
    for size in (2, 3, 5, 8, 1):
        xs = [
            torch.randn(40, generator=generator) * 10.0 ** (3 * (rank % 3)) for rank in range(size)
        ]
        before = [x.clone() for x in xs]
        call = f"all_reduce(comm, x [40]) of numbers small and large, on {size} ranks"

        def reduced(comm, xs=xs):
            result = all_reduce(comm, xs[comm.rank])
            kept = xs[comm.rank].clone()
            bits = result.clone()
            result.add_(1.0)  # as a student's block might add the residual
            return bits, kept, xs[comm.rank].clone()

        found = on_ranks(size, reduced, call=call, cause=RING)
        for rank, (bits, kept, later) in enumerate(found):
            expect(kept, before[rank], call=f"x after {call}, rank {rank}", rtol=0, atol=0,
                   cause="x is the caller's, who may need it still")  # fmt: skip
            expect(later, before[rank], call=f"x after the result of {call} is changed", rtol=0,
                   cause="the result has memory of its own, on one rank, too", atol=0)  # fmt: skip
            expect(
                bits,
                found[0][0],
                call=f"{call}: rank {rank} against rank 0",
                cause="a run is summed once, along the ring, and that sum goes to all ranks: "
                "floats added in another order are another sum",
                rtol=0,
                atol=0,
            )
            expect(bits, torch.stack(xs).double().sum(0).float(), call=call, rtol=1e-4, atol=1e-2)
    alone = torch.randn(6, generator=generator)
    for name, call in (
        ("reduce_scatter(comm, x [6])", lambda comm, x: reduce_scatter(comm, x)),
        ("all_gather(comm, x [6], 6)", lambda comm, x: all_gather(comm, x, 6)),
        ("gather_last(comm, x [6], 6)", lambda comm, x: gather_last(comm, x, 6)),
    ):
        x = alone.clone()
        on_ranks(1, lambda comm, x=x, call=call: call(comm, x).add_(1.0), call=name)
        expect(x, alone, call=f"x after the result of {name}, on one rank, is changed",
               cause="the result has memory of its own", rtol=0, atol=0)  # fmt: skip


@pytest.mark.check(task=1, points=2, title="Parts joined along the last dimension")
def test_gather_last(rng):
    for size, total, lead in ((1, 4, (3,)), (2, 5, (3,)), (3, 8, (2, 2)), (4, 3, (2,)), (3, 7, ())):
        x = whole(rng, *lead, total).to(torch.bfloat16 if size == 2 else torch.float32)
        parts = x.tensor_split(size, dim=-1)
        call = f"gather_last(comm, x, total={total}) on {size} ranks"
        found = on_ranks(
            size,
            lambda comm, parts=parts, total=total: gather_last(comm, parts[comm.rank], total),
            call=call,
            given={"x of each rank": [list(part.shape) for part in parts]},
            cause="x may be a view, which is sent as it lies in memory: make it contiguous. "
            + RING,
        )
        for rank, result in enumerate(found):
            expect(
                result,
                x,
                call=f"{call}, rank {rank}",
                given={"x of each rank": [list(part.shape) for part in parts]},
                cause="side by side along the last dimension, whose widths differ",
            )
            expect(result.dtype, x.dtype, call=f"dtype of {call}, x of {x.dtype}, rank {rank}")


def one(comm, kind, xs):
    """One call of this kind: `xs` has each rank's x, or what is cut is the first of them."""
    first = xs[0]
    if kind == "all_gather":
        return all_gather(comm, runs(first, comm.size)[comm.rank], first.numel())
    if kind == "gather_last":
        return gather_last(comm, first.tensor_split(comm.size, -1)[comm.rank], first.shape[-1])
    return {"all_reduce": all_reduce, "reduce_scatter": reduce_scatter}[kind](comm, xs[comm.rank])


def wanted_of(kind, xs, rank):
    """What rank `rank` gets of that call."""
    if kind == "all_gather":
        return xs[0].reshape(-1)
    if kind == "gather_last":
        return xs[0]
    return sum(xs) if kind == "all_reduce" else runs(sum(xs), len(xs))[rank]


@pytest.mark.check(task=1, points=1, title="Many calls one after the other (random)")
def test_random(rng):
    for _ in range(6):
        size = int(rng.integers(1, 7))
        story = []
        for _ in range(int(rng.integers(2, 6))):
            kind = str(rng.choice(["all_reduce", "reduce_scatter", "all_gather", "gather_last"]))
            shape = rng.integers(0, 9, size=2).tolist()
            story.append((kind, [whole(rng, *shape) for _ in range(size)]))

        def play(comm, story=story):
            return [one(comm, kind, xs) for kind, xs in story]

        told = [f"{kind} {list(xs[0].shape)}" for kind, xs in story]
        call = f"{', '.join(told)} on {size} ranks"
        found = on_ranks(size, play, call=call, cause=RING)
        for at, (kind, xs) in enumerate(story):
            for rank in range(size):
                wanted = wanted_of(kind, xs, rank)
                expect(found[rank][at], wanted, call=f"number {at + 1} of {call}, rank {rank}")

"""Task 2: sharded linears."""

import dataclasses

import pytest
import torch

from grader import expect
from grader.checks.on_ranks import on_ranks
from nanovllm.model.config import ModelConfig, RopeScaling
from nanovllm.parallel.errors import ParallelError
from nanovllm.parallel.linears import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
)
from nanovllm.parallel.shards import kv_heads, query_heads, rank_config, rows_of_heads, share
from nanovllm.parallel.stored import Reads, StoredTensor


def shape(heads, groups, dim=2):
    return ModelConfig(
        "llama", 9, 8, 1, heads, groups, dim, 8, 16, rope_scaling=RopeScaling("linear", 2.0, 8),
        windows=(5,), bos_token_id=1, eos_token_ids=(2, 3), pad_token_id=4,
    )  # fmt: skip


def random_linear(generator, out_features, in_features):
    weight = torch.randn(out_features, in_features, generator=generator)
    return weight, torch.randn(out_features, generator=generator)


def stored(reads=None, **tensors):
    """Tensors of a checkpoint: `up_weight` is called up.weight."""
    reads = reads or Reads()
    return {
        ".".join(name.rsplit("_", 1)): StoredTensor(tensor, reads)
        for name, tensor in tensors.items()
    }


@pytest.mark.check(task=2, points=1, title="Rows of some heads")
def test_rows_of_heads():
    for heads in ([0, 1, 2], [3], [1, 1, 0], []):
        expect(
            list(rows_of_heads(heads, 4)),
            [4 * head + i for head in heads for i in range(4)],
            call=f"rows_of_heads({heads}, head_dim=4)",
            cause="a head has head_dim rows, one after the other",
        )


@pytest.mark.check(task=2, points=2, title="Query heads, and what cannot be shared")
def test_query_heads():
    for heads, size in ((8, 4), (6, 3), (5, 1), (12, 12)):
        for rank in range(size):
            each = heads // size
            expect(
                list(query_heads(shape(heads, 1), size, rank)),
                list(range(rank * each, (rank + 1) * each)),
                call=f"query_heads of H = {heads}, size={size}, rank={rank}",
                cause="neighbouring heads, for they share key/value heads",
            )
    for heads, size in ((6, 4), (4, 8), (5, 2)):
        for function in (query_heads, kv_heads, rank_config):
            expect.raises(
                ParallelError,
                lambda function=function, heads=heads, size=size: function(
                    shape(heads, 1), size, 0
                ),
                call=f"{function.__name__} of H = {heads} on {size} ranks",
                cause="ParallelError, where size does not divide H",
            )


def shared_by(config, size, each):
    """Whether runs of `each` query heads of a rank use one key/value head, on every rank."""
    group = config.num_heads // config.num_kv_heads
    runs = torch.arange(config.num_heads).view(size, -1, each) // group
    return bool((runs == runs[..., :1]).all())


def query_heads_of(config, size, rank):
    each = config.num_heads // size
    return range(rank * each, (rank + 1) * each)


@pytest.mark.check(task=2, points=3, title="Key/value heads of any H, G and n")
def test_kv_heads():
    table = [
        (8, 4, 2, "G / n heads a rank"),
        (8, 8, 4, "each query head has its own"),
        (8, 1, 4, "one key/value head is on each rank"),
        (8, 2, 4, "fewer key/value heads than ranks: neighbouring ranks have the same one"),
        (8, 2, 8, "fewer key/value heads than ranks: neighbouring ranks have the same one"),
        (12, 3, 2, "3 heads on 2 ranks: the middle one is on both, the other one twice"),
        (12, 6, 4, "6 heads on 4 ranks"),
        (12, 4, 6, "4 heads on 6 ranks"),
        (30, 10, 6, "10 heads on 6 ranks"),
    ]
    for heads, groups, size, kind in table:
        config = shape(heads, groups)
        for rank in range(size):
            found = list(kv_heads(config, size, rank))
            call = f"kv_heads of H = {heads}, G = {groups}, size={size}, rank={rank} ({kind})"
            uses = [h // (heads // groups) for h in query_heads_of(config, size, rank)]
            widths = [n for n in range(1, len(uses) + 1) if len(uses) % n == 0]
            shortest = uses[:: max(n for n in widths if shared_by(config, size, n))]
            expect(
                found,
                shortest,
                call=call,
                given={"key/value head that each query head of the rank uses": uses},
                cause="query head h uses key/value head h // (H / G); on the rank, equally many "
                "neighbouring query heads share each entry; all ranks' lists are equally long, and "
                "as short as that can be",
            )
            mine = rank_config(config, size, rank)
            expect(
                dataclasses.replace(mine, num_heads=heads, num_kv_heads=groups),
                config,
                call=f"all else of rank_config: {call}",
                cause="all else is the model's: positions, windows, special tokens, too",
            )
            expect(
                [mine.num_heads, mine.num_kv_heads, mine.head_dim, mine.intermediate_size],
                [len(uses), len(shortest), 2, 8],
                call=f"num_heads, num_kv_heads, head_dim, intermediate_size of rank_config: {call}",
                cause="the first two are the rank's, all else is the model's",
            )


@pytest.mark.check(task=2, points=3, title="Several linears in one product")
def test_merged(generator):
    cuts = (
        (range(3), range(3)),
        (range(2, 7), [1, 2, 6]),
        (range(0), range(2)),
        ([4, 5, 4], range(1)),
    )
    for gate, up in cuts:
        weights = {name: random_linear(generator, 7, 4) for name in ("gate", "up")}
        x = torch.randn(2, 4, generator=generator)
        tensors, reads = {}, Reads()
        for name, (weight, bias) in weights.items():
            tensors[f"mlp.{name}.weight"] = StoredTensor(weight, reads)
            tensors[f"mlp.{name}.bias"] = StoredTensor(bias, reads)
        for biased in (False, True):
            reads.bytes = 0
            merged = MergedColumnParallelLinear(4, {"gate": gate, "up": up}, bias=biased)
            merged.load(tensors, "mlp")
            call = f"MergedColumnParallelLinear(4, gate: {gate}, up: {up}, bias={biased})"
            outputs = merged(x)
            shapes = [list(one.shape) for one in outputs]
            expect(shapes, [[2, len(gate)], [2, len(up)]], cause="one output for each part",
                   call=f"shapes of {call}(x [2, 4])")  # fmt: skip
            for (name, (weight, bias)), rows, found in zip(
                weights.items(), (gate, up), outputs, strict=True
            ):
                whole = x @ weight.T + (bias if biased else 0)
                expect(found, whole[:, list(rows)], call=f"output {name!r} of {call}(x [2, 4])",
                       cause="each part is cut by itself: cut as one matrix, the first rank would "
                       "have all of the gate; row i of the weight, and entry i of the bias, make "
                       "output i")  # fmt: skip
            number = len(gate) + len(up)
            expect(
                [list(merged.weight.shape), merged.bias is None],
                [[number, 4], not biased],
                call=f"shape of weight, whether bias is None: {call}",
                cause="one weight for all parts",
            )
            least, most = (
                4 * n * (5 if biased else 4) for n in (len({*gate}) + len({*up}), number)
            )
            expect.that(
                least <= reads.bytes <= most,
                f"{least} bytes read" + (f", or up to {most}" if most > least else ""),
                observed=reads.bytes,
                call=f"load of {call}",
                cause="perhaps not the rank's own rows of each part alone, or of the bias not its "
                "own entries",
            )
            not_trained(merged, call)


def not_trained(module, call):
    """Its weights are there to compute."""
    expect.that(
        not any(parameter.requires_grad for parameter in module.parameters()),
        "no parameter is trained",
        call=call,
    )


@pytest.mark.check(task=2, points=3, title="Some of the columns, and one sum")
def test_row(generator):
    for size, in_features in ((1, 4), (2, 5), (3, 7), (4, 3)):
        weight, bias = random_linear(generator, 6, in_features)
        x = torch.randn(2, 3, in_features, generator=generator)
        for biased in (False, True):

            def work(comm, weight=weight, bias=bias, x=x, biased=biased):
                columns = torch.arange(x.shape[-1]).tensor_split(comm.size)[comm.rank].tolist()
                reads = Reads()
                linear = RowParallelLinear(comm, columns, 6, bias=biased)
                linear.load(stored(reads, o_weight=weight, o_bias=bias), "o")
                comm.counts.clear()
                out = linear(x[..., columns])
                costs = {kind: count.calls for kind, count in comm.counts.by_kind.items()}
                held = list(linear.weight.shape)
                return out, held, reads.bytes - 4 * 6 * biased, costs, linear

            call = f"RowParallelLinear(comm, columns, 6, bias={biased}) of K = {in_features}"
            call += f" on {size} ranks"
            wanted = x @ weight.T + (bias if biased else 0)
            found = on_ranks(size, work, call=call)
            for rank, (out, held, read, costs, linear) in enumerate(found):
                mine = len(torch.arange(in_features).tensor_split(size)[rank])
                expect(out, wanted, call=f"{call}, x [2, 3, K'], rank {rank}",
                       cause="the ranks' products are summed, and the bias is added once, not by "
                       "each rank")  # fmt: skip
                expect(out, found[0][0], call=f"{call}, rank {rank} against rank 0", rtol=0,
                       cause="all ranks have the same bits", atol=0)  # fmt: skip
                expect(
                    [held, read, costs],
                    [[6, mine], 4 * 6 * mine, {"all_reduce": 1}],
                    call=f"shape of weight, bytes read of the weight, and calls of collectives: "
                    f"{call}, rank {rank}",
                    cause="the rank reads its own columns, and sums by one all_reduce",
                )
                not_trained(linear, call)


@pytest.mark.check(task=2, points=1, title="An MLP on any number of ranks (random)")
def test_random(generator, rng):
    for _ in range(5):
        size, inner, hidden = (int(n) for n in rng.integers(1, 8, size=3))
        up, down = (random_linear(generator, *s) for s in ((inner, hidden), (hidden, inner)))
        x = torch.randn(int(rng.integers(0, 4)), hidden, generator=generator)

        def work(comm, up=up, down=down, x=x, inner=inner, hidden=hidden):
            mine = share(inner, comm.size, comm.rank)
            first = ColumnParallelLinear(hidden, mine, bias=True)
            second = RowParallelLinear(comm, mine, hidden, bias=True)
            first.load(stored(up_weight=up[0], up_bias=up[1]), "up")
            second.load(stored(down_weight=down[0], down_bias=down[1]), "down")
            return second(first(x).relu())

        wanted = (x @ up[0].T + up[1]).relu() @ down[0].T + down[1]
        call = f"column-parallel, relu, row-parallel: x {list(x.shape)}, {inner} neurons"
        for rank, out in enumerate(on_ranks(size, work, call=call)):
            expect(out, wanted, call=f"{call}, rank {rank} of {size}",
                   cause="ranks without a neuron take part in the sum")  # fmt: skip

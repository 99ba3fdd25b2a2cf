"""Task 3: vocabulary-parallel embedding and logits."""

import pytest
import torch

from grader import expect
from grader.checks.on_ranks import on_ranks
from nanovllm.parallel.stored import Reads, StoredTensor
from nanovllm.parallel.vocabulary import VocabParallelEmbedding, parallel_logits


def embedded(size, weight, ids, call):
    """What each rank gets for these ids: rows, bytes read, shape of its weight, collectives."""

    def work(comm):
        reads = Reads()
        embedding = VocabParallelEmbedding(comm, *weight.shape)
        embedding.load({"embed_tokens.weight": StoredTensor(weight, reads)}, "embed_tokens")
        given = ids.clone()
        comm.counts.clear()
        rows = embedding(given)
        costs = {kind: count.calls for kind, count in comm.counts.by_kind.items()}
        return rows, reads.bytes, list(embedding.weight.shape), costs, given

    return on_ranks(size, work, call=call)


@pytest.mark.check(task=3, points=2, title="The row of each token")
def test_embedding(generator):
    for size, vocab in ((1, 5), (2, 8), (3, 7), (4, 11)):
        weight = torch.randn(vocab, 3, generator=generator)
        ids = torch.cat([torch.arange(vocab).flip(0), torch.tensor([0, vocab - 1, 1])])
        call = f"VocabParallelEmbedding(comm, {vocab}, 3) on {size} ranks, each id once or twice"
        for rank, (rows, _, _, _, given) in enumerate(embedded(size, weight, ids, call)):
            expect(
                rows,
                weight[ids],
                call=f"{call}, rank {rank}",
                given={"ids": ids.tolist(), "rows of the ranks": spans(vocab, size)},
                cause="a rank looks up its own tokens, at the row within its share, and gives 0 "
                "for those of others, whose ranks give their rows",
                rtol=0,
                atol=0,
            )
            expect(given, ids, call=f"the ids after {call}", cause="they are the caller's")
    weight = torch.tensor([[1.0], [2.0], [torch.inf], [torch.nan]])
    call = "VocabParallelEmbedding(comm, 4, 1) of [0, 1], on 2 ranks; rank 1 has inf and nan"
    for rank, (rows, *_) in enumerate(embedded(2, weight, torch.tensor([0, 1]), call)):
        expect(rows, weight[:2], call=f"{call}, rank {rank}",
               cause="0 for tokens of others, not 0 times a row: that is nan here")  # fmt: skip


def spans(total, size):
    parts = torch.arange(total).tensor_split(size)
    return [f"{part[0]}-{part[-1]}" if len(part) else "none" for part in parts]


@pytest.mark.check(task=3, points=1, title="Fewer tokens than ranks, and no token at all")
def test_empty_shares(generator):
    for size, vocab, ids in ((4, 3, [2, 0, 1]), (5, 2, [1, 1]), (3, 7, []), (4, 1, [0, 0])):
        weight, ids = torch.randn(vocab, 2, generator=generator), torch.tensor(ids).long()
        call = f"VocabParallelEmbedding(comm, {vocab}, 2) of {len(ids)} ids on {size} ranks"
        for rank, (rows, *_) in enumerate(embedded(size, weight, ids, call)):
            expect(rows, weight[ids], call=f"{call}, rank {rank}", rtol=0, atol=0,
                   cause="a rank without a row gives zeros, and takes part in the sum")  # fmt: skip


@pytest.mark.check(task=3, points=1, title="Its own rows, and one all-reduce")
def test_costs(generator):
    for size, vocab in ((1, 4), (3, 8), (4, 2)):
        weight = torch.randn(vocab, 5, generator=generator)
        call = f"VocabParallelEmbedding(comm, {vocab}, 5) of 6 ids on {size} ranks"
        found = embedded(size, weight, torch.arange(6) % vocab, call)
        for rank, (_, read, held, costs, _) in enumerate(found):
            mine = len(torch.arange(vocab).tensor_split(size)[rank])
            expect(
                {"bytes read": read, "weight": held, "collectives": costs},
                {"bytes read": 20 * mine, "weight": [mine, 5], "collectives": {"all_reduce": 1}},
                call=f"what {call} costs rank {rank}",
                cause="the rank reads and keeps its share of the rows",
            )


@pytest.mark.check(task=3, points=3, title="Scores of all tokens on each rank")
def test_logits(generator):
    for size, vocab, rows in ((1, 4, 2), (2, 7, 3), (3, 11, 1), (4, 3, 2), (3, 6, 0)):
        weight = torch.randn(vocab, 5, generator=generator)
        hidden = torch.randn(rows, 5, generator=generator)
        shares = weight.tensor_split(size)

        def work(comm, hidden=hidden, shares=shares, vocab=vocab):
            scores = parallel_logits(comm, hidden, shares[comm.rank], vocab)
            costs = {kind: count.calls for kind, count in comm.counts.by_kind.items()}
            return scores, costs, comm.counts.bytes

        call = f"parallel_logits(comm, hidden [{rows}, 5], weight [V', 5], {vocab}), {size} ranks"
        found = on_ranks(size, work, call=call)
        for rank, (scores, costs, _) in enumerate(found):
            expect(
                scores,
                hidden @ weight.T,
                call=f"{call}, rank {rank}",
                given={"rows of the ranks": spans(vocab, size)},
                cause="the ranks' scores stand side by side: each row has V of them",
            )
            expect(
                costs,
                {"gather_last": 1},
                call=f"collectives of {call}, rank {rank}",
                cause="each rank computes its own rows' scores, which are then joined",
            )
            expect(scores, found[0][0], call=f"{call}, rank {rank} against rank 0", rtol=0, atol=0,
                   cause="all ranks have the same bits, so all draw the same token")  # fmt: skip
        expect(
            sum(sent for _, _, sent in found),
            4 * (size - 1) * rows * vocab,
            call=f"bytes that all ranks send in {call}",
            cause="scores travel, not weights: each of them to n - 1 ranks, in float32",
        )


@pytest.mark.check(task=3, points=1, title="A tied model finds its tokens again (random)")
def test_random(generator, rng):
    for _ in range(6):
        size, vocab = int(rng.integers(1, 7)), int(rng.integers(1, 40))
        weight = torch.nn.functional.normalize(torch.randn(vocab, 24, generator=generator))
        ids = torch.from_numpy(rng.integers(0, vocab, size=int(rng.integers(1, 9))))

        def work(comm, weight=weight, ids=ids):
            embedding = VocabParallelEmbedding(comm, *weight.shape)
            embedding.load({"x.weight": StoredTensor(weight, Reads())}, "x")
            return parallel_logits(comm, embedding(ids), embedding.weight, len(weight))

        call = f"scores of the rows of {len(ids)} tokens against all {vocab}, {size} ranks"
        for rank, scores in enumerate(on_ranks(size, work, call=call)):
            expect(scores, weight[ids] @ weight.T, call=f"{call}, rank {rank}")
            expect(scores.argmax(-1), ids, call=f"the best token of {call}, rank {rank}")

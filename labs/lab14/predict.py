"""Questions to guess at before lab 14 is written; your own code answers them."""

from __future__ import annotations

from grader.student.predict import Question


def operations_left() -> float:
    import torch

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.performance.counting import CountOps
    from nanovllm.performance.fusion import FusedTransformer

    config = ModelConfig("qwen3", 40, 16, 4, 4, 2, 8, 24, 64, qk_norm=True)
    model, totals = dummy_model(config), []
    for one in (model, FusedTransformer(model)):
        with torch.inference_mode(), CountOps() as ops:
            one(torch.tensor([1, 2]), torch.arange(2), lambda layer, q, k, v: q)
        totals.append(ops.total)
    return 100 * totals[1] / totals[0]


def padding_share() -> float:
    from nanovllm.performance.buckets import batch_buckets, bucket_for

    buckets = batch_buckets(64)
    rows = sum(bucket_for(n, buckets) or n for n in range(1, 65))
    return 100 * (1 - sum(range(1, 65)) / rows)


def rows_ahead() -> float:
    from types import SimpleNamespace

    from nanovllm.batching.plan import Chunk, Plan
    from nanovllm.performance.step_ahead import plan_ahead

    store = SimpleNamespace(
        block_size=4, block_ids=lambda request: [0, 1, 2], reserve=lambda request, count: True
    )

    class Request:
        def __init__(self, limit: int) -> None:
            self.limit = limit

    total, requests = 0, (Request(9), Request(7))
    for end in range(4, 10):  # six tokens of two requests, one of which may have four
        chunks = [Chunk(r, end - 1, 1, end) for r in requests if end <= r.limit]
        total += len(plan_ahead(Plan(tuple(chunks)), range(len(chunks)), store) or {})
    return total


def loads() -> list[int]:
    """Visits of 64 experts where the i-th is visited in proportion to 1 / i."""
    return [round(10_000 / (expert + 1)) for expert in range(64)]


def largest_weight_of_two() -> float:
    import torch

    from nanovllm.performance.moe import route

    logits = torch.zeros(1, 128)
    logits[0, 5], logits[0, 9] = 4.0, 3.0
    return 100 * float(route(logits, 8, normalize=False)[0].sum())


def busiest_rank() -> float:
    from nanovllm.performance.placement import imbalance, place_experts, replicas

    load = loads()
    placement = place_experts(load, 8, 10)
    copies = replicas(load, 80)
    return imbalance([sum(load[e] / copies[e] for e in held) for held in placement.ranks])


QUESTIONS = [
    Question(
        key="a",
        text="Of the operations of a Qwen3 step besides attention: what percentage is left after "
        "fusion, without a kernel of your own?",
        unit="%",
        tasks=(2,),
        answer=operations_left,
    ),
    Question(
        key="b",
        text="Batches of 1 to 64 sequences, each size equally often, in buckets 1, 2, 4, 8, 16, "
        "32, 48, 64: which percentage of the rows is padding?",
        unit="%",
        tasks=(3,),
        answer=padding_share,
    ),
    Question(
        key="c",
        text="Two requests decode side by side for six steps and for four. How many rows are "
        "launched ahead?",
        unit="rows",
        tasks=(3, 4),
        answer=rows_ahead,
    ),
    Question(
        key="d",
        text="A router has 128 logits: 4, 3, and 126 times 0. Eight experts are chosen, without "
        "renormalising. What percentage of 1 do their weights add up to?",
        unit="%",
        tasks=(5,),
        answer=largest_weight_of_two,
    ),
    Question(
        key="e",
        text="64 experts, the i-th visited in proportion to 1 / i, on 8 ranks. In order, rank 0 "
        "has 4.6 times the mean to do. And with 2 further slots a rank, copied and placed?",
        unit="times the mean",
        tasks=(6,),
        answer=busiest_rank,
    ),
]

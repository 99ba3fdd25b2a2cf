"""Questions to guess at before lab 10 is written; your own code answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grader.student.predict import Question

if TYPE_CHECKING:
    from nanovllm.parallel.communicator import Communicator


def kib_of_a_ring() -> float:
    import torch

    from nanovllm.parallel.collectives import all_reduce
    from nanovllm.parallel.threads import run_ranks

    def work(comm: Communicator) -> int:
        all_reduce(comm, torch.zeros(2**18))
        return comm.counts.bytes

    return max(run_ranks(4, work)) / 1024


def all_reduces_of_a_step() -> float:
    import torch

    from nanovllm.model.attend import RecomputeAttend
    from nanovllm.model.config import ModelConfig
    from nanovllm.parallel.threads import run_ranks
    from nanovllm.parallel.transformer import ParallelTransformer

    config = ModelConfig("qwen3", 2048, 256, 4, 8, 4, 32, 768, 1024, qk_norm=True)

    @torch.inference_mode()
    def work(comm: Communicator) -> int:
        model = ParallelTransformer(config, comm)
        ids = torch.arange(64)
        model.logits(model(ids, ids, RecomputeAttend(model.config))[-1:])
        return comm.counts["all_reduce"].calls

    return run_ranks(8, work)[0]


def head_of_a_rank() -> float:
    from nanovllm.model.config import ModelConfig
    from nanovllm.parallel.shards import kv_heads

    config = ModelConfig("llama", 2048, 256, 4, 16, 4, 32, 768, 1024)
    return kv_heads(config, 8, 5)[0]


def waiting_of_a_stage() -> float:
    from nanovllm.parallel.pipeline import bubble

    return 100 * bubble(4, 8)


def gain_of_eight_cards() -> float:
    from nanovllm.model.config import ModelConfig
    from nanovllm.parallel.costs import Layout, ParallelCost
    from nanovllm.parallel.hardware import CARDS, LINKS, Cluster

    config = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, 8192)
    cluster = Cluster(CARDS["h100"], LINKS["nvlink"], LINKS["100gbe"])
    one, eight = (
        ParallelCost(config, cluster, Layout(tp)).seconds(tokens=1, places=2048, rows=1)
        for tp in (1, 8)
    )
    return one / eight


QUESTIONS = [
    Question(
        key="a",
        text="Four ranks all-reduce a tensor of 1 MiB in a ring: how many KiB does each send?",
        unit="KiB",
        tasks=(1,),
        answer=kib_of_a_ring,
    ),
    Question(
        key="b",
        text="The bundled model has 4 layers. How many all-reduces does a step with 64 tokens take "
        "on 8 ranks?",
        unit="all-reduces",
        tasks=(1, 2, 3, 4),
        answer=all_reduces_of_a_step,
    ),
    Question(
        key="c",
        text="16 query heads and 4 key/value heads are cut over 8 ranks. Which key/value head does "
        "rank 5 have?",
        unit="(its number, from 0 on)",
        tasks=(2,),
        answer=head_of_a_rank,
    ),
    Question(
        key="d",
        text="Eight micro-batches go through four stages: which percentage of its time does a "
        "stage wait?",
        unit="%",
        tasks=(6,),
        answer=waiting_of_a_stage,
    ),
    Question(
        key="e",
        text="Llama 3.1 8B, one request of 2,048 tokens, eight H100 with NVLink: how many times as "
        "fast is a decode step as on one card?",
        unit="times",
        tasks=(7,),
        answer=gain_of_eight_cards,
    ),
]

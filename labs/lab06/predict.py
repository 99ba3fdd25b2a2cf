"""The predictions of lab 06, answered from the student's own kernels."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from grader.student.predict import Question


def _trace() -> AbstractContextManager[Any]:
    from nanovllm.kernels.traffic import traced

    return traced()


def numbers_of_an_add() -> int:
    """Numbers that add reads for two vectors of 50."""
    from nanovllm.kernels.add import add

    with _trace() as trace:
        add(torch.ones(50), torch.ones(50), block=16)
    return trace.bytes_read // 4


def saved_by_fusion() -> float:
    """Bytes of a norm by separate operations over those of the fused kernel."""
    from nanovllm.kernels.rms_norm import fused_add_rms_norm_
    from nanovllm.kernels.traffic import torch_bytes

    x, residual = torch.randn(2, 8, 256).bfloat16()
    weight = torch.ones(256).bfloat16()

    def separate() -> torch.Tensor:
        summed = (x + residual).float()
        power = summed.square().mean(-1, keepdim=True)
        return (summed * torch.rsqrt(power + 1e-6)).bfloat16() * weight

    with _trace() as trace:
        fused_add_rms_norm_(x, residual, weight, 1e-6)
    return round(torch_bytes(separate) / trace.nbytes, 1)


def splits_of_a_long_context() -> int:
    """choose_splits for one sequence of 8,192 tokens with 4 key heads on an H100."""
    from nanovllm.kernels.split_decode import choose_splits

    return choose_splits(4, 132, 8192, 64)


def keys_for_each_query() -> float:
    """Keys that paged_prefill loads for a prompt of 400, over 400."""
    from nanovllm.kernels.paged_prefill import paged_prefill

    q, k, v = torch.randn(3, 400, 1, 16)
    cache = k.view(25, 16, 1, 16).clone()
    table, context = torch.arange(25).int()[None], torch.tensor([400]).int()
    with _trace() as trace:
        starts = torch.tensor([0, 400]).int()
        paged_prefill(q, cache, v.view(25, 16, 1, 16), table, context, starts, 400)
    loads = sum(len(found) for access, found in trace.elements(cache) if not access.is_store)
    return round(loads / 16 / 400, 1)


QUESTIONS = [
    Question(
        key="a",
        text="How many numbers does your add read for two vectors of 50 with blocks of 16?",
        unit="numbers",
        tasks=(1,),
        answer=numbers_of_an_add,
    ),
    Question(
        key="b",
        text="How many times fewer bytes does the fused norm move than separate operations "
        "(8 tokens, E = 256, bfloat16)?",
        unit="times",
        tasks=(2,),
        answer=saved_by_fusion,
    ),
    Question(
        key="c",
        text="Into how many parts is a context of 8,192 cut, for one sequence with 4 key heads "
        "on 132 SMs, with tiles of 64?",
        unit="parts",
        tasks=(7,),
        answer=splits_of_a_long_context,
    ),
    Question(
        key="d",
        text="A prompt of 400 tokens: how many keys does your prefill load for each query, on "
        "average?",
        unit="keys",
        tasks=(8,),
        answer=keys_for_each_query,
    ),
]

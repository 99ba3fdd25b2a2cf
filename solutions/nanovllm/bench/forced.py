"""Whether an engine's tokens are right, where several are: each is judged behind its own past.

Two engines in bfloat16 part at the first near-tie and agree on few whole texts, so comparing texts
says little. Here every text is read by transformers in float32, token by token (teacher forcing).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanovllm.bench.workload import Workload


@dataclass(frozen=True)
class Forced:
    """How the tokens of one engine compare with the float32 argmax behind the same tokens."""

    tokens: int
    argmax_share: float  # of the tokens, those that are the argmax
    largest_gap: float  # logits between the argmax and the token that was chosen


def judge(
    model: Path, workload: Workload, texts: Mapping[str, Sequence[Sequence[int]]]
) -> dict[str, Forced]:
    """Judge each engine's answers to the workload's requests, or to the first of them.

    model: folder of the checkpoint. texts: by engine, token ids by request; fewer than the
    workload's requests are judged if fewer are given.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    oracle = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = {}
    for name, answers in texts.items():
        gaps = []
        for job, answer in zip(workload.jobs, answers, strict=False):
            ids = torch.tensor([[*job.prompt, *answer]])
            with torch.inference_mode():
                logits = oracle(ids, logits_to_keep=len(answer) + 1).logits[0, :-1]  # [T, V]
            chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
            gaps.append(logits.amax(dim=1) - chosen)
        gap = torch.cat(gaps)
        found[name] = Forced(len(gap), float((gap == 0).double().mean()), float(gap.max()))
    return found

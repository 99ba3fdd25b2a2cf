"""From a folder to one rank's stage and slice of the model (given)."""

from __future__ import annotations

import torch

from nanovllm.model.loader import without_memory
from nanovllm.parallel.checkpoint import Checkpoint
from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.loading import load_weights
from nanovllm.parallel.stages import Stage
from nanovllm.parallel.transformer import ParallelTransformer


def load_stage(
    checkpoint: Checkpoint,
    group: Communicator,
    stage: int,
    num_stages: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Stage:
    """The rank's part: of what it does not hold, nothing is read and nothing takes memory.

    group: the ranks of its stage, which share each layer.
    """
    with without_memory():
        model = ParallelTransformer(checkpoint.config, group)
    part = Stage(model, stage, num_stages)
    part.to(dtype).to_empty(device=device)
    load_weights(part, checkpoint.tensors)
    return part.eval().requires_grad_(False)

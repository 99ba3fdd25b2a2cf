"""From a model folder to one rank's part of the model, of which nothing else is read."""

from typing import Any, cast

import torch
from torch import nn

from nanovllm.model.loader import without_memory
from nanovllm.parallel.checkpoint import Checkpoint
from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.linears import MergedColumnParallelLinear, Tensors
from nanovllm.parallel.transformer import ParallelTransformer


def load_weights(model: nn.Module, tensors: Tensors) -> None:
    """Fill every parameter of a parallel model, or of a part of one, with its share of `tensors`.

    `tensors` has the names of lab 02's `Transformer`: those of the model's own modules, but each
    part of a merged linear has its own name beside it. A module with a `load` of its own loads
    itself; what is not cut, as norms and GPT-2's positions, is read whole. A module that loads
    itself, or a merged one's, has a name: to load one alone, put it into an `nn.ModuleDict`.
    """
    ### BEGIN SOLUTION
    for name, module in model.named_modules():
        if isinstance(module, MergedColumnParallelLinear):
            module.load(tensors, name.rpartition(".")[0])
        elif hasattr(module, "load"):
            cast(Any, module).load(tensors, name)
        else:
            for kind, parameter in module.named_parameters(recurse=False):
                parameter.data.copy_(tensors[f"{name}.{kind}"].read())
    ### END SOLUTION


def load_shard(
    checkpoint: Checkpoint,
    comm: Communicator,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> ParallelTransformer:
    """The rank's part of a model; of what is cut, the rank reads its own part alone.

    It is there to compute, not to train: `eval()`, and no parameter requires a gradient.
    """
    with without_memory():
        model = ParallelTransformer(checkpoint.config, comm)
    model.to(dtype).to_empty(device=device)
    load_weights(model, checkpoint.tensors)
    return model.eval().requires_grad_(False)

"""A stage: some of the model's layers, and only their weights and K/V."""

from dataclasses import replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.model.attend import Attend
from nanovllm.model.config import ModelConfig
from nanovllm.parallel.errors import ParallelError
from nanovllm.parallel.shards import share


def layer_ranges(num_layers: int, num_stages: int) -> list[range]:
    """Which layers each stage has, in order; their numbers differ by one at most.

    The first stages have one more, for the last one has the logits to compute besides.

    Raises:
        ParallelError: fewer layers than stages, or no stage.

    >>> layer_ranges(7, 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    if not 1 <= num_stages <= num_layers:
        raise ParallelError(
            f"{num_layers} layers cannot be spread over {num_stages} stages; use 1 to {num_layers}."
        )
    return [share(num_layers, num_stages, stage) for stage in range(num_stages)]


class Stage(nn.Module):
    """`Stage(model, stage, num_stages)`: the layers of one stage, taken from a whole model.

    The model is lab 02's `Transformer` or task 4's `ParallelTransformer`; it is not changed, and
    its weights may not be there yet. `stage(x, positions, attend)` gives hidden states [T, E]: the
    first stage takes token ids [T], the others the hidden states [T, E] of the stage before; the
    last norm is the last stage's. `logits(hidden [N, E])` is the model's, in the last stage; it may
    keep the model's method for that.

    Modules: those of the model that the stage needs, the same objects under the same names, so
    that `state_dict()` has the model's names, `layers.3...` for the model's layer 3. `positions` in
    every stage; `embed_tokens` in the first, and in the last if the model is tied; `norm`, and
    `lm_head` if the model is not tied, in the last.

    `config` is that of a model with the stage's layers alone, so a cache made for it is as large
    as it must be; `attend` is told layer numbers from 0 on, those of that cache.

    >>> from nanovllm.model.attend import RecomputeAttend
    >>> from nanovllm.model.loader import dummy_model
    >>> import torch
    >>> model = dummy_model(ModelConfig("llama", 9, 4, 3, 2, 1, 2, 8, 16))
    >>> first, last = Stage(model, 0, 2), Stage(model, 1, 2)
    >>> first.config.num_layers, last.config.num_layers
    (2, 1)
    >>> ids, positions = torch.tensor([1, 2, 3]), torch.arange(3)
    >>> hidden = last(first(ids, positions, RecomputeAttend(first.config)), positions,
    ...               RecomputeAttend(last.config))
    >>> torch.equal(hidden, model(ids, positions, RecomputeAttend(model.config)))
    True
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab10 task 6: Stage")

"""The same decoder in fewer operations: merged products, norms in one operation, one RoPE."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.model.attend import Attend
from nanovllm.model.positions import RopeRotation
from nanovllm.model.transformer import Transformer
from nanovllm.performance.buckets import bucket_for
from nanovllm.performance.errors import PerformanceError


def merge_linears(parts: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """The weights of some projections of one input, one below another, and their biases.

    The projections' own weights become views of the result: no weight is in memory twice, and the
    model computes as before; weights that an earlier merge has put there stay where they are.
    Biases may be copied. The bias is None where no part has one; a part without stands as 0.

    >>> parts = [nn.Linear(2, rows, bias=False) for rows in (3, 1)]
    >>> weight, bias = merge_linears(parts)
    >>> list(weight.shape), bias, parts[1].weight.data_ptr() == weight[3].data_ptr()
    ([4, 2], None, True)
    """
    raise NotImplementedError("lab14 task 2: merge_linears")


class FusedTransformer:
    """`FusedTransformer(model)`: lab 02's model, called and answering as it, in fewer operations.

    `fused(token_ids [T], positions [T], attend)` gives what `model(...)` gives, and
    `fused.logits(hidden)` what `model.logits` gives; `attend` sees the same q, k and v, in the same
    layers. A step of a dense Llama-like model has at most 22 operations a layer and 14 besides,
    those of `attend` and views not counted (`CountOps`, under `torch.inference_mode()`, as an
    engine runs: elsewhere torch takes a norm apart). q, k and v are one product, gate and up
    another. No weight is in memory twice, also where a model is fused again. An MLP that is not
    gated, or a mixture of experts, is called as it is.
    Attributes: `model`, `config`. Raises PerformanceError for a model that has LayerNorm or learned
    positions (GPT-2), naming its family.
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab14 task 2: FusedTransformer")


class CompiledRows:
    """`CompiledRows(function, buckets, compile)`: one compiled `function` for each bucket of rows.

    function: tensors with N rows each to one tensor with N rows, each row depending on that row of
    the inputs alone. `compiled(*inputs)` fills the inputs up with zeros to the smallest bucket that
    holds N, computes, and gives the first N rows. So after each bucket was seen once nothing is
    compiled again, whatever the batch sizes. A batch above the largest bucket runs `function`
    as it is. `compile(function)`, `torch.compile` if not given, is called once for each bucket that
    is needed, the first time that it is; what it gives is called with that bucket's rows only.

    >>> sizes = []
    >>> noting = lambda function: lambda x: sizes.append(len(x)) or function(x)
    >>> rows = CompiledRows(lambda x: x + 1, (2, 4), noting)
    >>> rows(torch.zeros(3)).tolist(), rows(torch.zeros(5)).tolist(), sizes
    ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0], [4])
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab14 task 2: CompiledRows")

"""Linears of which each rank has a part: of their rows, or of their columns."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nanovllm.parallel.collectives import all_reduce
from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.stored import StoredTensor

Tensors = Mapping[str, StoredTensor]  # by the names of lab 02's `Transformer`


class ColumnParallelLinear(nn.Module):
    """`ColumnParallelLinear(in_features, rows, bias=False)`: x [..., K] to [..., N'].

    The rank has N' of the weight's N rows, in the order of `rows`, and so N' of the outputs (the
    name is of the transposed weight). Nothing is sent. Parameters: `weight` [N', K], and `bias`
    [N'] or None; neither is trained.

    `load(tensors, name)` fills them from `name.weight` [N, K] and `name.bias` [N], of which it
    reads the rank's rows alone; one that stands in `rows` twice may be read once or twice.

    >>> from nanovllm.parallel.stored import Reads
    >>> linear = ColumnParallelLinear(2, rows=[0, 2])
    >>> linear.load({"up.weight": StoredTensor(torch.arange(6.0).view(3, 2), Reads())}, "up")
    >>> linear(torch.ones(1, 2))
    tensor([[1., 9.]])
    """

    def __init__(self, in_features: int, rows: Sequence[int], bias: bool = False) -> None:
        super().__init__()
        self.rows = rows
        self.weight = frozen(len(rows), in_features)
        self.bias = frozen(len(rows)) if bias else None

    def load(self, tensors: Tensors, name: str) -> None:
        self.weight.data.copy_(tensors[f"{name}.weight"].read(self.rows))
        if self.bias is not None:
            self.bias.data.copy_(tensors[f"{name}.bias"].read(self.rows))

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... M"]:
        return F.linear(x, self.weight, self.bias)


class MergedColumnParallelLinear(nn.Module):
    """`MergedColumnParallelLinear(in_features, parts, bias=False)`: several linears as one product.

    `parts` is a dict: the name of each linear, and the rank's rows of it. Called as x [..., K], it
    gives a tuple with each one's outputs, in the order of `parts`. Parameters: `weight` [N', K],
    the parts' rows one below the other, and `bias` [N'] or None; neither is trained.

    `load(tensors, name)`, with the name of the module that the parts lie in, fills them from
    `name.part.weight` and `name.part.bias` for each part, of which it reads the rank's rows alone;
    one that stands in `rows` twice may be read once or twice.

    >>> from nanovllm.parallel.stored import Reads
    >>> merged = MergedColumnParallelLinear(2, {"gate": range(1), "up": range(1)})
    >>> stored = {"mlp.gate.weight": StoredTensor(torch.full((2, 2), 3.0), Reads()),
    ...           "mlp.up.weight": StoredTensor(torch.full((2, 2), 5.0), Reads())}
    >>> merged.load(stored, "mlp")
    >>> merged(torch.ones(1, 2))
    (tensor([[6.]]), tensor([[10.]]))
    """

    ### BEGIN SOLUTION
    def __init__(
        self, in_features: int, parts: Mapping[str, Sequence[int]], bias: bool = False
    ) -> None:
        super().__init__()
        self.parts = parts
        self.widths = [len(rows) for rows in parts.values()]
        self.weight = frozen(sum(self.widths), in_features)
        self.bias = frozen(sum(self.widths)) if bias else None

    def load(self, tensors: Tensors, name: str) -> None:
        kinds = {"weight": self.weight, "bias": self.bias}
        for kind, parameter in kinds.items():
            if parameter is not None:
                slots = parameter.data.split(self.widths)
                for slot, (part, rows) in zip(slots, self.parts.items(), strict=True):
                    slot.copy_(tensors[f"{name}.{part}.{kind}"].read(rows))

    def forward(self, x: Float[Tensor, "... K"]) -> tuple[Tensor, ...]:
        return F.linear(x, self.weight, self.bias).split(self.widths, dim=-1)

    ### END SOLUTION


class RowParallelLinear(nn.Module):
    """`RowParallelLinear(comm, columns, out_features, bias=False)`: x [..., K'] to [..., N].

    The rank has K' of the weight's K columns, in the order of `columns`, and the K' inputs that go
    with them; all ranks get the whole result, by one all-reduce. Parameters: `weight` [N, K'], and
    `bias` [N] or None, which is added once; neither is trained.

    `load(tensors, name)` fills them from `name.weight` [N, K], of which it reads the rank's columns
    alone, and `name.bias` [N].

    >>> from nanovllm.parallel.stored import Reads
    >>> from nanovllm.parallel.threads import run_ranks
    >>> def work(comm):
    ...     linear = RowParallelLinear(comm, range(2 * comm.rank, 2 * comm.rank + 2), 1)
    ...     linear.load({"o.weight": StoredTensor(torch.ones(1, 4), Reads())}, "o")
    ...     return linear(torch.tensor([[1.0, 10.0]]) * 100**comm.rank)
    >>> run_ranks(2, work)
    [tensor([[1111.]]), tensor([[1111.]])]
    """

    ### BEGIN SOLUTION
    def __init__(
        self, comm: Communicator, columns: Sequence[int], out_features: int, bias: bool = False
    ) -> None:
        super().__init__()
        self.comm, self.columns = comm, columns
        self.weight = frozen(out_features, len(columns))
        self.bias = frozen(out_features) if bias else None

    def load(self, tensors: Tensors, name: str) -> None:
        self.weight.data.copy_(tensors[f"{name}.weight"].read(columns=self.columns))
        if self.bias is not None:
            self.bias.data.copy_(tensors[f"{name}.bias"].read())

    def forward(self, x: Float[Tensor, "... M"]) -> Float[Tensor, "... N"]:
        out = all_reduce(self.comm, F.linear(x, self.weight))
        return out if self.bias is None else out + self.bias

    ### END SOLUTION


def frozen(*shape: int) -> nn.Parameter:
    """A parameter of this shape to be filled, and not trained."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)

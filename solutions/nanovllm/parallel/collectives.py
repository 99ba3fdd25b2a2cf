"""Sums and joins over all ranks, by messages that go round a ring."""

### BEGIN SOLUTION
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from nanovllm.parallel.communicator import Communicator


def reduce_scatter(comm: Communicator, x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "run"]:
    """Run `rank` of the sum of all ranks' x; step by step, a partial sum comes from the left.

    The sum of a run begins one rank to the right of its owner, so its order is the same for all.
    """
    runs = x.reshape(-1).tensor_split(comm.size)
    with comm.counting("reduce_scatter"):
        partial = runs[(comm.rank - 1) % comm.size].clone()
        for step in range(2, comm.size + 1):
            mine = runs[(comm.rank - step) % comm.size]
            partial = from_left(comm, partial, torch.empty_like(mine)) + mine
    return partial


def all_gather(
    comm: Communicator, run: Shaped[Tensor, "run"], total: int
) -> Shaped[Tensor, "total"]:
    """The runs of all ranks, one after the other."""
    whole = run.new_empty(total)
    with comm.counting("all_gather"):
        pass_round(comm, run, whole.tensor_split(comm.size))
    return whole


def all_reduce(comm: Communicator, x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """The sum of all ranks' x on each rank."""
    with comm.counting("all_reduce"):
        return all_gather(comm, reduce_scatter(comm, x), x.numel()).view(x.shape)


def gather_last(
    comm: Communicator, x: Float[Tensor, "... width"], total: int
) -> Float[Tensor, "... total"]:
    """All ranks' x side by side along the last dimension."""
    runs = torch.empty(total, device="meta").tensor_split(comm.size)
    parts = [x.new_empty(*x.shape[:-1], len(run)) for run in runs]
    with comm.counting("gather_last"):
        pass_round(comm, x, parts)
    return torch.cat(parts, dim=-1)


def pass_round(comm: Communicator, own: Tensor, parts: list[Tensor]) -> None:
    """Fill each rank's part: a rank passes on what came last, first its own."""
    parts[comm.rank].copy_(own)
    for step in range(comm.size - 1):
        sent, wanted = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        from_left(comm, parts[sent], parts[wanted])


def from_left(comm: Communicator, x: Tensor, into: Tensor) -> Tensor:
    """Send x to the rank on the right while `into` is filled by the one on the left."""
    return comm.exchange(x, (comm.rank + 1) % comm.size, into, (comm.rank - 1) % comm.size)


### END SOLUTION

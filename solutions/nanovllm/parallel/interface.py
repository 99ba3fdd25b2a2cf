"""What the files that start empty offer to the others (given)."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Float, Shaped
from torch import Tensor

from nanovllm.parallel.communicator import Communicator


class Collectives(Protocol):
    """The functions of `collectives.py`, which all n ranks of a communicator call alike.

    Values are cut into n runs like `torch.tensor_split` cuts them: lengths differ by one at most,
    longer runs come first, and there may be empty ones. Values go round the ring: a rank sends to
    the next one only, and receives from the one before. Sums have x's dtype, all ranks get the same
    bits, and x stays as it is; no result shares memory with it. What they get and what they give
    may be views that are not contiguous. Each function counts itself as one call of a kind that has
    its name: `with comm.counting("all_reduce"):`.
    """

    @staticmethod
    def reduce_scatter(comm: Communicator, x: Shaped[Tensor, ...]) -> Shaped[Tensor, " run"]:
        """Run `rank` of the sum of all ranks' x, as one dimension; a rank sends n - 1 runs.

        With x = [1, 2, 3] on rank 0 and [10, 20, 30] on rank 1: [11, 22] and [33].
        """
        ...

    @staticmethod
    def all_gather(
        comm: Communicator, run: Shaped[Tensor, " run"], total: int
    ) -> Shaped[Tensor, " total"]:
        """The runs of all ranks, one after the other: `total` values; a rank sends n - 1 runs.

        With [1, 2] on rank 0 and [3] on rank 1, and total = 3: [1, 2, 3] on both.
        """
        ...

    @staticmethod
    def all_reduce(comm: Communicator, x: Shaped[Tensor, ...]) -> Shaped[Tensor, ...]:
        """The sum of all ranks' x, in x's shape, on each rank; a rank sends 2 (n - 1) runs.

        With [1, 2, 3] on rank 0 and [10, 20, 30] on rank 1: [11, 22, 33] on both.
        """
        ...

    @staticmethod
    def gather_last(
        comm: Communicator, x: Float[Tensor, "... width"], total: int
    ) -> Float[Tensor, "... total"]:
        """All ranks' x side by side along the last dimension, of which rank r has run r.

        With [[1, 2], [4, 5]] on rank 0 and [[3], [6]] on rank 1, and total = 3:
        [[1, 2, 3], [4, 5, 6]] on both. A rank sends n - 1 of the ranks' x.
        """
        ...

"""The best table of a few values for a row of many weights: k-means in one dimension, exactly."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor


def weighted_kmeans(
    values: Float[Tensor, "N n"], weights: Float[Tensor, "N n"], k: int
) -> tuple[Float[Tensor, "N k"], UInt8[Tensor, "N n"]]:
    """For every row by itself: a table of k values and a code for each value, so that the sum of
    weight * (value - table[code])^2 is the smallest there is, not where an iteration stops.

    weights are at least 0. Values of weight 0 count for nothing, also where a whole row or cluster
    has only such. A row may have fewer values than k. A table may be in any order; entries that no
    value needs are any finite numbers. It has the values' dtype, and the sums are float64.

    >>> values = torch.tensor([[5.0, 0.0, 1.0, 6.0, 9.0]])
    >>> table, codes = weighted_kmeans(values, torch.tensor([[1.0, 1.0, 3.0, 1.0, 0.0]]), k=2)
    >>> table.gather(1, codes.long())[:, :4]
    tensor([[5.5000, 0.7500, 0.7500, 5.5000]])
    """
    raise NotImplementedError("lab09 task 5: weighted_kmeans")

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
    ### BEGIN SOLUTION
    rows, n = values.shape
    weights = torch.where(weights.amax(dim=1, keepdim=True) > 0, weights, 1.0)
    # A value of weight 0 stands with the heaviest one, and gets the nearest code at the end.
    heaviest = values.gather(1, weights.argmax(dim=1, keepdim=True))
    x, order = torch.where(weights > 0, values, heaviest).double().sort(dim=1)
    centre = x.mean(dim=1, keepdim=True)  # small numbers lose less in the differences of sums
    w = weights.double().gather(1, order)
    w = w + 1e-12 * w.amax(dim=1, keepdim=True) + 1e-300  # no sum of weights is 0
    mass, moment = (
        torch.nn.functional.pad(sums.cumsum(dim=1), (1, 0)) for sums in (w, w * (x - centre))
    )
    # The error of a cluster is sum w x^2 - (sum w x)^2 / sum w. The first part is the same for all
    # clusterings, so the best one has the largest sum of second parts.
    best = torch.zeros(k, rows, n + 1, dtype=torch.float64)  # of the first `end` values
    best[0, :, 1:] = moment[:, 1:].square() / mass[:, 1:]
    start = torch.zeros(k, rows, n + 1, dtype=torch.long)  # where the last cluster begins
    for end in range(1, n + 1):
        # A cluster that ends later does not begin earlier.
        lows = start[1:, :, end - 1].amin(dim=1).tolist()
        low = min(lows, default=end)
        gain = (moment[:, end, None] - moment[:, low:end]).square()
        gain /= mass[:, end, None] - mass[:, low:end]
        for c, first in enumerate(lows, 1):
            found = (best[c - 1, :, first:end] + gain[:, first - low :]).max(dim=1)
            best[c, :, end], start[c, :, end] = found.values, found.indices + first
    ends, table = torch.full((rows, 1), n), torch.zeros_like(best[:, :, 0]).T
    codes = torch.zeros(rows, n, dtype=torch.uint8)
    for c in reversed(range(k)):
        begins = start[c].gather(1, ends)
        share = mass.gather(1, ends) - mass.gather(1, begins)
        total = moment.gather(1, ends) - moment.gather(1, begins)
        table[:, c] = torch.where(share > 0, total / share + centre, centre)[:, 0]
        codes += (c > 0) * (torch.arange(n) >= begins).to(torch.uint8)
        ends = begins
    table, codes = table.to(values.dtype), torch.empty_like(codes).scatter_(1, order, codes)
    nearest = torch.zeros_like(codes)
    for c in range(1, k):
        off = (values - table.gather(1, nearest.long())).abs()
        nearest[(values - table[:, c, None]).abs() < off] = c
    return table, torch.where(weights > 0, codes, nearest)
    ### END SOLUTION

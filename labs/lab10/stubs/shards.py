"""Which rows, columns and heads of a model a rank has."""

import dataclasses
import math
from collections.abc import Sequence

from nanovllm.model.config import ModelConfig
from nanovllm.parallel.errors import ParallelError


def share(total: int, size: int, rank: int) -> range:
    """The numbers below `total` that rank `rank` of `size` has.

    Every number belongs to one rank, lower numbers to lower ranks. Shares differ by one at most,
    the longer ones come first, and there may be empty ones.

    >>> [share(7, 3, rank) for rank in range(3)]
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    each, left = divmod(total, size)
    start = rank * each + min(rank, left)
    return range(start, start + each + (rank < left))


def query_heads(config: ModelConfig, size: int, rank: int) -> range:
    """The query heads of a rank: H / size of them, lower ones on lower ranks.

    Raises:
        ParallelError: size does not divide H.

    >>> query_heads(ModelConfig("llama", 9, 8, 1, 8, 2, 2, 8, 16), size=4, rank=3)
    range(6, 8)
    """
    raise NotImplementedError("lab10 task 2: query_heads")


def kv_heads(config: ModelConfig, size: int, rank: int) -> list[int]:
    """The key/value heads of a rank, in the order in which its query heads use them.

    On the rank alone, attention must be what it is in the model: equally many neighbouring query
    heads share each entry of this list. All ranks' lists are equally long, and as short as can be.
    If `size` divides G, a rank has G / size heads; with more ranks than key/value heads, several
    ranks have the same one; and with G = 3 heads on 2 ranks, a rank has one of its heads twice.

    Raises:
        ParallelError: size does not divide H.

    >>> eight_over_two = ModelConfig("llama", 9, 8, 1, 8, 2, 2, 8, 16)
    >>> [kv_heads(eight_over_two, 4, rank) for rank in range(4)]
    [[0], [0], [1], [1]]
    >>> twelve_over_three = ModelConfig("llama", 9, 8, 1, 12, 3, 2, 8, 16)
    >>> [kv_heads(twelve_over_three, 2, rank) for rank in range(2)]
    [[0, 0, 1], [1, 2, 2]]
    """
    raise NotImplementedError("lab10 task 2: kv_heads")


def rows_of_heads(heads: Sequence[int], head_dim: int) -> list[int]:
    """The rows of a projection's weight that belong to these heads, head after head.

    >>> rows_of_heads([0, 2], head_dim=3)
    [0, 1, 2, 6, 7, 8]
    """
    raise NotImplementedError("lab10 task 2: rows_of_heads")


def rank_config(config: ModelConfig, size: int, rank: int) -> ModelConfig:
    """The model as one rank's K/V cache sees it: `num_heads` and `num_kv_heads` are the rank's.

    All else stays as it is in the model.

    Raises:
        ParallelError: size does not divide H.

    >>> mine = rank_config(ModelConfig("llama", 9, 8, 1, 8, 2, 2, 8, 16), size=4, rank=3)
    >>> mine.num_heads, mine.num_kv_heads, mine.intermediate_size
    (2, 1, 8)
    """
    raise NotImplementedError("lab10 task 2: rank_config")

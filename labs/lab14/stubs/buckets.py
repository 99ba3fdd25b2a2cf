"""Batch sizes for which a decode is captured: a batch is filled up to the next of them."""

from bisect import bisect_left

LARGEST_BUCKET = 512  # captured at most, as vLLM: beyond, launches are few


def batch_buckets(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then every 16, to the first that holds all: nano-vLLM's list (vLLM's goes by 8
    up to 256).

    >>> batch_buckets(40)
    (1, 2, 4, 8, 16, 32, 48)
    >>> batch_buckets(3)
    (1, 2, 4)
    """
    raise NotImplementedError("lab14 task 3: batch_buckets")


def bucket_for(num_seqs: int, buckets: tuple[int, ...]) -> int | None:
    """The smallest bucket that holds the batch; None if there is none: run it uncaptured.

    >>> bucket_for(9, (1, 2, 4, 8, 16)), bucket_for(17, (1, 2, 4, 8, 16))
    (16, None)
    """
    raise NotImplementedError("lab14 task 3: bucket_for")

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
    ### BEGIN SOLUTION
    sizes = [1, 2, 4, 8, *range(16, max_num_seqs + 16, 16)]
    return tuple(sizes[: bisect_left(sizes, max_num_seqs) + 1])
    ### END SOLUTION


def bucket_for(num_seqs: int, buckets: tuple[int, ...]) -> int | None:
    """The smallest bucket that holds the batch; None if there is none: run it uncaptured.

    >>> bucket_for(9, (1, 2, 4, 8, 16)), bucket_for(17, (1, 2, 4, 8, 16))
    (16, None)
    """
    ### BEGIN SOLUTION
    place = bisect_left(buckets, num_seqs)
    return buckets[place] if place < len(buckets) else None
    ### END SOLUTION

"""When it pays to swap: two copies of a request's blocks against computing its tokens again."""


def swap_pays(
    num_bytes: int, bytes_per_second: float, num_tokens: int, tokens_per_second: float
) -> bool:
    """Whether a preempted request comes back sooner from host memory than by a new prefill.

    num_bytes: of its blocks; they are copied out now, and in later. bytes_per_second: of a copy
    between device and host. num_tokens: what a new prefill would compute, at tokens_per_second.
    Where both take the same time, it does not pay: host memory is for others, too.

    >>> swap_pays(1_000_000, 1e9, num_tokens=20, tokens_per_second=5_000)  # 2 ms against 4 ms
    True
    >>> swap_pays(2_000_000, 1e9, num_tokens=20, tokens_per_second=5_000)
    False
    """
    raise NotImplementedError("lab05 task 7: swap_pays")

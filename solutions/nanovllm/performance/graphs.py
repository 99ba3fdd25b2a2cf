"""CUDA graphs of a decode, one a bucket: hundreds of launches become one."""

from collections.abc import Callable
from typing import Any

import torch

from nanovllm.performance.buckets import bucket_for

Run = Callable[[int], None]  # computes the first `bucket` rows of the static buffers
Capture = Callable[[Callable[[], None], Any], tuple[Callable[[], None], Any]]


def cuda_capture(function: Callable[[], None], pool: Any = None) -> tuple[Callable[[], None], Any]:
    """Capture what `function` launches; its replay, and the memory pool for the next capture.

    The function runs twice before, on a stream of its own: kernels are compiled and workspaces
    allocated outside of the capture. All tensors that it reads have to stay where they are.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        function()
    return graph.replay, graph.pool()


class DecodeGraphs:
    """`DecodeGraphs(run, buckets, capture)`: a captured `run` for each bucket of rows.

    Every bucket is captured when it is made, the largest first, for the memory of the others fits
    into its own: `capture(function, pool)` gives a replay and the pool for the next capture; the
    first gets None. `run(rows)` computes the first `rows` rows of static buffers.

    `rows_for(num_seqs)`: rows to fill for a batch: its bucket's, or just its own where it is above
    the largest. `graphs(rows)`: compute so many rows: the replay of that bucket, or `run` as it is
    where nothing of that size was captured.

    >>> log = []
    >>> def capture(function, pool): return function() or (lambda: log.append("replay")), pool
    >>> graphs = DecodeGraphs(log.append, (1, 2), capture)
    >>> graphs.rows_for(2), graphs.rows_for(3), graphs(2), graphs(3), log
    (2, 3, None, None, [2, 1, 'replay', 3])
    """

    ### BEGIN SOLUTION
    def __init__(self, run: Run, buckets: tuple[int, ...], capture: Capture = cuda_capture) -> None:
        self.run = run
        self.buckets = buckets
        self._replays: dict[int, Callable[[], None]] = {}
        pool = None
        for bucket in reversed(buckets):
            self._replays[bucket], pool = capture(lambda size=bucket: run(size), pool)

    def rows_for(self, num_seqs: int) -> int:
        return bucket_for(num_seqs, self.buckets) or num_seqs

    def __call__(self, rows: int) -> None:
        replay = self._replays.get(rows)
        if replay is None:
            self.run(rows)
        else:
            replay()

    ### END SOLUTION

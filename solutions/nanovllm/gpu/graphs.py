"""CUDA graphs of a decode, one a bucket: hundreds of launches become one."""

from collections.abc import Callable
from typing import Any

import torch

from nanovllm.gpu.buckets import bucket_for

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
    """Replays the captured decode of a bucket; batches above the largest run uncaptured."""

    def __init__(self, run: Run, buckets: tuple[int, ...], capture: Capture = cuda_capture) -> None:
        self.run = run
        self.buckets = buckets
        self._replays: dict[int, Callable[[], None]] = {}
        pool = None
        for bucket in reversed(buckets):  # the largest first: the others fit into its memory
            self._replays[bucket], pool = capture(lambda size=bucket: run(size), pool)

    def rows_for(self, num_seqs: int) -> int:
        """Rows to fill for a batch: its bucket's, or just its own."""
        return bucket_for(num_seqs, self.buckets) or num_seqs

    def __call__(self, rows: int) -> None:
        """Compute the first `rows` rows of the buffers."""
        replay = self._replays.get(rows)
        if replay is None:
            self.run(rows)
        else:
            replay()

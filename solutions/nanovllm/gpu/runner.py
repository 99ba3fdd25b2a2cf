"""The device's half of a decode: buffers, graphs and fused kernels behind `launch` and `read`."""

from collections.abc import Sequence

import torch

from nanovllm.gpu.buckets import batch_buckets
from nanovllm.gpu.buffers import DecodeBuffers, DecodeRow
from nanovllm.gpu.decoder import FusedDecoder
from nanovllm.gpu.graphs import Capture, DecodeGraphs, cuda_capture
from nanovllm.model.transformer import Transformer
from nanovllm.paging.cache import PagedCache


class DecodeRunner:
    """Greedy decodes of rows over a paged cache; the `Device` of a Pipeline."""

    def __init__(
        self,
        model: Transformer,
        cache: PagedCache,
        max_num_seqs: int,
        max_model_len: int,
        capture: Capture = cuda_capture,
    ) -> None:
        self.decoder = FusedDecoder(model)
        self.cache = cache
        buckets = batch_buckets(max_num_seqs)
        blocks = -(-max_model_len // cache.block_size)
        self.buffers = DecodeBuffers(buckets[-1], blocks, cache.block_size, cache.device)
        self.buffers.load([], buckets[-1])  # a capture computes padding alone
        with torch.inference_mode():
            self.graphs = DecodeGraphs(self._compute, buckets, capture)

    def _compute(self, rows: int) -> None:
        buffers = self.buffers
        hidden = self.decoder.forward(
            buffers.token_ids(rows),
            buffers.on_device["positions"][:rows],
            self.cache,
            buffers.batch(rows),
        )
        buffers.sampled[:rows] = self.decoder.model.logits(hidden).argmax(-1)

    def launch(self, step: Sequence[DecodeRow]) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """Start a decode; its tokens are copied to the host behind it, in the stream's order.

        The copy is of its own memory: the next replay writes over `sampled`.
        """
        rows = self.graphs.rows_for(len(step))
        self.buffers.load(step, rows)
        with torch.inference_mode():
            self.graphs(rows)
        on_gpu = self.cache.device.type == "cuda"
        tokens = torch.empty(len(step), dtype=torch.int64, pin_memory=on_gpu)
        tokens.copy_(self.buffers.sampled[: len(step)], non_blocking=True)
        if not on_gpu:
            return tokens, None
        event = torch.cuda.Event()
        event.record()
        return tokens, event

    def read(self, handle: tuple[torch.Tensor, torch.cuda.Event | None]) -> list[int]:
        """Wait for a decode's tokens, and for no later one's."""
        tokens, event = handle
        if event is not None:
            event.synchronize()
        return tokens.tolist()

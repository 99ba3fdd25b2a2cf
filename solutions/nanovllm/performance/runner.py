"""The device's half of a step: launches return at once, and are read when their tokens are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.batching.plan import Chunk
from nanovllm.model.transformer import Transformer
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.cache import PagedCache
from nanovllm.performance.buckets import LARGEST_BUCKET, batch_buckets
from nanovllm.performance.buffers import DecodeBuffers, DecodeRow
from nanovllm.performance.chunks import ChunkInput
from nanovllm.performance.draw import Draw, draw_tokens, likeliest
from nanovllm.performance.graphs import Capture, DecodeGraphs, cuda_capture


@dataclass(frozen=True)
class Launch:
    """A computation on its way; its tokens have the places `first`, `first` + 1, ... in `sampled`.

    logits [N, V]: a decode's are there only until the next decode is launched.
    """

    first: int
    logits: Float[Tensor, "N V"]
    tokens: Int[Tensor, "N"]  # in host memory
    done: torch.cuda.Event | None  # when they are there; None on a CPU

    def read(self) -> list[int]:
        """Wait for its tokens, and for nothing launched later."""
        if self.done is not None:
            self.done.synchronize()
        return self.tokens.tolist()


class Decoder(Protocol):
    """`Transformer.forward` over a paged cache, by any operations."""

    model: Transformer

    def forward(
        self,
        token_ids: Int[Tensor, "T"],
        positions: Int[Tensor, "T"],
        cache: PagedCache,
        batch: PagedBatch,
    ) -> Float[Tensor, "T E"]: ...


class StepRunner:
    """A decoder over a paged cache; decodes replayed from graphs, other chunks as they are."""

    def __init__(
        self,
        decoder: Decoder,
        cache: PagedCache,
        max_num_seqs: int,
        max_model_len: int,
        capture: Capture = cuda_capture,
        largest_bucket: int = LARGEST_BUCKET,
        chunk_rows: int = 0,
    ) -> None:
        self.decoder = decoder
        self.cache = cache
        buckets = batch_buckets(min(max_num_seqs, largest_bucket))
        self.buffers = DecodeBuffers(
            max(max_num_seqs, buckets[-1]),
            -(-max_model_len // cache.block_size),
            cache.block_size,
            cache.device,
            decoder.model.config.vocab_size,
            cache.k.dtype,
            chunk_rows,
        )
        self.buffers.load([], buckets[-1])  # a capture computes padding alone
        with torch.inference_mode():
            self.graphs = DecodeGraphs(self._decode, buckets, capture)

    def _decode(self, rows: int) -> None:
        buffers = self.buffers
        hidden = self.decoder.forward(
            buffers.token_ids(rows),
            buffers.on_device["positions"][:rows],
            self.cache,
            buffers.batch(rows),
        )
        logits = self.decoder.model.logits(hidden)
        buffers.logits[:rows] = logits
        buffers.sampled[:rows] = likeliest(logits)

    @torch.inference_mode()
    def decode(self, rows: Sequence[DecodeRow], draws: Sequence[Draw]) -> Launch:
        """Start a decode of these rows, and the draw of each one's next token.

        Without draws the likeliest is taken.
        """
        bucket = self.graphs.rows_for(len(rows))
        self.buffers.load(rows, bucket)
        self.graphs(bucket)
        logits = self.buffers.logits[: len(rows)]
        if not all(each.params.greedy for each in draws):  # the graph takes the likeliest
            self.buffers.sampled[: len(rows)] = draw_tokens(logits, draws)
        return self._fetch(0, logits)

    @torch.inference_mode()
    def compute(self, chunks: Sequence[Chunk], batch: PagedBatch, draws: Sequence[Draw]) -> Launch:
        """Start any chunks of a plan, uncaptured, and a draw for each chunk that completes.

        batch: where their K and V are, in host memory. Without draws the likeliest is taken.
        """
        given = ChunkInput.of(chunks, batch).to(self.cache.device)
        hidden = self.decoder.forward(given.token_ids, given.positions, self.cache, given.batch)
        logits = self.decoder.model.logits(hidden[given.last])
        first = self.buffers.max_num_seqs
        self.buffers.sampled[first : first + len(logits)] = draw_tokens(logits, draws)
        return self._fetch(first, logits)

    def _fetch(self, first: int, logits: Float[Tensor, "N V"]) -> Launch:
        """Have the tokens copied to the host behind the launch, in the stream's order.

        To memory of their own, for the next launch writes over `sampled`.
        """
        on_gpu = self.cache.device.type == "cuda"
        tokens = torch.empty(len(logits), dtype=torch.int64, pin_memory=on_gpu)
        tokens.copy_(self.buffers.sampled[first : first + len(logits)], non_blocking=True)
        if not on_gpu:
            return Launch(first, logits, tokens, None)
        done = torch.cuda.Event()
        done.record()
        return Launch(first, logits, tokens, done)

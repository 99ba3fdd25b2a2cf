"""Inputs and outputs of a decode at fixed addresses: what a captured graph reads and writes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanovllm.paging.batch import PagedBatch
from nanovllm.performance.errors import PerformanceError

NO_SLOT = -1


def slot_at(position: int, block_ids: Sequence[int], block_size: int) -> int:
    """The slot of a request's token at `position`, from its blocks.

    >>> slot_at(5, [7, 2], block_size=4)
    9
    """
    ### BEGIN SOLUTION
    return block_ids[position // block_size] * block_size + position % block_size
    ### END SOLUTION


@dataclass(frozen=True)
class DecodeRow:
    """One sequence of a decode: the token at `position` is computed, and stored in `slot`.

    source: the place in `sampled` of its token, which the host need not know; None: `token_id`.
    """

    position: int
    slot: int
    block_ids: Sequence[int]
    token_id: int = 0
    source: int | None = None


class HostInputs:
    """One set of a decode's inputs in host memory, from where the device fetches it.

    arrays: the inputs by name, as numpy arrays [N] ([N, blocks] for block_tables).
    """

    def __init__(
        self, shapes: dict[str, tuple[tuple[int, ...], torch.dtype]], pinned: bool
    ) -> None:
        self.tensors = {
            n: torch.zeros(s, dtype=t, pin_memory=pinned) for n, (s, t) in shapes.items()
        }
        self.arrays = {name: tensor.numpy() for name, tensor in self.tensors.items()}
        self._fetched = torch.cuda.Event() if pinned else None

    def fill(self, rows: Sequence[DecodeRow], bucket: int) -> None:
        """The batch, and padding behind it up to `bucket` rows; `arrays` are the memory itself.

        A row's context is its position and all before it. Its table is as wide as the buffer: 0
        behind its blocks. Padding has slot and source -1, and 0 in all else but the tables, whose
        blocks there are those of any batch before: nothing depends on them.
        """
        ### BEGIN SOLUTION
        count, arrays = len(rows), self.arrays
        arrays["token_ids"][:count] = [row.token_id for row in rows]
        arrays["source"][:count] = [-1 if row.source is None else row.source for row in rows]
        arrays["positions"][:count] = [row.position for row in rows]
        arrays["slot_mapping"][:count] = [row.slot for row in rows]
        arrays["context_lens"][:count] = [row.position + 1 for row in rows]
        for name, array in arrays.items():
            array[count:bucket] = NO_SLOT if name in ("slot_mapping", "source") else 0
        tables = arrays["block_tables"]
        for i, row in enumerate(rows):
            tables[i, : len(row.block_ids)] = row.block_ids
            tables[i, len(row.block_ids) :] = 0
        ### END SOLUTION

    def wait(self) -> None:
        """Until the device has fetched what is here: with two sets in turn it has, unless launches
        were given up unread."""
        if self._fetched is not None:
            self._fetched.synchronize()

    def send(self, targets: dict[str, Tensor], bucket: int) -> None:
        """Copy the first `bucket` rows to the device, without waiting for it."""
        for name, target in targets.items():
            target[:bucket].copy_(self.tensors[name][:bucket], non_blocking=True)
        if self._fetched is not None:
            self._fetched.record()


class DecodeBuffers:
    """Static device tensors and two sets of host tensors, filled in turn.

    Two, because the device may still fetch the one of the step before. Rows beyond the batch are
    padding: slot -1 (nothing is stored), context 0 (nothing is read).

    sampled [N + max(N, chunk_rows)]: the tokens of the newest decode; from place N on, those of the
    newest chunks that were computed otherwise. logits [N, V]: of the newest decode.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_blocks: int,
        block_size: int,
        device: torch.device | str,
        vocab_size: int,
        dtype: torch.dtype = torch.float32,
        chunk_rows: int = 0,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_context_len = max_blocks * block_size
        shapes = {
            "token_ids": ((max_num_seqs,), torch.int64),
            "source": ((max_num_seqs,), torch.int64),
            "positions": ((max_num_seqs,), torch.int64),
            "slot_mapping": ((max_num_seqs,), torch.int64),
            "context_lens": ((max_num_seqs,), torch.int32),
            "block_tables": ((max_num_seqs, max_blocks), torch.int32),
        }
        pinned = torch.device(device).type == "cuda"
        self._host = [HostInputs(shapes, pinned) for _ in range(2)]
        self.on_device = {n: torch.zeros(s, dtype=t, device=device) for n, (s, t) in shapes.items()}
        self.query_start_loc = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        chunks = max(max_num_seqs, chunk_rows)
        self.sampled = torch.zeros(max_num_seqs + chunks, dtype=torch.int64, device=device)
        self.logits = torch.zeros(max_num_seqs, vocab_size, dtype=dtype, device=device)

    def load(self, rows: Sequence[DecodeRow], bucket: int) -> None:
        """Fill the first `bucket` rows, padding behind the batch: the other host set of the two
        than last time, waited for, filled, then sent. The device tensors stay where they are.

        Raises PerformanceError where the batch is larger than the bucket, and changes nothing then.
        """
        ### BEGIN SOLUTION
        if len(rows) > bucket:
            raise PerformanceError(f"{len(rows)} rows do not fit into a bucket of {bucket}.")
        host = self._host[0]
        self._host.reverse()
        host.wait()
        host.fill(rows, bucket)
        host.send(self.on_device, bucket)
        ### END SOLUTION

    def token_ids(self, bucket: int) -> Tensor:
        """The tokens to compute [bucket]: those still on the device never visit the host.

        A row with a source (not -1) computes the token at that place of `sampled`, whichever it is,
        the others their own. A row without a token (`sampled` holds -1: its logits were not finite)
        reads token 0; nobody wants its result. It is part of what is captured: no value may reach
        Python.
        """
        ### BEGIN SOLUTION
        source = self.on_device["source"][:bucket]
        earlier = self.sampled[source.clamp(min=0)].clamp(min=0)
        return torch.where(source >= 0, earlier, self.on_device["token_ids"][:bucket])
        ### END SOLUTION

    def batch(self, bucket: int) -> PagedBatch:
        """Views of the first rows, as attention wants them.

        Its largest lengths hold for every batch: a query of one token, a context of whole tables.
        """
        ### BEGIN SOLUTION
        return PagedBatch(
            slot_mapping=self.on_device["slot_mapping"][:bucket],
            block_tables=self.on_device["block_tables"][:bucket],
            context_lens=self.on_device["context_lens"][:bucket],
            query_start_loc=self.query_start_loc[: bucket + 1],
            max_query_len=1,
            max_context_len=self.max_context_len,
        )
        ### END SOLUTION

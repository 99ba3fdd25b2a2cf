"""Inputs and outputs of a decode at fixed addresses: what a captured graph reads and writes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanovllm.paging.batch import PagedBatch

NO_SLOT = -1


def slot_at(position: int, block_ids: Sequence[int], block_size: int) -> int:
    """The slot of a request's token at `position`, from its blocks.

    >>> slot_at(5, [7, 2], block_size=4)
    9
    """
    return block_ids[position // block_size] * block_size + position % block_size


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
    """One set of a decode's inputs in host memory, from where the device fetches it."""

    def __init__(
        self, shapes: dict[str, tuple[tuple[int, ...], torch.dtype]], pinned: bool
    ) -> None:
        self.tensors = {
            n: torch.zeros(s, dtype=t, pin_memory=pinned) for n, (s, t) in shapes.items()
        }
        self._arrays = {name: tensor.numpy() for name, tensor in self.tensors.items()}
        self._fetched = torch.cuda.Event() if pinned else None

    def fill(self, rows: Sequence[DecodeRow], bucket: int) -> None:
        """The batch, and padding behind it up to `bucket` rows.

        Waits until the device has fetched what was here: with two sets in turn it has, unless
        launches were given up unread.
        """
        if self._fetched is not None:
            self._fetched.synchronize()
        count, arrays = len(rows), self._arrays
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
        """Fill the first `bucket` rows, padding behind the batch, without waiting for the device.

        Raises ValueError where the batch is larger than the bucket.
        """
        if len(rows) > bucket:
            raise ValueError(f"{len(rows)} rows do not fit into a bucket of {bucket}.")
        host = self._host[0]
        self._host.reverse()
        host.fill(rows, bucket)
        host.send(self.on_device, bucket)

    def token_ids(self, bucket: int) -> Tensor:
        """The tokens to compute [bucket]: those still on the device never visit the host.

        A row without a token (its logits were not finite) reads token 0; nobody wants its result.
        """
        source = self.on_device["source"][:bucket]
        earlier = self.sampled[source.clamp(min=0)].clamp(min=0)
        return torch.where(source >= 0, earlier, self.on_device["token_ids"][:bucket])

    def batch(self, bucket: int) -> PagedBatch:
        """Views of the first rows, as attention wants them; lengths are the largest possible."""
        return PagedBatch(
            slot_mapping=self.on_device["slot_mapping"][:bucket],
            block_tables=self.on_device["block_tables"][:bucket],
            context_lens=self.on_device["context_lens"][:bucket],
            query_start_loc=self.query_start_loc[: bucket + 1],
            max_query_len=1,
            max_context_len=self.max_context_len,
        )

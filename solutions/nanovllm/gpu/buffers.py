"""Inputs of a decode at fixed addresses: what a captured graph reads, whatever the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanovllm.paging.batch import PagedBatch

NO_SLOT = -1


@dataclass(frozen=True)
class DecodeRow:
    """One sequence of a decode: the token at `position` is computed, and stored in `slot`.

    source: its row in the step before, whose token is still on the device; None: `token_id`.
    """

    position: int
    slot: int
    block_ids: Sequence[int]
    token_id: int = 0
    source: int | None = None


class DecodeBuffers:
    """Static device tensors and two sets of host tensors, filled in turn.

    Two, because the copy to the device may still read the one of the step before. Rows beyond the
    batch are padding: slot -1 (nothing is stored), context 0 (nothing is read).
    """

    def __init__(
        self, max_num_seqs: int, max_blocks: int, block_size: int, device: torch.device | str
    ) -> None:
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
        self._host = [
            {n: torch.zeros(s, dtype=t, pin_memory=pinned) for n, (s, t) in shapes.items()}
            for _ in range(2)
        ]
        self.on_device = {n: torch.zeros(s, dtype=t, device=device) for n, (s, t) in shapes.items()}
        self.query_start_loc = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        self.sampled = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)

    def load(self, rows: Sequence[DecodeRow], bucket: int) -> None:
        """Fill the first `bucket` rows, padding behind the batch, without waiting for the device.

        Raises ValueError where the batch is larger than the bucket.
        """
        if len(rows) > bucket:
            raise ValueError(f"{len(rows)} rows do not fit into a bucket of {bucket}.")
        host = self._host[0]
        self._host.reverse()
        host["token_ids"][:bucket] = 0
        host["source"][:bucket] = -1
        host["positions"][:bucket] = 0
        host["slot_mapping"][:bucket] = NO_SLOT
        host["context_lens"][:bucket] = 0
        host["block_tables"][:bucket] = 0
        for i, row in enumerate(rows):
            host["token_ids"][i] = row.token_id
            host["source"][i] = -1 if row.source is None else row.source
            host["positions"][i] = row.position
            host["slot_mapping"][i] = row.slot
            host["context_lens"][i] = row.position + 1
            host["block_tables"][i, : len(row.block_ids)] = torch.tensor(row.block_ids)
        for name, tensor in self.on_device.items():
            tensor[:bucket].copy_(host[name][:bucket], non_blocking=True)

    def token_ids(self, bucket: int) -> Tensor:
        """The tokens to compute [bucket]: those of the step before never visit the host."""
        source = self.on_device["source"][:bucket]
        earlier = self.sampled[source.clamp(min=0)]
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

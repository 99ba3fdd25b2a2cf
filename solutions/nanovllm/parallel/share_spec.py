"""What every rank is told before it loads anything (given)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nanovllm.model.accounting import kv_bytes_per_token
from nanovllm.model.config import ModelConfig
from nanovllm.parallel.communicator import Communicator

GPU_KV_SHARE = 0.8  # of what is free beside the weights; the rest is for activations


@dataclass(frozen=True)
class ShareSpec:
    """The same for all ranks. meeting: where they find each other (see `join_group`).

    blocks: of K and V that each rank is to have. If None, as many as fit into kv_bytes; if that is
    None too, from `least_blocks` to `most_blocks`, by what fits into kv_room (None: by what is free
    on the rank's GPU).
    """

    folder: str
    dtype: torch.dtype
    device: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    block_size: int
    least_blocks: int
    most_blocks: int
    blocks: int | None = None
    kv_bytes: int | None = None
    kv_room: int | None = 1 << 30
    num_host_blocks: int = 0
    meeting: str = ""
    timeout: float = 300.0

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def device_of(self, rank: int) -> torch.device:
        """Each rank has a GPU of its own; a CPU is for all."""
        return torch.device(self.device, rank if self.device == "cuda" else None)

    def block_bytes(self, config: ModelConfig) -> int:
        """Bytes of a block of a rank, whose share of the model has this config."""
        return self.block_size * kv_bytes_per_token(config, self.dtype.itemsize)

    def num_blocks(self, block_bytes: int, device: torch.device) -> int:
        """Blocks for which a rank has memory."""
        if self.blocks is not None:
            return self.blocks
        if self.kv_bytes is not None:
            return self.kv_bytes // block_bytes
        room = self.kv_room
        if room is None:
            room = int(torch.cuda.mem_get_info(device)[0] * GPU_KV_SHARE)
        return max(self.least_blocks, min(self.most_blocks, room // block_bytes))

    def load(self, rank: int):  # noqa: ANN201, the share is imported by ranks only
        """The share of a rank in this process, which meets the others: gloo on CPUs, else NCCL."""
        from nanovllm.parallel.process_group import join_group

        if self.device == "cuda":
            torch.cuda.set_device(rank)
        if self.size == 1:
            from nanovllm.parallel.threads import thread_communicators

            return self.share(thread_communicators(1)[0])
        backend = "nccl" if self.device == "cuda" else "gloo"
        return self.share(join_group(rank, self.size, self.meeting, backend, self.timeout))

    def share(self, comm: Communicator):  # noqa: ANN201
        """The share of a rank that has met the others."""
        from nanovllm.parallel.share import RankShare

        return RankShare(self, comm)

"""Ranks as processes, over torch.distributed: gloo on CPUs, NCCL on GPUs (given).

NCCL is written and not tried: no machine with two cards was at hand.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch.distributed as dist
from torch import Tensor

from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.errors import ParallelError, RankDied


class _Work:
    """torch's handle, whose errors are those of a peer that is gone."""

    def __init__(self, comm: ProcessCommunicator, work: dist.Work, other: int) -> None:
        self.comm, self.work, self.other = comm, work, other

    def wait(self) -> None:
        try:
            self.work.wait()
        except RuntimeError as error:
            raise self.comm.lost(self.other, error) from None


class ProcessCommunicator(Communicator):
    """This process's rank in torch.distributed's default group; `join_group` makes it."""

    def _start_send(self, x: Tensor, to: int) -> _Work:
        return self._start([dist.P2POp(dist.isend, x, to)])[0]

    def _start_receive(self, into: Tensor, source: int) -> _Work:
        return self._start([dist.P2POp(dist.irecv, into, source)])[0]

    def _start_exchange(self, x: Tensor, to: int, into: Tensor, source: int) -> list[Any]:
        # Together: NCCL would put one behind the other, and two ranks that both send would hang.
        return self._start([dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, into, source)])

    def _start(self, ops: list[dist.P2POp]) -> list[_Work]:
        try:
            works = dist.batch_isend_irecv(ops)
        except RuntimeError as error:
            raise self.lost(ops[0].peer, error) from None
        return [_Work(self, work, op.peer) for work, op in zip(works, ops, strict=False)]

    def lost(self, other: int, error: RuntimeError) -> RankDied:
        """What to raise when the line to a rank breaks."""
        return RankDied(
            f"rank {self.rank} has lost rank {other}, which is gone or silent "
            f"({_first_sentence(error)}); start all ranks again."
        )

    def end(self) -> None:
        """Leave the group; afterwards this process may join another."""
        if dist.is_initialized():
            dist.destroy_process_group()


def join_group(
    rank: int, size: int, meeting: str, backend: str = "gloo", timeout: float = 60.0
) -> ProcessCommunicator:
    """Meet the other ranks and become one of them; lasts until all are there.

    `meeting` is a URL that all ranks are given: `file:///a/new/file`, or `tcp://host:port`, where
    rank 0 opens the port. Nobody waits longer than `timeout` seconds, here or for a message.

    Raises:
        ParallelError: the port is in use, the file cannot be made, the backend is not there.
        RankDied: not all ranks came in time.
    """
    comm = ProcessCommunicator(rank, size)
    folder = Path(urlparse(meeting).path).parent
    if meeting.startswith("file:") and not folder.is_dir():  # torch would try for five minutes
        raise ParallelError(
            f"rank {rank} cannot meet others at {meeting}: there is no folder {folder}; make it."
        )
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "")
    if loopback and ("file:" in meeting or "127.0.0.1" in meeting or "localhost" in meeting):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    try:
        dist.init_process_group(
            backend,
            init_method=meeting,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    except (RuntimeError, ValueError, OSError) as error:
        why = _first_sentence(error)
        if "time" in why.lower():
            raise RankDied(
                f"rank {rank} waited {timeout:g} s at {meeting}, and not all of {size} ranks came "
                f"({why}); look for the one that did not start."
            ) from None
        raise ParallelError(
            f"rank {rank} of {size} cannot meet the others at {meeting} over {backend} ({why}); "
            "choose a free port or a new file."
        ) from None
    return comm


def _first_sentence(error: Exception) -> str:
    """What torch says, without its advice."""
    return str(error).splitlines()[0].split(". ")[0].rstrip(".")

"""K and V that wait in memory for another process to read: shared memory, or nixl (given)."""

from __future__ import annotations

import base64
import importlib
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from nanovllm.cluster.errors import ClusterError, TransferError

NAME = re.compile(r"nanovllm-kv-[0-9a-f]{32}")
PAUSE = 0.0005  # seconds between two looks at a transfer of nixl's


class Connector(Protocol):
    """How K and V go from one server to another if not in the answer itself."""

    name: str

    def offer(self, transfer_id: str, data: bytes) -> dict[str, Any]:
        """Keep the bytes until they are withdrawn; what the other side's `read` needs, as JSON.

        Raises OSError: there is no room for them.
        """
        ...

    def read(self, offered: Mapping[str, Any]) -> bytes:
        """The bytes that another process offers. Raises TransferError: they cannot be had."""
        ...

    def withdraw(self, transfer_id: str) -> None:
        """Give up the memory of an offer. Of one that is not there: nothing."""
        ...

    def close(self) -> None:
        """Withdraw whatever is offered."""
        ...


def make_connector(name: str, seconds: float = 60.0) -> Connector | None:
    """The connector of this name; None for tcp, where the answer carries the bytes.

    seconds: for one read. Raises ClusterError: nixl is not installed.
    """
    if name == "tcp":
        return None
    return SharedMemory() if name == "shm" else Nixl(seconds)


class SharedMemory:
    """Files in the machine's shared memory, readable by one user. For servers of one machine."""

    name = "shm"

    def __init__(self, folder: Path | None = None) -> None:
        home = Path("/dev/shm")
        self.folder = folder or (home if home.is_dir() else Path(tempfile.gettempdir()))
        self.offered: dict[str, Path] = {}

    def offer(self, transfer_id: str, data: bytes) -> dict[str, Any]:
        """As the protocol says; a second offer of one id is the first."""
        path = self.folder / f"nanovllm-kv-{transfer_id}"
        if transfer_id not in self.offered:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            with open(os.open(path, flags, 0o600), "wb") as file:
                self.offered[transfer_id] = path
                try:
                    file.write(data)
                    file.flush()
                except OSError:
                    self.withdraw(transfer_id)
                    raise
        return {"connector": self.name, "name": path.name, "nbytes": len(data)}

    def read(self, offered: Mapping[str, Any]) -> bytes:
        """As the protocol says."""
        name = str(offered.get("name"))
        if not NAME.fullmatch(name):
            raise TransferError(f"{name!r} is no name of K and V in shared memory.")
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise TransferError(f"{name} cannot be read here: {error.strerror}.") from None

    def withdraw(self, transfer_id: str) -> None:
        """As the protocol says."""
        path = self.offered.pop(transfer_id, None)
        if path is not None:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """As the protocol says."""
        for transfer_id in list(self.offered):
            self.withdraw(transfer_id)


class Nixl:
    """Memory that the other side reads itself: over RDMA, NVLink, shared memory or TCP, as UCX
    finds them. seconds: for one read; offers must last longer, since RDMA asks nobody."""

    name = "nixl"

    def __init__(self, seconds: float = 60.0) -> None:
        try:
            nixl = importlib.import_module("nixl._api")
        except ImportError:
            raise ClusterError(
                "--kv-transfer nixl needs the package nixl (pip install nixl-cu12); "
                "tcp and shm need nothing."
            ) from None
        self.seconds = seconds
        self.agent: Any = nixl.nixl_agent(
            uuid.uuid4().hex, nixl.nixl_agent_config(backends=["UCX"])
        )
        self.offered: dict[str, tuple[torch.Tensor, Any]] = {}
        self._alone = threading.Lock()  # a read adds a peer and removes it

    def offer(self, transfer_id: str, data: bytes) -> dict[str, Any]:
        """As the protocol says; a second offer of one id is the first."""
        with self._alone:
            if transfer_id not in self.offered:
                memory = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                self.offered[transfer_id] = memory, self.agent.register_memory(memory)
            memory, registered = self.offered[transfer_id]
            place = self.agent.get_serialized_descs(registered.trim())
            return {
                "connector": self.name,
                "agent": base64.b64encode(self.agent.get_agent_metadata()).decode(),
                "memory": base64.b64encode(place).decode(),
                "nbytes": memory.numel(),
            }

    def read(self, offered: Mapping[str, Any]) -> bytes:
        """As the protocol says."""
        with self._alone:
            try:
                return self._read(offered)
            except TransferError:
                raise
            except Exception as error:  # nixl has an error for each of its backends' troubles
                raise TransferError(f"nixl could not read K and V: {error!r}.") from error

    def _read(self, offered: Mapping[str, Any]) -> bytes:
        agent, ends = self.agent, time.monotonic() + self.seconds
        peer = agent.add_remote_agent(base64.b64decode(offered["agent"]))
        here = torch.empty(int(offered["nbytes"]), dtype=torch.uint8)
        registered = agent.register_memory(here)
        try:
            there = agent.deserialize_descs(base64.b64decode(offered["memory"]))
            transfer = agent.initialize_xfer("READ", registered.trim(), there, peer)
            state = agent.transfer(transfer)
            while state == "PROC" and time.monotonic() < ends:
                time.sleep(PAUSE)
                state = agent.check_xfer_state(transfer)
            agent.release_xfer_handle(transfer)
            if state != "DONE":
                raise TransferError(f"nixl did not bring K and V: {state}.")
            return here.numpy().tobytes()
        finally:
            agent.deregister_memory(registered)
            agent.remove_remote_agent(peer)

    def withdraw(self, transfer_id: str) -> None:
        """As the protocol says."""
        with self._alone:
            _, registered = self.offered.pop(transfer_id, (None, None))
            if registered is not None:
                self.agent.deregister_memory(registered)

    def close(self) -> None:
        """As the protocol says."""
        for transfer_id in list(self.offered):
            self.withdraw(transfer_id)

"""Which part of the work a server does (given)."""

from __future__ import annotations

from dataclasses import dataclass

from nanovllm.cluster.errors import ClusterError

ROLES = ("prefill", "decode")
CONNECTORS = ("tcp", "shm", "nixl")


@dataclass(frozen=True)
class RoleConfig:
    """host, port: where this server is found by others. peers: host:port of those it may ask."""

    role: str
    connector: str = "tcp"
    host: str = "127.0.0.1"
    port: int = 0
    peers: tuple[str, ...] = ()
    seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("role", self.role, ROLES), ("kv_transfer", self.connector, CONNECTORS)
        ):  # fmt: skip
            if value not in known:
                raise ClusterError(f"{name} {value!r} is not known; use {' or '.join(known)}.")
        if self.role == "decode" and not self.peers:
            raise ClusterError("A server that decodes needs --kv-peer host:port of a prefill one.")

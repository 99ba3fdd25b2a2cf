"""vLLM's `kv_transfer_params`: how prefill, router and decode speak of one transfer (given)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from nanovllm.cluster.errors import ClusterError

TRANSFER_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Remote:
    """Where the K and V of a prompt wait."""

    host: str
    port: int
    transfer_id: str

    @property
    def url(self) -> str:
        """Where to get them, and to say that they are here."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/kv/{self.transfer_id}"


def answer_of(remote: Remote, num_tokens: int) -> dict[str, Any]:
    """What prefill answers, and what is to be sent to decode word for word."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": f"{remote.host}:{remote.port}",
        "remote_request_id": remote.transfer_id,
        "remote_host": remote.host,
        "remote_port": remote.port,
        "remote_num_tokens": num_tokens,
    }


def wants_decode_elsewhere(given: Mapping[str, Any]) -> bool:
    """Whether somebody asks for prefill alone. Raises ClusterError for both sides at once."""
    if given.get("do_remote_decode") and given.get("do_remote_prefill"):
        raise ClusterError(
            "kv_transfer_params asks for do_remote_decode and do_remote_prefill; give one."
        )
    return bool(given.get("do_remote_decode"))


def read_remote(given: Mapping[str, Any], peers: Collection[str]) -> Remote | None:
    """Where a prompt's K and V wait; None where nobody has computed them.

    peers: host:port of those that may be asked. Raises ClusterError for any other, and for what
    cannot be read.
    """
    if not given.get("do_remote_prefill"):
        return None
    host, port = given.get("remote_host"), given.get("remote_port")
    name = given.get("remote_request_id")
    if not isinstance(name, str) or not TRANSFER_ID.fullmatch(name):
        raise ClusterError(f"remote_request_id must be 32 hexadecimal digits, got {name!r}.")
    if f"{host}:{port}" not in peers:
        raise ClusterError(
            f"{host}:{port} is none of this server's peers; start it with --kv-peer {host}:{port}."
        )
    return Remote(str(host), int(str(port)), name)

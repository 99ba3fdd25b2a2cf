"""K and V from one process to another: TCP, by HTTP (given)."""

from __future__ import annotations

from typing import Protocol

import httpx

from nanovllm.cluster.errors import TransferError
from nanovllm.cluster.kv_transfer_params import Remote


class Transport(Protocol):
    """What any transport offers."""

    async def receive(self, remote: Remote, headers: dict[str, str]) -> bytes:
        """The bytes. Raises TransferError: they do not come."""
        ...

    async def acknowledge(self, remote: Remote, headers: dict[str, str]) -> None:
        """Say that they are here. Raises TransferError: nobody heard it."""
        ...


class HttpTransport:
    """Gets parked K and V, and says that they have come. seconds: for the whole of one of both."""

    def __init__(self, seconds: float = 30.0) -> None:
        self.client = httpx.AsyncClient(timeout=seconds, trust_env=False)

    async def receive(self, remote: Remote, headers: dict[str, str]) -> bytes:
        """The bytes. Raises TransferError: they do not come, not whole, or not in time."""
        try:
            answer = await self.client.get(remote.url, headers=headers)
        except httpx.HTTPError as error:
            raise TransferError(f"K and V did not come from {remote.url}: {error!r}.") from error
        if answer.status_code != 200:
            raise TransferError(f"{remote.url} answered {answer.status_code}: nothing is parked.")
        return answer.content

    async def acknowledge(self, remote: Remote, headers: dict[str, str]) -> None:
        """Say that they are here. Who does not hear it frees them when their time is over."""
        try:
            await self.client.delete(remote.url, headers=headers)
        except httpx.HTTPError as error:
            raise TransferError(f"{remote.url} was not told: {error!r}.") from error

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()

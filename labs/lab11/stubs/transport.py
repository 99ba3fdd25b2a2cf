"""K and V from one process to another: by HTTP, or by a connector that HTTP tells of (given)."""

from __future__ import annotations

import asyncio
from typing import Protocol

import httpx

from nanovllm.cluster.connectors import Connector
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
    """Gets parked K and V, and says that they have come. seconds: for the whole of one of both.

    connector: for bytes that do not come in the answer.
    """

    def __init__(self, seconds: float = 30.0, connector: Connector | None = None) -> None:
        self.seconds, self.connector = seconds, connector
        self.client = httpx.AsyncClient(timeout=seconds, trust_env=False)

    async def receive(self, remote: Remote, headers: dict[str, str]) -> bytes:
        """The bytes. Raises TransferError: they do not come, not whole, or not in time."""
        try:
            async with asyncio.timeout(self.seconds):  # httpx's is for each piece anew
                return await self._receive(remote, headers)
        except (httpx.HTTPError, TimeoutError) as error:
            raise TransferError(f"K and V did not come from {remote.url}: {error!r}.") from error

    async def _receive(self, remote: Remote, headers: dict[str, str]) -> bytes:
        answer = await self.client.get(remote.url, headers=headers)
        if answer.status_code != 200:
            raise TransferError(f"{remote.url} answered {answer.status_code}: nothing is parked.")
        if answer.headers.get("content-type") != "application/json":
            return answer.content
        try:
            offered = answer.json()
        except (ValueError, RecursionError):
            offered = None
        if not isinstance(offered, dict):
            raise TransferError(f"{remote.url} offers its K and V in no JSON object.")
        if self.connector is None or offered.get("connector") != self.connector.name:
            raise TransferError(
                f"{remote.url} offers its K and V by {offered.get('connector')!r}; "
                "start both servers with the same --kv-transfer."
            )
        return await asyncio.to_thread(self.connector.read, offered)

    async def acknowledge(self, remote: Remote, headers: dict[str, str]) -> None:
        """Say that they are here. Who does not hear it frees them when their time is over."""
        try:
            async with asyncio.timeout(self.seconds):
                await self.client.delete(remote.url, headers=headers)
        except (httpx.HTTPError, TimeoutError) as error:
            raise TransferError(f"{remote.url} was not told: {error!r}.") from error

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()

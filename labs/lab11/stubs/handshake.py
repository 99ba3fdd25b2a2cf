"""What a server does about a request that is part of a transfer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nanovllm.cluster.errors import ClusterError, ForeignError, TransferError, WireError
from nanovllm.cluster.header import Header
from nanovllm.cluster.kv_transfer_params import (
    Remote,
    answer_of,
    read_remote,
    wants_decode_elsewhere,
)
from nanovllm.cluster.role import RoleConfig
from nanovllm.cluster.sides import Decodes
from nanovllm.cluster.transport import Transport
from nanovllm.cluster.wire import Received, unpack


@dataclass(frozen=True)
class Side:
    """A server's side of a transfer: what goes into the engine, and what is answered.

    transfer: None where the prompt is computed here, as always. answer: the `kv_transfer_params`
    of the answer, if it has some.
    """

    transfer: Decodes | Received | None = None
    answer: dict[str, Any] | None = None


class Handshake:
    """role: of this server. header: of its engine. fallbacks: transfers that failed so far."""

    def __init__(self, role: RoleConfig, header: Header, transport: Transport) -> None:
        self.role, self.header, self.transport = role, header, transport
        self.fallbacks = 0

    async def take_part(
        self, given: Mapping[str, Any], num_tokens: int, headers: dict[str, str]
    ) -> Side:
        """This server's side of a transfer.

        given: the request's `kv_transfer_params`. num_tokens: of its prompt. headers: for the
        transport.

        - Asked to `do_remote_decode`: a transfer under a new name, 32 hexadecimal digits, and
          `answer_of` it, found at the role's host and port.
        - Asked to `do_remote_prefill`: K and V are received and unpacked. They are acknowledged
          when they are known to be whole and to fit; an acknowledgement that fails harms nothing.
        - Asked for neither: Side().
        - K and V that do not come, or come cut or spoiled, cost time, not the answer: Side(), one
          fallback more, and no acknowledgement.

        Raises:
            ClusterError: asked for both, or for what the other role does; a stranger (see
                `read_remote`); K and V of another model, or of more tokens than the prompt has.
                Nothing is acknowledged then, and it is no fallback.
        """
        raise NotImplementedError("lab11 task 3: Handshake.take_part")

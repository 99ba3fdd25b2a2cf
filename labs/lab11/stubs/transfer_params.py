"""A request that takes part in a transfer: lab 03's parameters, and its side of it (given)."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nanovllm.cluster.sides import Decodes
from nanovllm.cluster.wire import Received
from nanovllm.generation.begun import BegunParams
from nanovllm.generation.params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class TransferParams(BegunParams):
    """SamplingParams of a request with its side of a transfer."""

    transfer: Decodes | Received

    @classmethod
    def of(cls, params: SamplingParams, transfer: Decodes | Received) -> TransferParams:
        """The same parameters with a transfer."""
        given = {f.name: getattr(params, f.name) for f in fields(params) if f.init}
        return cls(**given, transfer=transfer)

"""Which adapter a request is for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nanovllm.batching.request import Request
from nanovllm.generation.begun import BegunParams
from nanovllm.generation.params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class LoraParams(BegunParams):
    """SamplingParams of a request for an adapter, by its name."""

    adapter: str

    @classmethod
    def of(cls, params: SamplingParams, adapter: str) -> LoraParams:
        """The same parameters for an adapter."""
        given = {f.name: getattr(params, f.name) for f in fields(params) if f.init}
        return cls(**given, adapter=adapter)


def adapter_of(request: Request) -> str | None:
    """The name of a request's adapter; None for the base model."""
    return getattr(request.sequence.params, "adapter", None)

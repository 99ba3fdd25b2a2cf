"""A request whose answer another engine has begun (given)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from nanovllm.generation.params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class BegunParams(SamplingParams):
    """SamplingParams of a request, with tokens of its answer that were generated elsewhere.

    They reach an engine through whatever stands before it; `add_request` goes on behind them.
    """

    output_token_ids: tuple[int, ...] = ()

    @classmethod
    def behind(cls, params: SamplingParams, output_token_ids: Sequence[int]) -> BegunParams:
        """The same parameters behind these tokens."""
        given = {f.name: getattr(params, f.name) for f in fields(params) if f.init}
        return cls(**given, output_token_ids=tuple(output_token_ids))


def begun(params: SamplingParams | None) -> tuple[int, ...]:
    """The tokens that such a request brings along; none of any other."""
    return params.output_token_ids if isinstance(params, BegunParams) else ()

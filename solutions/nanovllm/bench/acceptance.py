"""How many tokens a guessed run brings: counted from the engine's events, or read off a server."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx

_COUNTER = re.compile(r"^\w+:spec_decode_num_(\w+?)(?:_total)?(\{.*\})? (\S+)$", re.MULTILINE)


@dataclass
class Acceptance:
    """Runs that had guesses, and guesses that stood; takes every event of an engine.

    >>> Acceptance(drafts=4, accepted_tokens=6).mean_length
    2.5
    """

    drafts: float = 0
    accepted_tokens: float = 0

    def __call__(self, event: Any) -> None:
        """Count the chunks of a Stepped; events of other kinds have none."""
        for run in getattr(event, "chunks", ()):
            self.drafts += run.drafts > 0
            self.accepted_tokens += run.accepted

    @property
    def mean_length(self) -> float | None:
        """Tokens a guessed run, the one behind the guesses included, as vLLM counts; or None."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None


async def counters(http: httpx.AsyncClient) -> Counter[str]:
    """A server's counters of guesses, ours or vLLM's, by the ends of their names."""
    page = (await http.get("/metrics")).text
    found: Counter[str] = Counter()
    for name, _, value in _COUNTER.findall(page):
        found[name] += float(value)  # pyright: ignore[reportArgumentType]  # 12.0, as it is written
    return found

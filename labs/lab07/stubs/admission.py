"""Who is let in: known keys, within their rate, while there is room, until the server drains."""

import hmac
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nanovllm.serving.config import ServeConfig
from nanovllm.serving.errors import (
    BadRequestError,
    OverloadedError,
    RateLimitError,
    UnauthorizedError,
)

Clock = Callable[[], float]
OPEN_PATHS = frozenset({"/health", "/version", "/metrics", "/docs", "/openapi.json", "/dashboard"})


def authorize(path: str, header: str | None, keys: Sequence[str]) -> str:
    """Return the key that a request came with, or "" where none is needed.

    header: of the form `Bearer KEY`, the word in any case. OPEN_PATHS need none. Keys are compared
    in a time that does not tell how much of one was right.

    Raises:
        UnauthorizedError: no key, or one that is not known.

    >>> authorize("/v1/models", "Bearer abc", ["abc", "xyz"])
    'abc'
    """
    raise NotImplementedError("lab07 task 4: authorize")


@dataclass
class TokenBucket:
    """Tokens that a key may still use: `rate` a minute flow in, up to a minute's worth.

    What a request costs is known only when it has ended, so the bucket may be overdrawn; then
    nothing is let in until it is above zero again.

    >>> from nanovllm.generation.latency import ManualClock
    >>> bucket = TokenBucket(rate=60, clock=ManualClock())
    >>> bucket.charge(62)
    >>> bucket.wait
    3
    """

    rate: float
    clock: Clock = time.monotonic
    level: float = field(init=False)
    updated: float = field(init=False)

    def __post_init__(self) -> None:
        self.level, self.updated = self.rate, self.clock()

    def _refill(self) -> None:
        """Let in what has flowed since the last look."""
        raise NotImplementedError("lab07 task 4: TokenBucket._refill")

    @property
    def wait(self) -> int:
        """Whole seconds until the level is above zero; 0 if it is now."""
        raise NotImplementedError("lab07 task 4: TokenBucket.wait")

    def charge(self, tokens: int) -> None:
        """Take tokens out, also below zero."""
        raise NotImplementedError("lab07 task 4: TokenBucket.charge")


class Admission:
    """Decides whether a request may begin; keeps a bucket for each key, and none for strangers."""

    def __init__(
        self, config: ServeConfig, max_num_seqs: int, clock: Clock = time.monotonic
    ) -> None:
        self.limit = max_num_seqs + config.max_queue  # samples that may be in the server at once
        self.draining = False
        rate = config.rate_limit
        keys = config.api_keys or ("",)
        self.buckets: Mapping[str, TokenBucket] = (
            {key: TokenBucket(rate, clock) for key in keys} if rate else {}
        )

    def enter(self, key: str, samples: int, num_open: int) -> None:
        """Let a request of so many samples in, where `num_open` are in the server already.

        Asked in this order: can it ever fit, is the server draining, has the key tokens left, is
        there room now.

        Raises:
            BadRequestError: it has more samples than the limit.
            OverloadedError: the server is draining or full.
            RateLimitError: the key's bucket is empty; Retry-After says for how long.
        """
        raise NotImplementedError("lab07 task 4: Admission.enter")

    def charge(self, key: str, tokens: int) -> None:
        """Count the tokens of a prompt or of an answer against a key."""
        bucket = self.buckets.get(key)
        if bucket is not None:
            bucket.charge(tokens)

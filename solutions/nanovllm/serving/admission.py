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
    ### BEGIN SOLUTION
    if path in OPEN_PATHS:
        return ""
    scheme, _, given = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not given:
        raise UnauthorizedError("No API key was given; send the header Authorization: Bearer KEY.")
    known = [key for key in keys if hmac.compare_digest(key.encode(), given.encode())]
    if not known:
        raise UnauthorizedError("The API key is not known.")
    return known[0]
    ### END SOLUTION


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
        ### BEGIN SOLUTION
        now = self.clock()
        self.level = min(self.rate, self.level + (now - self.updated) * self.rate / 60)
        self.updated = now
        ### END SOLUTION

    @property
    def wait(self) -> int:
        """Whole seconds until the level is above zero; 0 if it is now."""
        ### BEGIN SOLUTION
        self._refill()
        return 0 if self.level > 0 else math.floor(-self.level * 60 / self.rate) + 1
        ### END SOLUTION

    def charge(self, tokens: int) -> None:
        """Take tokens out, also below zero."""
        ### BEGIN SOLUTION
        self._refill()
        self.level -= tokens
        ### END SOLUTION


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
        ### BEGIN SOLUTION
        if samples > self.limit:
            raise BadRequestError(
                f"The request asks for {samples} samples, but this server holds {self.limit} at "
                "once; split it up."
            )
        if self.draining:
            raise OverloadedError("The server is shutting down; ask another one.")
        bucket = self.buckets.get(key)
        if bucket is not None and bucket.wait:
            raise RateLimitError(
                f"This key has used up its {bucket.rate} tokens a minute; try again in "
                f"{bucket.wait} s.",
                retry_after=bucket.wait,
            )
        if num_open + samples > self.limit:
            raise OverloadedError(
                f"The server is full: {num_open} of {self.limit} samples are waiting or running; "
                "try again soon."
            )
        ### END SOLUTION

    def charge(self, key: str, tokens: int) -> None:
        """Count the tokens of a prompt or of an answer against a key."""
        bucket = self.buckets.get(key)
        if bucket is not None:
            bucket.charge(tokens)

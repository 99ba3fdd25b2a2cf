"""Who is let in: within the rate of their key, while there is room, until the server drains."""

import math
import time
from collections.abc import Callable

from nanovllm.serving.config import ServeConfig
from nanovllm.serving.errors import BadRequestError, OverloadedError, RateLimitError

### BEGIN SOLUTION


class TokenBucket:
    """The level is known for one moment; what has flowed in since then is added at every look."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self._clock = rate, clock
        self._level, self._updated = float(rate), clock()

    @property
    def level(self) -> float:
        moment = self._clock()
        self._level = min(self.rate, self._level + (moment - self._updated) * self.rate / 60)
        self._updated = moment
        return self._level

    @property
    def wait(self) -> int:
        level = self.level
        return 0 if level > 0 else math.floor(-level * 60 / self.rate) + 1

    def charge(self, tokens: int) -> None:
        self._level = self.level - tokens


class Admission:
    """A bucket for each key that is configured; for whom there is none there is no limit."""

    def __init__(
        self, config: ServeConfig, max_num_seqs: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = max_num_seqs + config.max_queue
        self.draining = False
        keys = config.api_keys or ("",)
        rate = config.rate_limit
        self._buckets = {key: TokenBucket(rate, clock) for key in keys} if rate else {}

    def enter(self, key: str, samples: int, num_open: int) -> None:
        if samples > self.limit:
            told = (
                f"{samples} samples are asked for, but this server holds {self.limit}; split it up."
            )
            raise BadRequestError(told)
        if self.draining:
            raise OverloadedError("The server is shutting down; ask another one.")
        wait = self._buckets[key].wait if key in self._buckets else 0
        if wait:
            told = f"This key has used up its tokens; try again in {wait} s."
            raise RateLimitError(told, retry_after=wait)
        if num_open + samples > self.limit:
            told = (
                f"The server is full: {num_open} of {self.limit} samples are open; try again soon."
            )
            raise OverloadedError(told)

    def charge(self, key: str, tokens: int) -> None:
        if key in self._buckets:
            self._buckets[key].charge(tokens)


### END SOLUTION

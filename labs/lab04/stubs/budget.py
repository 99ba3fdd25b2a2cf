"""How many tokens a step may compute: three limits, and a controller that moves one of them."""

from dataclasses import dataclass
from typing import Protocol

from nanovllm.batching.errors import ConfigError


def token_budget(*, hardware: int, compute: int, memory: int, decodes: int) -> int:
    """The tokens of the next step: the least of three limits, but enough for every decode.

    hardware: the most that the machine takes in one step. compute: what a step's time allows
    (the controller's limit). memory: free places in the store. decodes: running requests that
    need one token; they must not wait for prompts, so they win over all three limits.

    >>> token_budget(hardware=512, compute=256, memory=300, decodes=8)
    256
    >>> token_budget(hardware=512, compute=256, memory=3, decodes=8)
    8
    """
    raise NotImplementedError("lab04 task 3: token_budget")


class Budget(Protocol):
    """A limit on the tokens of a step, which may learn from the steps."""

    @property
    def highest(self) -> int: ...  # what the machine takes
    @property
    def limit(self) -> int: ...  # what the next step may compute

    def observe(self, seconds: float, free_share: float) -> None:
        """A step took so long and left this share of the store free."""


@dataclass
class FixedBudget:
    """The same limit for every step."""

    limit: int = 512

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ConfigError(f"A step must compute at least 1 token, got a budget of {self.limit}")

    @property
    def highest(self) -> int:
        """The limit is all there is."""
        return self.limit

    def observe(self, seconds: float, free_share: float) -> None:
        pass


@dataclass
class AdaptiveBudget:
    """A limit that follows the step time: large steps for throughput, but not too slow ones."""

    limit: int = 512
    lowest: int = 16
    highest: int = 2048
    slow: float = 0.050  # seconds a step
    fast: float = 0.030
    scarce: float = 0.15  # share of the store that is free

    def __post_init__(self) -> None:
        if not 1 <= self.lowest <= self.limit <= self.highest:
            raise ConfigError(
                f"A budget needs 1 <= lowest <= limit <= highest, got "
                f"{self.lowest}, {self.limit}, {self.highest}."
            )

    def observe(self, seconds: float, free_share: float) -> None:
        """Set the limit for the next step by the first rule that applies.

        Under `scarce` free: -25 %. Over `slow`: -20 %. Under `fast`: +10 %, at least one token.
        Else it stays: without the gap between fast and slow it would never settle. Whole tokens,
        rounded down; never outside lowest .. highest.

        >>> budget = AdaptiveBudget(limit=100)
        >>> for seconds in (0.060, 0.040, 0.020):
        ...     budget.observe(seconds, free_share=0.5)
        ...     print(budget.limit)
        80
        80
        88
        """
        raise NotImplementedError("lab04 task 3: AdaptiveBudget.observe")

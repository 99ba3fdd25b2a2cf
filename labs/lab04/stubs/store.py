"""What the engine asks of whatever holds K and V; lab 04 answers with slots, lab 05 with pages.

The data behind it are the store's own: whoever stands above reads what is named here, no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request

if TYPE_CHECKING:  # the scheduler and the simulator need no torch
    from nanovllm.model.attend import Attend


class KVStore(Protocol):
    """Room for the K and V of many requests: admit, reserve, bind, commit, release.

    The room is cut into equal blocks, and a request holds some of them; where each has a slot of
    its own, the slot is its one block. A store that keeps blocks of requests that have ended, for
    others that begin alike, has `cached_blocks()` and `prefix_stats` as well (lab 05).
    """

    @property
    def total_tokens(self) -> int: ...  # places for one token each, free or not
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...  # places in each block

    @property
    def free_tokens(self) -> int:
        """Places that hold no token, also those in a slot that only its owner can use."""
        ...

    def fits(self, num_tokens: int) -> bool:
        """Whether a request of so many tokens could be held if it were the only one."""
        ...

    def block_ids(self, request: Request) -> list[int]:
        """The blocks of an admitted request, in the order of its tokens: a new list."""
        ...

    def can_admit(self, request: Request) -> bool:
        """Whether a request that is not in, and that `fits`, can come in now."""
        ...

    def admit(self, request: Request) -> int:
        """Take the request in; how many of its first tokens are here already (slots: none).

        Never all of them: the last one is computed, to draw from. Called only where `can_admit`
        has just said yes.
        """
        ...

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Keep room for so many tokens behind its computed ones; False if there is none.

        False changes nothing. Asking twice for the same room takes it once. Nobody asks between
        `commit` and the scheduler's `update`.
        """
        ...

    def bind(self, plan: Plan) -> Attend:
        """The attend of a step: its tokens are those of the plan's chunks, in order [T]."""
        ...

    def commit(self, plan: Plan) -> None:
        """Every layer has written the plan's tokens: they count as stored from now on."""

    def suspend(self, request: Request) -> None:
        """The request leaves, but will be admitted again (preemption).

        `num_computed_tokens` still says how many of its tokens are here.
        """

    def forget(self, request: Request) -> None:
        """A request in the queue will not be admitted, or not again: nothing of it is here."""

    def release(self, request: Request) -> None:
        """The request leaves for good."""

    def check(self, requests: Iterable[Request]) -> None:
        """Raise InvariantError unless its own data agree and exactly these requests are held."""


class SchedulingStore(Protocol):
    """The part of a KVStore that scheduler and simulator use: no K, no V, no torch."""

    total_tokens: int
    block_size: int

    @property
    def free_tokens(self) -> int: ...
    def block_ids(self, request: Request) -> Sequence[int]: ...
    def fits(self, num_tokens: int) -> bool: ...
    def can_admit(self, request: Request) -> bool: ...
    def admit(self, request: Request) -> int: ...
    def reserve(self, request: Request, num_tokens: int) -> bool: ...
    def commit(self, plan: Plan) -> None: ...
    def suspend(self, request: Request) -> None: ...
    def forget(self, request: Request) -> None: ...
    def release(self, request: Request) -> None: ...
    def check(self, requests: Iterable[Request]) -> None: ...

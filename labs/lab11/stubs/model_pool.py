"""Several models under one budget of memory: loaded when asked for, unloaded when nobody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.model_specs import BudgetError, ModelSpec, by_name

Loaded = TypeVar("Loaded")


@dataclass(eq=False)
class Resident(Generic[Loaded]):
    """A model that is loaded, and how many use it now."""

    spec: ModelSpec
    loaded: Loaded
    users: int = 0


class ModelPool(Generic[Loaded]):
    """Models by name, at most `budget` bytes of them at a time.

    `ModelPool(budget, specs, load, unload)`: load(spec) gives what answers for a model,
    unload(spec, loaded) lets go of it. specs: those that may be asked for; what `by_name` refuses
    is refused.

    `resolve(name)`: the spec of a name or an alias. ClusterError for an unknown one.

    `acquire(name)`: what `load` gave, loaded now if it is not; one user more. To make room, models
    without users that are not pinned are unloaded, the longest unused first, and no more than
    needed; this happens before `load`. BudgetError where that is not enough: then nothing has been
    unloaded. If `load` raises, the model is not there, and its bytes are free.

    `release(name)`: one user less. ClusterError where there is none.

    `resident`: names of what is loaded, the longest unused first; a model is used when it is
    acquired, and when it is released. `used`: their bytes.

    >>> specs = [ModelSpec("a", 6), ModelSpec("b", 4, aliases=("best",)), ModelSpec("c", 4)]
    >>> pool = ModelPool(10, specs, lambda spec: spec.name.upper(), lambda spec, loaded: None)
    >>> with pool.using("a"), pool.using("c") as c:
    ...     c, pool.used
    ('C', 10)
    >>> with pool.using("best"):
    ...     pool.resident
    ['a', 'b']
    """

    @contextmanager
    def using(self, name: str) -> Iterator[Loaded]:
        """Acquire for a while."""
        loaded = self.acquire(name)
        try:
            yield loaded
        finally:
            self.release(name)

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab11 task 6: ModelPool")

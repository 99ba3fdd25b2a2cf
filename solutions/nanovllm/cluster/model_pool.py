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

    ### BEGIN SOLUTION
    def __init__(
        self,
        budget: int,
        specs: Iterable[ModelSpec],
        load: Callable[[ModelSpec], Loaded],
        unload: Callable[[ModelSpec, Loaded], None],
    ) -> None:
        self.budget, self.load, self.unload = budget, load, unload
        self._names = by_name(specs, budget)
        self._held: dict[str, Resident[Loaded]] = {}  # the longest unused first

    @property
    def resident(self) -> list[str]:
        return list(self._held)

    @property
    def used(self) -> int:
        return sum(held.spec.nbytes for held in self._held.values())

    def resolve(self, name: str) -> ModelSpec:
        if name not in self._names:
            raise ClusterError(f"Model {name!r} is not served; use {', '.join(self._names)}.")
        return self._names[name]

    def acquire(self, name: str) -> Loaded:
        spec = self.resolve(name)
        held = self._held.pop(spec.name, None)
        if held is None:
            self._make_room(spec)
            held = Resident(spec, self.load(spec))
        self._held[spec.name] = held  # now the newest
        held.users += 1
        return held.loaded

    def release(self, name: str) -> None:
        held = self._held.get(self.resolve(name).name)
        if held is None or not held.users:
            raise ClusterError(f"Model {name!r} is not in use.")
        held.users -= 1
        self._held[held.spec.name] = self._held.pop(held.spec.name)

    def _make_room(self, spec: ModelSpec) -> None:
        missing = self.used + spec.nbytes - self.budget
        leaving: list[Resident[Loaded]] = []
        for held in self._held.values():
            if missing <= 0:
                break
            if not held.users and not held.spec.pinned:
                leaving.append(held)
                missing -= held.spec.nbytes
        if missing > 0:
            raise BudgetError(
                f"Model {spec.name!r} needs {missing} bytes more than the models in use leave."
            )
        for held in leaving:
            del self._held[held.spec.name]
            self.unload(held.spec, held.loaded)

    ### END SOLUTION

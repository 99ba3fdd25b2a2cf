"""Several models under one budget of memory: loaded when asked for, unloaded when nobody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from nanovllm.cluster.errors import ClusterError

Loaded = TypeVar("Loaded")


@dataclass(frozen=True)
class ModelSpec:
    """A model that may be asked for. pinned: once loaded, never unloaded to make room."""

    name: str
    nbytes: int
    pinned: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def salt(self) -> str:
        """What keeps its blocks apart in anything that models share: its name, never an alias."""
        return f"model {self.name}"


class BudgetError(ClusterError):
    """A model cannot be loaded now: those that are in use leave no room."""


@dataclass(eq=False)
class _Resident(Generic[Loaded]):
    spec: ModelSpec
    loaded: Loaded
    users: int = 0


@dataclass
class ModelPool(Generic[Loaded]):
    """Models by name, at most `budget` bytes of them at a time.

    load(spec) gives what answers for a model, unload(spec, loaded) lets go of it. specs: those
    that may be asked for.

    `resolve(name)`: the spec of a name or an alias. ClusterError for an unknown one.

    `acquire(name)`: what `load` gave, loaded now if it is not; one user more. To make room, models
    without users that are not pinned are unloaded, the longest unused first, and no more than
    needed. BudgetError where that is not enough: then nothing has been unloaded. If `load` raises,
    the model is not there, and its bytes are free.

    `release(name)`: one user less. ClusterError where there is none.

    `resident`: names of what is loaded, the longest unused first. `used`: their bytes.

    >>> specs = [ModelSpec("a", 6), ModelSpec("b", 4, aliases=("best",)), ModelSpec("c", 4)]
    >>> pool = ModelPool(10, specs, lambda spec: spec.name.upper(), lambda spec, loaded: None)
    >>> with pool.using("a"), pool.using("c") as c:
    ...     c, pool.used
    ('C', 10)
    >>> with pool.using("best"):
    ...     pool.resident
    ['a', 'b']
    """

    budget: int
    specs: list[ModelSpec]
    load: Callable[[ModelSpec], Loaded]
    unload: Callable[[ModelSpec, Loaded], None]
    _names: Mapping[str, ModelSpec] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names: dict[str, ModelSpec] = {}
        for spec in self.specs:
            for name in (spec.name, *spec.aliases):
                if name in names:
                    raise ClusterError(f"Two models are called {name!r}; names and aliases differ.")
                names[name] = spec
            if spec.nbytes > self.budget:
                raise ClusterError(
                    f"Model {spec.name!r} needs {spec.nbytes} bytes, but the budget for all is "
                    f"{self.budget}; raise it, or leave the model out."
                )
        self._names = names
        self._held: dict[str, _Resident[Loaded]] = {}  # the longest unused first

    @contextmanager
    def using(self, name: str) -> Iterator[Loaded]:
        """Acquire for a while."""
        loaded = self.acquire(name)
        try:
            yield loaded
        finally:
            self.release(name)

    ### BEGIN SOLUTION
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
            held = _Resident(spec, self.load(spec))
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
        leaving: list[_Resident[Loaded]] = []
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

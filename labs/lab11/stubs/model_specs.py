"""The models that may be asked for, by all their names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nanovllm.cluster.errors import ClusterError


@dataclass(frozen=True)
class ModelSpec:
    """A model that may be asked for. pinned: once loaded, never unloaded to make room."""

    name: str
    nbytes: int
    pinned: bool = False
    aliases: tuple[str, ...] = ()


class BudgetError(ClusterError):
    """A model cannot be loaded now: those that are in use leave no room."""


def by_name(specs: Iterable[ModelSpec], budget: int) -> dict[str, ModelSpec]:
    """Specs by name and by alias. Raises ClusterError: a name twice, a model over the budget."""
    names: dict[str, ModelSpec] = {}
    for spec in specs:
        for name in (spec.name, *spec.aliases):
            if name in names:
                raise ClusterError(f"Two models are called {name!r}; names and aliases differ.")
            names[name] = spec
        if spec.nbytes > budget:
            raise ClusterError(
                f"Model {spec.name!r} needs {spec.nbytes} bytes, but the budget for all is "
                f"{budget}; raise it, or leave the model out."
            )
    return names


def prefix_salt(spec: ModelSpec, salt: str = "") -> str:
    """What keeps the blocks of a model apart in anything that models share.

    salt: the request's own, which keeps users apart. Two requests have the same result just if
    model and salt are the same; by which of its names a model was asked for does not matter.

    >>> one, two = ModelSpec("m", 1), ModelSpec("ma", 1)
    >>> len({prefix_salt(one, "ab"), prefix_salt(two, "b"), prefix_salt(one), prefix_salt(two)})
    4
    """
    raise NotImplementedError("lab11 task 6: prefix_salt")

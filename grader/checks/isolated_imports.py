"""Several assemblies of nanovllm in one process, one of them at a time in `sys.modules`."""

from __future__ import annotations

import os
import sys
from types import ModuleType


class World:
    """One assembly: `code` is what NANOVLLM_CODE says in it."""

    current: World | None = None

    def __init__(self, code: str) -> None:
        self.code = code
        self._modules: dict[str, ModuleType] = {}
        self._finders: list = []

    def enter(self) -> None:
        """Make this the assembly that `import nanovllm` finds."""
        if World.current is self:
            return
        if World.current is not None:
            World.current._leave()
        else:
            _take_modules()
            _take_finders()
        os.environ["NANOVLLM_CODE"] = self.code
        sys.modules.update(self._modules)
        sys.meta_path[:0] = self._finders
        World.current = self

    def _leave(self) -> None:
        self._modules = _take_modules()
        self._finders = _take_finders()


def _take_modules() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == "nanovllm" or name.startswith("nanovllm.")]
    return {name: sys.modules.pop(name) for name in names}


def _take_finders() -> list:
    taken = [f for f in sys.meta_path if getattr(f, "__module__", "") == "nanovllm"]
    sys.meta_path[:] = [f for f in sys.meta_path if f not in taken]
    return taken

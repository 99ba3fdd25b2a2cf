"""Byte code of the course's own files: compiled once by the worker, inherited by its forks.

It is kept in memory and made before any submission is looked at. What a fork does to its copy of
the table ends with that fork; no file is written.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from _pytest.assertion import rewrite

from grader.course.lab_toml import Lab
from grader.course.paths import HIDDEN, MODELS, REFERENCE, ROOT
from grader.sandbox import visible_files

Stamp = tuple[int, int]
_modules: dict[str, tuple[Stamp, CodeType]] = {}
_checks: dict[str, tuple[Stamp, tuple[os.stat_result, CodeType]]] = {}


def remember(lab: Lab | None) -> None:
    """Compile what checks and scenarios of a lab import; None: all of the reference."""
    shown = visible_files.course(lab) if lab else [REFERENCE, ROOT / "nanovllm" / "__init__.py"]
    apart = {ROOT / "labs", HIDDEN}
    if lab and lab.home != ROOT / "labs":
        apart |= {lab.home, lab.home.parent / MODELS.name}
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for path in _sources(path for path in shown if not apart & {path, path.parent}):
        if str(path) not in loaded:
            code = SourceFileLoader("", str(path)).source_to_code(path.read_bytes(), str(path))
            _modules[str(path)] = (_stamp(path), code)
    no_config: Any = None  # `rewrite_asserts`, which gets it, needs none
    for path in sorted(lab.folder.glob("test_*.py")) if lab else []:
        _checks[str(path)] = (_stamp(path), rewrite._rewrite_test(path, no_config))
    SourceFileLoader.get_code = _get_code(SourceFileLoader.get_code)
    rewrite._rewrite_test = _rewritten(rewrite._rewrite_test)


def _sources(paths: Iterable[Path]) -> list[Path]:
    found = [path.rglob("*.py") if path.is_dir() else [path] for path in paths]
    return sorted(path for some in found for path in some if path.suffix == ".py")


def _stamp(path: str | Path) -> Stamp:
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size


def _get_code(compiled: Callable[..., CodeType | None]) -> Callable[..., CodeType | None]:
    """What the import system asks for a module's code."""

    @functools.wraps(compiled)
    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        known = _modules.get(self.path)
        return known[1] if known and known[0] == _stamp(self.path) else compiled(self, fullname)

    return get_code


def _rewritten(rewritten: Callable[..., Any]) -> Callable[..., Any]:
    """What pytest asks for a check file's code, with its assertions rewritten."""

    @functools.wraps(rewritten)
    def rewrite_test(path: Path, config: Any) -> tuple[os.stat_result, CodeType]:
        known = _checks.get(str(path))
        return known[1] if known and known[0] == _stamp(path) else rewritten(path, config)

    return rewrite_test

"""What a submission may see of this machine: Python, libraries, and the course without answers."""

from __future__ import annotations

import site
import sys
from collections.abc import Iterator
from pathlib import Path

from grader.course.lab_toml import Lab, labs
from grader.course.paths import HIDDEN, MISTAKES, MODELS, REFERENCE, ROOT
from grader.course.withheld import withheld

SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "alternatives")
PROCESSOR = Path("/sys/devices/system/cpu")  # torch reads there what the processor can do
PACKAGES = {"site-packages", "dist-packages"}


def course(lab: Lab) -> list[Path]:
    """The course's files in the box: what a release holds in which the labs below are over.

    That is checks up to this lab's, models, tooling, the reference of the lower labs. Neither the
    reference of this lab and of those above it, nor what computes in their place, nor their checks,
    nor hidden scenarios, mistakes, notebooks with solutions, the history of the repository, or
    anything that students handed in.
    """
    keys = [other.key for other in labs() if other.number <= lab.number]
    own = [ROOT / "grader", ROOT / "nanovllm" / "__init__.py", ROOT / "pyproject.toml"]
    seen = [home / key for home in (ROOT / "labs", lab.home) for key in keys]
    seen += [MODELS, lab.home.parent / MODELS.name]
    return [*own, *(path for path in dict.fromkeys(seen) if path.exists()), *_reference(lab)]


def _reference(lab: Lab) -> Iterator[Path]:
    """Its folders that are shown; of one of which a file is not, the others."""
    held = _held(lab)
    for path in sorted(REFERENCE.iterdir()):
        if path in held or path.name == "__pycache__":
            continue
        if any(one.parent == path for one in held):
            yield from (one for one in sorted(path.glob("*.py")) if one not in held)
        else:
            yield path


def _held(lab: Lab) -> set[Path]:
    closed = {other.key for other in labs() if other.number < lab.number}
    return {REFERENCE / name for name in withheld(closed)}


def locks_files(lab: Lab) -> bool:
    """Whether what students write of a lab locks files, by its stubs."""
    return any("flock" in path.read_text(encoding="utf-8") for path in lab.stubs.rglob("*.py"))


def machine() -> list[Path]:
    """Python and the system's libraries, outermost folders only, in the order to bind them."""
    wanted = [PROCESSOR, *(Path(name) for name in SYSTEM)] + [Path("/etc") / name for name in ETC]
    wanted += [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent]
    wanted += [Path(entry) for entry in sys.path if PACKAGES & set(Path(entry).parts)]
    wanted += [Path(site.getusersitepackages())] if site.ENABLE_USER_SITE else []
    there = sorted({path for path in wanted if path.exists()})
    return [p for p in there if not any(p != o and p.is_relative_to(o) for o in there)]


def forbidden(lab: Lab) -> list[Path]:
    """Files that the box must not show, one of each kind, for its probe."""
    later = [other.folder for other in labs() if other.number > lab.number]
    found = (
        next((p for p in sorted([kind, *kind.rglob("*")]) if p.is_file()), None)
        for kind in (ROOT / ".git", HIDDEN, MISTAKES, *sorted(_held(lab)), *later)
    )
    return [path for path in found if path is not None]

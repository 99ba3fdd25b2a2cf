"""What a submission may see of this machine: Python, libraries, and the course without answers."""

from __future__ import annotations

import site
import sys
from pathlib import Path

from grader.course.lab_toml import Lab, labs
from grader.course.paths import HIDDEN, LABS, MISTAKES, MODELS, REFERENCE, ROOT

SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "alternatives")
PROCESSOR = Path("/sys/devices/system/cpu")  # torch reads there what the processor can do
PACKAGES = {"site-packages", "dist-packages"}


def course(lab: Lab) -> list[Path]:
    """The course's files in the box: checks, models, tooling, the reference of the lower labs.

    Neither the reference of this lab and of those above it, nor hidden scenarios, mistakes,
    notebooks with solutions, the history of the repository, or anything that students handed in.
    """
    package_of = {other.package: other.number for other in labs()}
    reference = [
        path
        for path in sorted(REFERENCE.iterdir())
        if path.name != "__pycache__" and package_of.get(path.name, 0) < lab.number
    ]
    own = [ROOT / "grader", ROOT / "nanovllm" / "__init__.py", ROOT / "pyproject.toml"]
    seen = dict.fromkeys((LABS, lab.home, MODELS, lab.home.parent / MODELS.name))
    return [*own, *(path for path in seen if path.exists()), *reference]


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
    folders = [ROOT / ".git", HIDDEN, MISTAKES, lab.reference]
    found = (
        next((p for p in sorted(folder.rglob("*")) if p.is_file()), None) for folder in folders
    )
    return [path for path in found if path is not None]

"""The checks that a pack was made with: those of its release, where the instructor has kept it."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from grader.course.digest import check_files
from grader.course.lab_toml import Lab, read_lab
from grader.course.paths import LABS, RELEASES
from grader.course.release_record import RECORD
from grader.grading.report import LabReport

TODAY = "today's"


def made_with(lab: Lab, release: str, releases: Path | None = RELEASES) -> Lab:
    """The lab as a release had it; as it is today where nothing of it differs, or none is kept.

    The name of the release is the student's word, so it is only looked up among the kept ones.
    releases: where they are kept; None for today's checks whatever a pack says.
    """
    if releases is None:
        return lab
    home = releases / release / "labs" / lab.key
    if release not in _kept(releases) or not (home / "lab.toml").is_file():
        return lab
    then = read_lab(home.absolute())
    return lab if _graded_by(then) == _graded_by(lab) else then


def is_unknown(release: str, releases: Path = RELEASES) -> bool:
    """Whether a pack names a release that is not kept."""
    return bool(release) and release not in _kept(releases)


def _kept(releases: Path) -> set[str]:
    return {path.parent.name for path in releases.glob(f"[!.]*/{RECORD}")}


def released(lab: Lab) -> str:
    """Whose checks a lab has; "" for today's."""
    return "" if lab.home == LABS else lab.home.parent.name


def _graded_by(lab: Lab) -> str:
    """A digest of the files of a lab that decide on points."""
    files = [lab.folder / "lab.toml", *check_files(lab), *sorted(lab.stubs.rglob("*.py"))]
    return _digest(tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in files))


@functools.lru_cache(64)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    total = hashlib.sha256()
    for path, _, _ in files:
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def mended(own: LabReport, today: LabReport) -> str:
    """Which checks make the difference between two reports of one submission, in a few words."""
    then, now = ({c.id: c for t in one.tasks.values() for c in t.checks} for one in (own, today))
    return ", ".join(
        f"{(now.get(id) or then[id]).name} ({_stands(then, id)}, {TODAY} {_stands(now, id)})"
        for id in {**then, **now}
        if _stands(then, id) != _stands(now, id)
    )


def _stands(checks: dict, id: str) -> str:
    return checks[id].status if id in checks else "not there"

"""Each release's labs, kept where grading finds the checks that a pack was made with."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from grader.course.paths import MODELS
from grader.course.release_record import RECORD, Record, read_record


def kept_records(releases: Path) -> list[Record]:
    """The records of the kept releases."""
    found = (read_record(path.parent) for path in sorted(releases.glob(f"[!.]*/{RECORD}")))
    return [record for record in found if record is not None]


def keep(released: Path, record: Record, releases: Path) -> None:
    """Keep the labs of the release in a folder; a release that is kept already stays."""
    home = releases / f"{record.course}-{record.number}"
    if home.is_dir():
        return
    releases.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=releases) as folder:
        whole = Path(folder) / home.name
        for name in (name for name in record.files if name.startswith("labs/")):
            (whole / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(released / name, whole / name)
        # Checks find the models by their place beside labs/.
        (whole / MODELS.name).symlink_to(os.path.relpath(MODELS, home.resolve()))
        (whole / RECORD).write_text(record.text, encoding="utf-8")
        whole.rename(home)

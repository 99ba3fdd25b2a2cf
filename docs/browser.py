"""Where Chromium is, which draws pictures and diagrams."""

from __future__ import annotations

import shutil

from grader.course.errors import LabError


def chromium() -> str:
    """The program's path; raises LabError where there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise LabError("pictures are drawn by Chromium; `apt-get install chromium` brings it.")
    return found

"""What tests need beyond pip: installed where that may be done, else said by name.

`python -m tests.system_tools` installs what is missing, as root or with `sudo -n`; it never asks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

PROGRAMS = {  # of each package
    "bubblewrap": ("bwrap",),
    "chromium": ("chromium", "chromium-browser", "google-chrome", "chrome"),
}
NEEDS = "needs "


def find(package: str) -> str | None:
    """The path of a package's program."""
    return next(filter(None, map(shutil.which, PROGRAMS[package])), None)


def require(package: str) -> str:
    """The path of a package's program; the test is skipped, by name, where there is none."""
    path = find(package)
    if path is None:
        pytest.skip(f"{NEEDS}{package}")
    return path


def not_tested(reasons: Iterable[str]) -> str:
    """One line for all tests that were skipped for want of a package; "" if there are none."""
    counts = Counter(
        package for reason in reasons for package in PROGRAMS if f"{NEEDS}{package}" in reason
    )
    if not counts:
        return ""
    tests = ", ".join(f"{count} tests that need {package}" for package, count in counts.items())
    return f"Not run here: {tests}. To get them: apt-get install {' '.join(counts)}"


def install(packages: list[str]) -> None:
    """By apt, if there is one and it may be used without asking."""
    apt = shutil.which("apt-get")
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if apt is None or (root and not _allowed()):
        return
    print(f"Installing what the tests need of the system: {', '.join(packages)} ...", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", *packages]):
        done = subprocess.run([*root, apt, *words], env=quiet, capture_output=True, text=True)
        if done.returncode:
            print(f"apt-get {words[0]} failed: {(done.stderr or done.stdout).strip()[-300:]}")
            return


def _allowed() -> bool:
    sudo = shutil.which("sudo")
    return sudo is not None and not subprocess.run([sudo, "-n", "true"], check=False).returncode


def main() -> None:
    """Install what is missing; what stays missing is said, and is no error."""
    missing = [package for package in PROGRAMS if find(package) is None]
    if missing and sys.platform == "linux":
        install(missing)
    left = [package for package in missing if find(package) is None]
    if left:
        print(f"Without {' and '.join(left)}: the tests that need them will be skipped.")


if __name__ == "__main__":
    main()

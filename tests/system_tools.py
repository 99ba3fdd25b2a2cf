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

from grader.course.paths import ROOT

PROGRAMS = {  # of each package
    "bubblewrap": ("bwrap",),
    "chromium": ("chromium", "chromium-browser", "google-chrome", "chrome"),
    "prometheus": ("prometheus",),
    "prometheus-alertmanager": ("prometheus-alertmanager",),
}
# Installed, these would start at once and with the machine: they are only unpacked.
UNPACKED = ("prometheus", "prometheus-alertmanager")
FOLDER = ROOT / "build" / "system"
NEEDS = "needs "


def find(package: str) -> str | None:
    """The path of a package's program."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(FOLDER / "usr" / "bin")))
    return next(filter(None, (shutil.which(name, path=path) for name in PROGRAMS[package])), None)


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
    whole = [name for name in packages if name not in UNPACKED]
    steps = [[*root, apt, "update", "-qq"]]
    if whole:
        steps.append([*root, apt, "install", "-y", "-qq", *whole])
    if len(whole) < len(packages):
        FOLDER.mkdir(parents=True, exist_ok=True)
        steps.append([apt, "download", "-qq", *(name for name in packages if name in UNPACKED)])
    for words in steps:
        if not _done(words):
            return
    for archive in FOLDER.glob("*.deb"):
        if _done(["dpkg", "-x", str(archive), str(FOLDER)]):
            archive.unlink()


def _done(words: list[str]) -> bool:
    """Run a command of the package manager; what it says where it fails."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        words, env=quiet, capture_output=True, text=True, cwd=FOLDER if FOLDER.exists() else None
    )
    if done.returncode:
        print(f"{' '.join(words[:3])} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return not done.returncode


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

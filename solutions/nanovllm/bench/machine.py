"""What a record must say about where it was made."""

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "triton", "numpy")


def usable_cpus() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """The machine and the packages of this process."""
    return {
        "cpu": _cpu(),
        "cpus": usable_cpus(),
        "features": _features(),
        "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "load_average": os.getloadavg()[0],
        "command": [re.sub(r"(^|=)/.*/", r"\1", word) for word in sys.argv],
        "commit": _commit(),
    }


def require_quiet(anyway: bool = False, most: float = 1.0) -> None:
    """End the program with a sentence where others use the machine, unless told to go on."""
    load = os.getloadavg()[0]
    if load > most and not anyway:
        sys.exit(
            f"The load of this machine is {load:.1f}, and a record wants at most {most:.0f}: wait "
            "until others are done, or go on with --anyway."
        )


def _commit() -> str | None:
    """The commit that is measured, with a plus where files differ from it."""
    git = ["git", "-C", str(Path(__file__).resolve().parent)]
    try:
        found, changes = (
            subprocess.run(
                [*git, *words], capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found + "+" * bool(changes)


def _cpu() -> str:
    return _proc("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _features() -> list[str]:
    flags = (_proc("/proc/cpuinfo", "flags") or "").split()
    return [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]


def _memory_gb() -> float | None:
    line = _proc("/proc/meminfo", "MemTotal")
    return round(int(line.split()[0]) / 1024**2, 1) if line else None


def _proc(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in found if name.strip() == key), None)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

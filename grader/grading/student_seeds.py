"""Seeds and cache keys: what a grade depends on, and nothing else."""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import os
import platform
import secrets
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from grader.checks.scenarios import DRAWS
from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.course.paths import HIDDEN, REFERENCE, ROOT
from grader.grading.submission import Submission
from grader.sandbox.limits import Limits

FORMAT = 1
OWN = (".py", ".toml", ".json")  # files beside a lab's checks
PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "pytest", "hypothesis")
SECRET_BYTES = 16


def course_secret(path: Path) -> bytes:
    """The course's secret from a file, made at the first use, readable to its owner alone."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(SECRET_BYTES * 2) + "\n")
    secret = path.read_bytes().strip()
    if len(secret) < SECRET_BYTES:
        raise LabError(
            f"the secret in {path} is shorter than {SECRET_BYTES} bytes; restore it from a backup "
            "(a new one changes every student's scenarios), or delete it to start anew."
        )
    return secret


def seeds(secret: bytes, lab: Lab, student: str) -> list[int]:
    """One seed a draw: HMAC of course secret over lab, student and draw."""
    return [
        int.from_bytes(
            hmac.digest(secret, json.dumps([lab.key, student, draw]).encode(), "sha256")[:8], "big"
        )
        for draw in range(DRAWS)
    ]


def result_key(
    submission: Submission, lab: Lab, student: str, secret: bytes, limits: Limits, level: str
) -> str:
    """A digest of everything that a grade depends on."""
    content = {name: hashlib.sha256(data).hexdigest() for name, data in submission.files.items()}
    parts = {
        "format": FORMAT,
        "student": student,
        "lab": lab.key,
        "files": content,
        "problem": submission.problem,
        "notes": submission.notes,
        "course": course_digest(lab),
        "seeds": hashlib.sha256(repr(seeds(secret, lab, student)).encode()).hexdigest(),
        "limits": asdict(limits),
        "sandbox": level,
        "versions": versions(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def course_digest(lab: Lab) -> str:
    """The lab's checks, its hidden scenarios, the reference and the grader."""
    folders = [HIDDEN / lab.key, ROOT / "grader", REFERENCE, lab.stubs]
    files = [str(path) for path in lab.folder.glob("*.*") if path.suffix in OWN]
    files += [name for folder in folders for name in _python_below(folder)]
    total = hashlib.sha256()
    for name in sorted({*files, str(ROOT / "nanovllm" / "__init__.py")}):
        found = os.stat(name)
        line = f"{name[len(str(ROOT)) :]} {_digest(name, found.st_mtime_ns, found.st_size)}\n"
        total.update(line.encode())
    return total.hexdigest()


def _python_below(folder: Path) -> Iterator[str]:
    for where, _, names in os.walk(folder):
        yield from (os.path.join(where, name) for name in names if name.endswith(".py"))


@functools.lru_cache(4096)
def _digest(name: str, modified: int, size: int) -> str:
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    """Python, the system and the packages whose results could change with their version."""
    found = {name: metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "system": sys.platform, **found}

"""The hints of a lab: `solutions/hints/labNN.toml`, and the one encoded file that students have.

The encoding hides nothing from who wants to see it; it keeps an eye that passes from reading on.
"""

from __future__ import annotations

import base64
import binascii
import json
import textwrap
import tomllib
import zlib
from contextlib import suppress

from grader.checks.markers import collect_checks
from grader.course.errors import LabError
from grader.course.lab_toml import Lab
from grader.course.paths import HINTS

NUMBER = 3


class HintError(LabError):
    """Hints that do not fit the checks of their lab."""


def encoded(lab: Lab) -> str:
    """The text of `hints.txt`; the table must have three hints for each check, and no others."""
    path = HINTS / f"{lab.key}.toml"
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, tomllib.TOMLDecodeError) as error:
        raise HintError(f"{path} cannot be used: {error}.") from None
    hints = {f"{f}.py::{n}": texts for f, names in tables.items() for n, texts in names.items()}
    checks = {f"{check.file}::{check.name}" for check in collect_checks(lab)}
    for name in sorted(checks ^ hints.keys()):
        raise HintError(
            f"{path} has no hints of {name}." if name in checks else f"{path}: {name} is no check."
        )
    for name, texts in hints.items():
        if len(texts) != NUMBER or not all(isinstance(text, str) and text for text in texts):
            raise HintError(f"{path}: {name} needs {NUMBER} hints.")
    file = lab.folder / "hints.txt"
    with suppress(LabError):  # another zlib packs the same hints to other bytes
        if read(lab) == {name: tuple(texts) for name, texts in hints.items()}:
            return file.read_text(encoding="utf-8")
    packed = zlib.compress(json.dumps(hints, ensure_ascii=False, sort_keys=True).encode(), 9)
    lines = textwrap.wrap(base64.b64encode(packed).decode(), 100)
    first = f"# lab hint {lab.number:02d} CHECK shows these one at a time."
    return "\n".join([first, *lines]) + "\n"


def read(lab: Lab) -> dict[str, tuple[str, ...]]:
    """The hints of each check, by `file.py::name`."""
    path = lab.folder / "hints.txt"
    try:
        data = decoded(path.read_text(encoding="utf-8"))
        return {name: tuple(map(str, texts)) for name, texts in data.items()}
    except (OSError, ValueError, AttributeError, TypeError, zlib.error, binascii.Error):
        raise LabError(
            f"labs/{lab.key}/hints.txt cannot be read; `git checkout labs/{lab.key}/hints.txt` "
            "restores it (maintainers: `python -m grader build`)."
        ) from None


def decoded(text: str) -> dict[str, list[str]]:
    """What a `hints.txt` of this text holds."""
    return json.loads(zlib.decompress(base64.b64decode(text.partition("\n")[2])))

"""`python -m grader gradescope`: the zip that makes a lab's autograder on Gradescope."""

from __future__ import annotations

import hmac
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import jinja2
import typer
from rich.console import Console

from grader.classroom.gradescope_results import NOT_GRADED
from grader.course.errors import LabError
from grader.course.lab_toml import Lab, find_lab
from grader.course.paths import HIDDEN, LABS, MODELS, REFERENCE, ROOT
from grader.grading.grade_command import SECRET
from grader.grading.grading_toml import Config
from grader.grading.student_seeds import course_secret
from grader.release.contents import tree

COURSE = "course"  # its folder in the zip
USER, NUMBER = "submission", 61_234  # whom submissions run as
OWN_SECRET, OWN_CONFIG = ".grading/secret", ".grading/grading.toml"
MODES = {"setup.sh": 0o755, "run_autograder": 0o755, f"{COURSE}/{OWN_SECRET}": 0o600}
EPOCH = (1980, 1, 1, 0, 0, 0)  # equal files give equal bytes
console = Console()


def gradescope(
    lab: Annotated[str, typer.Argument(metavar="LAB", help="1, 01 or lab01")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The zip's folder.")],
    torch_index: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where pip finds torch without CUDA.")
    ] = "",
    config: Annotated[Path | None, typer.Option(help="grading.toml: limits.")] = None,
    secret: Annotated[
        Path,
        typer.Option(help="The course's secret; made if missing.", show_default=".grading/secret"),
    ] = SECRET,
) -> None:
    """Write labNN-autograder.zip, which Gradescope makes a lab's autograder of."""
    chosen = find_lab(lab)
    if to.exists() and not to.is_dir():
        raise LabError(f"{to} is a file; name a folder, which need not exist.")
    Config.load(config)  # what cannot be used is said here, not on Gradescope
    secret.parent.mkdir(parents=True, exist_ok=True)
    key = hmac.digest(course_secret(secret), f"gradescope {chosen.key}".encode(), "sha256").hex()
    files = {name: text.encode() for name, text in scripts(chosen, torch_index).items()}
    files |= {f"{COURSE}/{p.relative_to(ROOT).as_posix()}": p.read_bytes() for p in course(chosen)}
    files[f"{COURSE}/{OWN_SECRET}"] = key.encode()
    if config:
        files[f"{COURSE}/{OWN_CONFIG}"] = config.read_bytes()
    to.mkdir(parents=True, exist_ok=True)
    target = to / f"{chosen.key}-autograder.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, EPOCH)
            info.compress_type, info.create_system = zipfile.ZIP_DEFLATED, 3  # Unix, with modes
            info.external_attr = (0o100000 | MODES.get(name, 0o644)) << 16
            archive.writestr(info, data)
    target.chmod(0o600)
    console.print(
        f"{target}: reference, hidden scenarios and seed of {chosen.key} are in it; give it to "
        "nobody but Gradescope.", highlight=False, soft_wrap=True
    )  # fmt: skip


def scripts(lab: Lab, torch_index: str) -> dict[str, str]:
    """The two files that Gradescope looks for, by name."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("grader.classroom"), undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    values = {"lab": lab.key, "user": USER, "number": NUMBER,
              "torch_index": shlex.quote(torch_index),
              "not_graded": shlex.quote(NOT_GRADED.text)}  # fmt: skip
    return {
        name: made.get_template(f"{name}.j2").render(values)
        for name in ("setup.sh", "run_autograder")
    }


def course(lab: Lab) -> Iterator[Path]:
    """The course's files that grading a lab takes: no mistake, no model answer, no other secret."""
    for folder in (ROOT / "grader", LABS, MODELS, REFERENCE):
        yield from tree(folder)
    yield from (HIDDEN / lab.key).glob("*.py")
    names = ("nanovllm/__init__.py", "pyproject.toml", "requirements.txt", "constraints.txt")
    yield from (ROOT / name for name in (*names, "LICENSE"))

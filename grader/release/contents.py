"""What the students' repository holds: path -> bytes."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import jinja2

from grader.course.digest import IGNORED
from grader.course.lab_toml import Lab
from grader.course.paths import MODELS, NOTEBOOKS, REFERENCE, ROOT
from grader.course.withheld import withheld
from grader.release.import_closure import needed_modules
from grader.release.lab_selection import Selection

TEMPLATES = Path(__file__).parent / "student"
# What the students' commands, pytest and notebooks load; the rest follows from the imports.
ENTRANCES = (
    "student/lab_command", "checks/plugin", "checks/listing", "student/demo", "student/notebook",
    "student/tour",
)  # fmt: skip
WORKFLOW = ".github/workflows/classroom.yml"
CHECKPOINTS = ("target", "draft")
INSTRUCTORS = re.compile(r"^(grader|package-data) = ")
MAINTAINERS = re.compile(r"^\[+(?:tool\.(?:ruff|importlinter)|dependency-groups)")


def contents(selection: Selection) -> dict[str, bytes]:
    """Every file of the release by its path."""
    files = {_name(path): path.read_bytes() for path in _copied(selection)}
    for lab in selection.labs:  # not to be read by chance: they do in plain ways what a lab asks
        home = f"labs/{lab.key}/standin"
        plain = {name: files.pop(name) for name in list(files) if name.startswith(f"{home}/")}
        if plain:
            files[f"{home}.zip"] = _packed({Path(name).name: plain[name] for name in sorted(plain)})
    files["README.md"] = _readme(selection).encode()
    files["models/README.md"] = _models_card().encode()
    files["Makefile"] = (TEMPLATES / "Makefile").read_bytes()
    files[WORKFLOW] = _workflow(selection).encode()
    files[".gitignore"] = _gitignore().encode()
    files["pyproject.toml"] = _pyproject().encode()
    return dict(sorted(files.items()))


def _copied(selection: Selection) -> Iterator[Path]:
    roots = [ROOT / "grader" / f"{name}.py" for name in ENTRANCES]
    for lab in selection.labs:
        for folder in (lab.folder, NOTEBOOKS / lab.key):
            found = list(tree(folder))
            roots += [path for path in found if path.suffix in (".py", ".ipynb")]
            yield from found
    yield from roots[: len(ENTRANCES)]
    yield from needed_modules(roots)
    yield from (
        ROOT / name for name in (".gitattributes", "LICENSE", "requirements.txt", "constraints.txt")
    )
    if "lab11" in (lab.key for lab in selection.labs):
        yield ROOT / "requirements-ray.txt"
    yield from (ROOT / ".idea" / name for name in ("modules.xml", "nanovllm.iml"))
    yield from (MODELS / name for name in ("recall.png", "rows.safetensors"))
    for name in CHECKPOINTS:
        yield from tree(MODELS / name)
    yield ROOT / "nanovllm" / "__init__.py"
    yield from _engine(selection)


def _engine(selection: Selection) -> Iterator[Path]:
    """The engine's front, which is given, and the reference of the closed labs."""
    kept_back = withheld({lab.key for lab in selection.closed})
    for path in sorted(REFERENCE.iterdir()):
        if path.is_file() and path.suffix == ".py":
            yield path
        elif path.is_dir() and path.name not in kept_back:
            found = tree(path)
            yield from (p for p in found if str(p.relative_to(REFERENCE)) not in kept_back)


def tree(folder: Path) -> Iterator[Path]:
    """The files below a folder that belong to the course: nothing hidden, nothing cached."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and not IGNORED & set(path.parts):
            yield path


def _packed(files: dict[str, bytes]) -> bytes:
    """A zip that is the same for the same files; Python imports from it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _readme(selection: Selection) -> str:
    rows = [
        f"| [{lab.number:02d} {lab.title}](labs/{lab.key}/README.md) | `nanovllm/{lab.package}/` "
        f"| {lab.minutes // 60}:{lab.minutes % 60:02d} | {_where_reference(lab, selection)} |"
        for lab in selection.labs
    ]
    first = selection.labs[0]
    text = (TEMPLATES / "README.md").read_text(encoding="utf-8")
    values = {
        "LABS": "\n".join(rows), "NN": f"{first.number:02d}", "PACKAGE": first.package,
        "FIRST": first.first,
    }  # fmt: skip
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)


def _workflow(selection: Selection) -> str:
    """For GitHub Classroom: the visible checks of the open labs. GitHub's own braces stay."""
    made = jinja2.Environment(
        block_start_string="<%", block_end_string="%>", variable_start_string="<<",
        variable_end_string=">>", trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined, autoescape=False,
    )  # fmt: skip
    text = (TEMPLATES / "classroom.yml.j2").read_text(encoding="utf-8")
    return made.from_string(text).render(
        labs=[lab for lab in selection.labs if lab not in selection.closed]
    )


def _where_reference(lab: Lab, selection: Selection) -> str:
    return f"`solutions/nanovllm/{lab.package}/`" if lab in selection.closed else "not yet"


def _models_card() -> str:
    """The course's, without the section about the training, whose program stays there."""
    text = (MODELS / "README.md").read_text(encoding="utf-8").partition("\n## Training\n")[0]
    return text.replace("by the program in this folder on text that the program writes itself",
                        "on text that a program wrote (`corpus/`)") + "\n"  # fmt: skip


def _gitignore() -> str:
    """The course's, but a student's own work belongs in the student's repository."""
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if "# A class that" in line)
    return "\n".join([*lines[:start], "/lab[0-9][0-9].zip", "/notebooks/*/lab[0-9][0-9].zip", ""])


def _pyproject() -> str:
    """The course's, without the sections and entries of the maintainers' tools."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    sections = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    kept = "".join(section for section in sections if not MAINTAINERS.match(section))
    lines = [line for line in kept.splitlines(keepends=True) if not INSTRUCTORS.match(line)]
    return "".join(lines).rstrip() + "\n"

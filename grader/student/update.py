"""`lab update`: a newer release into a copy that somebody works in; nothing of theirs is touched.

A file that is as some release wrote it follows the release; so does a file in the package of a
started lab that is as its stub was. Every other file is the student's.
"""

from __future__ import annotations

import ast
import re
import shlex
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from grader.course import switch_over
from grader.course.errors import LabError, sentence_of
from grader.course.lab_toml import Lab, labs
from grader.course.paths import ROOT
from grader.course.release_record import RECORD, Record, read_record, sha256
from grader.course.stubs import functions
from grader.student_files.lab_folder import backups_folder, shown

BESIDE = ".lab/new"  # the new version of what the student has changed, to compare


@dataclass(frozen=True)
class Source:
    """A release to take files from; `read` raises KeyError or OSError where it lacks one."""

    record: Record
    read: Callable[[str], bytes]


@dataclass
class Update:
    """What an update does: new contents by path (None: removed), and what it leaves alone."""

    here: Record
    to: Record
    changes: dict[str, bytes | None] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)  # changed by the student, and by the release
    met: dict[str, str] = field(default_factory=dict)  # own file -> its stub, which has changed
    back: bool = False

    @property
    def backup(self) -> Path:
        """Named so that no undo goes back to what an undo has left."""
        return backups_folder() / f"{'undone' if self.back else 'release'}-{self.here.number}"

    def carry_out(self) -> None:
        """LabError where it cannot be done; then everything is as it was."""
        try:
            switch_over.switch({**self.changes, RECORD: self.to.text.encode()}, self.backup)
        except OSError as error:
            raise LabError(f"nothing was changed: {sentence_of(error)}") from None


def opened(path: Path) -> Source:
    """The release in a folder or zip, or in the one folder in it. LabError where there is none."""
    if path.is_dir():
        found = [path, *(inside for inside in sorted(path.iterdir()) if inside.is_dir())]
        home = next((folder for folder in found if (folder / RECORD).is_file()), None)
        if home is not None:
            record = Record.parsed((home / RECORD).read_bytes(), home / RECORD)
            return Source(record, lambda name: (home / name).read_bytes())
    elif path.is_file():
        try:
            archive = zipfile.ZipFile(path)
            names = (PurePosixPath(name) for name in archive.namelist())
            found = [name for name in names if name.name == RECORD and len(name.parts) < 3]
            if found:
                inside = min(found, key=lambda name: len(name.parts)).parent
                record = Record.parsed(archive.read(str(inside / RECORD)), path)
                return Source(record, lambda name: archive.read(str(inside / name)))
        except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
            raise LabError(f"{path} cannot be read ({error}); download the release anew.") from None
    else:
        raise LabError(f"there is no {path}; give the folder or the zip of a newer release.")
    raise LabError(
        f"{path} is no release of the course: it holds no {RECORD}. Give the whole folder or zip "
        "as you got it, with its hidden files."
    )


def before_last() -> Source:
    """The release before the last update, from its backup."""
    here = _here()
    earlier = {
        record.number: path
        for path in backups_folder().glob("release-*")
        if (record := read_record(path)) and record.number < here.number
    }
    if not earlier:
        raise LabError(
            f"there is no update to undo: {shown(backups_folder())} has no backup of one."
        )
    home = earlier[max(earlier)]
    return Source(read_record(home) or Record(), lambda name: (home / name).read_bytes())


def planned(source: Source, back: bool = False) -> Update:
    """What taking a release over would do. LabError where it is not a newer one of this course."""
    here, to = _here(), source.record
    if not back:
        _require_newer(here, to)
    update = Update(here, to, back=back)
    for name in sorted({*here.files, *to.files}):
        _place(update, source, name, name, back)
    for lab in labs():
        if lab.started and lab.mine.is_relative_to(ROOT):
            for stub in _stubs(lab, here, to):
                _place(update, source, _own(lab, stub), stub, back)
    return update


def _here() -> Record:
    found = read_record()
    if found is None:
        raise LabError(
            f"{ROOT} has no {RECORD}, so it is the course itself or lost that file; a copy that "
            "can be updated is one that `python -m grader release` has written."
        )
    return found


def _require_newer(here: Record, to: Record) -> None:
    if here.course and here.course != to.course:
        raise LabError(
            f"that is {to}, and this copy is {here}; ask for the release of your own course."
        )
    if to.number < here.number:
        raise LabError(
            f"that is {to}, and this copy has release {here.number} already; "
            "`lab update --undo` goes back."
        )
    if to.number == here.number and to.files != here.files:
        raise LabError(
            f"that is {to}, as this copy is, yet with other files; one of the two was changed by "
            "hand. Ask for the release as it was made."
        )


def _stubs(lab: Lab, *records: Record) -> list[str]:
    home = f"labs/{lab.key}/stubs/"
    return sorted({name for one in records for name in one.files if name.startswith(home)})


def _own(lab: Lab, stub: str) -> str:
    """The student's file that begins as a stub."""
    inside = PurePosixPath(stub).relative_to(f"labs/{lab.key}/stubs")
    return (lab.mine.relative_to(ROOT) / inside).as_posix()


def _place(update: Update, source: Source, name: str, wanted: str, back: bool) -> None:
    """Decide of one file `name`, which the release has as `wanted`."""
    was, to_be = update.here.files.get(wanted), update.to.files.get(wanted)
    own, path = name != wanted, ROOT / name
    free = not path.exists() and not path.is_symlink() and not any(map(Path.is_file, path.parents))
    there = sha256(path.read_bytes()) if path.is_file() and not path.is_symlink() else None
    if there == to_be or (was == to_be and not free):
        return  # as it should be, or changed by the student where there is nothing new
    if own and ((free and was) or (to_be is None and not back)):
        return  # deleted by the student; or their lab goes on without it
    content = _content(source, wanted, to_be, back)
    if (free or (there and there == was)) and (to_be is None or content is not None):
        update.changes[name] = content
    elif own:
        update.met[name] = wanted
    elif content is not None or not back:
        update.kept.append(name)
        if content is not None:
            update.changes[beside(update, name)] = content


def _content(source: Source, name: str, digest: str | None, back: bool) -> bytes | None:
    """What the release has there; a backup may lack what the update had left alone."""
    if digest is None:
        return None
    try:
        data = source.read(name)
    except (KeyError, OSError, RuntimeError, zipfile.BadZipFile):
        data = b""
    if sha256(data) == digest:
        return data
    if back:
        return None
    raise LabError(
        f"{name} in that release is missing, or not as it was released; nothing was changed. Get "
        "the release anew, as it was made, and not a copy that somebody works in."
    )


def beside(update: Update, name: str) -> str:
    """Where the new version of a file lies that the student has changed."""
    return f"{BESIDE}/release-{update.to.number}/{name}"


def changed_parts(name: str, old: bytes, new: bytes) -> list[str]:
    """The functions of a module, or the sections of a handout, that are new or not as they were."""
    before, after = _parts(name, old), _parts(name, new)
    return [part for part in {**after, **before} if before.get(part) != after.get(part)]


def _parts(name: str, data: bytes) -> dict[str, str]:
    text = data.decode("utf-8", "replace")
    if name.endswith(".py"):
        with suppress(SyntaxError, ValueError):
            found = {f: ast.get_source_segment(text, node) or "" for f, node in functions(text)}
            rest = text
            for body in found.values():
                rest = rest.replace(body, "")
            return {**found, "what stands outside its functions": rest}
    if name.endswith(".md"):
        head, *sections = re.split(r"^#+ ", text, flags=re.MULTILINE)
        return {"its beginning": head} | {s.partition("\n")[0].strip(): s for s in sections}
    return {"all of it": text}


def news(update: Update) -> Iterator[str]:
    """What is new for each lab that is started, in one sentence."""
    for lab in (lab for lab in labs() if lab.started):
        home, parts = f"labs/{lab.key}/", []
        for name in (name for name in update.changes if name.startswith(home)):
            found = _news_of(update, name)
            if name == f"{home}README.md":
                parts.append(f"handout ({found})")
            elif name.startswith(f"{home}test_"):
                parts.append(f"checks ({found})")
            elif name == f"{home}hints.txt":
                parts.append("hints")
        if parts:
            yield f"{lab.key} has new {', '.join(parts)}; `lab check {lab.number:02d}` runs it."


def warnings(update: Update) -> Iterator[str]:
    """A sentence for each file that stays although the release has a new one, with what to do."""
    for name, stub in update.met.items():
        parts = f" in {_news_of(update, stub)}" if stub in update.changes else ""
        yield (
            f"{name} is yours and stays; its stub {stub} has changed{parts}. Compare the two, and "
            "bring over what your code needs."
        )
    for name in update.kept:
        new = beside(update, name)
        if new in update.changes:
            yield (
                f"{name} was changed here and stays. To take that of release {update.to.number}: "
                + shlex.join(["cp", shown(ROOT / new), shown(ROOT / name)])
            )
        else:
            yield f"{name} was changed here and stays; {update.to} has none."


def _news_of(update: Update, name: str, most: int = 4) -> str:
    """The first parts of a file that differ from what lies here."""
    old = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
    found = changed_parts(name, old, update.changes[name] or b"")
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"{', '.join(found[:most])}{more}"

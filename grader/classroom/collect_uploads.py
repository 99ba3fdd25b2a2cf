"""Submissions downloaded from Canvas, Moodle or a folder, brought into nbgrader's own layout."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from nbgrader.api import Gradebook, Student
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import ExtractorPlugin, FileNameCollectorPlugin

from grader.classroom.pack_contents import UNREADABLE, PackError, read_pack
from grader.grading.upload_names import (
    Person,
    find_student,
    named_by_lms,
    owner,
    person,
    students_named,
    upload,
)
from grader.grading.zip_or_folder import shown

MOST_BYTES = 2_000_000_000


class PackExtractor(ExtractorPlugin):
    """Lays out `extracted/ORIGIN/labNN.zip` and its notebook; never unpacks a student's paths.

    Whose a file is, the outermost name says. What two files in archive/ say of one student stops
    for a person. nbgrader's own unpacks archives in archives, with a student's `timestamp.txt`.
    """

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Take every pack and notebook below `archive_path`, also out of the LMS's one big zip."""
        archive, self._target = Path(archive_path), Path(extracted_path)
        self._assignment = self._target.parent.name
        self._roster: Sequence[Person] = roster_of(self)
        self._source_of: dict[str, str] = {}  # by origin, the file in archive/; "": of two
        there = [p for p in archive.rglob("*") if p.is_file() and not p.is_symlink()]
        downloads = [path for path in there if path.parent == archive and self._is_download(path)]
        for path in sorted(set(there) - set(downloads), key=_packs_first):
            name = path.relative_to(archive)
            self._take(path, name, name.parts[0])
        for path in sorted(downloads, key=lambda path: path.stat().st_mtime):  # the last one counts
            try:
                self._unpack(path)
            except UNREADABLE as error:
                self.log.error("%s cannot be read (%s) and was skipped", path.name, error)
        for origin in [name for name, source in self._source_of.items() if not source]:
            shutil.rmtree(self._target / origin)

    def _is_download(self, path: Path) -> bool:
        """Whether a zip holds what many students handed in, and is no student's own."""
        named = named_by_lms(path.stem) or students_named(path.stem, self._roster)
        if path.suffix != ".zip" or named:
            return False
        try:
            with zipfile.ZipFile(path) as archive:
                names = [Path(name) for name in archive.namelist()]
        except UNREADABLE:
            return False
        return any(name.suffix == ".zip" for name in names) or not any(
            name.name in (f"{self._assignment}.ipynb", "manifest.json") or name.suffix == ".py"
            for name in names
        )

    def _unpack(self, path: Path) -> None:
        """The LMS's zip: its entries are what students handed in, one file each."""
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                self.log.error("%s is too large and was skipped", path)
                return
            for entry in sorted(archive.infolist(), key=lambda one: _packs_first(one.filename)):
                if not entry.is_dir():
                    self._take_entry(archive, entry, path.name)

    def _take_entry(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, source: str) -> None:
        copy = self._target / ".one"
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            with archive.open(entry) as packed, copy.open("wb") as file:
                shutil.copyfileobj(packed, file)
            self._take(copy, Path(entry.filename), source)
        except UNREADABLE as error:
            self.log.error("%s in %s cannot be read (%s)", shown(entry.filename), source, error)
        finally:
            copy.unlink(missing_ok=True)

    def _take(self, path: Path, name: Path, source: str) -> None:
        """One file that a student handed in; `name` says whose it is, `source` where it was."""
        if name.suffix not in (".ipynb", ".zip"):
            self.log.warning("%s is neither a pack nor a notebook and was skipped", name)
            return
        folders = [part for part in name.parts[:-1] if part not in ("..", "/")]
        origin = owner([*folders, name.stem], self._roster)
        if not self._belongs(origin, source):
            return
        folder = self._target / origin
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / f"{self._assignment}{name.suffix}")
        if name.suffix == ".ipynb":
            return
        try:
            notebook = read_pack(path, self._assignment).notebook
        except PackError as error:
            self.log.warning("%s: %s", name, error)
            notebook = None
        if notebook is not None:
            (folder / f"{self._assignment}.ipynb").write_bytes(notebook)

    def _belongs(self, origin: str, source: str) -> bool:
        """Whether this file in archive/ may speak for an origin: not where another one did.

        Names that the LMS made may come again, in a newer download.
        """
        before = self._source_of.setdefault(origin, source)
        if before == source:
            return True
        if before and named_by_lms(origin):
            self._source_of[origin] = source
            return True
        if before:
            self._source_of[origin] = ""
            self.log.error(
                "NOT COLLECTED: %s has files in %s and in %s; leave in archive/ the one that "
                "counts, and collect again", origin, before, source,
            )  # fmt: skip
        return False


def _packs_first(path: Path | str) -> tuple[bool, str]:
    """Order in which a notebook handed in beside a pack replaces the pack's own."""
    return str(path).endswith(".ipynb"), str(path)


class PackCollector(FileNameCollectorPlugin):
    """Finds the student of a file by the name that the LMS gave it, and the class's roster."""

    _roster: list[Student] | None = None
    _chosen: dict[Path, str] | None = None

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        path = Path(submitted_file)
        if path.suffix not in self.valid_ext:
            return None
        if self.named_regexp:
            return self._match(submitted_file)
        if self._chosen is None:
            self._chosen = self._choose(path.parent.parent)
        student = self._chosen.get(path)
        return {"student_id": student, "file_id": path.name} if student else None

    def _choose(self, extracted: Path) -> dict[Path, str]:
        """The student of each file that counts. nbgrader stops at a second file of one name."""
        roster = self._students()
        found: dict[str, list[Path]] = {}
        for folder in sorted(path for path in extracted.iterdir() if path.is_dir()):
            found.setdefault(find_student(folder.name, roster), []).append(folder)
        chosen: dict[Path, str] = {}
        for student, folders in found.items():
            meant = {one for folder in folders for one in students_named(folder.name, roster)}
            if len(meant) > 1 or len({person(folder.name) for folder in folders}) > 1:
                names = " and ".join(folder.name for folder in folders)
                student = " or ".join(sorted(meant)) or student
                self.log.error(
                    "NOT COLLECTED: %s could be of %s; name the files in archive/ by the "
                    "students' ids, as ada.zip, and collect again", names, student,
                )  # fmt: skip
                continue
            newest = {
                path.name: path
                for one in sorted(folders, key=lambda one: upload(one.name))
                for path in _files(one)
            }
            chosen |= dict.fromkeys(newest.values(), student)
        strangers = sorted(set(chosen.values()) - {student.id for student in roster})
        if strangers:
            self.log.warning("not in the roster, graded by this name: %s", ", ".join(strangers))
        return chosen

    def _students(self) -> list[Student]:
        if self._roster is None:
            self._roster = roster_of(self)
        return self._roster


def roster_of(plugin: ExtractorPlugin | FileNameCollectorPlugin) -> list[Student]:
    """The students of the class that a plugin works for."""
    course = CourseDirectory(parent=plugin.parent)
    with Gradebook(course.db_url, course.course_id) as gradebook:
        students = list(gradebook.students)
        gradebook.db.expunge_all()
    return students


def _files(folder: Path) -> list[Path]:
    """What lies in the folder of one origin."""
    return sorted(path for path in folder.iterdir() if path.is_file())

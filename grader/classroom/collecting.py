"""Submissions downloaded from Canvas, Moodle or a folder, brought into nbgrader's own layout."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

from nbgrader.api import Gradebook, Student
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import ExtractorPlugin, FileNameCollectorPlugin

from grader.classroom.packfile import PackError, read_pack

MOST_BYTES = 2_000_000_000
ORIGINS = (
    # Canvas: lovelaceada_LATE_1234_567890_lab01-2.zip
    re.compile(r"(?P<name>[^_]+)_(?:LATE_)?(?P<lms>\d+)_\d+_.+"),
    # Moodle: Ada Lovelace_98765_assignsubmission_file_/lab01.zip, or without the folder
    re.compile(r"(?P<name>[^_]+)_\d+_assignsubmission_file_.*"),
    # A folder or a file by the student's id: ada/lab01.zip, lab01_ada.zip, ada.zip
    re.compile(r"lab\d\d[-_](?P<name>.+)"),
    re.compile(r"(?P<name>.+)"),
)


class PackExtractor(ExtractorPlugin):
    """Lays out `extracted/ORIGIN/labNN.zip` and its notebook; never unpacks a student's paths.

    nbgrader's own would unpack archives in archives, with a student's `timestamp.txt`.
    """

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Take every pack and notebook below `archive_path`, also out of the LMS's one big zip."""
        target = Path(extracted_path)
        assignment = target.parent.name
        for path in sorted(Path(archive_path).rglob("*")):
            if not path.is_file() or path.is_symlink():
                continue
            own = path.suffix != ".zip" or names_student(path.stem, self._students())
            if not own and _is_download(path, assignment):
                self._unpack(path, target, assignment)
            else:
                self._take(path, path.relative_to(archive_path), target, assignment)

    def _students(self) -> list[Student]:
        return roster_of(self)

    def _unpack(self, path: Path, target: Path, assignment: str) -> None:
        """The LMS's zip: its entries are what students handed in, one file each."""
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                self.log.error("%s is too large and was skipped", path)
                return
            for entry in archive.infolist():
                if entry.is_dir():
                    continue
                copy = target / ".one"
                copy.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, copy.open("wb") as file:
                    shutil.copyfileobj(source, file)
                self._take(copy, Path(entry.filename), target, assignment)
                copy.unlink()

    def _take(self, path: Path, name: Path, target: Path, assignment: str) -> None:
        """One file that a student handed in; `name` says whose it is."""
        parts = [part for part in name.parts if part not in ("..", "/")]
        origin = parts[-2] if len(parts) > 1 else Path(parts[-1]).stem
        folder = target / origin
        if name.suffix == ".ipynb":
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / f"{assignment}.ipynb")
        elif name.suffix == ".zip":
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / f"{assignment}.zip")
            try:
                notebook = read_pack(path, assignment).notebook
            except PackError as error:
                self.log.warning("%s: %s", name, error)
                notebook = None
            if notebook is not None:
                (folder / f"{assignment}.ipynb").write_bytes(notebook)
        else:
            self.log.warning("%s is neither a pack nor a notebook and was skipped", name)


def _is_download(path: Path, assignment: str) -> bool:
    """Whether a zip holds what many students handed in, and is no student's own."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [Path(name) for name in archive.namelist()]
    except (zipfile.BadZipFile, OSError):
        return False
    return any(name.suffix == ".zip" for name in names) or not any(
        name.name in (f"{assignment}.ipynb", "manifest.json") or name.suffix == ".py"
        for name in names
    )


class PackCollector(FileNameCollectorPlugin):
    """Finds the student of a file by the name that the LMS gave it, and the class's roster."""

    _roster: list[Student] | None = None

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        path = Path(submitted_file)
        if path.suffix not in self.valid_ext:
            return None
        if self.named_regexp:
            return self._match(submitted_file)
        student = find_student(path.parent.name, self._students())
        return {"student_id": student, "file_id": path.name}

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


def names_student(stem: str, roster: list[Student]) -> bool:
    """Whether a file is named as one student's: what is in it is theirs, whatever it is called."""
    known = {student.id for student in roster}
    return bool(ORIGINS[0].fullmatch(stem) or ORIGINS[1].fullmatch(stem)) or (
        find_student(stem, roster) in known
    )


def find_student(origin: str, roster: list[Student]) -> str:
    """The id of the student whose files lie in a folder of this name; if unknown, the name."""
    match = next(found for pattern in ORIGINS if (found := pattern.fullmatch(origin)))
    name, lms = match["name"], match.groupdict().get("lms")
    for student in roster:
        if lms is not None and student.lms_user_id == lms:
            return student.id
    wanted = _letters(name)
    for student in roster:
        first, last = student.first_name or "", student.last_name or ""
        if wanted in (_letters(student.id), _letters(first + last), _letters(last + first)):
            return student.id
    return re.sub(r"[^\w.@-]", "-", name)


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()

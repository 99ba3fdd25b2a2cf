"""Submissions downloaded from Canvas, Moodle or a folder, brought into nbgrader's own layout."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from nbgrader.api import Gradebook, Student
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import ExtractorPlugin, FileNameCollectorPlugin

from grader.classroom.pack_contents import PackError, read_pack
from grader.grading.upload_names import find_student, names_student, person, upload

MOST_BYTES = 2_000_000_000


class PackExtractor(ExtractorPlugin):
    """Lays out `extracted/ORIGIN/labNN.zip` and its notebook; never unpacks a student's paths.

    nbgrader's own would unpack archives in archives, with a student's `timestamp.txt`.
    """

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Take every pack and notebook below `archive_path`, also out of the LMS's one big zip."""
        target = Path(extracted_path)
        assignment = target.parent.name
        there = [p for p in Path(archive_path).rglob("*") if p.is_file() and not p.is_symlink()]
        zips = [path for path in there if path.suffix == ".zip"]
        roster = roster_of(self) if zips else []
        downloads = [
            path
            for path in zips
            if not names_student(path.stem, roster) and _is_download(path, assignment)
        ]
        for path in sorted(set(there) - set(downloads), key=_packs_first):
            self._take(path, path.relative_to(archive_path), target, assignment)
        for path in sorted(downloads, key=lambda path: path.stat().st_mtime):  # the last one counts
            self._unpack(path, target, assignment)

    def _unpack(self, path: Path, target: Path, assignment: str) -> None:
        """The LMS's zip: its entries are what students handed in, one file each."""
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                self.log.error("%s is too large and was skipped", path)
                return
            for entry in sorted(archive.infolist(), key=lambda one: _packs_first(one.filename)):
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


def _packs_first(path: Path | str) -> tuple[bool, str]:
    """Order in which a notebook handed in beside a pack replaces the pack's own."""
    return str(path).endswith(".ipynb"), str(path)


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
        strangers = sorted(set(found) - {student.id for student in roster})
        if strangers:
            self.log.warning("not in the roster, graded by this name: %s", ", ".join(strangers))
        chosen: dict[Path, str] = {}
        for student, folders in found.items():
            if len({person(folder.name) for folder in folders}) > 1:
                names = " and ".join(folder.name for folder in folders)
                self.log.error(
                    "NOT COLLECTED: %s could all be of %s; name the files in archive/ by the "
                    "students' ids, as ada.zip, and collect again", names, student,
                )  # fmt: skip
                continue
            newest = {
                path.name: path
                for one in sorted(folders, key=lambda one: upload(one.name))
                for path in _files(one)
            }
            chosen |= dict.fromkeys(newest.values(), student)
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

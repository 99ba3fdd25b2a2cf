"""A class's folder: its nbgrader settings, and nbgrader's own programming interface to it."""

from __future__ import annotations

import fcntl
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGrader, NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SAWarning

from grader.classroom.boxed_execute import BoxedExecute
from grader.course.errors import LabError
from grader.course.lab_toml import Lab

SETTINGS = "nbgrader_config.py"
TEMPLATE = '''"""nbgrader's settings for this class, whose submissions and grades lie beside it."""

from pathlib import Path

from grader.classroom.nbgrader_settings import configure

c = get_config()
configure(c, Path(__file__).parent)
c.CourseDirectory.course_id = "{course}"

# Where students fetch and submit, if the class works on one JupyterHub:
# c.Exchange.root = "/srv/nbgrader/exchange"
'''
GRADING = """# Limits of a submission, and what lateness costs; the defaults are in the handbook.
[limits]

[late]
percent_per_day = 0.0    # of the points, for each day begun after the due date
grace_minutes = 15.0
last_day = 5             # later than so many days earns nothing
"""


@dataclass(frozen=True)
class Course:
    """The class in `folder`."""

    folder: Path

    @cached_property
    def api(self) -> NbGraderAPI:
        """nbgrader with this class's settings."""
        # nbgrader reads entries that SQLAlchemy 2 has not stored yet, which is harmless.
        warnings.filterwarnings("ignore", category=SAWarning)
        app = NbGrader(raise_config_file_errors=True)
        with chdir(self.folder):  # nbgrader reads the settings of the folder it stands in
            try:
                app.initialize([])
            except Exception as error:  # whatever Python the settings hold
                raise LabError(f"{self.folder / SETTINGS} cannot be used: {error!r}.") from error
        if BoxedExecute not in app.config.Autograde.get("autograde_preprocessors", []):
            raise LabError(
                f"{self.folder / SETTINGS} does not call `configure(c, ...)`, so notebooks would "
                "run with your own rights; `python -m grader classroom DIR` writes one that does."
            )
        app.log_level = "ERROR"
        app.coursedir = CourseDirectory(parent=app)
        return NbGraderAPI(app.coursedir, parent=app)

    @property
    def directory(self) -> CourseDirectory:
        found = self.api.coursedir
        assert isinstance(found, CourseDirectory)  # traitlets' types leave None open
        return found

    def gradebook(self) -> Gradebook:
        return Gradebook(self.directory.db_url, self.directory.course_id)

    def submitted(self, lab: Lab) -> list[str]:
        """The ids of the students who handed a lab in."""
        return sorted(self.api.get_submitted_students(lab.key))

    def place(self, step: str, student: str, lab: Lab) -> Path:
        """The folder of one student's lab in one step: submitted, autograded or feedback."""
        folder = getattr(self.directory, f"{step}_directory")
        return Path(self.directory.format_path(folder, student, lab.key))

    def released(self, lab: Lab) -> Path:
        """The notebook that students got."""
        return self.place("release", ".", lab) / f"{lab.key}.ipynb"

    def require_generated(self, lab: Lab) -> None:
        """Make the gradebook's entry of a lab, and its release, where there is none."""
        with self.gradebook() as gradebook:
            try:
                gradebook.find_notebook(lab.key, lab.key)
                return
            except MissingEntry:
                pass
        done = self.api.generate_assignment(lab.key)
        if not done["success"]:
            raise LabError(
                f"nbgrader could not generate {lab.key}: {str(done.get('log', '')).strip()}"
            )

    def require_settings(self) -> None:
        """Read what every student's grading needs. Raises LabError for a file that is wrong."""
        from grader.grading import course_secret
        from grader.grading.grading_toml import Config

        chosen = self.api.config.ModuleGrades
        limits = Path(chosen.settings_file)
        Config.load(limits if limits.is_file() else None)
        course_secret(Path(chosen.secret_file))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second `autograde` out. Raises LabError where one is at work."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network disks know no locks
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise LabError(
                        f"another autograde is at work in {self.folder}; wait for it to end."
                    ) from None
            yield
        finally:
            os.close(handle)


def open_course(folder: Path) -> Course:
    """The class in a folder. Raises LabError where there is none."""
    if not (folder / SETTINGS).is_file():
        raise LabError(
            f"{folder} has no {SETTINGS}; go to the class's folder, or make one with "
            "`python -m grader classroom DIR`."
        )
    return Course(folder.resolve())


def new_course(folder: Path, name: str) -> Course:
    """Make the folder of a class. Raises LabError where there is one already."""
    if (folder / SETTINGS).exists():
        raise LabError(f"{folder} is the folder of a class already; nothing was changed.")
    if not re.fullmatch(r"[\w.-]+", name):
        raise LabError(f"a class's name may hold letters, digits, . _ and -, unlike {name!r}.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SETTINGS).write_text(TEMPLATE.format(course=name), encoding="utf-8")
    (folder / "grading.toml").write_text(GRADING, encoding="utf-8")
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")  # grades belong in no repository
    return Course(folder.resolve())

"""nbgrader's settings for a class that is kept in the course's own folder."""

from pathlib import Path

from grader.classroom.nbgrader_settings import configure

c = get_config()  # noqa: F821 - traitlets puts it there
configure(c, Path(__file__).resolve().parent)

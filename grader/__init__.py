"""The course's tooling: checks and their cards, builder, board, grading."""

from grader.course.switch_over import finish

finish()  # an update that was cut off, before any other module is read

from grader.checks.expect import expect  # noqa: E402

__all__ = ["expect"]

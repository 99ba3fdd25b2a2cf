"""The course's tooling: checks and their cards, builder, board, grading."""

from grader.checks.expect import expect

__all__ = ["expect"]

"""Grading a class: each submission in a sandbox, its verdict made outside it."""

from grader.grading.grade import grade_lab, grade_submission, grade_task
from grader.grading.report import LabReport, TaskReport
from grader.grading.seeds import course_secret
from grader.sandbox.limits import Limits
from grader.sandbox.sandbox import Sandbox

__all__ = [
    "LabReport",
    "Limits",
    "Sandbox",
    "TaskReport",
    "course_secret",
    "grade_lab",
    "grade_submission",
    "grade_task",
]

"""A report for the student's eyes: text, and HTML by jinja2, which escapes all that they sent."""

from __future__ import annotations

import functools
import unicodedata

import jinja2

from grader.grading.report import (
    AGREES,
    BROKEN,
    DIFFERS,
    RAISED,
    LabReport,
    ScenarioReport,
    TaskReport,
)

MARKS = {"passed": "✓", "failed": "✗", "todo": "…", "blocked": "–"}
HIDING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, marks, what has no picture


def number(points: float) -> str:
    """Points without a fraction where there is none: 12, 7.5."""
    return f"{points:g}"


def clean(text: str) -> str:
    """Text that cannot move the cursor, turn the writing round or hide anything."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c == "\n" or unicodedata.category(c) not in HIDING else "?" for c in text)


def line(text: str) -> str:
    """`clean` text that stays on its line."""
    return clean(text).replace("\n", " ")


def verdict(scenario: ScenarioReport) -> str:
    """What a student is told of a hidden scenario: never its inputs or values."""
    told = {
        AGREES: "agrees with the reference",
        DIFFERS: "differs from the reference",
        RAISED: f"{scenario.said}",
        BROKEN: "could not be judged and does not count",
    }
    return clean(told.get(scenario.status, f"did not finish: {scenario.said}"))


def task_text(task: TaskReport) -> str:
    """One task: points, checks, scenarios, cards."""
    lines = [f"Task {task.id}  {task.title}: {number(task.points)} of {number(task.max_points)}"]
    lines += [f"  no check passes: {line(task.blocked)}"] if task.blocked else []
    for check in task.checks:
        why = "" if check.passed or task.blocked else f"  {line(check.reason)}"
        lines.append(f"  {MARKS[check.status]} {check.title} ({check.points}){why}")
    for place, scenario in enumerate(task.scenarios, 1):
        mark = "✓" if scenario.status == AGREES else "✗"
        lines.append(f"  {mark} hidden scenario {place}: {verdict(scenario)}")
    if task.points < task.claimed:
        lines.append(
            f"  the checks alone would give {number(task.claimed)}; points count as far as the "
            "hidden scenarios agree"
        )
    lines += [clean(card) for card in task.cards]
    return "\n".join(lines)


def lab_text(report: LabReport) -> str:
    """The whole report as plain text."""
    head = (
        f"{report.lab} {report.title} · {line(report.student)} · "
        f"{number(report.points)} of {number(report.max_points)} points"
    )
    notes = [f"! {line(warning)}" for warning in report.warnings]
    tasks = [task_text(task) for task in report.tasks.values()]
    return (
        "\n\n".join([head, *notes, *tasks, f"graded in: {report.sandbox}{by_release(report)}"])
        + "\n"
    )


def by_release(report: LabReport) -> str:
    return f", by the checks of release {report.release}" if report.release else ""


def task_html(task: TaskReport) -> str:
    """One task as a fragment that fits into a notebook's output."""
    return _environment().get_template("task.html.j2").render(task=task)


def lab_html(report: LabReport) -> str:
    """The whole report as a page that needs no other file."""
    return _environment().get_template("lab.html.j2").render(report=report)


@functools.cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("grader.grading"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    found.filters |= {
        "number": number,
        "clean": clean,
        "verdict": verdict,
        "task_html": task_html,
        "by_release": by_release,
    }
    found.globals |= {"MARKS": MARKS, "AGREES": AGREES}
    return found

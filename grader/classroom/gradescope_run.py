"""What `run_autograder` does on Gradescope, as root: grade one submission, write `results.json`.

The submission runs as a user of its own. Before it starts, what it must not see is closed to
others; before the result is written, that user's processes are ended.
"""

from __future__ import annotations

import os
import pwd
import time
import traceback
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ValidationError

from grader.classroom.gradescope_results import NOT_GRADED, Results, refused, results
from grader.classroom.gradescope_zip import OWN_CONFIG, OWN_SECRET, USER
from grader.course.errors import LabError
from grader.course.lab_toml import Lab, find_lab
from grader.course.paths import HIDDEN, LABS, REFERENCE, ROOT
from grader.grading.class_submissions import alone_inside
from grader.grading.grade import grade_read
from grader.grading.grading_toml import Config
from grader.grading.submission import read
from grader.sandbox import visible_files
from grader.sandbox.levels import UNSANDBOXED
from grader.sandbox.own_user import end_all
from grader.sandbox.sandbox import Sandbox


class User(BaseModel):
    """One of those who handed in; `id` is Gradescope's."""

    email: str | None = None
    id: int | str = ""


class Metadata(BaseModel):
    """What of `submission_metadata.json` counts."""

    users: list[User] = []


def main(
    lab: Annotated[str, typer.Argument(metavar="LAB")],
    at: Annotated[Path, typer.Option(help="Gradescope's folder.")] = Path("/autograder"),
    user: Annotated[str, typer.Option(help="Whom the submission runs as: name or number.")] = USER,
    sandbox: Annotated[str, typer.Option(help="bubblewrap, landlock or limits; else tried.")] = "",
) -> None:
    """Grade the submission in AT/submission into AT/results/results.json."""
    begun = time.monotonic()
    try:
        number = user_number(user)
        end_all(number)
        close(find_lab(lab), at)
        try:
            found = grade(find_lab(lab), at, number, sandbox)
        finally:
            end_all(number)
    except Exception:
        traceback.print_exc()  # the instructor's alone
        found = NOT_GRADED
    found.execution_time = round(time.monotonic() - begun)
    whole = at / "results" / "results.json.new"
    whole.write_text(found.text, encoding="utf-8", errors="replace")
    whole.replace(whole.with_name("results.json"))


def user_number(user: str) -> int:
    """The number of whom submissions run as; LabError where there is none, or where it is root."""
    if os.geteuid():
        raise LabError("only root can run a submission as another user; run this as root.")
    try:
        number = int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError:
        raise LabError(f"there is no user {user!r}; setup.sh makes one.") from None
    if not number:
        raise LabError("submissions may not run as root; name another user.")
    return number


def closed(lab: Lab, at: Path) -> list[Path]:
    """What only root may read: answers, scenarios, seed, what was handed in, results."""
    shown = visible_files.course(lab)
    answers = [
        path
        for path in (*REFERENCE.iterdir(), *REFERENCE.glob("*/*.py"), *LABS.iterdir())
        if not any(path.is_relative_to(one) or one.is_relative_to(path) for one in shown)
    ]
    own = [at / name for name in ("submission", "submission_metadata.json", "results")]
    return [HIDDEN, (ROOT / OWN_SECRET).parent, *answers, *own]


def close(lab: Lab, at: Path) -> None:
    """Make it so."""
    (at / "results").mkdir(exist_ok=True)
    for path in closed(lab, at):
        if path.exists():
            os.chown(path, 0, 0)
            path.chmod(0o700 if path.is_dir() else 0o600)


def grade(lab: Lab, at: Path, user: int, sandbox: str) -> Results:
    """Grade by `grader grade`'s own function; what it warns of is printed for the instructor."""
    config = ROOT / OWN_CONFIG
    limits = Config.load(config if config.is_file() else None).limits
    handed_in = read(alone_inside(at / "submission"), lab, limits)
    if handed_in.problem:
        return refused(lab, handed_in.problem)
    secret = (ROOT / OWN_SECRET).read_bytes()
    with Sandbox.open(sandbox, user) as box:
        hidden = box.probe(lab) != "limits"
        print(f"sandbox: {box.level}", *box.tried, sep="\n", flush=True)
        report = grade_read(handed_in, lab, student(at), secret, limits, box, hidden=hidden)
    warnings = [text for text in report.warnings if text != UNSANDBOXED]  # it was not root's
    print(*warnings, f"{report.points:g} of {report.max_points:g} points", sep="\n")
    return NOT_GRADED if report.lost else results(report, handed_in.notes)


def student(at: Path) -> str:
    """Whose submission it is, for the seeds; of a group all, in one order."""
    try:
        found = Metadata.model_validate_json((at / "submission_metadata.json").read_bytes())
    except (OSError, ValidationError):
        print("submission_metadata.json cannot be read; the seeds are those of nobody")
        return ""
    return ",".join(sorted(user.email or str(user.id) for user in found.users))


if __name__ == "__main__":
    typer.run(main)

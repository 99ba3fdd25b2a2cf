"""What a late submission costs: the policy of `grading.toml`, from nbgrader's due date on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nbgrader.plugins import LateSubmissionPlugin
from traitlets import Unicode

from grader.grading.grading_toml import Config

DUE = datetime(2000, 1, 1, tzinfo=UTC)  # any: nbgrader tells by how much it was missed
ANY = "lab"


class PolicyOfClass(LateSubmissionPlugin):
    """Takes off what `grader grade` would; nothing where the class has no `grading.toml`."""

    settings_file = Unicode(help="grading.toml, with a table [late]").tag(config=True)

    def late_submission_penalty(
        self, student_id: str, score: float, total_seconds_late: float
    ) -> float | None:
        """Points to take off; None where nothing is."""
        path = Path(self.settings_file)
        if not path.is_file():
            return None
        policy = replace(Config.load(path).late, deadlines={ANY: DUE})
        share = policy.penalty(ANY, DUE + timedelta(seconds=total_seconds_late))
        return round(score * share, 2) or None

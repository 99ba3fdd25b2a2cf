"""The student's records as they stand in memory, and as JSON in `.lab/state.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from grader.course.outcome import Status
from grader.student_files import work_time

MODES = ("isolated", "mine")


@dataclass(frozen=True)
class Result:
    """The latest outcome of one check in one mode, and the digest of the files it ran on."""

    status: Status
    task: int
    points: int
    title: str
    digest: str
    at: str
    reason: str = ""
    mistake: str = ""


@dataclass
class LabState:
    """One lab's records; `unlocked` are the tasks whose checks have all passed once."""

    started: str = ""
    results: dict[str, dict[str, Result]] = field(
        default_factory=lambda: {mode: {} for mode in MODES}
    )
    hints: dict[str, int] = field(default_factory=dict)
    unlocked: list[int] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)
    guesses: dict[str, float] = field(default_factory=dict)  # by the key of the question

    @classmethod
    def from_json(cls, entry: dict) -> LabState:
        results = {
            mode: {
                name: Result(**{**result, "status": Status(result["status"])})
                for name, result in entry["results"].get(mode, {}).items()
            }
            for mode in MODES
        }
        return cls(
            started=str(entry["started"]),
            results=results,
            hints={name: int(rung) for name, rung in entry["hints"].items()},
            unlocked=[int(task) for task in entry["unlocked"]],
            seconds={int(task): float(spent) for task, spent in entry["seconds"].items()},
            guesses={key: float(value) for key, value in entry.get("guesses", {}).items()},
        )


@dataclass
class State:
    """The whole file; `notice` is a sentence for the student about the file itself."""

    labs: dict[str, LabState] = field(default_factory=dict)
    last_at: float | None = None
    last_lab: str = ""
    last_task: int = 0
    notice: str = ""

    def lab(self, key: str) -> LabState:
        return self.labs.setdefault(key, LabState())

    def spend(self, events: list[work_time.Event]) -> None:
        """Add the working time up to these saves and checks."""
        for (key, task), seconds in work_time.active_seconds(self.last_at, events).items():
            spent = self.lab(key).seconds
            spent[task] = round(spent.get(task, 0.0) + seconds, 1)
        if events:
            latest = max(events)
            self.last_at = max(self.last_at or 0.0, latest.at)
            self.last_lab, self.last_task = latest.lab, latest.task

    def to_json(self) -> dict:
        return {
            "version": 1,
            "last": {"at": self.last_at, "lab": self.last_lab, "task": self.last_task},
            "labs": {key: asdict(self.labs[key]) for key in sorted(self.labs)},
        }

    @classmethod
    def from_json(cls, data: dict) -> State:
        entries = {key: LabState.from_json(entry) for key, entry in data.get("labs", {}).items()}
        last = data.get("last", {})
        at = last.get("at")
        return cls(
            entries,
            None if at is None else float(at),
            str(last.get("lab", "")),
            int(last.get("task", 0)),
        )

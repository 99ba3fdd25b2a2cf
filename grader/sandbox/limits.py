"""What one submission may use; whoever goes beyond it loses the item that ran, not the batch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from grader.course.errors import LabError


@dataclass(frozen=True)
class Limits:
    """Limits of one submission of one lab; times are wall-clock seconds, kept outside the box."""

    seconds: int = 300  # everything together
    item_seconds: int = 45  # one check, one scenario, or the import of one check file
    memory_mb: int = 2048  # beyond the worker: address space of each, memory of all
    disk_mb: int = 256  # /tmp inside the box
    processes: int = 64  # 1: it cannot start any
    output_mb: int = 32  # what the scenarios send out
    submission_mb: int = 4  # all files of a submission together, unpacked
    files: int = 200

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise LabError(f"limit {field.name} must be a whole number above 0, not {value!r}.")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Limits:
        """Limits from a table of the config file; unknown keys are an error."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise LabError(f"unknown limit {unknown[0]!r}; the limits are {', '.join(known)}.")
        return cls(**data)

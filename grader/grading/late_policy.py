"""What handing in late costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

DAY = timedelta(days=1)


@dataclass(frozen=True)
class LatePolicy:
    """Percent of the points taken off for each day, begun or whole, after the deadline."""

    deadlines: Mapping[str, datetime] = field(default_factory=dict)  # by lab: "lab05"
    percent_per_day: float = 10.0
    grace_minutes: float = 0.0
    last_day: int = 5  # later than so many days earns nothing

    def penalty(self, lab: str, submitted: datetime | None) -> float:
        """The share of the points that is lost, 0 to 1; nothing where there is no deadline."""
        deadline = self.deadlines.get(lab)
        if deadline is None or submitted is None:
            return 0.0
        late = submitted - deadline - timedelta(minutes=self.grace_minutes)
        days = math.ceil(late / DAY) if late > timedelta() else 0
        return 1.0 if days > self.last_day else min(1.0, days * self.percent_per_day / 100)

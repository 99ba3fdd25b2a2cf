"""What this lab refuses (given)."""


class PerformanceError(ValueError):
    """A profile, a graph, an expert or a placement that cannot be; the message says why."""

"""What can go wrong among ranks, each said in one sentence (given)."""


class ParallelError(ValueError):
    """What was asked for does not fit: a number of ranks, a shape, a message."""


class RankDied(RuntimeError):
    """A rank that others wait for is gone, or does not answer."""


class ExecutorDied(RuntimeError):
    """The ranks of an engine are gone, and with them the requests that they worked on."""

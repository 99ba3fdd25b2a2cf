"""What ends a request, or an engine, after everything that could be tried was tried."""


class ResilienceError(Exception):
    """A failure that no level below could mend."""


class GaveUpError(ResilienceError):
    """The engine died too often in too short a time: a person has to look at it."""


class PoisonedRequestError(ResilienceError):
    """A request that was there whenever the engine died: it is not tried again."""


class DeadlinePassedError(ResilienceError):
    """The time that a call had is over."""


class BreakerOpenError(ResilienceError):
    """A server that failed too often is left alone for a while."""


class JournalError(ResilienceError):
    """A file that cannot serve as a journal."""


class JournalFullError(ResilienceError):
    """A request that could not be written down, so it is not accepted."""


class SimulationError(ResilienceError):
    """A simulation that does not come to its end."""


class UnavailableError(ResilienceError):
    """A server that did not answer, or answered that it cannot: another one may."""


class WeightsChangedError(ResilienceError):
    """Weights that are not those with which the first engine began."""

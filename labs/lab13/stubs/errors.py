"""What this package refuses."""


class ObservabilityError(ValueError):
    """Something given cannot be used: a trace, a header, a rule."""


class TraceError(ObservabilityError):
    """A trace that cannot be read; the message names the line, and what is wrong with it."""


class CapacityError(ObservabilityError):
    """A plan that no number of replicas can keep, or a model that does not fit the card."""

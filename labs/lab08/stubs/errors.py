"""What cannot be speculated with."""


class SpeculationError(ValueError):
    """Settings, a draft model or guesses that cannot be used; the message says what to do."""

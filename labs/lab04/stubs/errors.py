"""What can go wrong while requests are batched, each with a sentence that says what to change."""

from nanovllm.generation.errors import RequestError


class ConfigError(ValueError):
    """A setting of the engine that cannot be honoured."""


class UnknownPolicyError(ConfigError):
    """A scheduling policy that does not exist."""


class RequestTooLargeError(RequestError):
    """A request that would not fit even if it had the store to itself."""


class DuplicateRequestError(RequestError):
    """A request id that is in use by a request which has not ended."""


class IllegalTransitionError(Exception):
    """A request was moved to a state that cannot follow its present one: a bug, not bad input."""


class NonFiniteLogitsError(Exception):
    """The largest logit of a row is NaN or infinite: no token can be drawn from it."""


class InvariantError(AssertionError):
    """A check of the engine's own books found a contradiction: a bug, not bad input."""


def require(condition: bool, claim: str) -> None:
    """Raise InvariantError with `claim` unless `condition` holds.

    >>> require(1 + 1 == 3, "sums must be right")
    Traceback (most recent call last):
    nanovllm.batching.errors.InvariantError: sums must be right
    """
    if not condition:
        raise InvariantError(claim)

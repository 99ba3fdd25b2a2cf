"""Who may ask at all: those with a key that the server knows (given)."""

import hmac
from collections.abc import Sequence

from nanovllm.serving.errors import UnauthorizedError

OPEN_PATHS = frozenset(
    {"/health", "/health/", "/health/live", "/version", "/metrics", "/docs", "/openapi.json",
     "/dashboard"}
)  # fmt: skip


def authorize(path: str, header: str | None, keys: Sequence[str]) -> str:
    """Return the key that a request came with, or "" where none is needed.

    header: `Bearer KEY`. OPEN_PATHS, which machines watch, need none.

    Raises:
        UnauthorizedError: no key, or one that is not known.

    >>> authorize("/v1/models", "Bearer abc", ["abc", "xyz"])
    'abc'
    """
    if path in OPEN_PATHS:
        return ""
    scheme, _, given = (header or "").strip().partition(" ")
    given = given.strip()
    if scheme.lower() != "bearer" or not given:
        raise UnauthorizedError("No API key was given; send the header Authorization: Bearer KEY.")
    for key in keys:
        # in a time that does not tell how much of the key was right
        if hmac.compare_digest(key.encode(), given.encode("latin-1", "replace")):
            return key
    raise UnauthorizedError("The API key is not known.")

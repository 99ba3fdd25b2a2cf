"""The one helper by which checks compare values; a failure carries what the card will show."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grader.checks.compare import Difference, describe, difference
from grader.checks.fingerprint import Fingerprint, fingerprint


@dataclass
class ExpectationFailed(AssertionError):
    """What a check saw and what it wanted to see."""

    call: str
    given: Mapping[str, Any]
    found: Difference
    cause: str
    at: str
    seen: Fingerprint = field(default_factory=dict)

    def __str__(self) -> str:
        return "; ".join(self.found.lines)


class Expect:
    """`expect(actual, expected)`, `expect.that(condition, claim)`, `expect.raises(Error, call)`."""

    def __call__(
        self,
        actual: Any,
        expected: Any,
        *,
        call: str = "",
        given: Mapping[str, Any] | None = None,
        cause: str = "",
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        """End the check unless `actual` equals `expected` (floats: within a tolerance by dtype)."""
        __tracebackhide__ = True
        found = difference(actual, expected, rtol, atol)
        if found is not None:
            raise ExpectationFailed(call, given or {}, found, cause, _site(), fingerprint(actual))

    def that(
        self,
        condition: object,
        claim: str,
        *,
        observed: Any = None,
        call: str = "",
        given: Mapping[str, Any] | None = None,
        cause: str = "",
    ) -> None:
        """End the check unless `condition` is true; `observed` is the value it was judged by."""
        __tracebackhide__ = True
        if not bool(condition):
            seen = f", but got {describe(observed)}" if observed is not None else ""
            found = Difference((f"expected that {claim}{seen}",), 1, 1)
            raise ExpectationFailed(call, given or {}, found, cause, _site(), fingerprint(observed))

    def raises(
        self,
        error: type[BaseException] | tuple[type[BaseException], ...],
        action: Callable[[], Any],
        *,
        match: str = "",
        call: str = "",
        given: Mapping[str, Any] | None = None,
        cause: str = "",
    ) -> BaseException:
        """Run `action`, which must raise `error` with a message that `match` finds; return it."""
        __tracebackhide__ = True
        names = " or ".join(e.__name__ for e in (error if isinstance(error, tuple) else (error,)))
        try:
            returned = action()
        except NotImplementedError:
            raise
        except error as caught:
            if re.search(match, str(caught)):
                return caught
            line = f"expected a message with {match!r}, got {str(caught)!r}"
            seen: Any = caught
        except Exception as caught:
            line = f"expected {names}, got {type(caught).__name__}: {caught}"
            seen = caught
        else:
            line = f"expected {names}, but the call returned {describe(returned)}"
            seen = returned
        found = Difference((line,), 1, 1)
        raise ExpectationFailed(call, given or {}, found, cause, _site(), fingerprint(seen))


def observed(error: BaseException) -> dict[str, Any]:
    """What a check saw that failed so: by which a known mistake is recognised."""
    if isinstance(error, ExpectationFailed):
        return {"at": error.at, "seen": error.seen}
    return {"at": "raised", "seen": fingerprint(error)}


def _site() -> str:
    """Which expectation of the check this is: function, and line from its first statement on."""
    frame = sys._getframe(2)
    code = frame.f_code
    body = [line for _, _, line in code.co_lines() if line and line > code.co_firstlineno]
    return f"{code.co_name}+{frame.f_lineno - min(body, default=code.co_firstlineno)}"


expect = Expect()

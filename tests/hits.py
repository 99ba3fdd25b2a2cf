"""Notes which solutions ran under which check, where `test_proof` has planted a call to it."""

from __future__ import annotations

import os

_seen: set[str] = set()


def note(symbol: str, file: str) -> None:
    """Write down in a file that this solution runs now; once a check."""
    check = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" (")[0].partition("[")[0]
    entry = f"{symbol} {check}\n"
    if entry not in _seen:
        _seen.add(entry)
        with open(file, "a", encoding="utf-8") as notes:
            notes.write(entry)

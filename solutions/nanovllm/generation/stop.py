"""Stop strings in a stream of text that arrives in pieces."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on until a stop string appears; never shows the beginning of one.

    `StopStrings(stops, include_stop_str=False)`; `matched` is the stop string found, None before.

    `push(piece, armed=True)` takes a piece of text and returns what may be shown now: everything
    but the longest end of the text that is a beginning, not the whole, of a stop string. A stop
    string counts when its last character comes in an armed push; of several the one that ends
    first wins, of two that end together the longer. Then `matched` names it, the text before it is
    returned (with include_stop_str also the stop string itself), and all that follows is dropped:
    a push after a match returns "". A stop string that was complete before, while not armed, is
    ordinary text and never counts.

    `flush()` returns what is held back: no more text will come. After a match, or after another
    flush, that is "".

    >>> stops = StopStrings(["END"])
    >>> stops.push("the E"), stops.push("N"), stops.push("D and more"), stops.matched
    ('the ', '', '', 'END')
    >>> stops = StopStrings(["a", "ab"])
    >>> stops.push("a", armed=False), stops.push("c"), stops.matched
    ('', 'ac', None)
    """

    ### BEGIN SOLUTION
    def __init__(self, stops: Sequence[str], include_stop_str: bool = False) -> None:
        self.stops = tuple(stops)
        self.include_stop_str = include_stop_str
        self.pending = ""  # text received but not passed on
        self.matched: str | None = None

    def push(self, piece: str, armed: bool = True) -> str:
        """Take a piece of text and return what may be shown now."""
        if self.matched is not None:
            return ""
        seen = len(self.pending)
        self.pending += piece
        end, stop = self._first_end(seen) if armed else (0, None)
        if stop is not None:
            self.matched = stop
            shown = self.pending[: end if self.include_stop_str else end - len(stop)]
            self.pending = ""
            return shown
        cut = len(self.pending) - self._held_back()
        shown, self.pending = self.pending[:cut], self.pending[cut:]
        return shown

    def flush(self) -> str:
        """Return what was held back: no more text will come."""
        shown, self.pending = self.pending, ""
        return shown

    def _first_end(self, seen: int) -> tuple[int, str | None]:
        """Where the first stop string ends whose last character is behind the first `seen`."""
        ends = []
        for stop in self.stops:
            start = self.pending.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                ends.append((start + len(stop), stop))
        return min(ends, key=lambda found: (found[0], -len(found[1])), default=(0, None))

    def _held_back(self) -> int:
        """Length of the longest end of the pending text that a stop string begins with."""
        most = len(self.pending)  # mostly a few characters, however long the stop strings are
        lengths = (
            n
            for stop in self.stops
            for n in range(1, len(stop))[:most]
            if self.pending.endswith(stop[:n])
        )
        return max(lengths, default=0)

    ### END SOLUTION

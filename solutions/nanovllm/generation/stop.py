"""Stop strings in a stream of text that arrives in pieces."""

from collections.abc import Sequence


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` may still become a stop string.

    The length of the longest suffix of text that is a proper prefix of one of the stops.

    >>> held_back("the EN", ["END", "\\n\\n"])
    2
    """
    ### BEGIN SOLUTION
    lengths = (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
    return max(lengths, default=0)
    ### END SOLUTION


class StopStrings:
    """Passes text on until a stop string appears; never shows the beginning of one.

    >>> stops = StopStrings(["END"])
    >>> stops.push("the E"), stops.push("N"), stops.push("D and more"), stops.matched
    ('the ', '', '', 'END')
    """

    def __init__(self, stops: Sequence[str], include_stop_str: bool = False) -> None:
        self.stops = tuple(stops)
        self.include_stop_str = include_stop_str
        self.pending = ""  # text received but not passed on
        self.matched: str | None = None

    def push(self, piece: str, armed: bool = True) -> str:
        """Take a piece of text and return what may be shown now.

        When a stop string is complete, `matched` names it, the text before it is returned (with
        it, if include_stop_str) and what follows is dropped. The match that ends first wins, of
        two that end together the longer: so it does not matter how the text is cut into pieces.
        Not armed (under min_tokens), a complete stop string passes.
        """
        ### BEGIN SOLUTION
        self.pending += piece
        ends = [
            (self.pending.find(stop) + len(stop), stop)
            for stop in self.stops
            if stop in self.pending
        ]
        if armed and ends:
            end, self.matched = min(ends, key=lambda match: (match[0], -len(match[1])))
            start = end - len(self.matched)
            shown, self.pending = self.pending[: end if self.include_stop_str else start], ""
            return shown
        cut = len(self.pending) - held_back(self.pending, self.stops)
        shown, self.pending = self.pending[:cut], self.pending[cut:]
        return shown
        ### END SOLUTION

    def flush(self) -> str:
        """Return what was held back: no more text will come."""
        shown, self.pending = self.pending, ""
        return shown

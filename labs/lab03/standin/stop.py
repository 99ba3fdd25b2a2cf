"""Stop strings in a text of which nothing is shown before its end."""

from collections.abc import Sequence


class StopStrings:
    """Holds everything back until a stop string is there."""

    def __init__(self, stops: Sequence[str], include_stop_str: bool = False) -> None:
        self.stops = tuple(stops)
        self.matched, self.held = None, ""

    def push(self, piece: str, armed: bool = True) -> str:
        """Nothing, or all that stands before a stop string."""
        self.held += piece
        self.matched = next((stop for stop in self.stops if armed and stop in self.held), None)
        return self.flush().partition(self.matched)[0] if self.matched else ""

    def flush(self) -> str:
        """All that was held back."""
        text, self.held = self.held, ""
        return text

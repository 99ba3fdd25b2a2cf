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

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab03 task 1: StopStrings")

"""Server-sent events: the framing of a stream, written and read.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import orjson

DONE = b"data: [DONE]\n\n"


def frame(data: object) -> bytes:
    """One event that carries `data` as JSON on one line.

    >>> frame({"text": "two\\nlines"})
    b'data: {"text":"two\\\\nlines"}\\n\\n'
    """
    ### BEGIN SOLUTION
    return b"data: " + orjson.dumps(data) + b"\n\n"
    ### END SOLUTION


class EventReader:
    """Reads the data of events out of bytes that arrive cut anywhere.

    >>> reader = EventReader()
    >>> reader.push(b'data: {"a"'), reader.push(b': 1}\\n\\ndata: [DONE]\\n\\nda')
    ([], ['{"a": 1}', '[DONE]'])
    """

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[str] = []  # data lines of an event that has not ended

    def push(self, received: bytes) -> list[str]:
        """The data of the events that these bytes complete.

        A line ends with \\n or \\r\\n, an event with an empty line. Several data lines of one event
        are joined by \\n; one space after the colon is not part of the data. Comments (a line that
        begins with a colon) and other fields are ignored, and so is an event without data. Bytes
        are decoded by whole lines only: a character may arrive in two pieces.
        """
        ### BEGIN SOLUTION
        *lines, self._rest = (self._rest + received).split(b"\n")
        found: list[str] = []
        for raw in lines:
            line = raw.removesuffix(b"\r").decode()
            name, _, value = line.partition(":")
            if name == "data":
                self._lines.append(value.removeprefix(" "))
            elif not line and self._lines:
                found.append("\n".join(self._lines))
                self._lines = []
        return found
        ### END SOLUTION

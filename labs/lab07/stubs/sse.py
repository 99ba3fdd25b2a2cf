"""Server-sent events: the framing of a stream, written and read (given).

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import orjson

DONE = b"data: [DONE]\n\n"


def frame(data: object) -> bytes:
    """One event whose data is `data` as JSON, on one line.

    >>> frame({"text": "two\\nlines"})
    b'data: {"text":"two\\\\nlines"}\\n\\n'
    """
    return b"data: " + orjson.dumps(data) + b"\n\n"


class EventReader:
    """Reads the data of events out of bytes that arrive cut anywhere.

    EventReader().push(received) takes the next bytes, and returns the data of the events that they
    complete, in order. A line ends with \\n or \\r\\n, an event with an empty line. The data of one
    event is its data lines, joined by \\n; one space after the colon is not part of them. Comments
    (a line that begins with a colon) and other fields are ignored, and so is an event without a
    data line. A character, and a line's end, may arrive in two pieces.

    >>> reader = EventReader()
    >>> reader.push(b'data: {"a"'), reader.push(b': 1}\\n\\ndata: [DONE]\\n\\nda')
    ([], ['{"a": 1}', '[DONE]'])
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []  # of an event that has not ended

    def push(self, received: bytes) -> list[str]:
        *lines, self._rest = (self._rest + received).split(b"\n")
        found: list[str] = []
        for raw in lines:
            line = raw.removesuffix(b"\r").decode()  # whole lines only: no half characters
            name, _, value = line.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            elif not line and self._data:
                found.append("\n".join(self._data))
                self._data = []
        return found

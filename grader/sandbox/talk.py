"""One piece of work in progress: tasks go in one by one, and their events come out."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from typing import Any

from grader.sandbox.cgroup import Group
from grader.sandbox.job import Answer
from grader.sandbox.limits import Limits

ANSWER_SECONDS = 30
CHUNK = 1 << 20
DEPTH = 150  # of lists and mappings in an event: an observation has up to 3 x 40
NEST = 100  # bytes that each list or mapping in them costs: empty ones are made of two
ITEM = 64  # the same of what lies in them: a text of one letter, say
LINE = 1 << 10  # a line of results costs as much of what may be sent as so many bytes


class Talk:
    """With a process of a submission, over `events`; over `link` its worker tells how it ended."""

    def __init__(
        self,
        events: socket.socket,
        link: socket.socket,
        limits: Limits,
        seconds: float,
        group: Group,
    ) -> None:
        self.events, self.link, self.limits, self._group = events, link, limits, group
        self.over = False  # the process has ended
        self._deadline = time.monotonic() + seconds
        self._buffer, self._left = bytearray(), limits.output_mb << 20
        self._kept = 0  # bytes of results

    def ask(self, task: dict[str, Any], last: bool = False) -> Answer:
        """Hand over a task; the events until it is done, or until the process ends if `last`."""
        answer, had = Answer(), self._kept
        try:
            return self._ask(task, last, answer)
        finally:
            answer.cost = self._kept - had

    def _ask(self, task: dict[str, Any], last: bool, answer: Answer) -> Answer:
        self.tell(task, last)
        stall = time.monotonic() + self.limits.item_seconds
        with selectors.DefaultSelector() as both:
            both.register(self.events, selectors.EVENT_READ)
            both.register(self.link, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                why = self._too_long(now, stall)
                if why or self._left < 0:
                    most = self.limits.output_mb
                    answer.ended = why or f"it sent more than {most} MB of results"
                    self.stop()
                    return answer
                wait = max(0, min(stall, self._deadline) - now)
                ready = {key.fileobj for key, _ in both.select(wait)}
                if self.events in ready:
                    chunk = _receive(self.events)
                    fresh, lines = self._take(chunk)
                    stall = now + self.limits.item_seconds if lines else stall
                    answer.events += fresh
                    if not last and any(event.get("done") is True for event in fresh):
                        return answer
                    if not chunk:
                        both.unregister(self.events)
                elif self.link in ready:  # everything of the child is dead, and nothing is unread
                    answer.ended = self._answer()
                    return answer

    def tell(self, message: dict[str, Any], last: bool = False) -> None:
        """Send a line; what a child that has ended or does not read misses is its loss."""
        with contextlib.suppress(OSError):
            self.events.sendall(json.dumps(message).encode() + b"\n")
            if last:
                self.events.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        """End the process and all that it started."""
        self.link.sendall(b"stop")
        self.link.settimeout(ANSWER_SECONDS)
        self._answer()

    def _take(self, chunk: bytes) -> tuple[list[dict[str, Any]], int]:
        """The events that a chunk has made whole, and how many lines."""
        self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n") if b"\n" in chunk else [self._buffer]
        self._left -= LINE * len(lines) + _size(chunk)
        found = [(event, line) for line in lines if (event := _event(line))]
        self._kept += sum(_size(line) for event, line in found if "item" in event)
        return [event for event, _ in found], len(lines)

    def _answer(self) -> str:
        """How the work ended; OSError where the worker has no answer."""
        data = self.link.recv(65536)
        word = json.loads(data) if data else {}
        if "ended" not in word:
            raise OSError("it fell silent")
        self.over = True
        if self._group.out_of_memory:
            return f"it used more than {self.limits.memory_mb} MB of memory"
        return word["ended"]

    def _too_long(self, now: float, stall: float) -> str:
        if now >= self._deadline:
            return f"the submission used up its {self.limits.seconds} seconds"
        if now >= stall:
            return f"it took more than {self.limits.item_seconds} seconds"
        return ""


def _receive(events: socket.socket) -> bytes:
    """What has come; nothing once every process of the submission has closed its end."""
    try:
        return events.recv(CHUNK)
    except ConnectionError:
        return b""


def _size(text: bytes | bytearray) -> int:
    """Bytes that JSON takes once it is read, or some more."""
    return len(text) + NEST * (text.count(b"[") + text.count(b"{")) + ITEM * text.count(b",")


def _event(line: bytes | bytearray) -> dict[str, Any] | None:
    """One line as an event; what is none, a cheat's or a torn one, is nothing."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and _is_shallow(event) else None


def _is_shallow(event: dict[str, Any]) -> bool:
    """Whether whoever passes an event on can write and read it again: `DEPTH` levels at most."""
    level: list[Any] = [event]
    for _ in range(DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return True
    return False

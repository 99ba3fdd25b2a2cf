"""The append-only file of results: a grader that was killed goes on where it stopped."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grader.course.errors import LabError
from grader.grading.report import LabReport


class Journal:
    """One line of JSON a result, flushed to disk before it counts; in memory, places alone."""

    def __init__(self, path: Path, wait: bool = False) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            self._file.close()
            raise LabError(f"another grader is writing {path}; wait for it to end.") from None
        self._places = dict(self._scan())

    @classmethod
    def at(cls, path: Path) -> Journal:
        """The journal at a path, one object for it in this process."""
        return _open(path.absolute())

    @classmethod
    @contextmanager
    def borrowed(cls, path: Path) -> Iterator[Journal]:
        """The journal for a moment, after others who have it: a server may grade beside us."""
        journal = cls(path, wait=True)
        try:
            yield journal
        finally:
            journal.close()

    @property
    def labs(self) -> set[str]:
        """The labs of which it holds results."""
        with self._lock:
            self._file.seek(0)
            return {json.loads(line)["lab"] for line in self._file}

    def _scan(self) -> Iterator[tuple[str, int]]:
        self._file.seek(0)
        place = 0
        for line in self._file:
            try:
                key = json.loads(line)["key"]
            except (ValueError, KeyError, TypeError):
                key = ""
            if not line.endswith(b"\n") or not key:  # the one being written when it was killed
                break
            yield key, place
            place += len(line)
        self._file.truncate(place)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def get(self, key: str) -> LabReport | None:
        with self._lock:
            if key not in self._places:
                return None
            self._file.seek(self._places[key])
            return LabReport.from_json(json.loads(self._file.readline()))

    def add(self, report: LabReport) -> None:
        """Keep a result; one that is there already is not written again."""
        with self._lock:
            if report.key in self._places:
                return
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(json.dumps(report.to_json()).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._places[report.key] = place

    def close(self) -> None:
        self._file.close()


@functools.cache
def _open(path: Path) -> Journal:
    return Journal(path)

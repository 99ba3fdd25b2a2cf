"""`Journal`: requests that were accepted, and their answers, in a file that outlives the server."""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nanovllm.resilience.errors import JournalError, JournalFullError

VERSION = 1
TABLE = """
CREATE TABLE requests (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, key TEXT, path TEXT NOT NULL, digest TEXT NOT NULL,
    body BLOB NOT NULL, accepted REAL NOT NULL, status INTEGER, media_type TEXT, answer BLOB,
    UNIQUE (owner, key)
);
"""


@dataclass(frozen=True)
class Record:
    """A request, and its answer once it has one.

    owner: who sent it, who alone may read the answer. key: by which its sender knows it again, or
    None. digest: of what was sent, which `body` need not be byte for byte. accepted: seconds since
    1970 (`time.time`) at which `accept` wrote it down. status, media_type, answer: of the HTTP
    response; None while it is open.
    """

    id: str
    owner: str
    key: str | None
    path: str
    digest: str
    body: bytes
    accepted: float = 0.0
    status: int | None = None
    media_type: str | None = None
    answer: bytes | None = None

    @property
    def open(self) -> bool:
        """Whether it has no answer yet."""
        return self.status is None


class Journal:
    """What `accept` has taken is on the disk when it returns, and so is what `end` was told.

    One thread at a time uses it. path: the file; made where there is none. most: how many requests
    are kept; the oldest answered ones make room, an open one never does.

    Raises JournalError where the file is no journal of this version, is broken, or is in use by
    another server.

    >>> journal = Journal(":memory:")
    >>> journal.accept(Record("a", "", "once", "/v1/completions", "d", b"{}")).id
    'a'
    >>> journal.accept(Record("b", "", "once", "/v1/completions", "d", b"{}")).id  # the same again
    'a'
    >>> journal.end("a", 200, "text/plain", b"yes")
    >>> journal.find("a").answer, journal.open_requests()
    (b'yes', [])
    """

    def __init__(self, path: str | Path, most: int = 10_000) -> None:
        self.path, self.most = path, most
        self._lock = None if path == ":memory:" else _locked(Path(path))
        try:
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._file.row_factory = sqlite3.Row
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = FULL")
            self._prepare()
        except sqlite3.Error as error:
            self.close()
            raise JournalError(
                f"{path} cannot be read as a journal ({error}); move it away, or give another file."
            ) from None
        except JournalError:
            self.close()
            raise

    def _prepare(self) -> None:
        [found] = self._file.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise JournalError(
                f"{self.path} is damaged ({found.splitlines()[-1]}); move it away, or give another "
                "file."
            )
        [version] = self._file.execute("PRAGMA user_version").fetchone()
        known = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not known:
            self._file.executescript(f"BEGIN; {TABLE} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            raise JournalError(
                f"{self.path} is a file of version {version}, but this server writes journals of "
                f"version {VERSION}; give another file."
            )

    def accept(self, record: Record) -> Record:
        """Take a request on, and give it back; or the one of the same owner and key, if any.

        A request without a key (None) is never known. A new one must find room: of those that were
        answered, the ones that came first are forgotten, until `most` are kept with the new one. On
        return it is on the disk. Its id is a new one; `accepted` of what comes back is left open.

        Raises JournalFullError where there is no room, on the disk or among the open requests. A
        request that is refused changes nothing.
        """
        raise NotImplementedError("lab12 task 4: Journal.accept")

    def end(self, request_id: str, status: int, media_type: str, answer: bytes) -> None:
        """Keep a request's answer; the first one stands, and an id that is not there is nothing.

        Raises JournalFullError where the disk is full.
        """
        raise NotImplementedError("lab12 task 4: Journal.end")

    def drop(self, request_id: str) -> None:
        """Forget a request, as if it had never come."""
        raise NotImplementedError("lab12 task 4: Journal.drop")

    def find(self, request_id: str) -> Record | None:
        """The request of this id."""
        return self._one("id = ?", request_id)

    def open_requests(self) -> list[Record]:
        """Those without an answer, in the order in which they came."""
        raise NotImplementedError("lab12 task 4: Journal.open_requests")

    def close(self) -> None:
        """Let go of the file."""
        if hasattr(self, "_file"):
            self._file.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _one(self, where: str, *values: str) -> Record | None:
        row = self._file.execute(f"SELECT * FROM requests WHERE {where}", values).fetchone()
        return None if row is None else Record(**row)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """All of it, or nothing (given). Raises JournalFullError where the file takes no more."""
        try:
            self._file.execute("BEGIN IMMEDIATE")
            yield
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo()
            raise JournalFullError(f"The journal {self.path} cannot be written: {error}.") from None
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        if self._file.in_transaction:
            self._file.execute("ROLLBACK")


def _sent(record: Record) -> tuple[str | bytes | None, ...]:
    """The first six columns of a new request's row, in their order (given)."""
    return record.id, record.owner, record.key, record.path, record.digest, record.body


def _locked(path: Path):  # noqa: ANN202, an open file
    """A lock that ends with this process, however it ends. Raises JournalError."""
    try:
        file = path.with_name(path.name + ".lock").open("w")
    except OSError as error:
        raise JournalError(
            f"{path} cannot be written ({error.strerror}); give another file."
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise JournalError(
            f"{path} is in use by another server; give each a journal of its own."
        ) from None
    return file

"""Problems that are told in one sentence, with the way out, instead of a traceback."""

from __future__ import annotations

import errno


class LabError(Exception):
    """Something the student or instructor can mend; the text says what and how."""


def sentence_of(error: OSError) -> str:
    """What an operating system error means for the person at the keyboard."""
    where = f" {error.filename}" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return f"the disk is full; free some space and try again ({error.strerror}{where})."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"cannot write or read{where} ({error.strerror}); give yourself the right to it "
            "(`ls -ld` shows who has it) and try again."
        )
    if where and error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"{where.strip()} is there already and is no folder; move it or name another."
    return f"{error.strerror or error}:{where or ' (no file named)'}."

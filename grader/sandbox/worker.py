"""The grader's end of one worker: give it work, end it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from grader.course.lab_toml import Lab
from grader.sandbox import cgroup, visible_files
from grader.sandbox.job import Answers, BoxError, Work
from grader.sandbox.limits import Limits
from grader.sandbox.memory_use import THREADS
from grader.sandbox.scratch_folder import remove
from grader.sandbox.talk import ANSWER_SECONDS, Talk

TRUSTED = "trusted"


class Worker:
    """One worker; `run` hands it one piece of work at a time.

    end: a handle of the process that can be waited for and signalled, where the system has one;
    else its number. user: whom it runs as, where that is not us.
    """

    def __init__(
        self, level: str, lab: Lab | None, link: socket.socket, pid: int, end: int | None,
        user: int | None = None,
    ) -> None:  # fmt: skip
        self.level, self.lab, self.link, self.pid, self.end = level, lab, link, pid, end
        self.user = user

    def run(self, work: Work, limits: Limits, seconds: float) -> Answers:
        """Do one piece of work within `seconds`; BoxError where the worker itself is lost."""
        start, answers = time.monotonic(), Answers()
        with self.opened(work, limits, seconds) as talk:
            for number, task in enumerate(work.tasks, 1):
                answers.of_tasks.append(talk.ask(task, last=number == len(work.tasks)))
                if talk.over:
                    break
        answers.seconds = time.monotonic() - start
        return answers

    @contextlib.contextmanager
    def opened(self, work: Work, limits: Limits, seconds: float) -> Iterator[Talk]:
        """A process that holds the submission and waits for tasks; it ends with the context."""
        scratch = ""
        if self.level != "bubblewrap":
            scratch = tempfile.mkdtemp(prefix="grading-")
            if self.user is not None:
                os.chown(scratch, self.user, self.user)
        job = {
            "seconds": max(1, int(seconds) + 1),
            "memory_mb": limits.memory_mb,
            "disk_mb": limits.disk_mb,
            "processes": limits.processes,
            "scratch": scratch,
            "locks": self.lab is not None and visible_files.locks_files(self.lab),
        }
        if self.level == "landlock" and self.lab is not None:
            shown = [*visible_files.machine(), *visible_files.course(self.lab)]
            job["readable"] = [str(path) for path in shown]
        ours, theirs = socket.socketpair()
        try:
            with ours, _group(self.level, limits) as group:
                with theirs:
                    socket.send_fds(self.link, [json.dumps(job).encode()], [theirs.fileno()])
                group.add(self._child())  # which waits for the submission
                ours.settimeout(limits.item_seconds)
                talk = Talk(ours, self.link, limits, seconds, group)
                talk.tell({"code": work.code, "files": work.files})
                yield talk
                if not talk.over:
                    talk.stop()
        except (OSError, ValueError) as error:
            self.close()
            raise BoxError(f"the worker was lost: {error}") from None
        except BaseException:
            self.close()
            raise
        finally:
            if scratch:
                remove(Path(scratch))

    def _child(self) -> int:
        """The number, here, of the process that the worker has forked for this work."""
        self.link.settimeout(ANSWER_SECONDS)
        word, handles, _, _ = socket.recv_fds(self.link, 4096, 1)
        self.link.settimeout(None)
        number = json.loads(word)["pid"]
        for handle in handles:
            said = Path(f"/proc/self/fdinfo/{handle}").read_text()
            number = int(said.partition("Pid:")[2].split()[0])
            os.close(handle)
        return number

    def close(self) -> None:
        """End the worker; what it has forked ends with it."""
        self.link.close()
        if self.end is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGTERM)
            return
        if not select.select([self.end], [], [], ANSWER_SECONDS)[0]:
            signal.pidfd_send_signal(self.end, signal.SIGKILL)
        os.close(self.end)
        self.end = None


def _group(level: str, limits: Limits) -> AbstractContextManager[cgroup.Group]:
    """The control group of one piece of work; none around the reference's own."""
    if level == TRUSTED:
        return contextlib.nullcontext(cgroup.Group([]))
    memory = limits.memory_mb + 2 * limits.disk_mb + cgroup.OWN_MB  # its two folders are memory
    return cgroup.group(memory, limits.processes * THREADS)

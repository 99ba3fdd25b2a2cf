"""Time and memory of a process in the box, read outside of it; Linux only."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from grader.course.errors import LabError
from grader.sandbox.job import BoxError
from grader.sandbox.memory_use import descendants
from grader.sandbox.worker import Worker

LOOKS = 100  # at a process that is to stop; one that will not is found later
PROCESSOR_TIME = 2  # the kernel's number of a process's clock, for all of its threads


class Meter:
    """Of the one process below a worker, which must not be able to start another."""

    def __init__(self, worker: Worker) -> None:
        if sys.platform != "linux" or worker.end is None:
            raise LabError("a race needs Linux: a process's time cannot be read from outside here.")
        # A worker's own number holds inside its box alone.
        about = Path(f"/proc/self/fdinfo/{worker.end}").read_text().split()
        found = descendants(int(about[about.index("Pid:") + 1]))
        if len(found) != 1:
            raise BoxError(f"there are {len(found)} processes where one is timed")
        self.pid = found[0]
        self._start = self._kb("VmRSS")

    def seconds(self) -> float:
        """Processor seconds of the process so far, ended threads included."""
        return time.clock_gettime(~self.pid << 3 | PROCESSOR_TIME)

    def peak_mb(self) -> float:
        """The most memory that it has had, beyond what it was forked with."""
        return (self._kb("VmHWM") - self._start) / 1024

    def stop(self) -> float:
        """Nothing of it runs until `go`; its seconds by then, when the last thread has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        for _ in range(LOOKS):
            if self._stands():
                break
            time.sleep(1e-4)
        return self.seconds()

    def _stands(self) -> bool:
        """Whether every thread has stopped; one that waits for a processor stops as it gets one."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/stat")
        try:
            return all(one.read_text().rpartition(")")[2].split()[0] in "Tt" for one in threads)
        except FileNotFoundError:  # it has ended meanwhile
            return False

    def go(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _kb(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()  # first its own name
        return next(int(one.split()[1]) for one in lines if one.startswith(f"{name}:"))

"""Run a submitted notebook in a box: its kernel sees the course without answers, and no network."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
import zmq
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbgrader.preprocessors import Execute
from nbgrader.preprocessors.execute import UnresponsiveKernelError
from traitlets import Integer

from grader.classroom.kernel_sandbox import DISK_MB, MEMORY_MB, PROCESSES, box_command
from grader.classroom.nbgrader_paths import course_directory, submission_of
from grader.course.lab_toml import Lab, find_lab
from grader.grading.submission import read
from grader.sandbox import cgroup
from grader.sandbox.limits import Limits
from grader.sandbox.memory_use import born, descendants, disk_excess, excess
from grader.sandbox.sandbox import shared
from grader.sandbox.scratch_folder import remove
from grader.student_files.lab_folder import stub_files

KERNEL_LOST = (DeadKernelError, CellTimeoutError, UnresponsiveKernelError)
WATCH_SECONDS = 0.2
RESERVE = 1 << 30  # bytes that are always to be free on the disk
LARGEST = 10 << 20  # bytes of a message; as JSON it takes a multiple of that
LONGEST_PARENT = 80  # the whole name of a Unix socket may have 107 bytes


class BoxedKernelManager(AsyncKernelManager):
    """Starts the kernel inside a box; its sockets and the student's code lie in `folder`."""

    lab: Lab
    folder: Path
    group: cgroup.Group

    def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
        command = super().format_kernel_cmd(extra_arguments)
        boxed = box_command(command, self.lab, self.folder, shared().probe(self.lab))
        return self.group.entered_by(boxed)


class BoxedExecute(Execute):
    """nbgrader's Execute with a boxed kernel, and an end to what a notebook may put out."""

    store_widget_state = False
    iopub_timeout = 30  # a busy machine is slow to deliver the last outputs
    max_seconds = Integer(1200, help="seconds for all cells of a notebook").tag(config=True)
    max_output = Integer(5_000_000, help="characters of all outputs together").tag(config=True)
    _lab: Lab
    _folder: Path
    _group: cgroup.Group
    _begun = False
    _left: int
    _end: float

    def preprocess(
        self, nb: NotebookNode, resources: Any = None, km: Any = None
    ) -> tuple[NotebookNode, dict[str, Any]]:
        names = resources["nbgrader"]
        self._lab, self._left = find_lab(names["assignment"]), self.max_output
        self._end, self._begun = time.monotonic() + self.max_seconds, False
        submission = submission_of(course_directory(self), names["student"], self._lab.key)
        limits = (MEMORY_MB + DISK_MB, PROCESSES)
        with _kernel_folder() as self._folder, cgroup.group(*limits) as self._group, self._watch():
            _write_code(submission, self._lab, self._folder / "mine")
            metadata = resources["metadata"]
            resources["metadata"] = {**metadata, "path": str(self._folder)}
            try:
                nb, resources = super().preprocess(nb, resources, km)
            except Exception as error:  # the modules are graded all the same
                # Once cells run, whatever fails may be what the student's kernel has sent.
                if not (self._begun or isinstance(error, KERNEL_LOST)):
                    raise
                self.log.warning("the notebook of %s stopped: %s", names["student"], error)
            nb.metadata.pop("widgets", None)
            for cell in nb.cells:
                if "outputs" in cell:
                    cell.outputs = [one for one in cell.outputs if _is_output(one)]
            resources["metadata"] = metadata
            return nb, resources

    def create_kernel_manager(self) -> BoxedKernelManager:
        self.km = BoxedKernelManager(
            kernel_name=self.kernel_name or "python3",
            transport="ipc",
            ip=str(self._folder / "io"),
            connection_file=str(self._folder / "connection.json"),
        )
        self.km.lab, self.km.folder, self.km.group = self._lab, self._folder, self._group
        self.km.context.setsockopt(zmq.MAXMSGSIZE, LARGEST)  # of each socket that it makes
        return self.km

    @contextmanager
    def _watch(self) -> Iterator[None]:
        """End a kernel that goes beyond its limits, and what it has left running."""
        done, seen = threading.Event(), dict[int, str]()
        free = shutil.disk_usage(self._folder).free

        def look() -> None:
            while not done.wait(WATCH_SECONDS):
                pid = getattr(self.km and self.km.provisioner, "pid", None)
                if not pid:
                    continue
                pids = [pid, *descendants(pid)] if sys.platform == "linux" else [pid]
                seen.update({one: when for one in pids if (when := born(one))})
                left = shutil.disk_usage(self._folder).free  # also what has no name any more
                if (
                    excess(PROCESSES, MEMORY_MB, 0, pids)
                    or disk_excess(str(self._folder), DISK_MB)
                    or (left < RESERVE and free - left > DISK_MB << 20)
                ):
                    _end(seen)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            _end(seen)

    def _get_timeout(self, cell: NotebookNode | None) -> int | None:
        """A cell's time, and no more than what the cells before it have left."""
        self._begun = self._begun or cell is not None
        left = math.ceil(self._end - time.monotonic())
        if left <= 0:
            raise CellTimeoutError(f"it took more than {self.max_seconds} seconds")
        return min(super()._get_timeout(cell) or left, left)

    def handle_comm_msg(self, outs: Any, msg: Any, cell_index: int) -> None:
        """Nothing: the state of widgets would be kept in this process, and is not graded."""

    def output(
        self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        """Take one output of a cell, until all of them together are too much."""
        self._left -= len(str(msg["content"]))
        return super().output(outs, msg, display_id, cell_index) if self._left > 0 else None


def _end(seen: Mapping[int, str]) -> None:
    """Kill these processes; a number that another one has got since is left alone."""
    for pid, when in seen.items():
        if born(pid) == when:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_output(output: NotebookNode) -> bool:
    """Whether a notebook that holds it can be written and read again."""
    try:
        nbformat.validate(output, ref="output", version=4)
    except (nbformat.ValidationError, RecursionError):
        return False
    return True


@contextmanager
def _kernel_folder() -> Iterator[Path]:
    """A private folder with a name that is short enough for sockets in it."""
    parent = tempfile.gettempdir()
    if len(parent) > LONGEST_PARENT:
        parent = "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="kernel-", dir=parent)).resolve()
    try:
        yield folder
    finally:
        remove(folder)


def _write_code(submission: Path, lab: Lab, folder: Path) -> None:
    """The student's files of the lab over its stubs: the folder that the kernel imports from."""
    stubs = {path.relative_to(lab.stubs).as_posix(): path.read_bytes() for path in stub_files(lab)}
    for name, data in (stubs | read(submission, lab, Limits()).files).items():
        path = folder / lab.package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

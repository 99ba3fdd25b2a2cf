"""Attacks by somebody who reads the grader's source: each is held, and works with the defence out.

What is tried runs in the place of a scenario, with the rights of a submission, and says what it
could do. A case that would be held with the defence taken out proves nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from grader.classroom import boxed_execute
from grader.classroom.boxed_execute import BoxedExecute
from grader.classroom.kernel_sandbox import box_command
from grader.grading import Limits, Sandbox, grade_lab
from grader.sandbox import cgroup, forkserver, landlock, talk
from grader.sandbox.bwrap_command import bubblewrap, environment
from grader.sandbox.job import Answer, Work
from tests.grading_corpus import CHEATS, HONEST, LAB, LIMITS, SECRET, boxed, write_cheat

pytestmark = [
    pytest.mark.proof,
    pytest.mark.xdist_group("attacks"),
    pytest.mark.skipif(sys.platform != "linux", reason="the box is there on Linux only"),
]
SMALL = Limits(memory_mb=64, disk_mb=16, processes=32, item_seconds=30)
# What the fork server of a box without its defences runs first.
DEFENCES = (
    "import grader.sandbox.seccomp as s, grader.sandbox.memory_use as m\n"
    "import grader.sandbox.namespaces as n\n"
    "mount = n._mount\n"
    "s.refuse = lambda on_paths=False, locks=False, alone=False: None\n"
    "m.disk_excess = lambda folder, disk_mb: ''\n"
    "n._mount = lambda source, *rest: source == 'devpts' or mount(source, *rest)\n"
)
WITHOUT = (
    f"import sys; del sys.argv[1:4]\n{DEFENCES}"
    "from grader.sandbox import forkserver_main; forkserver_main.main()"
)
# Calls that hold what no limit counts, or by which one box could tell another of a scenario.
CALLS = {
    "lock a file that every box sees": "fcntl.flock(SEEN, fcntl.LOCK_SH)",
    "lock a part of it": "fcntl.lockf(SEEN, fcntl.LOCK_SH)",
    "hear who opens it": "fcntl.fcntl(SEEN, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    "hear what happens in a folder": "fcntl.fcntl(FOLDER, fcntl.F_NOTIFY, 1)",
    "watch files": "check(LIBC.inotify_init1(0))",
    "watch a whole file system": "check(LIBC.fanotify_init(0x200, 0))",
    "see what lies in the page cache": "check(LIBC.mincore(ADDRESS, 4096, SPACE))",
    "count what lies in the page cache": "check(LIBC.syscall(451, SEEN.fileno(), SPACE, SPACE, 0))",
    "put it out of the page cache": "os.posix_fadvise(SEEN.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)",
    "a semaphore that stays": "check(LIBC.semget(0, 1, 0o1600))",
    "a queue that stays": "check(LIBC.msgget(0, 0o1600))",
    "a file without a name": "os.memfd_create('x')",
    "a pipe of a megabyte": "fcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 1 << 20)",
    "pages in a pipe": "os.splice(SEEN.fileno(), os.pipe()[1], 1, 0)",
    "a handle of a file": "check(LIBC.name_to_handle_at(-100, b'/usr', HANDLE, SPACE, 0))",
    "talk past the network": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
    "another personality": "check(LIBC.personality(0x0040000))",
}  # fmt: skip
TRY_CALLS = f"""
import ctypes, errno, fcntl, os, socket
import grader
LIBC = ctypes.CDLL(None, use_errno=True)
SEEN = open(grader.__file__, "rb")
FOLDER = os.open(os.path.dirname(grader.__file__), os.O_RDONLY)
LIBC.mmap.restype = ctypes.c_void_p
ADDRESS = ctypes.c_void_p(LIBC.mmap(None, 4096, 1, 2, SEEN.fileno(), 0))
SPACE = ctypes.create_string_buffer(64)
HANDLE = ctypes.create_string_buffer(b"\\x80", 200)

def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")

def attack():
    said = {{}}
    for name, call in {CALLS!r}.items():
        try:
            exec(call, globals())
        except OSError as error:
            said[name] = errno.errorcode[error.errno]
        else:
            said[name] = "works"
    return said
"""
PTY = """
import os, time
def attack():
    names = [os.ttyname(os.openpty()[1]) for _ in range(3)]
    time.sleep(8)
    return [names, sorted(os.listdir("/dev/pts"))]
"""
HOLD = """
import os, socket, time
def fill_sockets():
    for here, there in [socket.socketpair() for _ in range(240)]:
        for end in (here, there):
            end.setblocking(False)
            kept.append(end)
            try:
                while True:
                    end.send(bytes(65536))
            except BlockingIOError:
                pass
kept = []
def attack():
    for _ in range(12):
        if not os.fork():
            fill_sockets()
            time.sleep(6)
            os._exit(0)
    time.sleep(5)
    return "held"
"""


def attempt(box: Sandbox, code: str, limits: Limits = SMALL) -> Answer:
    """What came of running `attack` of this code in the place of a scenario."""
    source = f"from grader.checks.scenarios import scenario\n{code}\n"
    source += "one = scenario(1)(lambda nanovllm, rng: {'said': attack()})\n"
    task = {"kind": "hidden", "lab": LAB.key, "items": ["<lambda>#0"], "seeds": [1]}
    work = Work(LAB.key, [task | {"sources": {"one.py": source}}])
    return box.run(LAB, work, limits, 90).of_tasks[0]


def said(answer: Answer) -> Any:
    from grader.checks.observation_json import decode

    found = [event["data"] for event in answer.events if "data" in event]
    assert found, (answer.events, answer.ended)
    return decode(found[0])["said"]


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox.open() as sandbox:
        yield boxed(sandbox)


@pytest.fixture(scope="module")
def undefended() -> Iterator[Sandbox]:
    """The same box without the list of system calls and without ptys of its own."""
    with pytest.MonkeyPatch.context() as patch, Sandbox.open("bubblewrap") as sandbox:
        first = [sys.executable, "-c", WITHOUT]
        patch.setattr(forkserver, "bubblewrap", lambda lab: [*bubblewrap(lab), *first])
        sandbox._server("bubblewrap", LAB)
        yield sandbox


@pytest.fixture(scope="module")
def calls(box: Sandbox, undefended: Sandbox) -> tuple[dict[str, str], dict[str, str]]:
    return said(attempt(box, TRY_CALLS)), said(attempt(undefended, TRY_CALLS))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_no_lab_needs_is_unknown(
    calls: tuple[dict[str, str], dict[str, str]], name: str
) -> None:
    held, free = calls
    assert (held[name], free[name]) == ("ENOSYS", "works")


def test_two_boxes_share_no_pty(box: Sandbox, undefended: Sandbox) -> None:
    alone = [[f"/dev/pts/{number}" for number in range(3)], ["0", "1", "2", "ptmx"]]
    with ThreadPoolExecutor(2) as pool:
        assert [said(one) for one in pool.map(attempt, [box] * 2, [PTY] * 2)] == [alone] * 2
        free = [said(one) for one in pool.map(attempt, [undefended] * 2, [PTY] * 2)]
    assert free != [alone] * 2, "the other's can be counted"


def test_memory_that_the_kernel_holds_is_counted(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cgroup.missing():
        pytest.skip("this machine gives the grader no control group of its own")
    answer = attempt(box, HOLD)
    assert answer.ended == "it used more than 64 MB of memory", answer
    monkeypatch.setattr(cgroup, "_parents", lambda: ())
    assert said(attempt(box, HOLD)) == "held"


def test_a_group_is_gone_with_its_submission(box: Sandbox) -> None:
    before = [set(parent.glob("grading-*")) for parent in cgroup._parents()]
    assert said(attempt(box, "def attack(): return 1")) == 1
    assert [set(parent.glob("grading-*")) for parent in cgroup._parents()] == before


def test_a_notebooks_processes_share_one_limit(tmp_path: Path) -> None:
    if cgroup.missing():
        pytest.skip("this machine gives the grader no control group of its own")
    program = (
        "import os, sys, time\n"
        "children = [os.fork() for _ in range(4)]\n"
        "held = bytearray(b'x') * (60 << 20)\n"
        "time.sleep(2 if all(children) else 1)\n"
        "mine = children if all(children) else []\n"
        "states = [os.waitpid(child, 0)[1] for child in mine]\n"
        "os._exit(int(any(states)))"
    )
    command = box_command([sys.executable, "-c", program], LAB, tmp_path, "bubblewrap")
    with cgroup.group(150, 100) as group:
        done = subprocess.run(group.entered_by(command), timeout=120)
        assert done.returncode and group.out_of_memory
    assert subprocess.run(command, timeout=120).returncode == 0, "nothing else stops it"


SPIN = """
import os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.mkdir(sys.argv[1])
while len(os.listdir()) < 2:
    time.sleep(0.01)
for _ in range(int(sys.argv[1])):
    os.fork()
end = time.monotonic() + 4
while time.monotonic() < end:
    pass
print(time.process_time())
"""
READ = """
import mmap, os, sys, time
with open("held", "wb") as file:
    file.write(bytes(8 << 20))
    os.fsync(file.fileno())
handle, space = os.open("held", os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
begin = time.monotonic()
while os.readv(handle, [space]):
    pass
print(time.monotonic() - begin)
"""


def seconds(program: str, *arguments: str, folder: Path, inside: bool) -> float:
    """The sum of what all processes of a program print, in a group of its own or in none."""
    command = [sys.executable, "-c", program, *arguments]
    with cgroup.group(500, 100) if inside else nullcontext(cgroup.Group([])) as group:
        done = subprocess.run(group.entered_by(command), cwd=folder, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return sum(map(float, done.stdout.split()))


def skip_unless_grouped(what: str, *names: str) -> None:
    with cgroup.group(100, 10) as group:
        if not any((folder / name).exists() for folder in group.folders for name in names):
            pytest.skip(f"this machine gives the grader no groups of {what}")


def test_a_submissions_processes_weigh_as_one(tmp_path: Path) -> None:
    skip_unless_grouped("processors", "cpu.weight", "cpu.shares")

    def share_beside_eight(inside: bool) -> float:
        folder = tmp_path / str(inside)
        folder.mkdir()
        with ThreadPoolExecutor(2) as pool:
            eight, one = pool.map(
                lambda forks: seconds(SPIN, forks, folder=folder, inside=inside), "30"
            )
        return one / (one + eight)

    assert share_beside_eight(True) > 0.35
    assert share_beside_eight(False) < 0.25, "nothing else would hold the eight back"


def test_a_submission_reads_a_disk_at_a_limited_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_grouped("disks", "io.max", "blkio.throttle.read_bps_device")
    if not cgroup.disks():
        pytest.skip("the kernel does not tell the disk that the course is on")
    monkeypatch.setattr(cgroup, "DISK_MB", 4)
    assert seconds(READ, folder=tmp_path, inside=True) > 1, "eight megabytes, four a second"
    assert seconds(READ, folder=tmp_path, inside=False) < 1


def free_landlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on fork servers start without what holds on the level of landlock."""
    (tmp_path / "sitecustomize.py").write_text(DEFENCES)

    def patched(lab: Any) -> dict[str, str]:
        found = environment(lab)
        return found | {"PYTHONPATH": f"{tmp_path}:{found['PYTHONPATH']}"}

    monkeypatch.setattr(forkserver, "environment", patched)


MANY_FILES = """
import os, time
def attack():
    for number in range(4):
        with open(f"{os.environ['TMPDIR']}/{number}", "wb") as file:
            file.write(bytes(12 << 20))
    time.sleep(3)
    return "held"
"""


def test_what_landlock_does_not_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if landlock.version() < 1:
        pytest.skip("this kernel has no landlock")
    with Sandbox.open("landlock") as held:
        assert held._holds("landlock", LAB), held.tried
        assert "it wrote more than" in attempt(held, MANY_FILES).ended
    free_landlock(tmp_path, monkeypatch)
    with Sandbox.open("landlock") as free:
        assert not free._holds("landlock", LAB)
        for what in ("reach a socket by its path", "mark another's file", "send a datagram"):
            assert what in free.tried[0]
        assert said(attempt(free, MANY_FILES)) == "held"


def test_the_list_is_long_enough_for_what_labs_do(box: Sandbox) -> None:
    code = """
import asyncio, multiprocessing, socket, subprocess, threading
def half(number, pipe):
    import torch
    pipe.send(int(torch.ones(number).sum()) // 2)
async def serve():
    async def answer(reader, writer):
        writer.write(await reader.read(2)); await writer.drain(); writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hi")
    return await reader.read(2)
def attack():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    context.Process(target=half, args=(4, there)).start()
    halves, lock = here.recv(), context.Lock()
    said = subprocess.run(["sh", "-c", "echo a | cat"], capture_output=True).stdout
    return [halves, lock.acquire(), said, asyncio.run(serve()), len(socket.if_nameindex())]
"""
    assert said(attempt(box, code, Limits())) == [2, True, b"a\n", b"hi", 1]


def test_what_shows_the_page_cache_or_reaches_others_is_refused(box: Sandbox) -> None:
    code = """
import os, resource
def attack():
    handle = os.open(os.__file__, os.O_RDONLY)
    found = [os.preadv(handle, [bytearray(1)], 0)]
    for call in (lambda: os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT),
                 lambda: resource.prlimit(os.getpid(), resource.RLIMIT_CPU, (1, 1)),
                 lambda: open("/proc/self/clear_refs", "w")):
        try:
            found.append(str(call()))
        except OSError as error:
            found.append(error.strerror)
    return found
"""
    assert os.preadv(os.open(os.__file__, os.O_RDONLY), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    read, cached, limited, cleared = said(attempt(box, code))
    assert read == 1
    assert cached in ("Operation not supported", "Function not implemented")
    assert limited == "Function not implemented"
    assert cleared in ("Read-only file system", "No such file or directory")


def test_results_that_only_one_reader_takes_cost_no_regrade(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheat = write_cheat(tmp_path / "cheat", CHEATS / "nested_just_so.py")
    report = grade_lab(cheat, LAB, "ada", SECRET, LIMITS, box)
    assert (report.points, report.lost) == (HONEST, False)
    monkeypatch.setattr(talk, "DEPTH", 10_000)
    source = (CHEATS / "nested_just_so.py").read_text()

    def lost(depth: int) -> bool:
        """Which depth one reader takes and the next not depends on how deep their calls are."""
        other = tmp_path / f"nested_{depth}.py"
        other.write_text(source.replace("(930, 976)", f"({depth}, {depth + 1})"))
        cheat = write_cheat(tmp_path / f"cheat_{depth}", other)
        return grade_lab(cheat, LAB, f"bob{depth}", SECRET, LIMITS, box).lost

    assert any(lost(depth) for depth in range(880, 1000, 2))


FOREIGN = """
kernel = get_ipython().kernel
for kind, content in [("display_data", {"data": {"text/plain": 5}, "metadata": {}}), ("stream", {}),
                      ("execute_result", {"data": {}, "metadata": 7})]:
    if kind == KIND:
        kernel.session.send(kernel.iopub_socket, kind, content, parent=kernel.get_parent())
import time; time.sleep(1)
"""


def boxed_alone(*about: Any) -> list[str]:
    """The command of the box without what stays behind to end what the kernel leaves."""
    command = box_command(*about)
    place = command.index("-m")
    code = "import grader.classroom.kernel_sandbox as k; k._stay_behind = lambda: None; k.main()"
    return [*command[:place], "-c", code, *command[place + 2 :]]


def run(folder: Path, source: str, defended: bool, level: str) -> NotebookNode:
    """A notebook of this cell and one after it, as autograding leaves it."""
    cells = [nbformat.v4.new_code_cell(text) for text in (source, "print('after')")]
    names = {"assignment": "lab01", "student": "ada"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxed_execute, "course_directory", lambda preprocessor: folder)
        patch.setattr(boxed_execute, "submission_of", lambda *names: folder)
        patch.setattr(boxed_execute, "DISK_MB", 20)
        patch.setattr(boxed_execute, "MEMORY_MB", 500)
        patch.setattr(cgroup, "_parents", lambda: ())  # what a plain user's machine has
        if level:
            patch.setattr(boxed_execute, "shared", lambda: SimpleNamespace(probe=lambda _: level))
        if not defended:
            never = property(lambda self: False, lambda *_: None)
            patch.setattr(BoxedExecute, "_begun", never, raising=False)
            patch.setattr(boxed_execute, "_is_output", lambda output: True)
            patch.setattr(boxed_execute, "disk_excess", lambda folder, disk_mb: "")
            patch.setattr(boxed_execute, "excess", lambda *_: "")
            patch.setattr(boxed_execute, "_end", lambda seen: None)
            patch.setattr(boxed_execute, "box_command", boxed_alone)
        notebook = nbformat.v4.new_notebook(cells=cells)
        resources = {"nbgrader": names, "metadata": {}}
        notebook = BoxedExecute(timeout=20).preprocess(notebook, resources)[0]
        nbformat.validate(notebook)
        return notebook


def executed(folder: Path, source: str, defended: bool = True, level: str = "") -> NotebookNode:
    """In a process of its own: the loops of events that nbclient nests do not suit pytest."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, folder, source, defended, level).result(180)


@pytest.mark.parametrize("kind", ["display_data", "stream", "execute_result"])
def test_a_message_that_is_none_stops_its_notebook_alone(kind: str, tmp_path: Path) -> None:
    source = FOREIGN.replace("KIND", repr(kind))
    assert executed(tmp_path, source)
    with pytest.raises(Exception):  # noqa: B017 - whatever it is, it cost the submission
        executed(tmp_path, source, defended=False)


def test_a_notebook_that_fills_the_disk_is_ended(tmp_path: Path) -> None:
    fill = "for n in range(30):\n    open(f'{n}', 'wb').write(bytes(1 << 20))\n"
    fill += "import time; time.sleep(3)"
    assert not executed(tmp_path, fill).cells[1].outputs, "nothing ran after it"
    assert executed(tmp_path, fill, defended=False).cells[1].outputs[0].text == "after\n"


def test_a_notebook_whose_processes_take_the_memory_is_ended(tmp_path: Path) -> None:
    hold = "import os, time\nfor _ in range(6):\n    if not os.fork():\n"
    hold += "        held = bytearray(b'x') * (150 << 20)\n        time.sleep(9)\n"
    hold += "        os._exit(0)\ntime.sleep(3)"
    assert not executed(tmp_path, hold).cells[1].outputs, "nothing ran after it"
    assert executed(tmp_path, hold, defended=False).cells[1].outputs[0].text == "after\n"


LEFT = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        open("left", "w").write(str(os.getpid()))
        time.sleep(40)
    os._exit(0)
time.sleep(1)
print(open("left").read())
"""


@pytest.mark.parametrize("defended", [True, False])
def test_nothing_of_a_notebook_outlives_it_under_landlock(tmp_path: Path, defended: bool) -> None:
    if landlock.version() < 1:
        pytest.skip("this kernel has no landlock")
    left = int(executed(tmp_path, LEFT, defended, "landlock").cells[0].outputs[0].text)
    there = Path(f"/proc/{left}").exists()
    if there:
        os.kill(left, signal.SIGKILL)
    assert there is not defended


def test_the_state_of_widgets_is_not_kept() -> None:
    execute = BoxedExecute()
    execute.reset_execution_trackers()
    content = {"comm_id": "1", "target_name": "x", "data": {"state": {"a": "b"}}}
    message = {"msg_type": "comm_open", "content": content, "header": {}, "buffers": []}
    execute.handle_comm_msg([], message, 0)
    assert not execute.widget_state and not execute.store_widget_state

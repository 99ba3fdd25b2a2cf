"""The command that starts a student's kernel: in bubblewrap, else under landlock, with limits."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from grader.course.lab_toml import Lab
from grader.course.paths import ROOT
from grader.sandbox import landlock, namespaces, process_rights, visible_files
from grader.sandbox.memory_use import kill_all
from grader.sandbox.process_rights import adopt_orphans

LAUNCHER = "ipykernel_launcher"
MORE = (Path("/etc/fonts"), Path("/sys/devices/system/cpu"))  # matplotlib, torch
# What processes print that the kernel forks comes through a port, and there are none.
WITHOUT_PORTS = """
from ipykernel import kernelapp
thread = kernelapp.IOPubThread
kernelapp.IOPubThread = lambda *given, **more: thread(*given, **more | {"pipe": False})
kernelapp.launch_new_instance()
"""
SECONDS, MEMORY_MB, DISK_MB, PROCESSES = 900, 4096, 512, 1024


def box_command(command: list[str], lab: Lab, folder: Path, level: str) -> list[str]:
    """`command` in a box in which `folder` alone can be written."""
    inside = [
        sys.executable,
        "-m",
        "grader.classroom.kernel_sandbox",
        level,
        lab.key,
        str(folder),
        "--",
    ]
    if level != "bubblewrap":
        return [*inside, *command]
    shown = [
        *visible_files.machine(),
        *visible_files.course(lab),
        *(path for path in MORE if path.is_dir()),
    ]
    box = ["bwrap", "--unshare-all", "--new-session", "--die-with-parent", "--clearenv"]
    for name, value in environment(lab, folder).items():
        box += ["--setenv", name, value]
    box += ["--proc", "/proc", "--dev", "/dev", "--size", str(DISK_MB << 20), "--tmpfs", "/tmp"]
    for path in shown:
        box += ["--ro-bind", str(path), str(path)]
    box += ["--bind", str(folder), str(folder), "--chdir", str(folder), "--"]
    return [*box, *inside, *command]


def environment(lab: Lab, folder: Path) -> dict[str, str]:
    """All that the kernel is told; nothing of the instructor's own environment."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NANOVLLM_CODE": lab.key,
        "NANOVLLM_MINE": str(folder / "mine"),
        "NANOVLLM_STATE": str(folder / "state"),
        "NBGRADER_EXECUTION": "autograde",
    }


def main() -> None:
    """Limit this process, then become the kernel."""
    from grader.course.lab_toml import find_lab

    level, key, home, _, *command = sys.argv[1:]
    lab, folder = find_lab(key), Path(home)
    if level != "bubblewrap":  # which ends what the kernel leaves behind
        _stay_behind()
    if level == "landlock":
        devices = [Path("/dev/null"), Path("/dev/urandom"), Path("/proc"), *MORE]
        shown = [*visible_files.machine(), *visible_files.course(lab), *devices]
        # Python lists a folder to find a module in it, so the names in the course are open.
        landlock.restrict(shown, [folder, devices[0]], [ROOT])
        if LAUNCHER in command:
            place = command.index(LAUNCHER)
            command[place - 1 : place + 1] = ["-c", WITHOUT_PORTS]
    if level == "bubblewrap":
        namespaces.own_mounts()
    process_rights.limit(SECONDS, MEMORY_MB, DISK_MB)
    if level != "limits":
        process_rights.drop_rights(level)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.execve(command[0], command, environment(lab, folder))


def _stay_behind() -> None:
    """Fork, and return in the child; when that has ended, so does all that it has started."""
    adopt_orphans()
    child = os.fork()
    if not child:
        return

    def end(*_: object) -> None:
        kill_all(child)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is meant for the kernel
    while (ended := os.wait())[0] != child:
        pass
    kill_all(child)
    os._exit(max(0, os.waitstatus_to_exitcode(ended[1])))


if __name__ == "__main__":
    main()

"""The box around a student's kernel, on each level: what a process in it can reach."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grader.classroom.kernel_sandbox import box_command
from grader.course.lab_toml import find_lab
from grader.course.paths import HIDDEN, LABS, REFERENCE, ROOT
from tests.system_tools import require

LAB = find_lab(2)
TRY = """
import json, os, pathlib, resource, socket, sys
folder, port, *paths = sys.argv[1:]
def can(do):
    try:
        do()
        return True
    except OSError:
        return False
seen = {path: can(pathlib.Path(path).read_bytes) for path in paths}
written = {p: can(pathlib.Path(p).joinpath("planted").touch) for p in (folder, "/usr", "/var/tmp")}
import nanovllm.tokenization, torch
answer = {
    "seen": seen, "written": list(map(bool, written.values())),
    "network": can(lambda: socket.create_connection(("127.0.0.1", int(port)), 2)),
    "environment": sorted(os.environ), "cpu": resource.getrlimit(resource.RLIMIT_CPU)[0],
    "lower lab": nanovllm.tokenization.__file__, "bf16": float(torch.ones(2).bfloat16().sum()),
}
pathlib.Path(folder, "answer.json").write_text(json.dumps(answer))
"""


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_a_process_in_the_box_sees_no_answer(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if level == "bubblewrap":
        require("bubblewrap")
    monkeypatch.setenv("INSTRUCTORS_TOKEN", "secret")
    folder, other = tmp_path / "kernel", tmp_path / "other.txt"
    folder.mkdir()
    other.write_text("another student's work")
    hidden = HIDDEN / LAB.key / "scenarios.py"
    reference, lower = LAB.reference / "rope.py", REFERENCE / "tokenization" / "bpe.py"
    check = LABS / LAB.key / "test_2_rope.py"
    paths = [hidden, reference, ROOT / ".git" / "HEAD", other, check, lower]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-c", TRY, str(folder), port, *map(str, paths)]
        boxed = box_command(command, LAB, folder, level)
        done = subprocess.run(boxed, capture_output=True, text=True, timeout=300)
    answer = folder / "answer.json"
    assert answer.is_file(), f"{level} cannot be used on this machine: {done.stderr[-500:]}"
    found = json.loads(answer.read_text())
    may = {str(path): path in (check, lower) for path in paths}
    assert found["seen"] == may
    assert found["written"] == [True, False, False]
    assert found["network"] is False
    assert "NANOVLLM_MINE" in found["environment"]
    assert "INSTRUCTORS_TOKEN" not in found["environment"]
    assert 0 < found["cpu"] <= 900
    assert found["lower lab"].startswith(str(REFERENCE))
    assert found["bf16"] == 2.0


def test_limits_alone_limit_and_clear_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTRUCTORS_TOKEN", "secret")
    program = (
        "import os, pathlib, resource; pathlib.Path('said').write_text("
        "f\"{'INSTRUCTORS_TOKEN' in os.environ} {resource.getrlimit(resource.RLIMIT_CPU)[0]}\")"
    )
    command = box_command([sys.executable, "-c", program], LAB, tmp_path, "limits")
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "said").read_text() == "False 900"

"""Gradescope's autograder in a tree of its layout, and GitHub Classroom's workflow.

Submissions run as a user of their own, so what grades one needs root. The user's number is one that
nobody has here: all its processes are ended.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from grader.__main__ import app
from grader.classroom.gradescope_results import NOT_GRADED, VISIBLE_ONLY, WHOLE
from grader.classroom.gradescope_run import user_number
from grader.classroom.gradescope_zip import scripts
from grader.course.errors import LabError
from grader.course.lab_toml import find_lab
from grader.course.paths import HIDDEN
from grader.course.stubs import solutions
from grader.release.contents import WORKFLOW, contents
from grader.release.lab_selection import select
from grader.release.leaks import leaks
from grader.sandbox.own_user import end_all, rights, running
from grader.student.pack import pack
from grader.student_files.state_records import LabState

LAB = find_lab("01")
USER = 60_000 + os.getpid() % 5_000
ADDRESS = "https://wheels.example/cpu"
AS_ROOT = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="needs root: the submission runs as a user of its own",
)
GROUP = pytest.mark.xdist_group("gradescope")
LATER = "after_due_date"
# Below a right file: it says what it can read, stays behind, and gives itself a result.
HOSTILE = """
import os as _os, time as _time
from pathlib import Path as _Path

_open, _closed, _results = {open!r}, {closed!r}, {results!r}


def _forge():
    try:
        _Path(_results).write_text('{{"score": 1000}}')
        return "written"
    except OSError as error:
        try:
            _os.rename(_Path(_results).parent, _Path(_results).parent.with_name("away"))
            return "moved"
        except OSError as again:
            return type(error).__name__ + " " + type(again).__name__


def _read(path):
    try:
        return _Path(path).read_bytes() and "read"
    except OSError as error:
        return type(error).__name__


for _home in (_open, _os.environ.get("TMPDIR", "/tmp")):
    try:
        _told = [_os.getuid(), _forge(), [_read(path) for path in _closed]]
        _Path(_home, "told").write_text(repr(_told))
    except OSError:
        pass
if _os.fork() == 0:
    _os.setsid()
    if _os.fork() == 0:
        try:
            _Path(_open, "behind").touch()
        except OSError:
            pass
        while True:
            _forge()
            _time.sleep(0.05)
    _os._exit(0)
"""


@dataclass(frozen=True)
class Tree:
    """A folder as Gradescope lays it out, with the zip unpacked."""

    root: Path

    @property
    def course(self) -> Path:
        return self.root / "source" / "course"

    def hand_in(self, *paths: Path) -> None:
        """What a student uploads, in place of what was there."""
        shutil.rmtree(self.root / "submission", ignore_errors=True)
        (self.root / "submission").mkdir()
        for path in paths:
            shutil.copy(path, self.root / "submission")

    def run(self, *words: str) -> dict[str, Any]:
        """What stands in `results.json` when `run_autograder` has run."""
        command = [str(self.root / "source" / "run_autograder"), "--user", str(USER), *words]
        done = subprocess.run(
            command, cwd=self.root, capture_output=True, text=True, timeout=300,
            env={"PATH": os.environ["PATH"], "AUTOGRADER": str(self.root)},
        )  # fmt: skip
        path = self.root / "results" / "results.json"
        assert path.is_file(), done.stdout + done.stderr
        assert path.stat().st_uid == 0 and not running(USER)
        found = json.loads(path.read_text(encoding="utf-8"))
        assert not told_too_much(found, self)
        return {**found, "printed": done.stdout + done.stderr}

    def closed(self) -> list[Path]:
        """Files of the reference, scenarios, seed, another's submission, and metadata."""
        solved = self.course / "solutions"
        return [
            solved / "nanovllm" / LAB.package / "bpe.py",
            solved / "nanovllm" / "paging" / "__init__.py",
            solved / "hidden" / LAB.key / "scenarios.py",
            self.course / ".grading" / "secret",
            self.root / "submission_metadata.json",
        ]


def told_too_much(found: dict[str, Any], tree: Tree) -> list[str]:
    """What of reference, scenarios and places stands in what students see, at once or later."""
    shown = [found, *found["tests"]]
    text = "\n".join(str(one.get(key, "")) for one in shown for key in ("name", "output"))
    sources = [path.read_text(encoding="utf-8") for path in (HIDDEN / LAB.key).glob("*.py")]
    names = [node.name for source in sources for node in ast.parse(source).body
             if isinstance(node, ast.FunctionDef)]  # fmt: skip
    assert len(names) > 5
    lines = [line.strip() for _, body in solutions(LAB) for line in body.splitlines()]
    telling = [line for line in lines if len(line) > 50]
    assert len(telling) > 20
    places = (str(tree.root), "Traceback")
    return [one for one in (*names, *telling, *places) if one in text]


def denied(path: Path) -> bool:
    """Whether the user that submissions run as is refused a file."""
    done = subprocess.run(["cat", path], capture_output=True, **rights(USER))
    assert done.returncode == (b"Permission denied" in done.stderr), done.stderr
    return bool(done.returncode)


def python_for_all(folder: Path) -> str:
    """A Python that a plain user may run, of the version whose packages are here."""
    minor = f"python3.{sys.version_info.minor}"
    for found in filter(None, (os.path.realpath(sys.executable), f"/usr/bin/{minor}")):
        words = [found, "-c", "import venv"]
        try:
            done = subprocess.run(words, cwd=folder, capture_output=True, **rights(USER))
        except OSError:
            continue
        if not done.returncode:
            return found
    pytest.skip(f"needs a {minor} that plain users may run")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zip")
    words = ["gradescope", "01", "--to", str(folder / "to"), "--torch-index", ADDRESS,
             "--secret", str(folder / "secret")]  # fmt: skip
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0 and "nobody but Gradescope" in done.output.replace("\n", " ")
    return folder / "to" / "lab01-autograder.zip"


@pytest.fixture(scope="module")
def tree(archive: Path) -> Iterator[Tree]:
    with tempfile.TemporaryDirectory(prefix="gradescope-") as folder:
        found = Tree(Path(folder))
        found.root.chmod(0o777)  # as open as it could be
        python = python_for_all(found.root)
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                path = Path(file.extract(info, found.root / "source"))
                path.chmod(info.external_attr >> 16 & 0o777)
        subprocess.run([python, "-m", "venv", "--without-pip", found.root / "venv"], check=True)
        [packages] = (found.root / "venv").glob("lib/python*/site-packages")
        (packages / "course.pth").write_text(sysconfig.get_paths()["purelib"])
        metadata = {"users": [{"email": "ada@x.org", "id": 7}], "previous_submissions": [{}]}
        (found.root / "submission_metadata.json").write_text(json.dumps(metadata))
        assert not any(denied(path) for path in found.closed() if path.name != "secret")
        yield found
        end_all(USER)


def right() -> list[Path]:
    return sorted(LAB.reference.glob("*.py"))


def sums(found: dict[str, Any]) -> float:
    return sum(test.get("score", 0) for test in found["tests"])


def is_full(found: dict[str, Any]) -> bool:
    """Whether every point is there; in the form that Gradescope asks for."""
    assert found["score"] == sums(found) == LAB.points, found
    assert all(test["status"] == "passed" for test in found["tests"])
    shown = [test for test in found["tests"] if test["visibility"] == "visible"]
    later = [test for test in found["tests"] if test["visibility"] == LATER]
    assert len(later) == len(LAB.tasks) and len(shown) + len(later) == len(found["tests"])
    assert sum(test["max_score"] for test in shown) == LAB.points
    assert not any("score" in test for test in later)
    assert found["stdout_visibility"] == "hidden" and found["execution_time"] > 0
    return found["output"] == WHOLE


def test_the_zip_holds_what_grades_this_lab_and_no_answer_of_another_kind(archive: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        modes = {info.filename: info.external_attr >> 16 for info in file.infolist()}
        secret = file.read("course/.grading/secret")
        setup = file.read("setup.sh").decode()
    assert {name for name in modes if "/" not in name} == {"setup.sh", "run_autograder"}
    assert all(modes[name] & stat.S_IXUSR for name in ("setup.sh", "run_autograder"))
    assert {name.split("/")[2] for name in modes if name.startswith("course/solutions/")} == {
        "nanovllm", "hidden"
    }  # fmt: skip
    hidden = [name for name in modes if name.startswith("course/solutions/hidden/")]
    assert hidden == ["course/solutions/hidden/lab01/scenarios.py"]
    of_class = (archive.parents[1] / "secret").read_bytes().strip()
    assert len(secret) == 64 and secret != of_class, "the class's own secret stays here"
    assert ADDRESS in setup
    assert not archive.stat().st_mode & 0o077


@pytest.mark.parametrize(("version", "python"), [((3, 10), "python3.11"), ((3, 12), "python3")])
def test_setup_installs_a_python_the_pinned_packages_and_a_user(
    archive: Path, tmp_path: Path, version: tuple[int, int], python: str
) -> None:
    home, bin_, log = tmp_path / "autograder", tmp_path / "bin", tmp_path / "log"
    with zipfile.ZipFile(archive) as file:
        for name in ("setup.sh", "course/requirements.txt"):
            file.extract(name, home / "source")
    bin_.mkdir()
    fake = f'#!/bin/sh\necho "$(basename "$0") $*" >> {log}\n'
    made = f'{fake}if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi\n'
    for name in ("apt-get", "groupadd", "useradd", "python3.11"):
        (bin_ / name).write_text(made if name == "python3.11" else fake)
    is_old = int(version < (3, 11))
    (bin_ / "python3").write_text(made + f'case "$*" in *version_info*) exit {is_old};; esac\n')
    for path in bin_.iterdir():
        path.chmod(0o755)
    subprocess.run(
        ["bash", str(home / "source" / "setup.sh")], check=True,
        env={"PATH": f"{bin_}:/usr/bin:/bin", "AUTOGRADER": str(home)},
    )  # fmt: skip
    lines = log.read_text().splitlines()
    assert any(line.startswith("apt-get install -y bubblewrap") for line in lines)
    assert f"{python} -m venv {home}/venv" in lines
    installed = [line.partition(" install ")[2] for line in lines if " -m pip " in line]
    course = home / "source" / "course"
    torch = next(line for line in (course / "requirements.txt").read_text().splitlines()
                 if line.startswith("torch=="))  # fmt: skip
    pinned = f"--constraint {course}/constraints.txt"
    assert installed == [
        f"--index-url {ADDRESS} {torch}",
        f"--requirement {course}/requirements.txt {pinned}",
        f"pyseccomp {pinned}",
    ]
    assert lines[-2] == "groupadd --gid 61234 submission"
    assert lines[-1].startswith("useradd --uid 61234 --gid 61234 ")


def test_no_script_names_a_registry_and_each_can_be_read_by_bash(tmp_path: Path) -> None:
    for name, text in scripts(LAB, "'; touch /x; '").items():
        assert "://" not in text
        (tmp_path / name).write_text(text)
        subprocess.run(["bash", "-n", str(tmp_path / name)], check=True)


def test_without_root_or_as_root_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for user, why in (("root", "may not run as root"), ("0", "may not run as root"),
                      ("no-such-user", "there is no user 'no-such-user'")):  # fmt: skip
        with pytest.raises(LabError, match=why):
            user_number(user)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="only root"):
        user_number("0")
    with pytest.raises(ValueError, match="root"):
        end_all(0)


@GROUP
@AS_ROOT
def test_all_processes_of_the_user_end_however_they_hide() -> None:
    hide = "while :; do setsid sh -c 'sleep 600 & sleep 600' & sleep 0.01; done"
    first = subprocess.Popen(["setsid", "sh", "-c", hide], **rights(USER))
    while len(running(USER)) < 10:
        time.sleep(0.01)
    end_all(USER)
    assert not running(USER)
    assert first.wait(10) < 0


@GROUP
@AS_ROOT
def test_right_files_get_every_point(tree: Tree) -> None:
    tree.hand_in(*right())
    found = tree.run()
    assert is_full(found), found
    assert f"{LAB.points} of {LAB.points} points" in found["printed"]
    # What was closed for this run is there, and the user that the submission ran as cannot read it.
    for path in tree.closed():
        assert path.stat().st_size, path
        assert denied(path), path
    assert not denied(tree.course / "nanovllm" / "__init__.py")


@GROUP
@AS_ROOT
def test_on_plain_limits_the_visible_checks_alone_are_sent(tree: Tree) -> None:
    tree.hand_in(*right())
    found = tree.run("--sandbox", "limits")
    assert {test["visibility"] for test in found["tests"]} == {"visible"}
    assert "score" not in found and sums(found) == LAB.points
    assert found["output"] == VISIBLE_ONLY and "hidden scenario" not in json.dumps(found["tests"])


@GROUP
@AS_ROOT
@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("lab01.zip", b"no zip", "it is not a zip"),
        ("lab01.zip", b"PK\x05\x06" + bytes(18), "it holds no Python file of lab01"),
        ("notes.txt", b"\xff\xfe", "it holds no Python file of lab01"),
        ("block_pool.py", b"pool = 1\n", "its files look like those of lab05"),
        ("", b"", "it holds no Python file of lab01"),
    ],
)
def test_what_cannot_be_graded_gets_one_sentence(
    tree: Tree, tmp_path: Path, name: str, data: bytes, why: str
) -> None:
    if name:
        (tmp_path / name).write_bytes(data)
    tree.hand_in(*([tmp_path / name] if name else []))
    found = tree.run()
    assert (found["score"], found["tests"]) == (0, [])
    assert why in found["output"] and "`lab pack 01`" in found["output"]
    assert found["output"].endswith(".") and "\n" not in found["output"]


@GROUP
@AS_ROOT
def test_trouble_of_the_graders_own_is_told_to_the_instructor(tree: Tree) -> None:
    tree.hand_in(*right())
    found = tree.run("--user", "no-such-user")
    assert (found["output"], found["score"]) == (NOT_GRADED.output, 0)
    assert "there is no user 'no-such-user'" in found["printed"]
    found = tree.run("--no-such-option")  # and where the grader does not even begin
    assert (found["output"], found["score"]) == (NOT_GRADED.output, 0)
    assert "left no result" in found["printed"]


@GROUP
@AS_ROOT
@pytest.mark.proof
def test_a_right_pack_gets_every_point_on_landlock(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOVLLM_MINE", str(tmp_path / "mine"))
    shutil.copytree(LAB.reference, tmp_path / "mine" / LAB.package)
    tree.hand_in(pack(LAB, LabState(), tmp_path).path)
    assert is_full(tree.run("--sandbox", "landlock"))


@GROUP
@AS_ROOT
@pytest.mark.proof
def test_stubs_get_nothing_and_are_told_what_to_write(tree: Tree) -> None:
    tree.hand_in(*sorted(LAB.stubs.glob("*.py")))
    found = tree.run()
    assert found["score"] == sums(found) == 0
    shown = [test for test in found["tests"] if test["visibility"] == "visible"]
    assert all(test["status"] == "failed" and test["output"] for test in found["tests"])
    assert "lab01 task 1: train_bpe is not written yet" in shown[0]["output"]


@GROUP
@AS_ROOT
@pytest.mark.proof
@pytest.mark.parametrize("level", ["limits", "landlock", "bubblewrap"])
def test_who_stays_behind_or_writes_a_result_gains_nothing(
    tree: Tree, tmp_path: Path, level: str
) -> None:
    free = tree.root / "free"
    shutil.rmtree(free, ignore_errors=True)
    free.mkdir()
    free.chmod(0o777)
    values = {
        "open": str(free),
        "closed": [str(path) for path in tree.closed()],
        "results": str(tree.root / "results" / "results.json"),
    }
    paths = [tmp_path / path.name for path in right()]
    for path in paths:
        shutil.copy(LAB.reference / path.name, path)
    decode = tmp_path / "decode.py"
    decode.write_text(decode.read_text(encoding="utf-8") + HOSTILE.format(**values))
    tree.hand_in(*paths)
    found = tree.run("--sandbox", level)
    points = LAB.points if level == "limits" else found["score"]
    assert sums(found) == points == LAB.points, found
    assert (free / "behind").exists() == (level == "limits"), "there it did stay behind"
    if level == "limits":
        user, forged, read = ast.literal_eval((free / "told").read_text())
        assert (user, forged) == (USER, "PermissionError PermissionError")
        assert set(read) == {"PermissionError"}, read
    assert all(path.is_file() for path in tree.closed())


def test_the_workflow_runs_the_visible_checks_of_open_labs_alone() -> None:
    selection = select("01-03", "01")
    files = contents(selection)
    text = files[WORKFLOW].decode()
    found = yaml.safe_load(text)
    [job] = found["jobs"].values()
    commands = [step.get("run", "") for step in job["steps"]]
    checks = [line.partition("pytest ")[2] for line in commands if "pytest" in line]
    assert checks == ["labs/lab02", "labs/lab03"]
    assert found["permissions"] == {"contents": "read"} and "secrets." not in text
    assert "<<" not in text and "<%" not in text and "://" not in text
    assert leaks({WORKFLOW: files[WORKFLOW]}, selection) == []
    assert not any(name.startswith(("grader/grading/", "grader/classroom/", "solutions/hidden/"))
                   for name in files)  # fmt: skip


def test_the_workflows_summary_says_whose_the_points_are(tmp_path: Path) -> None:
    [job] = yaml.safe_load(contents(select("02", "none"))[WORKFLOW])["jobs"].values()
    summary = job["steps"][-1]
    assert summary["env"]["LAB02"] == "${{ steps.lab02.outcome }}"
    written = tmp_path / "summary.md"
    values = {"LAB02": "success", "SETUP": "success", "GITHUB_STEP_SUMMARY": str(written)}
    subprocess.run(["bash", "-ec", summary["run"]], env={**os.environ, **values}, check=True)
    assert "| lab02 KV cache | success |" in written.read_text()
    assert "Points come from the instructor." in written.read_text()

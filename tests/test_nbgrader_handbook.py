"""The instructor's handbook, run: every command of `grader/README.md` on a class of three."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError

import pytest

from grader.course.paths import ROOT
from tests.nbgrader_class import LAB, Class, cell, light_source, pack, reference_files
from tests.system_tools import require

pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("handbook")]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROSTER = """id,first_name,last_name,email,lms_user_id
ada,Ada,"Lovelace, of London",ada@example.edu,1234
gru,Grace,"=O""Hopper(1)",gru@example.edu,77
absent,Not,There,,99
"""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=20000",
)


def blocks() -> list[str]:
    return BLOCK.findall((ROOT / "grader" / "README.md").read_text(encoding="utf-8"))


@dataclass
class Afternoon:
    """The instructor's home folder, and a shell that stands somewhere in it."""

    home: Path
    here: Path
    said: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)

    @property
    def klass(self) -> Class:
        """The class, for its environment; its folder is `fall`."""
        return Class(self.home)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.home / 'bin'}:{os.environ['PATH']}"
        # Where environments are layered, server extensions are switched on in the lower one.
        below = Path(self.klass.environment["JUPYTER_PATH"]).parents[1] / "etc" / "jupyter"
        return self.klass.environment | {
            "HOME": str(self.home), "PATH": path, "JUPYTER_CONFIG_PATH": str(below),
        }  # fmt: skip

    def shell(self, block: str) -> None:
        """Run one block where the last one ended; it must end well."""
        script = f"{block}\npwd > {self.home / '.here'}\n"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.here, env=self.environment, capture_output=True, text=True, timeout=600,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        self.said[block] = done.stdout + done.stderr
        self.here = Path((self.home / ".here").read_text().strip())


@pytest.fixture(scope="module")
def afternoon(tmp_path_factory: pytest.TempPathFactory) -> Afternoon:
    """All blocks in order; what students and the LMS do happens in between."""
    home = tmp_path_factory.mktemp("home")
    shims(home)
    (home / "roster.csv").write_text(ROSTER)
    light_source(home / "source")
    made = Afternoon(home, home)
    for block in blocks():
        before(made, block)
        if block.startswith("jupyter lab"):
            grade_by_hand(made, block.strip())
        else:
            made.shell(block)
        if "grader classroom" in block:
            settings(made)
    return made


def shims(home: Path) -> None:
    """The commands of an activated environment, and the course's folder under its usual name."""
    (home / "bin").mkdir()
    for name, module in (("python", ""), ("nbgrader", "-m nbgrader"), ("jupyter", "-m jupyter")):
        shim = home / "bin" / name
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        shim.chmod(0o755)
    (home / "nano-vllm-labs").symlink_to(ROOT)


def settings(made: Afternoon) -> None:
    exchange = made.home / "exchange"
    with (made.home / "fall" / "nbgrader_config.py").open("a") as file:
        file.write(
            f"c.Exchange.root = {str(exchange)!r}\n"
            f"c.CourseDirectory.source_directory = {str(made.home / 'source')!r}\n"
        )
    folder = Path(made.environment["JUPYTER_CONFIG_DIR"])
    folder.mkdir(exist_ok=True)
    (folder / "nbgrader_config.py").write_text(  # what a hub tells its students
        "c = get_config()\n"
        f"c.Exchange.root = {str(exchange)!r}\nc.CourseDirectory.course_id = 'fall'\n"
    )


def before(made: Afternoon, block: str) -> None:
    """What others have done by the time that a block is run."""
    if "zip_collect" in block:
        download(made)
    if "grader race" in block:  # a race of nobody: tests/test_race.py has the others
        made.shell("mkdir -p ~/fall/packs14/lovelace/nanovllm/performance")
    if "nbgrader collect" in block:
        students = made.home / "students"
        mine = students / "nanovllm" / LAB.package
        mine.mkdir()
        for name, data in reference_files().items():
            (mine / name).write_bytes(data)
        answered(students / "notebooks" / LAB.key / f"{LAB.key}.ipynb")
        done = subprocess.run(
            [sys.executable, "-m", "grader.student.lab_command", "submit", "01"],
            cwd=students, capture_output=True, text=True,
            env=made.environment | {"PYTHONPATH": str(students)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "lab01 is handed in" in done.stdout


def answered(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    cell(notebook, "lab01-question-1").source = "2,000 entries: the curve flattens there."
    nbformat.write(notebook, path)


def download(made: Afternoon) -> None:
    """What Canvas and Moodle call the packs, in one zip; one student has put traps in."""
    notebook = made.home / "fall" / "release" / LAB.key / f"{LAB.key}.ipynb"
    at = made.home / "at.zip"
    stubs = {path.name: path.read_bytes() for path in LAB.stubs.glob("*.py")}
    right = pack(at, reference_files(), notebook.read_bytes())
    with zipfile.ZipFile(at, "a") as archive:
        archive.writestr("timestamp.txt", "1999-01-01 00:00:00 UTC")
        archive.writestr("../../escaped.txt", "x")
    trapped = at.read_bytes()
    assert len(trapped) > len(right)
    poor = pack(at, stubs, notebook.read_bytes())
    (made.home / "Downloads").mkdir()
    with zipfile.ZipFile(made.home / "Downloads" / "submissions.zip", "w") as archive:
        archive.writestr(f"lovelaceofada_LATE_1234_5678_{LAB.key}-1.zip", trapped)
        archive.writestr(f"Grace OHopper1_98_assignsubmission_file_/{LAB.key}.zip", poor)


def grade_by_hand(made: Afternoon, command: str) -> None:
    """Start what the handbook says, look at formgrader in a browser, grade the one answer."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = f"{command} --no-browser --allow-root --port={port} --IdentityProvider.token=token"
    log = (made.home / "server.log").open("w")
    server = subprocess.Popen(
        words.split(), cwd=made.here, env=made.environment, stdout=log, stderr=log,
        executable=str(made.home / "bin" / "jupyter"),
    )  # fmt: skip
    base = f"http://127.0.0.1:{port}/formgrader"
    try:
        wait_for(f"{base}/api/assignments", server)
        [waiting] = [
            one
            for one in ask(f"{base}/api/submitted_notebooks/{LAB.key}/{LAB.key}")
            if one["needs_manual_grade"]
        ]
        made.said["waiting"] = waiting["student"]
        grades = ask(f"{base}/api/grades?submission_id={waiting['id']}")
        [question] = [one for one in grades if one["name"] == "lab01-question-1"]
        made.pages["answer"] = look(made, f"{base}/submissions/{waiting['id']}/", "answer")
        ask(f"{base}/api/grade/{question['id']}", {"manual_score": 4, "extra_credit": 0})
        comments = ask(f"{base}/api/comments?submission_id={waiting['id']}")
        [comment] = [one for one in comments if one["name"] == "lab01-question-1"]
        ask(f"{base}/api/comment/{comment['id']}", {"manual_comment": "Which curve?"})
        for name in ("manage_assignments", f"manage_submissions/{LAB.key}", "gradebook"):
            made.pages[name] = look(made, f"{base}/{name}", name.partition("/")[0])
    finally:
        server.terminate()
        server.wait(30)
        log.close()


def ask(url: str, data: dict | None = None) -> list | dict:
    request = urllib.request.Request(
        url,
        None if data is None else json.dumps(data).encode(),
        {"Authorization": "token token", "Content-Type": "application/json"},
        method="GET" if data is None else "PUT",
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def wait_for(url: str, server: subprocess.Popen) -> None:
    for _ in range(240):
        assert server.poll() is None, "the server ended"
        try:
            ask(url)
            return
        except (URLError, ConnectionError):
            time.sleep(0.5)
    raise AssertionError("the server did not answer")


def look(made: Afternoon, url: str, name: str) -> str:
    """A page as a browser shows it after its scripts have run; a picture of it is kept."""
    own = f"--user-data-dir={made.home / 'browser'}"
    words = [require("chromium"), *FLAGS, own, "--window-size=1280,900"]
    picture = made.home / f"{name}.png"
    address = f"{url}?token=token"
    done = subprocess.run(
        [*words, f"--screenshot={picture}", "--dump-dom", address],
        capture_output=True, text=True, timeout=180, env=made.environment,
    )  # fmt: skip
    assert picture.stat().st_size > 10_000, f"an empty picture of {url}: {done.stderr[-500:]}"
    return done.stdout


@pytest.fixture
def gradebook(afternoon: Afternoon) -> Iterator:
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{afternoon.home / 'fall' / 'gradebook.db'}", "fall") as found:
        yield found


def submitter() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def test_every_block_ran(afternoon: Afternoon) -> None:
    assert len(blocks()) >= 10
    graded = next(said for block, said in afternoon.said.items() if "autograde 01" in block)
    assert f"✓ {submitter()}" in graded
    assert "✓ ada" in graded
    assert "lab01 Tokenization, points by task" in "".join(afternoon.said.values())


def test_grades_come_out_right(afternoon: Afternoon, gradebook) -> None:
    scores = {one.student.id: one.score for one in gradebook.find_assignment("lab01").submissions}
    assert scores == {"ada": 100.0, "gru": 0.0, submitter(): 104.0}


def test_submissions_are_collected_whole_and_nothing_else(afternoon: Afternoon) -> None:
    fall = afternoon.home / "fall"
    for student in ("ada", "gru"):
        there = {path.name for path in (fall / "submitted" / student / LAB.key).iterdir()}
        assert there == {f"{LAB.key}.ipynb", f"{LAB.key}.zip"}
    by_exchange = {path.name for path in (fall / "submitted" / submitter() / LAB.key).iterdir()}
    assert {f"{LAB.key}.ipynb", f"{LAB.key}.zip", "timestamp.txt"} <= by_exchange
    assert not list(afternoon.home.rglob("escaped.txt"))


def test_formgrader_shows_the_class_in_a_browser(afternoon: Afternoon) -> None:
    assert afternoon.said["waiting"] == submitter()
    assert "lab01" in afternoon.pages["manage_assignments"]
    assert "ada" in afternoon.pages[f"manage_submissions/{LAB.key}"]
    assert "lab01" in afternoon.pages["gradebook"]
    answer = afternoon.pages["answer"]
    assert "2,000 entries: the curve flattens there." in answer
    assert "hidden scenario 1" in answer
    assert 'class="form-control score"' in answer or "score" in answer


def test_feedback_has_the_persons_points_and_comment(afternoon: Afternoon) -> None:
    folder = afternoon.home / "fall" / "feedback" / submitter() / LAB.key
    page = (folder / f"{LAB.key}.html").read_text()
    assert "Which curve?" in page
    assert "104.0" in page


def test_exports_are_real_csv(afternoon: Afternoon) -> None:
    fall = afternoon.home / "fall"
    with (fall / "canvas.csv").open(newline="") as file:
        head, points, *rows = csv.reader(file)
    assert head == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "lab01"]
    assert points[0].strip() == "Points Possible"
    assert points[-1] == "110"
    by_id = {row[3]: row for row in rows}
    assert set(by_id) == {"ada", "gru", submitter()}
    assert by_id["ada"] == ["Lovelace, of London, Ada", "1234", "", "ada", "", "100"]
    with (fall / "moodle.csv").open(newline="") as file:
        by_id = {row["username"]: row for row in csv.DictReader(file)}
    assert by_id["gru"]["lab01"] == "0"
    assert by_id["gru"]["fullname"] == "'=O\"Hopper(1), Grace"  # a spreadsheet computes nothing
    assert by_id[submitter()]["lab01"] == "104"

"""The students' repository: nothing leaks into it, it works by itself, it keeps students' work."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from grader.authoring.mistakes import bank
from grader.course.errors import LabError
from grader.course.lab_toml import Lab, find_lab, labs
from grader.course.paths import HIDDEN, NOTEBOOK_SOURCES, ROOT
from grader.course.release_record import RECORD
from grader.course.stubs import has_empty_file, solutions, write_stubs
from grader.release.contents import contents
from grader.release.lab_selection import select
from grader.release.leaks import MOST, leaks, secrets, verbatim
from grader.release.write_release import write_release
from nanovllm import _PACKAGE_OF_LAB

TWO_LABS_CLOSED_ONE_OPEN = ("01-03", "01,02")
KINDS = r"(lines of )?(the|a) (solution|code|hidden scenario|model answer)"


def never(name: str) -> bool:
    raise AssertionError(f"asked about {name}")


@dataclass(frozen=True)
class Students:
    """A students' repository, and commands run in it."""

    root: Path

    def run(self, *words: str, timeout: int = 300) -> subprocess.CompletedProcess[str]:
        dropped = ("NANOVLLM_CODE", "NANOVLLM_MINE", "NANOVLLM_STATE", "PYTEST_ADDOPTS")
        kept = {
            k: v
            for k, v in os.environ.items()
            if k not in dropped and not k.startswith(("COV_", "PYTEST_"))
        }
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.root,
            env=kept | {"PYTHONPATH": str(self.root), "COLUMNS": "120"},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
        )


@pytest.fixture(scope="module")
def released() -> dict[str, bytes]:
    return contents(select(*TWO_LABS_CLOSED_ONE_OPEN))


@pytest.fixture
def students(released: dict[str, bytes], tmp_path: Path) -> Students:
    write_release(released, tmp_path / "students", never)
    return Students(tmp_path / "students")


def everything(files: dict[str, bytes]) -> str:
    """All text of a release, each line without its indentation; notebooks as their cells."""
    texts = []
    for name, data in files.items():
        if name.endswith(".ipynb"):
            cells = json.loads(data)["cells"]
            texts.append("\n".join("".join(cell["source"]) for cell in cells))
        elif name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(data)) as packed:
                texts += [packed.read(part).decode() for part in packed.namelist()]
        elif not name.endswith((".safetensors", ".png", "checks.json")):
            texts.append(data.decode())
    return "\n" + "\n".join(line.strip() for text in texts for line in text.splitlines()) + "\n"


def test_no_solution_of_an_open_lab_is_in_it(released: dict[str, bytes]) -> None:
    """Searched anew, without the release's own search: every body of more than a line."""
    text = everything(released)
    searched = 0
    for lab in (lab for lab in labs() if lab.key not in ("lab01", "lab02")):
        for place, body in solutions(lab):
            stripped = "\n".join(line.strip() for line in body.strip().splitlines())
            if "\n" in stripped:
                assert f"\n{stripped}\n" not in text, place
                searched += 1
    assert searched > 40
    # The same search does find the reference that was released.
    closed = [body for _, body in solutions(find_lab(1))]
    found = [
        "\n".join(line.strip() for line in body.strip().splitlines()) in text for body in closed
    ]
    assert all(found)


def test_no_hidden_scenario_mistake_or_model_answer_is_in_it(released: dict[str, bytes]) -> None:
    text = everything(released)
    assert not [name for name in released if "hidden" in name or "solutions/mistakes" in name]
    for lab in labs():
        for line in (HIDDEN / lab.key / "scenarios.py").read_text().splitlines():
            if line.startswith("def ") and not line.startswith("def _"):
                assert line not in text, line
        if lab.key == "lab03":
            for mistake in (m for m in bank(lab) if "\n" in m.new.strip()):
                stripped = "\n".join(line.strip() for line in mistake.new.strip().splitlines())
                assert stripped not in text, mistake.name
        source = nbformat.read(NOTEBOOK_SOURCES / lab.key / f"{lab.key}.ipynb", as_version=4)
        answers = [
            [line for line in body.splitlines() if len(line) > 40]
            for cell in source.cells
            if cell.metadata.get("nbgrader", {}).get("solution")
            for body in re.findall(r"### BEGIN SOLUTION\n(.*?)### END", cell.source, re.DOTALL)
        ]
        assert answers
        assert not [line for lines in answers for line in lines if line in text]


def test_few_solution_lines_stand_verbatim_in_the_release(lab: Lab) -> None:
    """Anywhere: handouts, checks, hints, notebooks, demos, predictions, plots, tools."""
    if not has_empty_file(lab):
        pytest.skip("not built anew yet")
    found = verbatim(contents(select(f"{labs()[0].key}-{lab.key}", "none")), lab)
    assert found.share < MOST, found.found


@pytest.mark.few(1)
def test_each_lab_can_be_the_only_one_that_is_open(lab: Lab) -> None:
    """No solution repeats code of another lab, whose reference is handed out."""
    others = ",".join(other.key.removeprefix("lab") for other in labs() if other != lab)
    selection = select("all", others)
    assert [lab.key for lab in selection.open] == [lab.key]
    assert leaks(contents(selection), selection) == []


def test_a_line_is_found_wherever_it_stands() -> None:
    lab = find_lab(3)
    line = next(
        line.strip() for _, body in solutions(lab) for line in body.splitlines() if len(line) > 40
    )
    hints = zlib.compress(json.dumps({"a::b": ["x", "y", f"say `{line}`"]}).encode())
    packed = b"# hints\n" + base64.b64encode(hints)
    spread = line.replace(" ", "  ").encode()
    for name, data in (("labs/lab03/hints.txt", packed), ("labs/lab03/README.md", spread)):
        assert list(verbatim({name: data}, lab).found) == [line]


def test_the_search_for_leaks_finds_each_kind(released: dict[str, bytes]) -> None:
    """What a careless edit would add to a handout, a check, a notebook or a hint file."""
    selection = select(*TWO_LABS_CLOSED_ONE_OPEN)
    assert leaks(released, selection) == []
    leaking = {"solutions/hidden/lab03/scenarios.py": b""}
    for secret in secrets(selection):
        kind = re.match(KINDS, secret.what)
        assert kind is not None, secret.what
        text = ("\n" + " " * 8).join(["Look:", *secret.lines, "and so on."])
        leaking.setdefault(f"labs/lab03/{kind[0]}.md", text.encode())
    assert len(leaking) == 1 + 5
    notebook = nbformat.v4.new_notebook()
    body = next(body for _, body in solutions(find_lab(3)) if body.count("\n") > 3)
    notebook.cells = [nbformat.v4.new_code_cell(body)]
    leaking["notebooks/lab03/lab03.ipynb"] = nbformat.writes(notebook).encode()
    told = leaks(leaking, selection)
    assert not [name for name in leaking if not any(one.startswith(f"{name} ") for one in told)]


@pytest.mark.parametrize(
    ("wanted", "reference", "says"),
    [
        ("01-02", "03", "--with-reference names lab03"),
        ("03-01", "", "runs backwards"),
        ("none", "", "names no lab"),
    ],
)
def test_labs_that_make_no_sense_are_refused(wanted: str, reference: str, says: str) -> None:
    with pytest.raises(LabError, match=says):
        select(wanted, reference)


@pytest.mark.proof
def test_every_released_lab_can_be_worked_on(students: Students) -> None:
    """Start and check each lab, the board, the demo; the open lab's reference is not needed."""
    for number in (1, 3):
        done = students.run("pytest", f"labs/lab{number:02d}")
        assert done.returncode == 1, done.stdout + done.stderr
        assert f"lab{number:02d} task 1:" in done.stdout
        assert "0/100" in done.stdout
        assert "cannot be loaded" not in done.stdout, done.stdout
    diff = students.run("grader.student.lab_command", "diff", "03", "--task", "1")
    assert "reference of lab03 is not in this copy" in diff.stdout + diff.stderr
    board = students.run("grader.student.lab_command")
    assert "03 Prefill and decode" in board.stdout
    assert "04 Continuous batching" not in board.stdout
    demo = students.run("grader.student.lab_command", "demo", "03")
    assert "which is not written yet" in demo.stderr
    write_lab(students, 1)
    front = students.run("nanovllm.cli", "generate", "Hello")
    assert front.returncode == 2
    assert re.match(r"nanovllm: lab03 task \d is not written yet: \w+", front.stderr)
    assert "--code reference" not in front.stderr
    write_lab(students, 3)
    front = students.run("nanovllm.cli", "generate", "What is 12 plus 7?", "--chat")
    assert front.returncode == 0, front.stderr
    assert front.stdout == "12 + 7 = 19.\n"
    assert "the engine is static batches (lab03, yours): lab04 (batching) is not" in front.stderr
    for words in (["bench", "memory"], ["generate", "a", "--replay", "run.html"], ["serve"]):
        refused = students.run("nanovllm.cli", *words)
        assert refused.returncode == 2
        assert re.fullmatch(
            r"nanovllm: .*lab0[47] \(\w+\) is not part of this copy of the course yet\.\n",
            refused.stderr,
        ), refused.stderr


def test_the_finished_student_sees_the_demo(students: Students) -> None:
    write_lab(students, 1)
    demo = students.run("grader.student.lab_command", "demo", "01")
    assert demo.returncode == 0, demo.stdout + demo.stderr


def write_lab(students: Students, number: int) -> None:
    """The student's own code of a lab: the reference, by hand."""
    lab = find_lab(number)
    folder = students.root / "nanovllm" / lab.package
    folder.mkdir(exist_ok=True)
    for path in lab.reference.glob("*.py"):
        (folder / path.name).write_bytes(path.read_bytes())


@pytest.fixture(scope="module")
def without_a_reference() -> dict[str, bytes]:
    return contents(select("all", "none"))


@pytest.mark.parametrize("number", [lab.number for lab in labs()], ids=lambda n: f"lab{n:02d}")
@pytest.mark.few(1)
def test_without_a_reference_a_lab_is_graded_alone(
    without_a_reference: dict[str, bytes], number: int, tmp_path: Path
) -> None:
    """The lower labs are not started, or (every second one) started and empty."""
    students = Students(tmp_path / "students")
    write_release(without_a_reference, students.root, never)
    below = [lab for lab in reversed(labs()) if lab.number < number]
    for lower in below[1::2]:
        write_stubs(lower, students.root / "nanovllm" / lower.package)
    write_lab(students, number)
    lab = find_lab(number)
    alone = students.run("pytest", f"labs/{lab.key}")
    needing = [task for task in lab.tasks if task.runs_on]
    points = lab.points - sum(task.points for task in needing)
    assert f"{points}/100" in alone.stdout, alone.stdout + alone.stderr
    if needing:
        lower = needing[0].runs_on[0]
        assert f"needs {lower}, of which this copy of the course has no reference" in alone.stdout


def test_without_a_reference_the_own_engine_needs_every_lab(tmp_path: Path) -> None:
    students = Students(tmp_path / "students")
    write_release(contents(select("01-02", "none")), students.root, never)
    front = students.run("nanovllm.cli", "generate", "Hello")
    assert front.returncode == 2
    assert "lab03 (generation) is not part of this copy of the course yet." in front.stderr
    needs = students.run("pytest", "labs/lab01", "--reference")
    assert "this copy of the course has no reference of lab01" in needs.stdout
    write_lab(students, 1)
    chosen = "import nanovllm.tokenization as t; print(t.__file__)"
    for code, home in (("", "nanovllm/tokenization"), ("lab02", "labs/lab01/stubs")):
        done = subprocess.run(
            [sys.executable, "-c", chosen],
            cwd=students.root,
            env={**os.environ, "NANOVLLM_CODE": code, "NANOVLLM_MINE": ""},
            capture_output=True,
            text=True,
        )
        assert Path(done.stdout.strip()).parent == students.root / home, done.stderr


def test_a_lab_alone_has_no_engine_and_its_demo_says_so(
    without_a_reference: dict[str, bytes], tmp_path: Path
) -> None:
    students = Students(tmp_path / "students")
    write_release(without_a_reference, students.root, never)
    write_lab(students, 3)
    demo = students.run("grader.student.lab_command", "demo", "03")
    assert demo.returncode == 1
    assert "needs" not in demo.stderr and "says more" not in demo.stderr
    assert "The demo of lab03 runs on an engine, with the labs below: lab0" in demo.stderr
    answers = (
        "from grader.course.lab_toml import find_lab; from grader.student.predict import *\n"
        "print([computed(find_lab(3), one) for one in questions(find_lab(3))])"
    )
    told = subprocess.run(
        [sys.executable, "-c", answers], cwd=students.root, capture_output=True, text=True,
        env={**os.environ, "NANOVLLM_CODE": "", "NANOVLLM_MINE": "", "PYTHONPATH": ""},
    )  # fmt: skip
    assert len(json.loads(told.stdout or "[]")) == 4, told.stderr
    assert (students.root / "labs/lab03/standin.zip").is_file()
    assert not list((students.root / "labs").glob("*/standin"))
    # a stand-in loads where only the package itself is on the path, as it is once installed
    alone = f"""
import importlib.util as u, sys
spec = u.spec_from_file_location("nanovllm", r"{students.root}/nanovllm/__init__.py")
sys.modules["nanovllm"] = module = u.module_from_spec(spec)
spec.loader.exec_module(module)
import nanovllm.batching.request
"""
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", alone],
        cwd=tmp_path,
        env={**os.environ, "NANOVLLM_CODE": "lab03", "NANOVLLM_MINE": "", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.proof
def test_notebooks_run_in_it(students: Students, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NANOVLLM_CODE", "NANOVLLM_MINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(students.root))
    students.run("grader.student.lab_command", "start", "03")
    path = students.root / "notebooks" / "lab03" / "lab03.ipynb"
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    client.execute()
    said = "".join(
        out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", [])
    )
    assert "This cell needs lab03 task" in said


def test_its_own_set_up_installs_it(students: Students) -> None:
    """`make start`, with the packages of this environment in place of a download."""
    environment = students.root / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = environment / "lib" / version / "site-packages"
    here = [sysconfig.get_path("purelib"), *(p for p in sys.path if p.endswith("site-packages"))]
    lines = [p for p in dict.fromkeys(here) if Path(p).is_dir()]
    (site / "packages.pth").write_text("\n".join(lines) + "\n")
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--ignore-installed", "--editable", students.root],
        check=True,
    )
    (environment / ".ready").touch()
    kept = {k: v for k, v in os.environ.items() if k not in ("NANOVLLM_MINE", "PYTHONPATH")}
    done = subprocess.run(
        ["make", "-C", students.root, "start"], capture_output=True, text=True, env=kept
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Now it is your turn" in done.stdout
    assert (students.root / "nanovllm" / "tokenization" / "bpe.py").is_file()
    board = subprocess.run([environment / "bin" / "lab"], cwd=students.root, env=kept)
    assert board.returncode == 0
    imported = "import grader, models.corpus, nanovllm; print(models.__file__)"
    in_a_notebook = subprocess.run(
        [environment / "bin" / "python", "-c", imported],
        cwd=students.root / "notebooks" / "lab01",
        env=kept,
        capture_output=True,
        text=True,
    )
    assert Path(in_a_notebook.stdout.strip()).parent == students.root / "models", (
        in_a_notebook.stderr
    )


def test_requirements_hold_what_students_need(released: dict[str, bytes]) -> None:
    names = {line.partition("==")[0] for line in released["requirements.txt"].decode().splitlines()}
    assert {
        "torch",
        "pytest",
        "typer",
        "rich",
        "jupyter",
        "hypothesis",
        "setuptools",
        "nbgrader",
    } <= names
    assert not {"ruff", "import-linter", "copydetect", "distributed", "playwright"} & names
    assert released["constraints.txt"] == (ROOT / "constraints.txt").read_bytes()
    for section in ("[tool.ruff", "importlinter", "[dependency-groups"):
        assert section not in released["pyproject.toml"].decode()
    tomllib.loads(released["pyproject.toml"].decode())
    assert "pytest.ini_options" in released["pyproject.toml"].decode()
    assert "grader.grading" not in released["pyproject.toml"].decode()
    assert "/nanovllm/*/" not in released[".gitignore"].decode()
    assert "__pycache__/" in released[".gitignore"].decode()


def test_steps_in_place_of_labs_are_there_only_where_those_labs_are_closed() -> None:
    """`nanovllm.fast` and `.gpu` run beside no student's code, and say what labs 02-05 are."""
    steps = ("solutions/nanovllm/fast/", "solutions/nanovllm/gpu/")
    for labs_, reference, there in (("01-05", "01-04", False), ("all", "02-05", True)):
        files = contents(select(labs_, reference))
        for step in steps:
            assert any(name.startswith(step) for name in files) == there, (step, reference)


def test_no_package_of_an_open_lab_is_in_it_nor_of_one_to_come(released: dict[str, bytes]) -> None:
    for package in {*_PACKAGE_OF_LAB.values()} - {"tokenization", "model"}:
        assert not [name for name in released if name.startswith(f"solutions/nanovllm/{package}/")]


def test_models_card_of_it_names_no_program_that_is_not_there(released: dict[str, bytes]) -> None:
    text = released["models/README.md"].decode()
    assert "## Greedy samples" in text
    assert "models.train" not in text and "program in this folder" not in text
    assert "models/loss.png" not in released


def test_links_in_it_work(released: dict[str, bytes]) -> None:
    """Nor does one of any other lab lead outside, with a heading behind it or not."""
    import posixpath

    for files in (released, contents(select("all", "none"))):
        followed = 0
        for name in (name for name in files if name.endswith(".md")):
            for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", files[name].decode()):
                path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
                good = target.startswith("http") or target == "..." or path in files  # f[grid](...)
                assert good, f"{name} links to {target}"
                followed += path in files
        assert followed > 3


def test_released_again_it_keeps_what_students_changed(students: Students) -> None:
    root, files = students.root, contents(select(*TWO_LABS_CLOSED_ONE_OPEN))
    mine = root / "nanovllm" / "tokenization" / "bpe.py"
    mine.parent.mkdir()
    mine.write_text("my work")
    (root / "notebooks" / "lab01" / "lab01.ipynb").write_text("my answers")
    (root / "labs" / "lab01" / "README.md").unlink()
    asked: list[str] = []

    def refuse(name: str) -> bool:
        asked.append(name)
        return False

    newer = files | {"README.md": b"new text", "extra.md": b"x"}
    done = write_release(newer, root, refuse)
    assert asked == ["notebooks/lab01/lab01.ipynb"]
    assert done.kept == asked
    assert done.updated == ["README.md"]
    assert sorted(done.new) == ["extra.md", "labs/lab01/README.md"]
    assert (root / "notebooks" / "lab01" / "lab01.ipynb").read_text() == "my answers"
    assert mine.read_text() == "my work"
    again = write_release(files, root, lambda name: True)
    assert again.removed == ["extra.md"]
    assert again.updated == ["README.md", "notebooks/lab01/lab01.ipynb"]
    assert mine.read_text() == "my work"


def test_a_folder_that_was_there_before_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("their own")
    done = write_release({".gitignore": b"ours"}, tmp_path, lambda name: False)
    assert done.kept == [".gitignore"]
    assert (tmp_path / ".gitignore").read_text() == "their own"
    (tmp_path / "theirs.py").write_text("x = 1")
    write_release({}, tmp_path, lambda name: False)
    assert (tmp_path / ".gitignore").read_text() == "their own"
    assert (tmp_path / "theirs.py").read_text() == "x = 1"
    assert json.loads((tmp_path / RECORD).read_text())["files"] == {}


def test_a_folder_of_something_else_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("x = 1")
    with pytest.raises(LabError, match="neither empty nor an earlier release: it holds theirs"):
        write_release({"README.md": b"ours"}, tmp_path, never)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.py"]


def test_the_course_itself_is_no_target(tmp_path: Path) -> None:
    for folder in (ROOT, ROOT / "labs", ROOT.parent):
        with pytest.raises(LabError, match="is or holds the course itself"):
            write_release({}, folder, never)
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match="is a file"):
        write_release({}, tmp_path / "file", never)


def test_the_command_builds_it_and_asks_nobody_without_a_terminal(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "grader", "release", "--to", str(tmp_path / "out")]
    words += ["--labs", "01", "--releases", str(tmp_path / "kept")]
    first = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    assert re.search(r"out, release 1 of course \w+: lab01; reference of no lab.", first.stdout)
    readme = tmp_path / "out" / "README.md"
    readme.write_text("edited")
    again = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert "kept as it is, edited since" in again.stdout
    assert readme.read_text() == "edited"
    subprocess.run([*words, "--overwrite"], cwd=ROOT, check=True, capture_output=True)
    assert "nano-vLLM Labs" in readme.read_text()

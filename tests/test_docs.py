"""Docstring examples run; every command and symbol that a handout names exists."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from grader.authoring import hours
from grader.checks.card import CheckInfo
from grader.course import integrity
from grader.course.lab_toml import Lab
from grader.course.paths import ROOT
from grader.student import hints
from grader.student_files.lab_state import LabState
from tests.processes import lines_of

SECTIONS = [
    "Outcome",
    "The problem",
    "The picture",
    "Glossary",
    "Invariants",
    "Predict before you code",
    "Tasks",
    "Checkpoint",
    "What the checks do not see",
    "Production twins",
    "Questions",
    "Bonus",
]
COMMANDS = {"lab", "nanovllm", "pytest", "make", "python", "jupyter", "source", "git", "cd"}
DOCTESTS = """
import doctest, importlib, sys
found = [doctest.testmod(importlib.import_module(name)) for name in sys.argv[1:]]
assert not sum(one.failed for one in found), "an example of a docstring fails"
print(sum(one.attempted for one in found))
"""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def handout(lab: Lab) -> str:
    return (lab.folder / "README.md").read_text(encoding="utf-8")


def test_docstring_examples_run(lab: Lab) -> None:
    names = [f"nanovllm.{lab.package}.{path.stem}" for path in lab.reference.glob("[a-z]*.py")]
    *_, tried = lines_of(DOCTESTS, *names, env={**os.environ, "NANOVLLM_CODE": "reference"})
    assert int(tried) >= 5


def test_handout_follows_the_skeleton(lab: Lab) -> None:
    text = handout(lab)
    heads = re.findall(r"^(#{1,3}) (.+)$", FENCE.sub("", text), re.MULTILINE)
    assert heads[0] == ("#", f"Lab {lab.number:02d}: {lab.title}")
    assert [title for level, title in heads if level == "##"] == SECTIONS
    tasks = [f"Task {task.id}: {task.title}" for task in lab.tasks]
    assert [title for level, title in heads if level == "###" and title.startswith("Task")] == tasks
    assert [t for _, t in heads if t in ("Warm-up", "Deeper")] == ["Warm-up", "Deeper"]
    words = [word for word in FENCE.sub("", text).split() if re.search(r"\w", word)]
    assert 2500 <= len(words) <= 4500, f"{len(words)} words"


def test_handout_states_the_hours_of_the_rule(lab: Lab) -> None:
    assert f"{hours.stated(lab)}." in handout(lab), hours.stated(lab)


def test_handout_ends_with_a_real_model(lab: Lab) -> None:
    checkpoint = handout(lab).partition("## Checkpoint")[2].partition("\n## ")[0]
    assert "Qwen3-0.6B" in checkpoint and "nanovllm describe" in checkpoint


def commands(lab: Lab) -> list[list[str]]:
    lines = [
        line
        for language, body in FENCE.findall(handout(lab))
        if language == "bash"
        for line in body.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    return [shlex.split(line, comments=True) for line in lines]


def test_commands_in_handouts_exist(lab: Lab) -> None:
    found = commands(lab)
    assert found
    for command in found:
        assert command[0] in COMMANDS, command
        if command[0] in ("lab", "nanovllm"):
            subcommand = command[1] if len(command) > 1 and not command[1].startswith("-") else ""
            options = {word.partition("=")[0] for word in command if word.startswith("-")}
            text = help_of(command[0], subcommand)
            for option in options:
                assert option in text, f"{' '.join(command)}: no option {option}"
        if command[0] == "pytest":
            for word in command[1:]:
                if word.startswith("labs"):
                    assert (ROOT / word.partition("::")[0]).exists(), word


@cache
def help_of(program: str, subcommand: str) -> str:
    module = {
        "lab": "grader.student.lab_command", "nanovllm": "nanovllm.cli", "grader": "grader",
    }[program]  # fmt: skip
    words = [sys.executable, "-m", module, *([subcommand] if subcommand else []), "--help"]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def test_commands_of_a_maintainer_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.findall(r"python -m grader ([a-z]+)([^`\n]*)", text)
    assert {name for name, _ in found} >= {"build", "variants", "mutants", "mistakes", "release"}
    for name, rest in found:
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in help_of("grader", name), f"grader {name} has no {option}"
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*re.findall(r"`make ([a-z]+)`", text)} <= {*targets}


def test_every_task_gives_its_command_and_symbols(lab: Lab) -> None:
    text = handout(lab)
    parts = re.split(r"^### Task \d+: ", text.partition("## Checkpoint")[0], flags=re.MULTILINE)[1:]
    for task, part in zip(lab.tasks, parts, strict=True):
        assert f"pytest labs/{lab.key} -k task{task.id}" in part
        for symbol in task.symbols:
            name = symbol.partition(":")[2].rpartition(".")[2]
            assert name in part, f"task {task.id} does not name {symbol}"


def test_names_in_handouts_exist(lab: Lab) -> None:
    text = handout(lab)
    ours = FENCE.sub("", text.partition("## Production twins")[0])
    unknown = [span for span in re.findall(r"`([^`\n]+)`", ours) if not known(span, lab)]
    assert not unknown, f"{lab.key}/README.md names what does not exist: {unknown}"


def known(span: str, lab: Lab) -> bool:
    """True unless `span` looks like a file or a call of this course that is not there."""
    if re.fullmatch(r"[\w./-]+\.(py|md|toml|json|ipynb)", span):
        name = span.removeprefix("nanovllm/")
        homes = [ROOT, lab.folder, lab.reference, ROOT / "solutions" / "nanovllm"]
        generic = {
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
            "model.safetensors.index.json",
        }
        return Path(span).name in generic or any((home / name).exists() for home in homes)
    match = re.fullmatch(r"([A-Z]\w+(?:\.\w+)*|[a-z]\w*_\w+(?=\())(\(.*\))?", span)
    if not match or match[1].isupper():
        return True
    first, *rest = match[1].split(".")
    return any(reachable(module, first, rest) for module in modules(lab))


def modules(lab: Lab) -> list[str]:
    packages = [p.parent.name for p in (ROOT / "solutions" / "nanovllm").glob("*/__init__.py")]
    return [
        f"nanovllm.{package}.{path.stem}"
        for package in packages
        for path in (ROOT / "solutions" / "nanovllm" / package).glob("[a-z]*.py")
    ] + ["nanovllm", "torch", "builtins", "collections"]


def reachable(module: str, first: str, rest: list[str]) -> bool:
    value = getattr(importlib.import_module(module), first, None)
    for name in rest:
        if value is None:
            return False
        fields = getattr(value, "__dataclass_fields__", {})
        annotations = getattr(value, "__annotations__", {})
        source_names = getattr(getattr(value, "__init__", None), "__code__", None)
        inside = source_names and name in source_names.co_names
        if name in fields or name in annotations or inside:
            return True
        value = getattr(value, name, None)
    return value is not None


@pytest.mark.parametrize("path", [
    "README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "models/README.md", "grader/README.md",
    "benchmarks/README.md",
])  # fmt: skip
def test_links_between_files_work(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            # to a file: the book has no page for a folder, and is not built with a link to one
            assert ((ROOT / path).parent / target).is_file(), f"{path} links to {target}"


def test_the_hint_command_of_a_card_names_one_check(lab: Lab) -> None:
    for check in integrity.read(lab).checks.values():
        info = CheckInfo(check.id, lab.key, check.task, check.title, check.points, 0)
        word = info.hint_command.split()[-1]
        assert hints.ladder(lab, word, LabState()).check.id == check.id

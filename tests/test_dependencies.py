"""Who needs which packages: students' file, groups of the others, and the lock of all of them."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from grader.course.paths import ROOT


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins(lines: list[str]) -> dict[str, str]:
    """name -> version; every line has to give both."""
    found = [Requirement(line.partition("  #")[0]) for line in lines if line.strip()]
    versions = {canonicalize_name(one.name): str(one.specifier) for one in found}
    assert all(re.fullmatch(r"==(\d+!)?[\w.]+", version) for version in versions.values()), versions
    return versions


def students() -> dict[str, str]:
    return pins([line for line in text("requirements.txt").splitlines() if line[:1] != "#"])


def groups() -> dict[str, dict[str, str]]:
    found = tomllib.loads(text("pyproject.toml"))["dependency-groups"]
    return {name: pins([one for one in group if isinstance(one, str)])
            for name, group in found.items()}  # fmt: skip


def test_all_that_is_named_is_locked_with_all_that_it_brings_along() -> None:
    locked = pins(text("constraints.txt").splitlines())
    for named in (students(), *groups().values()):
        assert {name: locked.get(name) for name in named if name != "setuptools"} == {
            name: version for name, version in named.items() if name != "setuptools"
        }
    for name in locked.keys() - {"torch"}:  # which itself pins what it needs of CUDA
        for line in metadata.requires(name) or ():
            needed = Requirement(line)
            there = needed.marker is None or needed.marker.evaluate({"extra": ""})
            found = {canonicalize_name(needed.name)}
            assert not there or found <= locked.keys() | {"setuptools"}, f"{name} needs {needed}"


def test_every_pin_has_a_version_for_the_oldest_python() -> None:
    """Debian 12 has 3.11.2, and its pip says no more than that versions conflict."""
    locked = pins(text("constraints.txt").splitlines())
    about = {name: dict(metadata.metadata(name).items()) for name in locked}
    asked = {name: its.get("Requires-Python", "") for name, its in about.items()}
    assert {n: asks for n, asks in asked.items() if "3.11.0" not in SpecifierSet(asks)} == {}
    assert {n: locked[n] for n in locked if locked[n] != f"=={metadata.version(n)}"}.keys() <= {
        "torch"
    }, "what is looked at is what is locked"


def test_students_get_nothing_of_the_others() -> None:
    assert {"torch", "jupyter", "pytest", "setuptools"} <= students().keys()
    others = [name for group in groups().values() for name in group]
    assert {"distributed", "playwright", "ruff", "sphinx", "schemathesis"} <= set(others)
    assert not students().keys() & set(others) and len(others) == len(set(others))


def test_both_makefiles_set_up_alike() -> None:
    recipe = re.compile(r"^\$\(READY\): .*?^\t@touch \$@$", re.MULTILINE | re.DOTALL)
    assert recipe.findall(text("Makefile")) == recipe.findall(
        text("grader/release/student/Makefile")
    )


def test_no_file_names_a_registry() -> None:
    for name in ("README.md", "Makefile", "requirements.txt", "constraints.txt", "pyproject.toml"):
        assert not re.search(r"://[^\s)]*(?:simple|whl|pypi|index)", text(name)), name


def test_pre_commit_checks_what_make_lint_checks() -> None:
    recipe = text("Makefile").partition("\nlint: maintainer\n")[2].partition("\n\n")[0]
    linted = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]
    [repo] = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    entries = [re.sub(r"^bash -c '(.*)'$", r"\1", hook["entry"]) for hook in repo["hooks"]]
    assert entries == [line.removesuffix(" .") for line in linted]


def test_the_dev_container_sets_up_by_the_readmes_commands() -> None:
    found = json.loads(text(".devcontainer/devcontainer.json"))
    assert found["postCreateCommand"] == "make setup"
    assert found["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"].endswith(
        ".venv/bin/python"
    )

"""Every `--help` can be read in a terminal of 80 columns: no name is cut, no line too long."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHECK = """
import importlib, sys, typer.main
from click.testing import CliRunner
app = importlib.import_module(sys.argv[1]).app

def pages(command, words):
    yield words
    for name, sub in getattr(command, "commands", {}).items():
        yield from pages(sub, [*words, name])

command = typer.main.get_command(app)
for words in pages(command, []):
    done = CliRunner().invoke(command, [*words, "--help"], terminal_width=80)
    assert done.exit_code == 0, (words, done.output)
    for line in done.output.splitlines():
        assert len(line) <= 80 and "\\u2026" not in line, (words, line)
print("read")
"""


@pytest.mark.parametrize(
    "module", ["grader.__main__", "grader.student.lab_command", "nanovllm.cli"]
)
def test_every_help_fits_80_columns(module: str) -> None:
    environment = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    done = subprocess.run(
        [sys.executable, "-c", CHECK, module], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "read\n", done.stderr

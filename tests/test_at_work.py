"""labs/AT_WORK.md: every task has something to try, and each of it works."""

from __future__ import annotations

import json
import re
import shlex

import httpx
import pytest

from grader.course.lab_toml import find_lab
from nanovllm.paging.store import PagedStore
from tests.processes import ROOT, run
from tests.serving_tools import CONFIG, live, tiny_engine

PAGE = (ROOT / "labs" / "AT_WORK.md").read_text("utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines()
        if re.match(r"\| \d\d \|", line)]  # fmt: skip
TRIED = list(dict.fromkeys(row[4].strip("`") for row in ROWS))
TRACE = '{"timestamp": %d, "input_length": 512, "output_length": 20, "hash_ids": [%d]}\n'


def test_every_task_has_a_row() -> None:
    wanted = [
        [f"{n:02}", str(task.id), task.title] for n in range(1, 15) for task in find_lab(n).tasks
    ]
    assert [row[:3] for row in ROWS] == wanted


@pytest.fixture(scope="module")
def server():
    with live(tiny_engine(store=PagedStore(CONFIG, 64))) as running:
        yield running


@pytest.mark.parametrize("command", [text for text in TRIED if "nanovllm " in text])
@pytest.mark.few(8)
def test_commands_run(command: str, server, monkeypatch, tmp_path) -> None:
    setting, _, rest = command.rpartition("nanovllm ")
    for pair in setting.split():
        monkeypatch.setenv(*pair.split("="))
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(TRACE % (1000 * n, n) for n in range(20)))
    for name, value in {"URL": server.url, "DIR": tmp_path, "TRACE": trace}.items():
        rest = re.sub(rf"\b{name}\b", str(value), rest)
    done = run(*shlex.split(rest))
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).strip()


@pytest.mark.parametrize("request_", [text for text in TRIED if text.startswith(("GET", "POST"))])
def test_paths_answer(request_: str, server) -> None:
    method, path, *body = request_.split(" ", 2)
    given = {"json": json.loads(body[0])} if body else {}
    answer = httpx.request(method, server.url + path, timeout=60, **given)
    assert answer.status_code == 200 and answer.text


def test_nothing_else_is_to_be_tried() -> None:
    kinds = ("nanovllm ", "GET ", "POST ", "lab demo ", "NANOVLLM_ATTENTION=triton nanovllm ")
    assert [text for text in TRIED if not text.startswith(kinds)] == []

"""The pictures of the instructor's notebooks, with the heading that each stands under."""

from __future__ import annotations

import base64
import hashlib
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from grader.course.digest import IGNORED
from grader.course.lab_toml import Lab, labs
from grader.course.paths import NOTEBOOK_SOURCES, ROOT

KEPT = ROOT / "build" / "book" / "pictures"


def pictures(lab: Lab) -> list[tuple[str, str]]:
    """(heading, file name) of each picture of a lab; run again only after a change."""
    folder = KEPT / f"{lab.key}-{_digest(lab)}"
    record = folder / "pictures.json"
    if not record.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        found = []
        for number, (heading, png) in enumerate(_drawn(lab), 1):
            name = f"{lab.key}-{number:02d}.png"
            (folder / name).write_bytes(png)
            found.append([heading, name])
        record.write_text(json.dumps(found), encoding="utf-8")
    return [(heading, name) for heading, name in json.loads(record.read_text(encoding="utf-8"))]


def folder_of(lab: Lab) -> Path:
    return KEPT / f"{lab.key}-{_digest(lab)}"


def picture_pages() -> dict[str, str]:
    """A page of pictures for each lab; notebooks run side by side."""
    # The longest first: notebooks of higher labs compute more.
    drawing = with_notebooks()[::-1]
    at_once, apart = max(1, min(os.cpu_count() or 1, 4)), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, apart) as pool:  # a fork may hang, since threads have locks
        found = dict(zip(drawing, pool.map(pictures, drawing), strict=True))
    return {f"pictures/{lab.key}.md": _page(lab, shown) for lab, shown in found.items()}


def with_notebooks() -> list[Lab]:
    """The labs whose notebook has landed."""
    return [lab for lab in labs() if (NOTEBOOK_SOURCES / lab.key).is_dir()]


def _page(lab: Lab, shown: list[tuple[str, str]]) -> str:
    lines = [f"# Lab {lab.number:02d}: pictures", ""]
    lines += [f"From the notebook `notebooks/{lab.key}/{lab.key}.ipynb`, on the reference's code."]
    lines += [f"The chapter: [{lab.title}](/labs/{lab.key}/README.md)."]
    before = ""
    for heading, name in shown:
        if heading != before:
            lines += ["", f"## {heading}"]
            before = heading
        lines += ["", f"![{heading}]({name})"]
    return "\n".join(lines) + "\n"


def _drawn(lab: Lab) -> Iterator[tuple[str, bytes]]:
    print(f"  {lab.key}: the notebook draws its pictures ...", file=sys.stderr, flush=True)
    path = NOTEBOOK_SOURCES / lab.key / f"{lab.key}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cells = notebook.cells
    notebook.cells = [cell for cell in cells if not cell.source.startswith("check_task(")]
    settings = {
        "timeout": 300,
        "kernel_name": "python3",
        "resources": {"metadata": {"path": path.parent}},
    }
    NotebookClient(notebook, **settings).execute(
        env={**os.environ, "NANOVLLM_CODE": "reference", "OMP_NUM_THREADS": "1"}
    )
    heading = lab.title
    for cell in notebook.cells:
        for line in cell.source.splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith(("## ", "### ")):
                heading = line.lstrip("# ")
        for out in cell.get("outputs", []):
            if "image/png" in out.get("data", {}):
                yield heading, base64.b64decode(out["data"]["image/png"])


def _digest(lab: Lab) -> str:
    """Of what a notebook's pictures are made of: its text, its plots, and the lab's package."""
    files = [NOTEBOOK_SOURCES / lab.key / f"{lab.key}.ipynb", lab.folder / "plots.py"]
    files += [p for p in sorted(lab.reference.rglob("*.py")) if not IGNORED & set(p.parts)]
    found = hashlib.sha256()
    for path in files:
        found.update(path.read_bytes() + b"\0")
    return found.hexdigest()[:12]

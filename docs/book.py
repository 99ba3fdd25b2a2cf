"""`make book`: the handouts as a site in build/book/html, to be read from the file system."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from docs.interface_pages import interface_pages
from docs.notebook_pictures import folder_of, picture_pages, with_notebooks
from docs.pages import filled, made_pages
from grader.course.lab_toml import labs
from grader.course.paths import ROOT

HERE = Path(__file__).parent
BOOK = ROOT / "build" / "book"
# Beside the handouts: pages as they are, and what they link to.
COPIED = (
    "README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "OPTION_PAIRS.md",
    "LICENSE", "CITATION.cff",
    "grader/README.md", "models/README.md", "models/recall.png", "models/loss.png",
    "grader/server_fields.md", "labs/AT_WORK.md", "monitoring/README.md", "labs/lab06/COMPILER.md",
    "labs/lab14/PROFILERS.md", "labs/lab14/NATIVE.md",
    "benchmarks/README.md", "benchmarks/CLAIMS.md", "benchmarks/results", "docs/pictures",
)  # fmt: skip


def sources(folder: Path) -> None:
    """Copy what is written and write what is made; the folder is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in (*COPIED, *(f"labs/{lab.key}/README.md" for lab in labs())):
        path = ROOT / name
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
    pages = {**made_pages(), **interface_pages(), **picture_pages()}
    pages |= {path.name: filled(path.read_text("utf-8")) for path in (HERE / "text").glob("*.md")}
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for lab in with_notebooks():
        for picture in folder_of(lab).glob("*.png"):
            shutil.copy(picture, folder / "pictures")


def build(into: Path = BOOK) -> Path:
    """The book's first page; a warning of Sphinx ends the build."""
    folder, pages = into / "source", into / "html"
    sources(folder)
    shutil.rmtree(pages, ignore_errors=True)
    words = ["-b", "html", "-c", str(HERE), "-d", str(into / "trees"), "-W", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", *words, str(folder), str(pages)]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise SystemExit("The book was not built: Sphinx says above what is wrong.")
    return pages / "index.html"


def main() -> None:
    begun = time.monotonic()
    print(
        "Building the book (the first time also the notebooks' pictures: minutes) ...", flush=True
    )
    page = build()
    size = sum(path.stat().st_size for path in page.parent.rglob("*") if path.is_file())
    took = time.monotonic() - begun
    print(f"{page.relative_to(ROOT)}: {size / 1e6:.0f} MB in {took:.0f} s; open it in a browser.")


if __name__ == "__main__":
    main()

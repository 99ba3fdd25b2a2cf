"""The book: its pages are made of the handouts, and no link of the built site is broken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

from docs import handouts, pages
from docs.formulas import mathml
from docs.interface_pages import interface_pages
from docs.notebook_pictures import with_notebooks
from grader.course.lab_toml import Lab, labs
from grader.course.paths import REFERENCE, ROOT
from tests.test_docs import FENCE
from tests.test_twins import twins

TEXT = ROOT / "docs" / "text"


def formulas(lab: Lab) -> Iterator[tuple[str, bool]]:
    """(formula, whether it stands alone) of a handout."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", handouts.handout(lab)))
    for block, inline in re.findall(r"\$\$(.+?)\$\$|(?<!\\)\$([^$\n]+?)\$", text, re.DOTALL):
        yield block or inline, bool(block)


def test_every_formula_can_be_written_as_mathml(lab: Lab) -> None:
    found = [mathml(tex, block) for tex, block in formulas(lab)]
    assert len(found) >= 20
    assert all(one.startswith("<math") and "\\" not in one for one in found)


def test_glossary_twins_and_papers_leave_nothing_out(lab: Lab) -> None:
    glossary, reading, table = pages.glossary(), pages.reading(), pages.twins()
    names = [name for term in handouts.terms(lab) for name in term.names]
    assert len(names) >= 5 and len(names) == len(set(names))
    for name in names:
        assert f"({handouts.anchor(name)})=" in glossary
    own = reading.partition(f"## Lab {lab.number:02d}")[2].partition("\n## ")[0]
    assert len(re.findall(r"\]\(https?://", own)) >= 3, "three things to read"
    for _, files, _ in twins(lab):
        assert all(file in table for file in files)


def test_the_learning_path_knows_every_lab_and_what_it_stands_on() -> None:
    page = pages.filled((TEXT / "index.md").read_text(encoding="utf-8"))
    for lab in labs():
        assert f"labs/{lab.key}/README\n" in page and pages.link(lab) in page
    needs = handouts.direct_needs()
    assert needs["lab01"] == set() and needs["lab04"] == {"lab03"}
    assert all(below < key for key, names in needs.items() for below in names)
    for target in re.findall(r"\]\(/([^)]+)\)", page):
        assert (ROOT / target).is_file(), target


def test_the_interface_shows_every_package_and_no_body() -> None:
    found = interface_pages()
    for folder in REFERENCE.glob("*/__init__.py"):
        assert f"api/{folder.parent.name}.md" in found
    table = found["api/paging.md"].partition("### BlockTable\n")[2].partition("\n### ")[0]
    assert "class BlockTable" in table and "#### BlockTable.grow" in table
    shown = re.findall(r"```python\n(.*?)```", "".join(found.values()), re.DOTALL)
    assert len(shown) > 300 and not [one for one in shown if "return " in one]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built pages."""
    from docs.book import build

    return build(tmp_path_factory.mktemp("book")).parent


def read_pages(book: Path) -> dict[Path, BeautifulSoup]:
    names = sorted(book.rglob("*.html"))
    return {path: BeautifulSoup(path.read_text("utf-8"), "html.parser") for path in names}


@pytest.mark.proof
def test_the_built_book(book: Path) -> None:
    found = read_pages(book)
    anchors = {
        path: {tag[key] for key in ("id", "name") for tag in page.find_all(attrs={key: True})}
        for path, page in found.items()
    }
    for path, page in found.items():
        loaded = [tag["src"] for tag in page.find_all(src=True)]
        loaded += [tag["href"] for tag in page.find_all("link") if "href" in tag.attrs]
        assert not [one for one in loaded if urlsplit(one).scheme not in ("", "data")], path
        for address in [*loaded, *(tag["href"] for tag in page.select("a[href]"))]:
            broken = not leads_somewhere(path, address, anchors)
            assert not broken, f"{path.relative_to(book)}: {address}"
    for lab in labs():
        _reads_as_a_chapter(found[book / "labs" / lab.key / "README.html"], lab)
    for lab in with_notebooks():
        assert len(found[book / "pictures" / f"{lab.key}.html"].select("article img")) >= 3


def leads_somewhere(page: Path, address: str, anchors: dict[Path, set[str]]) -> bool:
    """Whether a link within the book has its file and its place; what is outside is not asked."""
    parts = urlsplit(address)
    if parts.scheme:
        return True
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file():
        return False
    return not parts.fragment or unquote(parts.fragment) in anchors.get(target, set())


def _reads_as_a_chapter(page: BeautifulSoup, lab: Lab) -> None:
    """Formulas, diagrams, terms and the navigation by task are there."""
    assert len(page.find_all("math")) == len([*formulas(lab)])
    diagrams = len(re.findall("^```mermaid", handouts.handout(lab), re.MULTILINE))
    assert len(page.select("div.diagram svg")) == 2 * diagrams
    shown = [tag["href"] for tag in page.select(".sidebar-tree a[href*='#task-']")]
    assert len(shown) >= len(lab.tasks)
    linked = {tag["href"].partition("#")[2] for tag in page.select("a.term")}
    article = page.select_one("article")
    for tag in article.select("math, pre, code, svg, h1, h2, h3, #glossary, a:not(.term)"):
        tag.decompose()
    for name, target in handouts.linked_terms(lab).items():
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", article.get_text()):
            assert target in linked, f"{lab.key}: {name} is not linked"

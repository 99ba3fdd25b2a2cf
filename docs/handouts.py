"""What the pages of the book are made of, read out of the handouts: terms, twins, papers, needs."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from grader.course.lab_toml import Lab, labs

LINK = re.compile(r"\]\(https?://(?!github\.com/(?:vllm-project|deepseek-ai)/)")


@dataclass(frozen=True)
class Term:
    """A row of a handout's glossary; `names` as a text may use them."""

    lab: Lab
    shown: str
    meaning: str

    @property
    def names(self) -> list[str]:
        """One by one; `cached (kept) block` is a cached block and a kept block."""
        found = []
        for name in re.split(r",\s*", re.sub(r"[`*]", "", self.shown)):
            inside = re.search(r"\((\w+)\)", name)
            plain = re.sub(r"\s*\([^)]*\)|(?<=\w\w) \w$", "", name)  # `scale s` is the term scale
            found.append(plain)
            if inside and " " in plain:
                found.append(f"{inside[1]} {plain.split(maxsplit=1)[1]}")
        return found


def handout(lab: Lab) -> str:
    return (lab.folder / "README.md").read_text(encoding="utf-8")


def section(lab: Lab, title: str) -> str:
    """The text under a heading of the second level."""
    return handout(lab).partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, its head first."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines]
    return [[cell.strip() for cell in row] for row in cells if not set("".join(row)) <= set("-: ")]


def terms(lab: Lab) -> list[Term]:
    return [Term(lab, row[0], row[1]) for row in rows(section(lab, "Glossary"))[1:]]


def anchor(name: str) -> str:
    """A capital letter is another term than the small one."""
    words = f"capital {name}" if re.fullmatch("[A-Z]", name) else name
    return "term-" + re.sub(r"\W+", "-", words.lower()).strip("-")


def linked_terms(lab: Lab) -> dict[str, str]:
    """name -> anchor, for each term that a handout links: its own, and proper names of lower labs.

    A plain word such as `key` means in each lab what this lab says; single letters are not linked.
    """
    found = {}
    for other in labs():
        words = [name for term in terms(other) for name in term.names if len(name) > 1]
        for name in words:
            if other == lab or (other.number < lab.number and re.search(r"[A-Z\- ]", name)):
                found[name] = anchor(name)
    return found


def papers(lab: Lab) -> list[str]:
    """What a handout says to read, in its own words: items of lists, and paragraphs `Read.`"""
    found = []
    for block in re.split(r"\n(?:\n|(?=- ))", handout(lab)):
        text = block.strip()
        if not LINK.search(text) or text.startswith(("|", "#")):
            continue
        if text.startswith(("- ", "**Read.**")):
            found.append(re.sub(r"^(- |\*\*Read\.\*\* )", "", text))
    return found


def needed(lab: Lab) -> set[str]:
    """The keys of the labs whose packages this one's reference imports."""
    packages = {other.package: other.key for other in labs()}
    found = {packages[name] for name in _imported(lab) if name in packages}
    return found - {lab.key}


def _imported(lab: Lab) -> Iterator[str]:
    for path in lab.reference.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nanovllm."):
                yield node.module.split(".")[1]


def direct_needs() -> dict[str, set[str]]:
    """Of each lab, the labs that it stands on directly: what these stand on is left out."""
    all_of = {lab.key: needed(lab) for lab in labs()}
    direct = defaultdict(set)
    for key, names in all_of.items():
        direct[key] = {n for n in names if not any(n in all_of[m] for m in names)}
    return direct

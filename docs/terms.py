"""Links from the handouts' words to the glossary: the first use of a term in each section."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

from docs.handouts import linked_terms
from grader.course.lab_toml import find_lab

CLOSED = (
    nodes.literal, nodes.literal_block, nodes.reference, nodes.title, nodes.math, nodes.math_block,
    nodes.raw,
)  # fmt: skip


def link_terms(app: Sphinx, tree: nodes.document, page: str) -> None:
    found = re.fullmatch(r"labs/(lab\d\d)/README", page)
    if not found:
        return
    names = linked_terms(find_lab(found[1]))
    home = app.builder.get_relative_uri(page, "glossary")
    longest_first = sorted(names, key=len, reverse=True)
    # Plurals count; a capital only where the term has one, or at the beginning of a sentence.
    words = "|".join(f"[{n[0].upper()}{n[0]}]{re.escape(n[1:])}" for n in longest_first)
    pattern = re.compile(rf"(?<![\w-])({words})s?(?![\w-])")
    spelled = {name.lower(): target for name, target in names.items()}
    done: set[tuple[int, str]] = set()
    for text in list(tree.findall(nodes.Text)):
        place = _section(text)
        if place is not None:
            _link(text, pattern, spelled, home, done, id(place))


def _section(text: nodes.Text) -> nodes.section | None:
    """The section around a text that may hold links, but not the glossary's own."""
    node = text.parent
    while node is not None and not isinstance(node, nodes.section):
        if isinstance(node, CLOSED):
            return None
        node = node.parent
    return None if node is None or "glossary" in node["ids"] else node


def _link(
    text: nodes.Text,
    pattern: re.Pattern[str],
    spelled: dict[str, str],
    home: str,
    done: set[tuple[int, str]],
    place: int,
) -> None:
    parts, at, said = [], 0, text.astext()
    for found in pattern.finditer(said):
        target = spelled[found[1].lower()]
        if (place, target) in done:
            continue
        done.add((place, target))
        parts.append(nodes.Text(said[at : found.start()]))
        address = f"{home}#{target}"
        parts.append(nodes.reference("", found[0], internal=True, refuri=address, classes=["term"]))
        at = found.end()
    if parts:
        text.parent.replace(text, [*parts, nodes.Text(said[at:])])


def setup(app: Sphinx) -> None:
    app.connect("doctree-resolved", link_terms)

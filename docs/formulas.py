"""Formulas as MathML, by the converter of docutils: nothing has to run in the reader's browser."""

from __future__ import annotations

import re

from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

# What the handouts write and the converter does not know, in words that it knows.
SPELLINGS = (
    (re.compile(r"\\dots\b"), r"\\ldots"),
    (re.compile(r"\\[bB]ig\s*\\[lr]Vert"), r"\\Vert"),
    (re.compile(r"\\[bB]ig\b"), ""),
    (re.compile(r"(\\text\{[^}]*\})"), lambda found: found[1].replace(r"\_", "_")),
)


def mathml(tex: str, block: bool) -> str:
    """The `<math>` element of a formula; raises MathError for what cannot be written so."""
    for pattern, other in SPELLINGS:
        tex = pattern.sub(other, tex)
    tree = BeautifulSoup(tex2mathml(tex, as_block=block), "html.parser")
    for part in tree.find_all("msub"):  # a label belongs under its brace, not beside it
        if part.find().name == "munder":
            part.name = "munder"
    return str(tree)


def _visit(self: nodes.NodeVisitor, node: nodes.Element) -> None:
    block = isinstance(node, nodes.math_block)
    found = mathml(node.astext(), block)
    self.body.append(f'<div class="formula">{found}</div>' if block else found)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (_visit, None), (_visit, None))

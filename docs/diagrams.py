"""Mermaid diagrams as SVG, drawn while the book is built, in a light and a dark version."""

from __future__ import annotations

import atexit
import hashlib
import re
from functools import cache
from pathlib import Path

import mermaidx
from docutils import nodes
from playwright.sync_api import Page, sync_playwright
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs.browser import chromium
from grader.course.paths import ROOT

KEPT = ROOT / "build" / "book" / "diagrams"
WIDEST = 720  # pixels of a page's column; what is wider goes from the top down
SMALLEST = 0.7  # of its size on a phone, which scrolls instead
CONFIG = {"fontFamily": "sans-serif", "htmlLabels": False, "flowchart": {"htmlLabels": False}}
THEMES = {"only-light": "neutral", "only-dark": "dark"}


def svg(source: str, theme: str) -> str:
    """A diagram's picture; drawn once for each text and theme."""
    made_of = (mermaidx.__version__, CONFIG, WIDEST, SMALLEST, theme, source)
    digest = hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]
    path = KEPT / f"{digest}.svg"
    if not path.is_file():
        drawn = _drawn(source, theme)
        if _width(drawn) > WIDEST:
            drawn = _drawn(source.replace("flowchart LR", "flowchart TB"), theme)
        drawn = drawn.replace("my-svg", f"d{digest}")  # ids are the page's, not the picture's
        least = f"min-width: {_width(drawn) * SMALLEST:.0f}px; max-width:"
        drawn = drawn.replace("max-width:", least, 1)
        KEPT.mkdir(parents=True, exist_ok=True)
        path.write_text(drawn, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def _drawn(source: str, theme: str) -> str:
    config = {**CONFIG, "theme": theme, "startOnLoad": False}
    return _page().evaluate(
        """async ([config, source]) => {
            mermaid.initialize(config);
            const drawn = await mermaid.render("my-svg", source);
            const holder = document.createElement("div");
            holder.innerHTML = drawn.svg;
            return new XMLSerializer().serializeToString(holder.firstChild);
        }""",
        [config, source],
    )


@cache
def _page() -> Page:
    """A page of Chromium's with mermaid.js out of mermaidx's wheel, for the rest of the build.

    The package's own engine takes minutes for a diagram of subgraphs.
    """
    driver = sync_playwright().start()
    atexit.register(driver.stop)
    page = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"]).new_page()
    page.add_script_tag(path=Path(mermaidx.__file__).parent / "assets" / "mermaid.js")
    return page


def _width(drawn: str) -> float:
    return float(re.search(r"max-width: ([\d.]+)px", drawn)[1])


class Mermaid(SphinxDirective):
    """A fence of the language mermaid."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        source = "\n".join(self.content)
        pictures = "".join(
            f'<div class="diagram {name}" role="img">{svg(source, theme)}</div>'
            for name, theme in THEMES.items()
        )
        return [nodes.raw("", pictures, format="html")]


def setup(app: Sphinx) -> None:
    app.add_directive("mermaid", Mermaid)

"""Sphinx's settings for the book; `python -m docs.book` puts its sources together."""

from __future__ import annotations

from bs4 import BeautifulSoup
from sphinx.application import Sphinx

project = "nano-vLLM Labs"
html_title = project
extensions = ["myst_parser", "docs.formulas", "docs.diagrams", "docs.terms"]
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
html_math_renderer = "mathml"
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "tango"
nitpicky = True


def _tasks_in_navigation(
    app: Sphinx, page: str, template: str, context: dict, tree: object
) -> None:
    """The tasks of a lab stand below it in the navigation; other headings stay at the right."""
    if "toctree" not in context:
        return
    from furo.navigation import get_navigation_tree

    made = context["toctree"](collapse=False, titles_only=False, maxdepth=3, includehidden=True)
    soup = BeautifulSoup(made, "html.parser")
    for item in soup.select("li"):
        heading = item.find("a")["href"].partition("#")[2]
        if heading and not heading.startswith("task-"):
            holder = item.parent
            for task in item.select("li"):
                holder.append(task.extract())
            item.extract()
    for item in soup.select("ul"):
        if not item.find("li"):
            item.extract()
    context["furo_navigation_tree"] = get_navigation_tree(str(soup))


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", _tasks_in_navigation, priority=900)

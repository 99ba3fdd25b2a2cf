"""What a student wrote, made harmless for the pages of formgrader and feedback.

nbgrader's templates show rendered Markdown as it is: a script in an answer would run with the
rights of the person who grades. The course's own report, on the other hand, keeps its look.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from bleach import ALLOWED_TAGS, clean
from bleach.css_sanitizer import ALLOWED_CSS_PROPERTIES, CSSSanitizer
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

TAGS = {
    *ALLOWED_TAGS, "br", "del", "div", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img", "p", "pre",
    "section", "span", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr",
}  # fmt: skip
STYLES = CSSSanitizer([*ALLOWED_CSS_PROPERTIES, "background", "border", "border-left",
    "border-radius", "margin", "margin-bottom", "overflow-x", "padding"])  # fmt: skip
TABLE = '<table class="table table-condensed" style="width:auto">'  # Bootstrap's, with gaps
LONGEST = 20_000  # characters: the renderer's time may grow with their square
HIGHLIGHT = re.compile(r"\s*highlight( hl-\w+)?|[a-z][a-z0-9]{0,2}")


def _attribute(tag: str, name: str, value: str) -> bool:
    """No id and no foreign class: formgrader finds its fields by them. No address to call."""
    if name == "class":
        return tag in ("div", "span") and bool(HIGHLIGHT.fullmatch(value))
    if tag == "img":
        return name == "alt" or (name == "src" and value.startswith("data:image/"))
    if tag == "a" and name == "href":
        return not value.strip().lower().startswith("data:")
    return name in ("title", "colspan", "rowspan")


def _of_report(tag: str, name: str, value: str) -> bool:
    return name == "style" or _attribute(tag, name, value)


@pass_context
def markdown2html(context: Context, source: str) -> str:
    """Rendered Markdown with its pasted pictures; cleaned afterwards, so that code stays code.

    A longer text than anybody writes by hand is shown as it is.
    """
    if len(source) > LONGEST:
        return f"<pre>{escape(source)}</pre>"
    cell: Any = context.get("cell") or {}
    renderer = IPythonRenderer(
        escape=False, attachments=cell.get("attachments", {}), exclude_anchor_links=True
    )
    found = MarkdownWithMath(renderer=renderer).render(source)
    safe = clean(found, tags=TAGS, attributes=_attribute, protocols=("http", "https", "data"))
    return safe.replace("<table>", TABLE)


@pass_context
def clean_html(context: Context, element: str) -> str:
    """HTML of an output, which `TrimOutput` leaves to the course's reports alone; or a raw cell."""
    cell: Any = context.get("cell") or {}
    ours = cell.get("cell_type") == "code"
    return clean(
        str(element), tags=TAGS, css_sanitizer=STYLES,
        attributes=_of_report if ours else _attribute,
    )  # fmt: skip


FILTERS = {"markdown2html": markdown2html, "clean_html": clean_html}

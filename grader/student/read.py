"""`lab read`: a lab's chapter in the browser, or the handout in the terminal."""

from __future__ import annotations

import re
import webbrowser
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from grader.course.lab_toml import Lab
from grader.course.paths import ROOT

BOOK = ROOT / "build" / "book" / "html"  # where `make book` puts it
CODE_OR_FORMULA = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]*`)|\$\$.+?\$\$|\$(?!\s)[^$\n]+(?<!\s)\$",
    re.DOTALL | re.MULTILINE,
)


def chapter(lab: Lab) -> Path:
    """The page of a lab in the built book, whether there is one or not."""
    return BOOK / "labs" / lab.key / "README.html"


def open_chapter(lab: Lab) -> bool:
    """Whether a browser shows the lab's page of the book; False without a book or a browser."""
    page = chapter(lab)
    try:
        return page.is_file() and webbrowser.get().open(page.as_uri())
    except webbrowser.Error:
        return False


def formulas_kept(text: str) -> str:
    r"""Markdown in which formulas stand as they are written, for a reader that knows none.

    >>> formulas_kept(r"$a\,b$ in `$HOME`")
    '\\$a\\\\\\,b\\$ in `$HOME`'
    """

    def kept(found: re.Match[str]) -> str:
        return found[0] if found["code"] else re.sub(r"[!-/:-@\[-`{-~]", r"\\\g<0>", found[0])

    return CODE_OR_FORMULA.sub(kept, text)


def show_handout(lab: Lab, console: Console) -> None:
    """The handout in the terminal, page by page where there is one."""
    text = (lab.folder / "README.md").read_text(encoding="utf-8")
    with console.pager(styles=True) if console.is_terminal else nullcontext():
        console.print(Markdown(formulas_kept(text)))

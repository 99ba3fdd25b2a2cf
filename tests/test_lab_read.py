"""`lab read`: the chapter in the browser, else the handout in the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab_course import Course, make_course

PAGE = Path("build", "book", "html", "labs", "lab01", "README.html")


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_course(tmp_path, started="1")


def built(course: Course) -> Path:
    """A book with one page, and a browser that writes down what it is asked to show."""
    (course.root / PAGE).parent.mkdir(parents=True)
    (course.root / PAGE).write_text("<h1>Chapter</h1>")
    browser = course.root / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {course.root}/shown\n')
    browser.chmod(0o755)
    return browser


def test_opens_the_chapter_in_the_browser(course: Course) -> None:
    done = course.lab("read", "01", apart=True, BROWSER=f"{built(course)} %s")
    assert done.returncode == 0 and "The browser shows" in done.stdout
    assert (course.root / "shown").read_text().strip() == (course.root / PAGE).as_uri()


FORMULAS = (r"$x_i\,\Big(a\Big)$", r"$$p^{*}x*y*\;\{z\}_1$$", r"$1 + s\,\sin(t)$", "`$HOME *x*`")


def test_formulas_are_shown_as_they_are_written(course: Course) -> None:
    handout = course.root / "labs" / "lab01" / "README.md"
    code = "```bash\necho $HOME * $PATH\n```\n"
    handout.write_text(
        "# Handout\n\n" + code + "\n\n".join(FORMULAS) + "\n\n3 $ or 4 $ an *hour*\n"
    )
    shown = course.lab("read", "--here").stdout
    for text in (*FORMULAS, "echo $HOME * $PATH", "3 $ or 4 $ an hour"):
        assert text.strip("`") in shown


@pytest.mark.parametrize("words", [("--here",), ()])
def test_shows_the_handout_in_the_terminal(course: Course, words: tuple[str, ...]) -> None:
    """Asked for, or because no book is built."""
    browser = built(course)
    if not words:
        (course.root / PAGE).unlink()
    done = course.lab("read", *words, BROWSER=f"{browser} %s")
    assert done.returncode == 0 and "Handout" in done.stdout
    assert not (course.root / "shown").exists()

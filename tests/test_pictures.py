"""The README's pictures: one moving SVG without scripts, and what it shows."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from docs.pictures import PICTURES
from docs.watch_recording import _readable, moving
from grader.course.paths import ROOT


def shown(svg: str) -> list[str]:
    """The text of each frame."""
    root = ET.fromstring(svg)
    name = "{http://www.w3.org/2000/svg}"
    frames = root.findall(f"{name}svg")
    return [" ".join("".join(one.itertext()).split()) for one in frames]


def test_screens_follow_one_another() -> None:
    svg = moving(["\x1b[31mred & <wrong>\x1b[0m", "line 1\nline 2 \x1b[32mgreen\x1b[0m"])
    first, second = shown(svg)
    assert "red\xa0&\xa0<wrong>" in first.replace(" ", "\xa0") and "green" in second
    assert svg.count("animation-delay") == 2 and "prefers-reduced-motion" in svg


def test_a_line_that_was_written_over_shows_its_end() -> None:
    said = "\x1b[H\x1b[1mcollecting ...\x1b[0m\rcollected 5\r\nnext\x1b[K\r\n"
    assert _readable(said) == "collected 5\nnext"


def test_the_recording_goes_from_red_to_green() -> None:
    svg = (PICTURES / "watch.svg").read_text(encoding="utf-8")
    to_do, wrong, right = (text.replace("\xa0", " ") for text in shown(svg))
    assert "is not written yet" in to_do and "5 to do" in to_do
    assert "adds eps to the root" in wrong and "2 failed" in wrong
    assert "5 passed" in right and "failed" not in right
    assert not re.search(r"<script|https?://(?!www\.w3\.org)|/tmp/", svg)


def test_the_readme_opens_with_both() -> None:
    start = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    found = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", start)
    assert found == ["docs/pictures/dashboard.png", "docs/pictures/watch.svg"]
    assert all((ROOT / name).is_file() for name in found)

"""Which solutions of a lab are alike: every pair, the reference and the right variants among them.

Compared is what students write: what stands in the stubs does not count, nor do names, comments
and the order of functions (Schleimer et al. 2003, by copydetect). A person judges, never this.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import jinja2
from copydetect import CodeFingerprint, compare_files

from grader.authoring import variants
from grader.course.lab_toml import Lab
from grader.course.stubs import lab_stubs
from grader.grading.class_submissions import HandedIn
from grader.grading.report_text import clean, line
from grader.grading.submission import read
from grader.sandbox.limits import Limits

NOISE, GUARANTEE = 25, 30  # tokens: shorter runs are chance; of a longer one some part is found
REFERENCE = "the reference"
Pieces = list[tuple[str, bool]]  # text, and whether the other one has it too


@dataclass(frozen=True)
class Solution:
    """One person's code of a lab, as one text; `ours` where no student handed it in."""

    name: str
    fingerprint: CodeFingerprint
    ours: bool = False


@dataclass(frozen=True)
class Pair:
    """Two solutions, the share of each that the other one has as well, and where."""

    one: Solution
    two: Solution
    shares: tuple[float, float]
    slices: tuple[list[tuple[int, int]], list[tuple[int, int]]]

    @property
    def share(self) -> float:
        return max(self.shares)

    @cached_property
    def pieces(self) -> tuple[Pieces, Pieces]:
        """Both texts, cut where what they have in common begins and ends."""
        texts = (self.one.fingerprint.raw_code, self.two.fingerprint.raw_code)
        return _cut(texts[0], self.slices[0]), _cut(texts[1], self.slices[1])


def solutions(class_: Iterable[HandedIn], lab: Lab) -> Iterator[Solution]:
    """The reference, the right variants, and what each student handed in, if it can be read."""
    stubs = lab_stubs(lab)
    given = _fingerprint("given", stubs, window=1).hashes

    def solution(name: str, files: dict[str, str], ours: bool = True) -> Solution:
        written = {path: text for path, text in files.items() if text != stubs.get(path)}
        return Solution(name, _fingerprint(name, written, given), ours)

    yield solution(REFERENCE, _texts(lab.reference))
    for patch in variants.kept(lab):
        with tempfile.TemporaryDirectory() as folder:
            variants.write(patch, lab, Path(folder))
            yield solution(f"a right one ({patch.stem})", _texts(Path(folder) / lab.package))
    for one in class_:
        files = read(one.path, lab, Limits()).files
        if files:
            texts = {name: data.decode("utf-8", "replace") for name, data in files.items()}
            yield solution(one.student, texts, ours=False)


def pairs(found: Iterable[Solution]) -> Iterator[Pair]:
    """Every two of them that have anything in common."""
    for one, two in combinations(found, 2):
        if one.fingerprint.hashes & two.fingerprint.hashes:
            _, shares, slices = compare_files(one.fingerprint, two.fingerprint)
            places = [list(zip(*side.tolist(), strict=True)) for side in slices]
            yield Pair(one, two, tuple(map(float, shares)), (places[0], places[1]))


def chance(found: Iterable[Pair]) -> float:
    """What right solutions by different hands have in common at most: so much is no sign."""
    return max((pair.share for pair in found if pair.one.ours and pair.two.ours), default=0.0)


def page(found: Iterable[Pair], lab: Lab, most: int) -> str:
    """Up to `most` pairs with a student in them, side by side, those most alike first."""
    found = list(found)
    shown = [pair for pair in found if not (pair.one.ours and pair.two.ours)]
    shown = sorted(shown, key=lambda pair: -pair.share)[:most]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True
    )
    environment.filters |= {"clean": clean, "line": line}
    template = environment.get_template("similar.html.j2")
    return template.render(pairs=shown, lab=lab, chance=chance(found))


def _texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}


def _fingerprint(
    name: str,
    files: Mapping[str, str],
    given: Iterable[int] = (),
    window: int = GUARANTEE - NOISE + 1,
) -> CodeFingerprint:
    text = "\n\n".join(f"# {path}\n{files[path]}" for path in sorted(files))
    more = {"boilerplate": list(given), "language": "python", "fp": io.StringIO(text)}
    return CodeFingerprint(f"{name}.py", NOISE, window, **more)


def _cut(text: str, slices: list[tuple[int, int]]) -> Pieces:
    pieces: Pieces = []
    place = 0
    for start, end in sorted(slices):
        pieces += [(text[place:start], False), (text[start:end], True)]
        place = max(place, end)
    return [piece for piece in [*pieces, (text[place:], False)] if piece[0]]

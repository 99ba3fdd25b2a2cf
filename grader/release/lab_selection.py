"""Which labs a release holds: `01-03`, `01,02`, `all`, or none."""

from __future__ import annotations

from dataclasses import dataclass

from grader.course.errors import LabError
from grader.course.lab_toml import Lab, find_lab, labs


@dataclass(frozen=True)
class Selection:
    """The labs of a release, and those of them whose reference goes along."""

    labs: tuple[Lab, ...]
    closed: tuple[Lab, ...]

    @property
    def open(self) -> tuple[Lab, ...]:
        """The labs whose solutions must not be found in the release."""
        return tuple(lab for lab in labs() if lab not in self.closed)


def select(wanted: str, with_reference: str) -> Selection:
    """Read both options. Raises LabError for a reference of a lab that is not released."""
    chosen, closed = _read(wanted), _read(with_reference)
    for lab in closed:
        if lab not in chosen:
            raise LabError(
                f"--with-reference names {lab.key}, which --labs {wanted} leaves out; add it there."
            )
    if not chosen:
        raise LabError("--labs names no lab; give a range such as 01-03, a list, or all.")
    return Selection(chosen, closed)


def _read(text: str) -> tuple[Lab, ...]:
    if text.strip() in ("", "none"):
        return ()
    if text.strip() == "all":
        return tuple(labs())
    found: dict[int, Lab] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = find_lab(first), find_lab(last if dash else first)
        if low.number > high.number:
            raise LabError(f"{part.strip()} runs backwards; write the lower lab first.")
        found |= {lab.number: lab for lab in labs() if low.number <= lab.number <= high.number}
    return tuple(found[number] for number in sorted(found))

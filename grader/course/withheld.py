"""What a class must not read of the reference: of the labs that are open, and what computes so."""

from __future__ import annotations

from collections.abc import Collection

from grader.course.lab_toml import labs

# Steps that compute in place of these labs' reference: never of use beside a student's own code,
# and they show in other words what the student is to write.
IN_PLACE_OF_LABS: dict[str, tuple[str, ...]] = {"fast": ("lab02", "lab03", "lab04", "lab05")}
IN_PLACE_OF_LABS["gpu"] = IN_PLACE_OF_LABS["fast"]
IN_PLACE_OF_LABS["fast/speculative.py"] = ("lab08",)


def withheld(closed: Collection[str]) -> set[str]:
    """Folders and files of the reference, by their names below it, while only these labs are over.

    closed: keys of the labs whose reference may be seen.
    """
    computing = {name for name, those in IN_PLACE_OF_LABS.items() if not {*those} <= {*closed}}
    return computing | {lab.package for lab in labs() if lab.key not in closed}

"""The book's pages that are made of several handouts, as Markdown."""

from __future__ import annotations

import re
from collections import defaultdict

from docs.handouts import anchor, direct_needs, papers, rows, section, terms
from grader.course.lab_toml import Lab, labs


def hours(lab: Lab) -> str:
    return f"{lab.minutes / 60:.0f}"


def link(lab: Lab) -> str:
    return f"[{lab.number:02d} {lab.title}](/labs/{lab.key}/README.md)"


def learning_path() -> str:
    """What stands on what, as a picture and as a table with hours."""
    stands_on, by_key = direct_needs(), {lab.key: lab for lab in labs()}
    picture = ["```mermaid", "flowchart TB"]
    picture += [f'  {lab.key}["{lab.number:02d} {lab.title}"]' for lab in labs()]
    picture += [
        f"  {below} --> {key}" for key, names in stands_on.items() for below in sorted(names)
    ]
    table = ["| lab | hours | stands on |", "|---|---|---|"]
    for lab in labs():
        below = ", ".join(link(by_key[key]) for key in sorted(stands_on[lab.key])) or "nothing"
        table.append(f"| {link(lab)} | {hours(lab)} | {below} |")
    return "\n".join([*picture, "```", "", *table])


def glossary() -> str:
    """Every term once, with what each lab means by it."""
    meanings = defaultdict(list)
    shown = {}
    for lab in labs():
        for term in terms(lab):
            for name in term.names:
                shown.setdefault(anchor(name), name)
                whole = f"{term.shown}: {term.meaning}" if term.shown != name else term.meaning
                meanings[anchor(name)].append(f"- {whole} ({link(lab)})")
    lines = ["# Glossary", "", "Each term with the lab that defines it, in the lab's own words."]
    for target in sorted(shown, key=lambda key: shown[key].lower()):
        lines += ["", f"({target})=", f"**{shown[target]}**", "", *meanings[target]]
    return "\n".join(lines)


def twins() -> str:
    """What production engines do in the place of each task."""
    lines = ["# Production twins", "", "What vLLM 0.32 and others have in the place of each task."]
    for lab in labs():
        found = rows(section(lab, "Production twins"))
        head, body = found[0], found[1:]
        lines += ["", f"## Lab {lab.number:02d}: {lab.title}", ""]
        lines += [_row(head), "|" + "---|" * len(head), *map(_row, body)]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def reading() -> str:
    """Papers and documents by lab, with what to look for in each."""
    lines = ["# Papers", "", "What the handouts say to read, lab by lab."]
    for lab in labs():
        lines += ["", f"## Lab {lab.number:02d}: {lab.title}", ""]
        lines += [f"- {text}" for text in papers(lab)]
    return "\n".join(lines)


def made_pages() -> dict[str, str]:
    return {"glossary.md": glossary(), "twins.md": twins(), "papers.md": reading()}


def filled(template: str) -> str:
    """A hand-written page with what is made put in the place of @NAME@."""
    chapters = "\n".join(f"labs/{lab.key}/README" for lab in labs())
    values = {"PATH": learning_path, "LABS": lambda: chapters}
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]](), template)

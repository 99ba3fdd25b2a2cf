"""The README's tables of what works beside an option, for the tests that have a test a row."""

import re

from tests.processes import ROOT


def options_beside(title: str) -> tuple[list[str], list[str]]:
    """The options in the table whose second column has this title, and those that it calls refused.

    All others are said to work.
    """
    text = (ROOT / "README.md").read_text("utf-8")
    table = text[text.index(f"| option | {title} |") :].split("\n\n")[0].splitlines()[2:]
    rows = dict(re.fullmatch(r"\| (.+) \| (.+) \|", line).groups() for line in table)
    refused = [row for row, says in rows.items() if says.startswith("refused")]
    assert all(says.startswith("works") for row, says in rows.items() if row not in refused)
    return list(rows), refused

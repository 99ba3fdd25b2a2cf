"""How long a check may run before it is taken for an endless loop."""

from __future__ import annotations

import os

import pytest

from grader.checks.plugin_collect import RUNAWAY_SECONDS, runaway_seconds


@pytest.mark.parametrize(("load", "times"), [(0.1, 1), (1.0, 1), (4.0, 4)])
def test_a_busy_machine_gives_a_check_more_time(
    load: float, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    assert runaway_seconds() == times * RUNAWAY_SECONDS


def test_where_nothing_says_how_busy_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> None:
        raise OSError("no /proc in this box")

    monkeypatch.setattr(os, "getloadavg", hidden)
    assert runaway_seconds() == RUNAWAY_SECONDS

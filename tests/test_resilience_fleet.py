"""Router, servers, journals, real engines in virtual time: nothing lost, told twice, or left."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from nanovllm.resilience.told import FIELD, ToldAnswer
from tests.simulated_fleet import least, run_fleet

PART = 250


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hundreds of deaths a minute are nothing to log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def no_complaints(seeds: range) -> None:
    restarts = 0
    for seed in seeds:
        fleet = run_fleet(seed)
        restarts += fleet.restarts
        if fleet.complaints:
            pytest.fail(f"seed {seed}, {least(fleet)}: {fleet.complaints}")
    assert restarts  # faults were met


def test_random_seeds() -> None:
    no_complaints(range(15))


@pytest.mark.proof
@pytest.mark.parametrize("part", range(4))
def test_a_thousand_seeds(part: int) -> None:
    no_complaints(range(15 + part * PART, 15 + (part + 1) * PART))


def test_a_seed_replays() -> None:
    for seed in (3, 7, 11):
        one, two = run_fleet(seed), run_fleet(seed)
        assert (one.seconds, one.restarts, one.retries) == (two.seconds, two.restarts, two.retries)
        assert [c.answer for c in one.clients] == [c.answer for c in two.clients]


def test_a_failing_seed_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that does not say what its client has: one fault is left, which breaks a stream."""

    def anew(self: ToldAnswer) -> dict[str, Any]:
        return self._body | {FIELD: []}

    monkeypatch.setattr(ToldAnswer, "body", anew)
    failed = next(fleet for seed in range(60) if (fleet := run_fleet(seed)).complaints)
    left = least(failed)
    assert not left.disk
    assert sum(map(len, (*left.steps, left.wire, left.cuts, left.kills, left.rests))) == 1

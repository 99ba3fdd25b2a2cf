"""Kernels compiled for GPUs that are not here: what is read off, and what is refused."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from rich.console import Console

from grader.checks.compiled import Compiled, compiled
from grader.checks.kernel_calls import CALLS
from grader.course.errors import LabError
from grader.course.lab_toml import find_lab
from grader.student import kernels

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="there is no Triton on macOS")
H100 = [(90, "bfloat16", False)]
OTHERS = (80, "bfloat16", True), (90, "float32", True)  # the labs' checks have the rest


def add(n: int, first: int = 0, step: int = 1) -> Compiled:
    """What the compiler says of `add` over a slice of n bfloat16 numbers."""
    from nanovllm.kernels.add import add as add_two

    def call(dtype: torch.dtype, odd: bool) -> None:
        x = torch.zeros(first + n * step, dtype=dtype)[first::step]
        add_two(x, x, x)

    (found,) = compiled(call, H100)
    return found


@pytest.mark.parametrize("key", CALLS)
def test_every_kernel_compiles_for_both_cards_in_both_types(key: str) -> None:
    count = {1: 2, 7: 2}  # kernels of a task that has more than one
    for task, call in CALLS[key].items():
        found = compiled(call, OTHERS, quick=True)
        assert [one.refused for one in found] == [""] * 2 * count.get(task, 1), found


def test_the_width_of_a_load_is_read_off() -> None:
    whole, odd, late, apart = add(4096), add(4095), add(4096, first=1), add(4096, step=2)
    assert [one.load for one in (whole, odd, late, apart)] == [16, 2, 2, 2]
    assert whole.store == 16 and 0 < whole.registers < 40 and whole.warps == 4


def test_spills_and_shared_memory_are_read_off() -> None:
    spilling = compiled(CALLS["lab06"][8], [(90, "float32", False)])[0]
    assert spilling.registers == 255 and spilling.spills > 500
    assert 60_000 < spilling.shared < 70_000


def test_this_process_stays_as_it_was() -> None:
    from nanovllm.kernels.add import add as add_two

    add(16)
    ones = torch.ones(5)
    assert add_two(ones, ones).tolist() == [2.0] * 5


def test_a_kernel_that_needs_too_much_shared_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grader.checks.compiled.SHARED_MEMORY", {90: 20_000})
    (found,) = compiled(CALLS["lab06"][6], H100)
    assert found.refused == "it needs 20,736 bytes of shared memory; there are 20,000"


def test_a_refusal_says_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanovllm.kernels import rope

    plain: Any = rope.rotate_heads
    monkeypatch.setattr(rope, "rotate_heads", plain.fn)  # the compiler does not see it
    (found,) = compiled(CALLS["lab06"][3], H100, quick=True)
    assert "<function rotate_heads>" in found.refused


def test_what_goes_wrong_in_the_fork_is_told() -> None:
    def todo(dtype: torch.dtype, odd: bool) -> None:
        raise NotImplementedError("lab06 task 1: add")

    def wrong(dtype: torch.dtype, odd: bool) -> None:
        raise ValueError("no such width")

    with pytest.raises(NotImplementedError, match="lab06 task 1: add"):
        compiled(todo, H100)
    with pytest.raises(RuntimeError, match="ValueError: no such width"):
        compiled(wrong, H100)


def test_lab_kernels_prints_a_table() -> None:
    console = Console(record=True, width=120)
    assert kernels.show(find_lab(6), 2, console)
    rows = [line for line in console.export_text().splitlines() if "fused_add_rms_norm" in line]
    assert len(rows) == 3 and "H100" in rows[0] and "A100" in rows[2]
    with pytest.raises(LabError, match="lab02 asks for no Triton kernel"):
        kernels.show(find_lab(2), None, console)

"""Task 7: into how many parts a context is cut."""

import pytest

from grader import expect
from nanovllm.kernels.split_decode import choose_splits


@pytest.mark.check(task=7, points=2, title="How many splits")
def test_choice():
    cases = (
        (8, 132, 8192, 64),
        (8, 132, 100, 64),
        (2048, 132, 8192, 64),
        (1, 7, 500, 16),
        (3, 16, 16, 16),
        (5, 8, 0, 16),
        (3, 16, 300, 32),
        (5, 8, 8192, 64),
    )
    expect(
        [int(choose_splits(*case)) for case in cases],
        [33, 2, 1, 14, 1, 1, 10, 4],
        call="choose_splits(num_programs, num_processors, max_context_len, tile)",
        given={"calls": cases},
        cause="two programs a processor, no split without a tile, at least one",
    )

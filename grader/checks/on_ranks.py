"""Ranks as threads for checks: a deadlock among them becomes a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grader.checks.expect import expect


def on_ranks(
    size: int,
    work: Callable[[Any], Any],
    *,
    call: str,
    given: Mapping[str, Any] | None = None,
    cause: str = "",
) -> list[Any]:
    """`work(comm)` on ranks in threads, without gradients; their results by rank."""
    __tracebackhide__ = True
    # Imported here: the student's package is in place only while checks run.
    import torch

    from nanovllm.parallel.errors import ParallelError, RankDied
    from nanovllm.parallel.threads import run_ranks

    def alone(comm: Any) -> Any:
        with torch.inference_mode():
            return work(comm)

    try:
        return run_ranks(size, alone)
    except (ParallelError, RankDied) as error:
        expect.that(
            False,
            f"{size} ranks all come to an end",
            observed=f"{type(error).__name__}: {error}",
            call=call,
            given=given,
            cause=cause,
        )
        raise

"""The judge of a run: what each caller heard, against a run in which nothing failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nanovllm.batching.events import Aborted, EngineEvent, Failed
from nanovllm.generation.events import Completion, Finished, TokenGenerated

Sample = tuple[int, int]  # request id and index


@dataclass
class Transcript:
    """All that one sample has told: its tokens, its text, and how it ended, each time it did."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    ends: list[EngineEvent] = field(default_factory=list)


def transcripts(events: Iterable[EngineEvent]) -> dict[Sample, Transcript]:
    """Events of a run by sample."""
    found: dict[Sample, Transcript] = {}
    for event in events:
        if isinstance(event, TokenGenerated | Finished | Aborted | Failed):
            mine = found.setdefault((event.request_id, event.index), Transcript())
            if isinstance(event, TokenGenerated):
                mine.token_ids.append(event.token_id)
                mine.text += event.text
            else:
                mine.ends.append(event)
    return found


def complaints(
    heard: dict[Sample, Transcript], truth: dict[Sample, Completion], spared: Iterable[int] = ()
) -> list[str]:
    """What is wrong, a sentence each; nothing, if every sample ended once and told the truth.

    truth: of a run without faults. spared: requests that their callers gave up, or that may fail:
    what they told must be a beginning of the truth, however they ended.
    """
    wrong, spared = [], set(spared)
    for sample, wanted in truth.items():
        mine = heard.get(sample, Transcript())
        name = f"request {sample[0]}, sample {sample[1]}"
        if len(mine.ends) != 1:
            wrong.append(f"{name} ended {len(mine.ends)} times")
            continue
        [end] = mine.ends
        told = tuple(mine.token_ids)
        if told != wanted.token_ids[: len(told)] or not wanted.text.startswith(mine.text):
            wrong.append(f"{name} told {told}, but the truth is {wanted.token_ids}")
        elif sample[0] in spared:
            continue
        elif not isinstance(end, Finished) or mine.text != wanted.text:
            wrong.append(f"{name} ended by {type(end).__name__}")
        elif _said(end.completion) != _said(wanted) or told != wanted.token_ids:
            wrong.append(f"{name} is not whole: {told} of {wanted.token_ids}")
    return wrong


def _said(completion: Completion) -> tuple[Any, ...]:
    """All that must be equal; log-probabilities differ in their last digits."""
    c = completion
    return c.token_ids, c.text, c.finish_reason, c.stop_reason

"""The judge of a run: what each caller heard, against a run in which nothing failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanovllm.batching.events import Aborted, EngineEvent, Failed
from nanovllm.generation.events import Completion, Finished, TokenGenerated
from nanovllm.resilience.failures import ENTRY, Failure, Level, Rules, Rung

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
    """What is wrong, a sentence for each sample that is not right; nothing, if all are.

    truth: each sample's completion in a run without faults. A sample is right if

    - it ended exactly once; a sample of which nothing was heard has not ended
    - its tokens are the first ones of the truth's, and its text is a beginning of the truth's
    - it ended by Finished, with the truth's tokens, text, finish_reason and stop_reason, in what
      was told one by one and in the event's own completion (log-probabilities may differ)

    Of requests in `spared`, whose callers gave them up or which may fail, only the first two are
    asked, whatever their end. A sample that the truth does not know is wrong, of whatever request.
    Each sentence has the request's id.
    """
    ### BEGIN SOLUTION
    wrong, spared = [], set(spared)
    for sample in [*truth, *(one for one in heard if one not in truth)]:
        mine, wanted = heard.get(sample, Transcript()), truth.get(sample)
        said = _complaint(mine, wanted, sample[0] in spared)
        if said:
            wrong.append(f"Request {sample[0]}, sample {sample[1]}, {said}.")
    return wrong
    ### END SOLUTION


### BEGIN SOLUTION
def _complaint(mine: Transcript, wanted: Completion | None, spared: bool) -> str:
    if wanted is None:
        return "was never asked for"
    if len(mine.ends) != 1:
        return f"ended {len(mine.ends)} times"
    [end], told = mine.ends, tuple(mine.token_ids)
    if told != wanted.token_ids[: len(told)] or not wanted.text.startswith(mine.text):
        return f"told {told} {mine.text!r}, but the truth is {wanted.token_ids} {wanted.text!r}"
    if spared:
        return ""
    if not isinstance(end, Finished):
        return f"ended by {type(end).__name__}"
    if told != wanted.token_ids or mine.text != wanted.text:
        return f"is not whole: {told} of {wanted.token_ids}"
    if _said(end.completion) != _said(wanted):
        return "was told the truth, and another completion"
    return ""


def _said(completion: Completion) -> tuple[Any, ...]:
    """All that must be equal; log-probabilities differ in their last digits."""
    c = completion
    return c.token_ids, c.text, c.finish_reason, c.stop_reason


### END SOLUTION


def ladder_complaints(history: Sequence[Rung], rules: Rules) -> list[str]:
    """Where a history of failures breaks the ladder's rules, a sentence for each such rung.

    Each rung is judged by those of its kind before it, as they stand in the history:

    - the first of its kind is at the level of ENTRY
    - less than `calm` seconds after the one before, it is at the same level, as long as fewer than
      `tries` stand there in a row, with no calm between them; else it is one level higher
    - later, it is one level lower for each whole `calm` seconds, but not below ENTRY
    - after one at HUMAN it is at HUMAN, however late (nobody resets in these histories)
    - it is not earlier than the one before

    >>> levels = Level.REQUEST, Level.SYSTEM
    >>> skips = [Rung(float(n), Failure.TIMEOUT, level) for n, level in enumerate(levels)]
    >>> len(ladder_complaints(skips, Rules(tries=1)))
    1
    """
    ### BEGIN SOLUTION
    wrong: list[str] = []
    before: dict[Failure, tuple[Rung, int]] = {}  # the last one, and tries at its level
    for rung in history:
        wanted, tries, late = ENTRY[rung.failure], 0, True
        if rung.failure in before:
            last, had = before[rung.failure]
            late = rung.time >= last.time
            down = int((rung.time - last.time) // rules.calm)
            tries = had if rung.level == last.level and down <= 0 else 0
            if last.level is Level.HUMAN:
                wanted = Level.HUMAN
            elif down > 0:
                wanted = Level(max(last.level - down, wanted))
            else:
                wanted = Level(last.level + (had >= rules.tries))
        if rung.level != wanted or not late:
            wrong.append(
                f"At {rung.time:g} s, {rung.failure.value} was answered at {rung.level.name}, "
                f"not at {wanted.name}{'' if late else ', and before the one before it'}."
            )
        before[rung.failure] = rung, tries + 1
    return wrong
    ### END SOLUTION

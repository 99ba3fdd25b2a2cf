"""From engine events to what is new in each choice of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nanovllm.batching.events import Aborted, EngineEvent, Failed
from nanovllm.generation.events import Finished, Logprob, TokenGenerated
from nanovllm.serving.errors import ApiError
from nanovllm.serving.stream import Stream

# How the choices of a stream end that was given up, by its reason: finish_reason, stop_reason.
GIVEN_UP = {"timeout": ("length", "timeout"), "cancelled": ("abort", "cancelled")}
ABORTED = ("abort", None)


@dataclass(slots=True)
class Delta:
    """What is new in one choice: its text, its tokens, and, at its end, why it ended."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


def merge(stream: Stream, events: Sequence[EngineEvent]) -> list[Delta]:
    """One Delta for each choice that has something new, in the order in which they first appear.

    The text is that of the events (what the engine holds back is not in them), never decoded
    anew. A sample that was aborted ends as `GIVEN_UP` says for `stream.reason`, else as ABORTED.

    Raises:
        ApiError: a sample failed, so nobody's answer is whole; of status 500, it names the type
            and the text of the sample's error.
    """
    ### BEGIN SOLUTION
    found: dict[int, Delta] = {}
    for event in events:
        if isinstance(event, Failed):
            raise ApiError(f"The request failed: {type(event.error).__name__}: {event.error}")
        if not isinstance(event, (TokenGenerated, Finished, Aborted)):
            continue
        index = stream.choice(event)
        delta = found.get(index)
        if delta is None:
            delta = found[index] = Delta(index)
        if isinstance(event, TokenGenerated):
            delta.text += event.text
            delta.token_ids.append(event.token_id)
            if event.logprobs is not None:
                delta.logprobs.append(event.logprobs)
        elif isinstance(event, Finished):
            delta.finish_reason = event.completion.finish_reason
            delta.stop_reason = event.completion.stop_reason
        else:
            delta.finish_reason, delta.stop_reason = GIVEN_UP.get(stream.reason or "", ABORTED)
    return list(found.values())
    ### END SOLUTION

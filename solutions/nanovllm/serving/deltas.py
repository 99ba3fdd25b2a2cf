"""From engine events to what is new in each choice of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nanovllm.batching.events import Aborted, EngineEvent, Failed
from nanovllm.generation.events import Finished, Logprob, TokenGenerated
from nanovllm.serving.errors import ApiError
from nanovllm.serving.stream import Stream


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

    Text, token ids and log-probabilities are those of the TokenGenerated events: what the engine
    holds back is not in them, and nothing is decoded anew. A Finished brings its completion's
    finish_reason and stop_reason. An Aborted ends its choice by the stream's `reason`; events of
    other kinds bring nothing:

    | reason | finish_reason | stop_reason |
    |---|---|---|
    | "timeout", and the sample has tokens | "length" | "timeout" |
    | "timeout", and it has none | "abort" | "timeout" |
    | "cancelled" | "abort" | "cancelled" |
    | another, or None | "abort" | None |

    Raises:
        ApiError: a sample failed, so nobody's answer is whole. Its status is 500, and its message
            holds the type and the text of the sample's error.

    >>> stream = Stream([7])
    >>> stream.reason = "timeout"
    >>> [delta] = merge(stream, [Aborted(7, 0, token_ids=(), text="", time=0.0)])
    >>> delta.finish_reason, delta.stop_reason
    ('abort', 'timeout')
    """
    ### BEGIN SOLUTION
    found: dict[int, Delta] = {}
    for one in events:
        if isinstance(one, Failed):
            raise ApiError(f"The request failed: {type(one.error).__name__}: {one.error}")
        if not isinstance(one, TokenGenerated | Finished | Aborted):
            continue
        index = stream.choice(one)
        delta = found.setdefault(index, Delta(index))
        if isinstance(one, TokenGenerated):
            delta.text += one.text
            delta.token_ids.append(one.token_id)
            if one.logprobs is not None:
                delta.logprobs.append(one.logprobs)
        elif isinstance(one, Finished):
            delta.finish_reason = one.completion.finish_reason
            delta.stop_reason = one.completion.stop_reason
        else:
            late = stream.reason == "timeout"
            delta.finish_reason = "length" if late and one.token_ids else "abort"
            delta.stop_reason = stream.reason if late or stream.reason == "cancelled" else None
    return list(found.values())
    ### END SOLUTION

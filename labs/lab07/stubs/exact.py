"""What a reader of exact token ids and of a scored prompt needs besides the deltas (given)."""

from collections.abc import Sequence

from nanovllm.batching.events import EngineEvent
from nanovllm.generation.events import Prefilled
from nanovllm.serving.deltas import Delta
from nanovllm.serving.stream import Stream
from nanovllm.serving.writers import Writer


class Exact:
    """Takes the deltas of one stream on their way, for a writer that needs more than their text.

    - A delta without anything to show waits, with its token ids, for the next one of its choice:
      so the ids of all chunks together are those of the answer.
    - Where prompts are scored, everything waits until their log-probabilities are here; they come
      with Prefilled.
    - Where only the prompt is wanted, the one token that the engine draws is dropped.
    """

    def __init__(self, stream: Stream, writer: Writer, scored: bool) -> None:
        self.stream, self.writer = stream, writer
        self.scored = scored
        ids = writer.with_ids or writer.tell_ids
        self.wanted = self.scored or ids or writer.continuous_usage or writer.only_prompt
        self._waiting: list[Delta] = []
        self._ids: dict[int, list[int]] = {}  # of deltas that had nothing to show

    def __call__(self, events: Sequence[EngineEvent], deltas: list[Delta]) -> list[Delta]:
        """The deltas that may be shown now."""
        for event in events if self.scored else ():
            if isinstance(event, Prefilled) and event.logprobs is not None:
                number = self.stream.request_ids.index(event.request_id)
                self.writer.scores[number] = list(event.logprobs)
        self._waiting += deltas
        if self.scored and len(self.writer.scores) < len(self.stream.request_ids):
            ended = self.stream.num_open == 0  # before its prompts were read
            return self._take() if ended else []
        return self._take()

    def _take(self) -> list[Delta]:
        deltas, self._waiting = self._waiting, []
        return [delta for delta in map(self._whole, deltas) if delta is not None]

    def _whole(self, delta: Delta) -> Delta | None:
        if self.writer.only_prompt:
            reason = delta.finish_reason
            return Delta(
                delta.index, finish_reason=reason and ("length" if reason == "stop" else reason)
            )
        ids = self._ids.setdefault(delta.index, [])
        ids += delta.token_ids
        if not (delta.text or delta.logprobs or delta.finish_reason):
            return None
        delta.token_ids = ids
        self._ids[delta.index] = []
        return delta

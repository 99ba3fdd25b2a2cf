"""How much of each prompt the prefix cache had: the `cached_tokens` of an answer (given)."""

from collections.abc import Sequence

from nanovllm.batching.events import EngineEvent, Stepped


class PromptHits:
    """Notes where the first chunk of a request starts: what stands before it was in the cache."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[int, int]] = {}  # requests of which no chunk was computed

    def watch(self, request_ids: Sequence[int]) -> dict[int, int]:
        """A dict that will hold, for each of these requests, how many tokens the cache had."""
        found: dict[int, int] = {}
        self._waiting |= dict.fromkeys(request_ids, found)
        return found

    def forget(self, request_ids: Sequence[int]) -> None:
        """Nobody asks about these any more."""
        for request_id in request_ids:
            self._waiting.pop(request_id, None)

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Take in the events of a step."""
        if not self._waiting or not events or not isinstance(events[-1], Stepped):
            return
        for run in events[-1].chunks:
            found = self._waiting.pop(run.request_id, None) if run.index == 0 else None
            if found is not None:
                found[run.request_id] = run.start

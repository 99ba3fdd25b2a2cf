"""Lab 08's counters, with vLLM's names; only where the engine guesses (given).

Source: `SpecDecodingProm` in vllm/v1/spec_decode/metrics.py of vLLM 0.32.
"""

from collections.abc import Sequence

from prometheus_client import Counter

from nanovllm.batching.events import EngineEvent, Stepped
from nanovllm.serving.registry import LABELS, Registry


class GuessCounts:
    """Counts guesses in a server's registry. most: guesses of a request in one step, at most.

    num_drafts counts the chunks that had guesses: each brings the guesses that stand, and one token
    more. So the mean acceptance length, with that token, is 1 + accepted_tokens / drafts.
    """

    def __init__(self, registry: Registry, most: int) -> None:
        self.drafts = registry.counter("spec_decode_num_drafts", "Guessed runs.")
        self.draft_tokens = registry.counter("spec_decode_num_draft_tokens", "Guesses.")
        self.accepted_tokens = registry.counter(
            "spec_decode_num_accepted_tokens", "Guesses that stood."
        )
        places = Counter(
            "nanovllm:spec_decode_num_accepted_tokens_per_pos",
            "Guesses that stood, by their place in the run, from 0.",
            (*LABELS, "position"),
            registry=registry.registry,
        )
        self.by_place = [places.labels(*registry.labels, place) for place in range(most)]

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Take in the events of a step."""
        for run in events[-1].chunks if events and isinstance(events[-1], Stepped) else ():
            if run.drafts:
                self.drafts.inc()
                self.draft_tokens.inc(run.drafts)
                self.accepted_tokens.inc(run.accepted)
                for place in self.by_place[: run.accepted]:
                    place.inc()

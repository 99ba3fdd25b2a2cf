"""From the engine's events to the metrics."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanovllm.batching.events import (
    Aborted,
    Admitted,
    EngineEvent,
    Failed,
    Preempted,
    Queued,
    Stepped,
)
from nanovllm.generation.events import Finished, Prefilled, TokenGenerated
from nanovllm.serving.registry import Registry


@dataclass
class Sample:
    """What is remembered of a sample until it ends; times are the engine's."""

    arrival: float
    admitted: float | None = None  # for the first time
    first: float | None = None  # its first token
    last: float | None = None  # its newest token
    tokens: int = 0
    running: bool = False


class Metrics:
    """Reads every event once; holds only the samples that have not ended."""

    def __init__(self, model_name: str) -> None:
        self.registry = Registry(model_name)
        self.samples: dict[tuple[int, int], Sample] = {}
        self.unread: set[int] = set()  # requests of whose first sample no chunk was computed yet

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Take in the events of a step; `usage` is the share of the KV cache in use after it.

        The two gauges of samples are set after every call, from the samples themselves: no event
        says that the last one has gone.
        """
        for event in events:
            self._event(event)
        raise NotImplementedError("lab07 task 5: Metrics.observe")

    def _event(self, event: EngineEvent) -> None:
        if isinstance(event, TokenGenerated):  # most of them
            if (sample := self.samples.get((event.request_id, event.index))) is not None:
                self._token(sample, event.time)
        elif isinstance(event, Queued):
            self.samples[event.request_id, event.index] = Sample(event.time)
            self.unread.add(event.request_id)
        elif isinstance(event, Stepped):
            self._step(event)
        elif isinstance(event, Prefilled):
            self.registry.prompt_tokens.inc(event.num_tokens)
            self.registry.prefix_queries.inc(event.num_tokens)
        elif (sample := self.samples.get((event.request_id, event.index))) is not None:
            if isinstance(event, Admitted | Preempted):
                self._move(sample, event)
            else:
                self._end(sample, event)
                del self.samples[event.request_id, event.index]
                if not isinstance(event, Finished):
                    self.unread.discard(event.request_id)

    def _move(self, sample: Sample, event: Admitted | Preempted) -> None:
        """A sample came into the batch, or was sent back to the queue.

        The queue time is that of the first admission; what it waits later is part of its decode.
        """
        raise NotImplementedError("lab07 task 5: Metrics._move")

    def _step(self, step: Stepped) -> None:
        """Count the step's tokens, and what the prefix cache saved.

        Where the first chunk of a request in `unread` (sample 0 alone) does not begin at 0, the
        tokens before it were in the store: hits. Its later chunks, and those after a preemption,
        say nothing about it. What is to be counted of a step is known from it alone, as the events
        of its samples come before it.
        """
        raise NotImplementedError("lab07 task 5: Metrics._step")

    def _token(self, sample: Sample, now: float) -> None:
        """A sample has its next token: its first closes the prefill, the others a gap each.

        Time to first token counts from arrival; prefill from the first admission.
        """
        raise NotImplementedError("lab07 task 5: Metrics._token")

    def _end(self, sample: Sample, event: Finished | Aborted | Failed) -> None:
        """A sample has ended: count it under its reason, and observe its times if it finished.

        Reasons: the finish_reason of a Finished, "abort" of an Aborted, "error" of a Failed; for
        the last two no time of the whole is observed. Time per output token is the decode time
        over the tokens after the first; a sample of one token has none, and a decode time of 0.
        """
        raise NotImplementedError("lab07 task 5: Metrics._end")

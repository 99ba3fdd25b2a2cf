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
    """What may be remembered of a sample until it ends (given); times are the engine's."""

    arrival: float
    admitted: float | None = None  # for the first time
    first: float | None = None  # its first token
    last: float = 0.0  # its newest token
    tokens: int = 0
    in_batch: bool = False


class Metrics:
    """Counts what happens; times are those of the events.

    Metrics(model_name). `registry` is the `Registry(model_name)` whose metrics it fills;
    `num_open` is the number of samples that it remembers. `observe(events, usage)` takes in the
    events of a step, each once; `usage` is the share of the KV cache in use after the step. A
    sample begins with its Queued and ends with a Finished, Aborted or Failed; then it is
    forgotten. Events of a sample that is not remembered count nothing. The engine reports Admitted
    only of a sample that waits, and Preempted only of one that runs.

    - Gauges, right after every call: `running` (admitted, and not preempted since), `waiting` (the
      other open samples), `kv_usage`.
    - `ttft`: from Queued to the first token. `itl`: between one token of a sample and the next,
      whatever came between. `generation_tokens`: tokens.
    - `queue`: from Queued to the first Admitted. `prefill`: from there to the first token.
    - Of a Finished only: `e2e` from Queued to it; `decode` from the first token to the last;
      `tpot`, the decode time over the tokens after the first, where there are any.
    - `ended[reason]`: the finish_reason of a Finished, "abort" of an Aborted, "error" of a Failed.
    - `preemptions`: Preempted. `prompt_tokens` and `prefix_queries`: num_tokens of Prefilled,
      which is an event of sample 0.
    - `step_tokens`: the tokens of all chunks of a Stepped, one observation a step. `prefix_hits`:
      where the first chunk of a request's sample 0 starts; later chunks, and those after a
      preemption, tell nothing of the prefix cache. Stepped is the last event of a step. It also has
      the chunks of samples that ended in the step, and these count.

    >>> from nanovllm.batching.events import Queued
    >>> metrics = Metrics("tiny")
    >>> metrics.observe([Queued(request_id=1, index=0, time=0.0)], usage=0.0)
    >>> metrics.num_open
    1
    """

    ### BEGIN SOLUTION
    def __init__(self, model_name: str) -> None:
        self.registry = Registry(model_name)
        self._samples: dict[tuple[int, int], Sample] = {}
        self._unread: set[int] = set()  # requests of whose first sample no chunk was computed yet

    @property
    def num_open(self) -> int:
        return len(self._samples)

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        for one in events:
            self._take(one)
        # a step tells of its chunks after the ends in it
        self._unread &= {request_id for request_id, index in self._samples if index == 0}
        running = sum(sample.in_batch for sample in self._samples.values())
        self.registry.running.set(running)
        self.registry.waiting.set(len(self._samples) - running)
        self.registry.kv_usage.set(usage)

    def _take(self, event: EngineEvent) -> None:
        match event:
            case Stepped():
                self._step(event)
            case Prefilled() if (event.request_id, 0) in self._samples:
                self.registry.prompt_tokens.inc(event.num_tokens)
                self.registry.prefix_queries.inc(event.num_tokens)
            case Queued():
                self._samples[event.request_id, event.index] = Sample(event.time)
                self._unread.add(event.request_id)
            case Prefilled():
                pass
            case _ if (sample := self._samples.get((event.request_id, event.index))) is not None:
                self._of_sample(sample, event)

    def _step(self, step: Stepped) -> None:
        self.registry.step_tokens.observe(sum(run.length for run in step.chunks))
        for run in step.chunks:
            if run.index == 0 and run.request_id in self._unread:
                self._unread.remove(run.request_id)
                self.registry.prefix_hits.inc(run.start)

    def _of_sample(self, sample: Sample, event: EngineEvent) -> None:
        match event:
            case TokenGenerated():
                self._token(sample, event.time)
            case Preempted():
                sample.in_batch = False
                self.registry.preemptions.inc()
            case Admitted():
                sample.in_batch = True
                if sample.admitted is None:
                    sample.admitted = event.time
                    self.registry.queue.observe(event.time - sample.arrival)
            case Finished() | Aborted() | Failed():
                self._end(sample, event)

    def _token(self, sample: Sample, now: float) -> None:
        if sample.first is None:
            sample.first = now
            self.registry.ttft.observe(now - sample.arrival)
            if sample.admitted is not None:
                self.registry.prefill.observe(now - sample.admitted)
        else:
            self.registry.itl.observe(now - sample.last)
        sample.last = now
        sample.tokens += 1
        self.registry.generation_tokens.inc()

    def _end(self, sample: Sample, event: Finished | Aborted | Failed) -> None:
        del self._samples[event.request_id, event.index]
        if not isinstance(event, Finished):
            self.registry.ended["abort" if isinstance(event, Aborted) else "error"].inc()
            return
        self.registry.ended[event.completion.finish_reason].inc()
        self.registry.e2e.observe(event.time - sample.arrival)
        if sample.first is not None:
            self.registry.decode.observe(sample.last - sample.first)
            if sample.tokens > 1:
                self.registry.tpot.observe((sample.last - sample.first) / (sample.tokens - 1))

    ### END SOLUTION

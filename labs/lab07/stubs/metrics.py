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

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab07 task 5: Metrics")

"""What one API request hears from the engine."""

import asyncio
from collections.abc import Sequence

from nanovllm.batching.events import Aborted, EngineEvent, Failed
from nanovllm.generation.events import Finished


class Stream:
    """The events of one API request, for an `async for` that gives lists of them.

    Stream(request_ids, n=1, name=""). request_ids: the engine's id of each prompt, in order; each
    prompt has n samples. name: by which people know the request. A stream belongs to the event
    loop's thread.

    - `request_ids` (a tuple), `n`, `name`: as they were given.
    - `reason`: None, or why the request was given up. Whoever gives it up sets it.
    - `num_open`: samples that have not ended. Finished, Aborted and Failed each end one sample.
    - `ended`: whether nothing more will come: no sample is open, or the stream has failed.
    - `choice(event)`: the number of the choice that an event of a sample belongs to. Choices are
      numbered prompt by prompt.
    - `put(events)`: add events of this request. The caller may change its list afterwards.
    - `fail(error)`: end the stream with an error. Nobody calls `put` or `fail` after the end.
    - Each turn of the `async for` gives all events since the last turn, in their order, and waits
      while there are none. After the last event the iteration ends, or raises the error that the
      stream failed with. A slow reader gets more at once, and keeps nobody waiting.

    >>> from nanovllm.batching.events import Admitted
    >>> Stream([7, 9], n=2).choice(Admitted(9, 1, time=0.0))
    3
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab07 task 1: Stream")

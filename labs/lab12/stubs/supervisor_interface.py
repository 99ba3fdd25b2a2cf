"""What a supervisor is asked, and what it does; `supervisor.py` starts empty (given).

`supervisor.py` has one class, `SupervisedEngine(make_engine, limit=None, clock=time.monotonic,
engine=None)`: make_engine() gives a new engine; limit is a RestartLimit, its defaults without one;
clock is read for deadlines and for the limit; engine is the first one, if it is made already.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from nanovllm.batching.events import EngineEvent
from nanovllm.generation.params import SamplingParams


class Supervisor(Protocol):
    """Has the face of the engine that `make_engine()` gives, and outlives it.

    An engine dies when its `step` raises (NotImplementedError is no death: it is passed on). Then
    a new one is made in the same call of `step`, also where nothing is open, and all open requests
    are added to it in the order in which they came. What a caller hears is what one engine that
    never fails would tell: no token twice, none left out, one end for each sample, the same tokens
    and texts, for every sampling parameter. `entry.py` (task 4) keeps what is needed for that.

    Attributes that are not named here are those of the present engine.
    """

    restarts: int  # how many engines were made after the first
    failure: Exception | None  # the GaveUpError, once there was one

    @property
    def has_unfinished(self) -> bool:
        """Whether a further step has anything to do or to report."""
        ...

    def add_request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        seed: int | None = None,
        request_id: int | None = None,
        priority: Any = 0,
        deadline: float | None = None,
    ) -> int:
        """As the engine's; returns the id.

        By default it is the lowest number that was not given out here, and that no open request
        has. Whether a number that a caller named, or that was refused, was given out is left open;
        so is what happens with the id of a request that is over for its caller, and still in the
        engine. The engine gets the request at once, and the request has one seed in all engines:
        that of `params`, else `seed`, else one that is drawn here. priority is given to the engine
        only where it is not 0, deadline only where it is not None. deadline: in so many seconds; a
        later engine gets what is left of it by `clock`, at least 0.001.

        What the engine refuses (it raises) is raised, and is no request; so is the id of an open
        request, wherever this is (DuplicateRequestError). What a later engine refuses by a
        RequestError is Failed by this error, each open sample of it, unless it was aborted.
        """
        ...

    def abort(self, request_id: int) -> bool:
        """Give a request up; False if there is none of that id (any more).

        It ends by one Aborted for each open sample in a later step, in the next one if it waits
        outside (see `step`), whatever becomes of the engine meanwhile, unless it is given up.
        token_ids and text of an Aborted are what the sample has told, over all engines.
        """
        ...

    def step(self) -> list[EngineEvent]:
        """One round of the engine, or its death and the making of a new one.

        - At a death, each sample whose Admitted was told, and no Preempted since, is told as
          Preempted once.
        - Each request in the batch gets a strike: these, and those of `in_batch` (in entry.py),
          since a step that died has told nobody whom it had let in. At the strike of a request that
          has told 8 tokens or more since its last one, all earlier ones are forgiven: this is its
          first. Until then they count.
        - Who has two strikes is a suspect. Of suspects one at a time is in the engine, in the order
          in which they came; the others wait outside. Who is none does not wait for them. If an
          engine dies with a suspect in the batch, the suspect alone gets the strike.
        - At three strikes a request is Failed, each open sample of it, by a PoisonedRequestError;
          it never comes into an engine again. Who was aborted before ends by Aborted all the same.
        - A step whose events have Failed by NonFiniteLogitsError, and no TokenGenerated, is a
          death, too (RELOAD): nobody hears of these Failed; the step's other events are told
          before its Preempted. It is no death, and they stand, where they are of one request alone,
          and this is a suspect, or where the limit allows no restart. The limit is asked once a
          death.
        - Events of requests that have ended already are dropped; those without a request_id are
          told. Of a request that nobody here asked for: left open.

        Raises:
            GaveUpError: the limit does not allow one more restart, or make_engine raises. It is
                for good: each further `step` and `add_request` raises it again.
        """
        ...

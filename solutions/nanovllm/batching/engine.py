"""`Engine`: a loop that never stops for one request, and never mixes two up."""

### BEGIN SOLUTION
from collections.abc import Sequence as Seq

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.batching import reports
from nanovllm.batching.engine_base import EngineBase
from nanovllm.batching.errors import NonFiniteLogitsError
from nanovllm.batching.events import EngineEvent
from nanovllm.batching.interface import Outcome
from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request, Status
from nanovllm.generation.events import Sampled


class Engine(EngineBase):
    """Many requests, one model: they join, share steps, and leave, each as if it were alone."""

    @torch.inference_mode()
    def step(self) -> list[EngineEvent]:
        """One round: collect, schedule, execute, draw, update, and report."""
        started = self.clock()
        events = self._collect()
        plan = self.scheduler.schedule()
        events += reports.moves(plan, self.clock())
        if not plan.chunks:
            return events
        running = len(self.scheduler.running)
        events += self.update(plan, self._outcomes(plan))
        now = self.clock()
        self.scheduler.observe(now - started)
        events.append(reports.stepped(plan, self.scheduler, running, started, now))
        return events

    def _collect(self) -> list[EngineEvent]:
        """Read the notes: arrivals go to the scheduler, then what was given up ends."""
        arrived, given_up = self.requests.notes()
        events: list[EngineEvent] = []
        for request in arrived:
            self.scheduler.add(request)
            events.append(reports.queued(request))
        for request in given_up:
            if not request.ended:
                self._end(request, Status.FINISHED)
                events.append(reports.aborted(request, self.clock()))
        return events

    def _outcomes(self, plan: Plan) -> list[Outcome]:
        """What came of each chunk of the plan, in order."""
        try:
            return self.draw(plan, self.execute(plan))
        except NotImplementedError:
            raise
        except Exception as error:
            if len(plan.chunks) == 1:
                return [error]
            return [o for chunk in plan.chunks for o in self._outcomes(Plan((chunk,)))]

    @torch.inference_mode()
    def execute(self, plan: Plan) -> Float[Tensor, "N V"]:
        """Logits of the N chunks that complete, in order."""
        token_ids: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        for chunk in plan.chunks:
            token_ids += chunk.request.token_ids(chunk.start, chunk.end)
            positions += range(chunk.start, chunk.end)
            if chunk.completes:
                last.append(len(token_ids) - 1)
        ids, places, rows = (
            torch.tensor(x, dtype=torch.long, device=self.device)
            for x in (token_ids, positions, last)
        )
        hidden = self.model(ids, places, self.store.bind(plan))
        return self.model.logits(hidden[rows])

    @torch.inference_mode()
    def draw(self, plan: Plan, logits: Float[Tensor, "N V"]) -> list[Outcome]:
        """What comes of each chunk of the plan, in order: a token where it completes, else None."""
        complete = [chunk.request for chunk in plan.chunks if chunk.completes]
        finite = logits.amax(dim=-1).isfinite().tolist()
        good = [row for row, well in enumerate(finite) if well]
        rows = [complete[row].sequence.row for row in good]
        drawn: list[Outcome] = [NonFiniteLogitsError("No token can be drawn.") for _ in complete]
        for row, sampled in zip(
            good, self.sampler(logits[good], rows) if good else (), strict=True
        ):
            drawn[row] = sampled
        outcome_of = dict(zip(complete, drawn, strict=True))
        return [outcome_of.get(chunk.request) for chunk in plan.chunks]

    def update(self, plan: Plan, outcomes: Seq[Outcome]) -> list[EngineEvent]:
        """Count what was computed, append the tokens, end what has ended; the events of it all."""
        pairs = list(zip(plan.chunks, outcomes, strict=True))
        done = Plan(tuple(chunk for chunk, outcome in pairs if not isinstance(outcome, Exception)))
        self.store.commit(done)
        self.scheduler.update(done)
        events: list[EngineEvent] = []
        for chunk, outcome in pairs:
            if isinstance(outcome, Exception):
                events.append(self._fail(chunk.request, outcome))
            elif outcome is not None:
                events += self._append(chunk.request, outcome)
        return events

    def _append(self, request: Request, sampled: Sampled) -> list[EngineEvent]:
        """Give a request its next token, and end it if that was the last one."""
        now = self.clock()
        events = reports.prefilled(request, now)
        try:
            events += request.sequence.append(sampled, now)
        except NotImplementedError:
            raise
        except Exception as error:
            return [*events, self._fail(request, error)]
        if request.sequence.finished:
            self._end(request, Status.FINISHED)
        return events

    def _fail(self, request: Request, error: Exception) -> EngineEvent:
        """End a request by its own error."""
        self._end(request, Status.FAILED)
        return reports.failed(request, error, self.clock())

    def _end(self, request: Request, status: Status) -> None:
        """Let go of a request; when the last sample of its id has ended, of the id as well."""
        self.scheduler.end(request, status)
        self.requests.remove(request)


### END SOLUTION

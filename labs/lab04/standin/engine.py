"""An engine whose requests never fail: enough to run a store, or a server, on a model."""

import torch

from nanovllm.batching import events as happened
from nanovllm.batching.engine_base import EngineBase
from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request, Status
from nanovllm.generation.events import Finished, Prefilled


class Engine(EngineBase):
    """One step after another."""

    @torch.inference_mode()
    def step(self) -> list[happened.EngineEvent]:
        """Notes, plan, model, draw, tokens."""
        started, events, scheduler = self.clock(), [], self.scheduler
        new, gone = self.requests.notes()
        for request in new:
            scheduler.add(request)
            events.append(happened.Queued(*_name(request), request.arrival))
        for request in dict.fromkeys(r for r in gone if not r.ended):
            sample = request.sequence
            self._end(request)
            said = tuple(sample.output_token_ids)
            events.append(happened.Aborted(*_name(request), said, sample.text, self.clock()))
        plan = scheduler.schedule()
        for kind in ("Preempted", "Admitted"):
            event = getattr(happened, kind)
            events += [event(*_name(r), self.clock()) for r in getattr(plan, kind.lower())]
        if not plan.chunks:
            return events
        runs = len(scheduler.running)
        events += self.update(plan, self.draw(plan, self.execute(plan)))
        scheduler.observe(self.clock() - started)
        chunks = tuple(happened.ChunkRun(*_name(c.request), c.start, c.length) for c in plan.chunks)
        counts = (runs, len(scheduler.waiting), plan.budget, self.store.free_tokens)
        return [*events, happened.Stepped(chunks, *counts, started, self.clock())]

    def execute(self, plan: Plan) -> torch.Tensor:
        """Logits of the chunks that complete."""
        ids = [t for c in plan.chunks for t in c.request.token_ids(c.start, c.end)]
        places = [p for c in plan.chunks for p in range(c.start, c.end)]
        attend = self.store.bind(plan)
        hidden = self.model(torch.tensor(ids), torch.tensor(places), attend)
        pairs = zip(plan.chunks, plan.rows, strict=True)
        return self.model.logits(hidden[[rows[-1] for chunk, rows in pairs if chunk.completes]])

    def draw(self, plan: Plan, logits: torch.Tensor) -> list:
        """A token where a chunk completes, else None."""
        rows = [chunk.request.sequence.row for chunk in plan.chunks if chunk.completes]
        drawn = iter(self.sampler(logits, rows) if rows else ())
        return [next(drawn) if chunk.completes else None for chunk in plan.chunks]

    def update(self, plan: Plan, outcomes: list) -> list[happened.EngineEvent]:
        """Count, append, end."""
        events = []
        self.store.commit(plan)
        self.scheduler.update(plan)
        for chunk, sampled in zip(plan.chunks, outcomes, strict=True):
            if sampled is None:
                continue
            sample, now = chunk.request.sequence, self.clock()
            if not sample.output_token_ids and sample.index == 0:
                read = len(sample.prompt_token_ids)
                events.append(Prefilled(sample.request_id, read, now))
            events += sample.append(sampled, now)
            if isinstance(events[-1], Finished):
                self._end(chunk.request)
        return events

    def _end(self, request: Request) -> None:
        self.scheduler.end(request, Status.FINISHED)
        self.requests.remove(request)


def _name(request: Request) -> tuple[int, int]:
    return request.sequence.request_id, request.sequence.index

"""Lab 08 on the compiled step: the same guesses, texts and events for less work a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from nanovllm.batching.events import EngineEvent
from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.fast.engine import FastEngine
from nanovllm.generation.events import Sampled
from nanovllm.speculative.draft_model import DraftModel
from nanovllm.speculative.guessed_plan import GuessedChunk, Verified
from nanovllm.speculative.proposer import Ask, Guesses
from nanovllm.speculative.verify import SpeculativeEngine


class FastSpeculativeEngine(SpeculativeEngine, FastEngine):
    """A plan need not be spread for the native step, and its argmax says what stands."""

    def execute(self, plan: Plan) -> Float[Tensor, "N V"]:
        """As SpeculativeEngine."""
        return FastEngine.execute(self, plan) if self.ready else super().execute(plan)

    def draw(self, plan: Plan, logits: Float[Tensor, "N V"]) -> list[Any]:
        """As SpeculativeEngine; where nobody wants more than the argmax, no row is built."""
        if not self._guesses(plan):
            return FastEngine.draw(self, plan, logits)
        if not self.knows(plan, logits):
            return super().draw(plan, logits)
        drawn, outcomes, row = self._likeliest, [], 0
        for chunk in plan.chunks:
            if not chunk.completes:
                outcomes.append(None)
                continue
            if not isinstance(chunk, GuessedChunk):
                outcomes.append(Sampled(drawn[row]))
                row += 1
                continue
            guesses, accepted = chunk.guesses.token_ids, 0
            while accepted < len(guesses) and guesses[accepted] == drawn[row + accepted]:
                accepted += 1
            outcomes.append(Verified(tuple(map(Sampled, drawn[row : row + accepted + 1]))))
            row += len(guesses) + 1
        return outcomes

    def update(self, plan: Plan, outcomes: Sequence[Any]) -> list[EngineEvent]:
        """As SpeculativeEngine."""
        if not self._guesses(plan):
            return FastEngine.update(self, plan, outcomes)
        return super().update(plan, outcomes)

    def _guesses(self, plan: Plan) -> bool:
        """Whether a chunk has some: seldom asked one by one, for nearly all steps have none."""
        step_has = getattr(self.scheduler, "has_guesses", True)
        return step_has and any(type(chunk) is GuessedChunk for chunk in plan.chunks)


class FastDraft(DraftModel):
    """All forwards of a step in one native call, where guesses are greedy."""

    engine: FastEngine

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        """As DraftModel, but that room for all guesses of a request is taken at once."""
        if self.sampled or not self.engine.ready:
            return super().propose(asks)
        copies = [self._catch_up(ask) for ask in asks]
        counts = [
            0 if copy is None else self._room(copy, ask.most)
            for copy, ask in zip(copies, asks, strict=True)
        ]
        plan = Plan(tuple(self._chunk(c) for c, n in zip(copies, counts, strict=True) if c and n))
        found = iter(self.engine.guess(plan, list(filter(None, counts))) if plan.chunks else ())
        self.num_forwards += max(counts, default=0)
        told = []
        for copy, count in zip(copies, counts, strict=True):
            guessed = next(found) if count else ()
            told.append(Guesses(tuple(guessed), "draft"))
            if copy and count:
                self._fed[copy] = copy.num_tokens + max(len(guessed) - 1, 0)
                copy.sequence.output_token_ids += guessed
        return told

    def _room(self, copy: Request, most: int) -> int:
        """Of so many guesses those that there is room for; the last one is not fed."""
        known = copy.num_tokens
        most = min(most, self.limit - known + 1)
        while most > 0:
            if self.store.reserve(copy, known + most - 1 - copy.num_computed_tokens):
                return most
            most -= 1
        return 0

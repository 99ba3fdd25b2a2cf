"""A small model that guesses for the large one: K and V of its own, k forwards for all requests."""

### BEGIN SOLUTION
from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

from nanovllm.batching.engine import Engine
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.generation.events import Sampled
from nanovllm.speculative.draft_sequence import DraftSequence
from nanovllm.speculative.proposer import Ask, Guesses
from nanovllm.speculative.rejection import distribution


class DraftModel:
    """Guesses with an engine of the draft model: of it, only store, `execute` and `draw`.

    sampled: guesses are drawn by the target's parameters, with the target's noise at each place
    (so they agree with it as often as can be), or, with_probs, with noise of their own and the
    distributions, for rejection sampling. Else each guess is the draft's likeliest token.
    num_forwards: forwards so far.
    """

    def __init__(self, engine: Engine, *, sampled: bool = False, with_probs: bool = False) -> None:
        self.engine, self.store, self.limit = engine, engine.store, engine.max_model_len
        self.sampled, self.with_probs = sampled, sampled and with_probs
        self.num_forwards = 0
        self._numbers = count()
        self._copy_of: dict[Request, Request] = {}
        self._fed: dict[Request, int] = {}  # of its copy, tokens whose K and V are there

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        """The first forward catches up with each request; then one for each further place."""
        copies = [self._catch_up(ask) for ask in asks]
        guessed: list[list[int]] = [[] for _ in asks]
        probs: list[list[Tensor]] = [[] for _ in asks]
        for depth in range(max((ask.most for ask in asks), default=0)):
            rows = [
                i
                for i, copy in enumerate(copies)
                if copy is not None and depth < asks[i].most and self._has_room(copy)
            ]
            if not rows:
                break
            chunks = [self._chunk(copy) for i in rows if (copy := copies[i])]
            drawn, q = self._forward(Plan(tuple(chunks)))
            for place, (i, chunk) in enumerate(zip(rows, chunks, strict=True)):
                self._fed[chunk.request] = chunk.end
                if isinstance(drawn[place], Sampled):
                    guessed[i].append(drawn[place].token_id)
                    chunk.request.sequence.output_token_ids.append(drawn[place].token_id)
                    if q is not None:
                        probs[i].append(q[place])
                else:
                    copies[i] = None
        return [
            Guesses(tuple(ids), "draft", probs=torch.stack(q) if q else None)
            for ids, q in zip(guessed, probs, strict=True)
        ]

    def _forward(self, plan: Plan) -> tuple[list, Tensor | None]:
        """The draws behind each chunk, and their distributions where they are wanted."""
        self.num_forwards += 1
        logits = self.engine.execute(plan)
        drawn = self.engine.draw(plan, logits)
        if not self.with_probs:
            return drawn, None
        return drawn, distribution(logits, [c.request.sequence.row for c in plan.chunks])

    def _has_room(self, copy: Request) -> bool:
        end = copy.num_tokens
        if end > self.limit:
            return False
        return self.store.reserve(copy, end - copy.num_computed_tokens)

    def _chunk(self, copy: Request) -> Chunk:
        start, end = self._fed[copy], copy.num_tokens
        return Chunk(copy, start, end - start, end)

    def _catch_up(self, ask: Ask) -> Request | None:
        """The copy with the target's tokens; K and V of what is in the text count as stored.

        None where there is no room for it. The newest token is never stored: it gives the logits.
        """
        target = ask.request
        copy = self._copy_of.get(target) or self._admitted(target)
        if copy is None:
            return None
        known = right = copy.num_computed_tokens
        there = copy.token_ids(known, self._fed[copy])
        wanted = target.token_ids(known, target.num_tokens - 1)
        for mine, theirs in zip(there, wanted, strict=False):
            if mine != theirs:
                break
            right += 1
        copy.sequence.output_token_ids[:] = target.sequence.output_token_ids
        if right > known:
            self.store.commit(Plan((Chunk(copy, known, right - known, right),)))
        copy.num_computed_tokens = self._fed[copy] = right
        return copy

    def _admitted(self, target: Request) -> Request | None:
        sequence, limit = DraftSequence(target, self.sampled, self.with_probs), self.limit
        sequence.output_token_ids += target.sequence.output_token_ids
        copy = Request(next(self._numbers), sequence, 0.0, limit)
        if copy.num_tokens > limit:
            return None
        if not self.store.can_admit(copy):
            self.store.forget(copy)  # it may have noted what to look for; the next one is another
            return None
        self._copy_of[target] = copy
        copy.num_computed_tokens = self._fed[copy] = self.store.admit(copy)
        return copy

    def forget(self, request: Request) -> None:
        """Give its room back."""
        copy = self._copy_of.pop(request, None)
        if copy is not None:
            del self._fed[copy]
            self.store.release(copy)


### END SOLUTION

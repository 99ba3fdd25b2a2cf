"""The speculative step: one step verifies the guesses of a plan, and keeps what stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from jaxtyping import Float
from torch import Tensor

from nanovllm.batching.engine_base import EngineBase
from nanovllm.batching.events import EngineEvent, Stepped
from nanovllm.batching.interface import Outcome, SchedulerMaker
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.slot_store_base import SlotStoreBase
from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import Sampled
from nanovllm.generation.rows import SamplingRow
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.credit import Credit
from nanovllm.speculative.errors import SpeculationError
from nanovllm.speculative.guess_policy import GuessPolicy
from nanovllm.speculative.guessed_plan import GuessedChunk, Verified, at_places, spread, standing
from nanovllm.speculative.guessing_scheduler import SpeculativeScheduler
from nanovllm.speculative.proposer import Guesses, Proposer

# (logits [k+1, V], their rows, the k guesses) -> the tokens that stand, and one more
Judge = Callable[[Tensor, Sequence[SamplingRow], Guesses], tuple[Sampled, ...]]


def stands(guesses: Sequence[int], drawn: Sequence[Sampled | Exception]) -> Verified:
    """What k guesses come to, when k + 1 draws were made: drawn[i] behind the first i guesses.

    A guess stands if it is the token drawn at its place and all guesses before it stand. The last
    of the tokens is no guess: it is drawn where the first guess fell, or behind them all. An error
    in the place of a draw ends the tokens, and is the last of them; behind a guess that fell,
    nothing counts, not even an error.

    >>> drawn = [Sampled(5), Sampled(9), Sampled(7), Sampled(1)]
    >>> [token.token_id for token in stands((5, 6, 7), drawn).drawn]
    [5, 9]
    >>> stands((5,), [Sampled(5), Sampled(8)]).accepted
    1
    """
    ### BEGIN SOLUTION
    for i, guess in enumerate(guesses):
        if isinstance(drawn[i], Exception) or drawn[i].token_id != guess:  # pyright: ignore[reportAttributeAccessIssue]  # a Sampled
            return Verified(tuple(drawn[: i + 1]))
    return Verified(tuple(drawn))
    ### END SOLUTION


if TYPE_CHECKING:
    from nanovllm.batching.engine import Engine as EngineBehind
else:
    EngineBehind = EngineBase


class SpeculativeEngine(EngineBehind):
    """Before any Engine in the order of bases: its steps verify guesses, all rows in one call.

    A guess stands if it is the token that the target draws at that place, by the place's own key
    and with the guesses before it; so the texts are those of the engine alone.
    """

    def __init__(
        self,
        *args: Any,
        proposer: Proposer,
        guess_policy: GuessPolicy,
        judge: Judge | None = None,
        costs: Costs | None = None,
        credit: Credit | None = None,
        warn: Callable[[str], None] = lambda message: None,
        make_scheduler: SchedulerMaker = Scheduler,
        **settings: Any,
    ) -> None:
        def wrapped(*parts: Any, **limits: Any) -> Any:
            inner = make_scheduler(*parts, **limits)
            vocab = self.model.config.vocab_size
            chunk = limits.get("max_chunk")
            given = {"max_chunk": chunk, "costs": costs, "credit": credit, "notify": warn}
            return SpeculativeScheduler(inner, proposer, guess_policy, vocab, **given)

        self.judge = judge
        self._counts: dict[tuple[int, int], tuple[int, int]] = {}  # of this step, by sample
        super().__init__(*args, make_scheduler=wrapped, **settings)
        if isinstance(self.store, SlotStoreBase):
            raise SpeculationError(
                "guesses need a store of blocks: in a step of a slot store a request has one row; "
                "use lab 05's PagedStore."
            )

    def step(self) -> list[EngineEvent]:
        """As the engine's, with guesses and what stood of them in the chunks of Stepped."""
        self._counts.clear()
        events = super().step()
        if self._counts and isinstance(events[-1], Stepped):
            none = (0, 0)
            runs = [
                replace(run, drafts=counts[0], accepted=counts[1])
                for run in events[-1].chunks
                for counts in [self._counts.get((run.request_id, run.index), none)]
            ]
            events[-1] = replace(events[-1], chunks=tuple(runs))
        return events

    def execute(self, plan: Plan) -> Float[Tensor, "N V"]:
        """Logits of every place of the guessed chunks, and of the others that complete, in order.

        The guesses are the requests' newest tokens while the model runs.
        """
        with standing(plan):
            return super().execute(spread(plan))

    def draw(self, plan: Plan, logits: Float[Tensor, "N V"]) -> list[Any]:
        """As the engine's; of a guessed chunk a Verified."""
        if not any(isinstance(chunk, GuessedChunk) for chunk in plan.chunks):
            return super().draw(plan, logits)
        if self.judge is not None:
            return self._judged(
                self.judge, plan, logits if isinstance(logits, Tensor) else logits.logits()
            )
        drawn: Iterator[Any] = iter(self._draw_places(plan, logits))
        return [
            stands(chunk.guesses.token_ids, [next(drawn) for _ in chunk.places])
            if isinstance(chunk, GuessedChunk)
            else next(drawn)
            for chunk in plan.chunks
        ]

    def _draw_places(self, plan: Plan, logits: Float[Tensor, "N V"]) -> list[Any]:
        """A draw at every place of the plan; an error is the outcome of its own place alone."""
        places = at_places(plan)
        try:
            return super().draw(places, logits)
        except NotImplementedError:
            raise
        except Exception:
            if not isinstance(logits, Tensor):  # of a GPU, whose path may have failed
                logits = self.execute(plan)
            return self._one_by_one(
                places, logits if isinstance(logits, Tensor) else logits.logits()
            )

    def _one_by_one(self, places: Plan, logits: Float[Tensor, "N V"]) -> list[Any]:
        """An error is the outcome of its own place: perhaps of one that is never reached."""
        drawn: list[Any] = []
        row = 0
        for chunk in places.chunks:
            rows = logits[row : row + chunk.completes]
            row += chunk.completes
            try:
                drawn += super().draw(Plan((chunk,)), rows)
            except NotImplementedError:
                raise
            except Exception as error:
                drawn.append(error)
        return drawn

    def _judged(self, judge: Judge, plan: Plan, logits: Float[Tensor, "N V"]) -> list[Any]:
        """Guessed chunks by the judge, each with its rows; the others as the engine draws."""
        outcomes: list[Any] = []
        row = 0
        for chunk in plan.chunks:
            guessed = isinstance(chunk, GuessedChunk)
            count = len(chunk.places) if guessed else int(chunk.completes)
            rows, row = logits[row : row + count], row + count
            if not guessed:
                outcomes += super().draw(Plan((chunk,)), rows)
                continue
            params = chunk.request.sequence.params
            if params.greedy or not bool(rows.amax(dim=-1).isfinite().all()):
                drawn = self._draw_places(Plan((chunk,)), rows)
                outcomes.append(stands(chunk.guesses.token_ids, drawn))
            else:
                outcomes.append(_judge_one(judge, chunk, rows))
        return outcomes

    def update(self, plan: Plan, outcomes: Sequence[Any]) -> list[EngineEvent]:
        """Commit, count and append what stands, and report it: an event for each token.

        outcomes: one a chunk. That of a GuessedChunk is a Verified, or an error, which stands for a
        Verified of this error alone. Its places (`chunk.places`: the known tokens, then one chunk
        for each guess) come to the outcomes in `Verified.drawn`, one after another; places behind
        these were not computed, as far as anybody can see. The engine's own `update` does all of
        it for plain chunks with plain outcomes, and may be called several times. Whoever ends in
        the middle of its guesses gets no further token: a request that has ended is in no later
        call. `note` is told once of every guessed chunk and its Verified, before the chunk is
        updated. The tokens of one request come in order; requests may come in any.
        """
        ### BEGIN SOLUTION
        rounds: list[list[tuple[Chunk, Outcome]]] = [[]]
        for chunk, outcome in zip(plan.chunks, outcomes, strict=True):
            if not isinstance(chunk, GuessedChunk):
                rounds[0].append((chunk, outcome))
                continue
            if isinstance(outcome, Exception):
                outcome = Verified((outcome,))
            self.note(chunk, outcome)
            for i, (place, drawn) in enumerate(zip(chunk.places, outcome.drawn, strict=False)):
                if i == len(rounds):
                    rounds.append([])
                rounds[i].append((place, drawn))
        events: list[EngineEvent] = []
        for pairs in rounds:
            alive = [(chunk, drawn) for chunk, drawn in pairs if not chunk.request.ended]
            if alive:
                chunks, drawn = zip(*alive, strict=True)
                events += super().update(Plan(chunks), drawn)
        return events
        ### END SOLUTION

    def note(self, chunk: GuessedChunk, outcome: Verified) -> None:
        """Count the guesses of a chunk and those that stand, and tell the policy."""
        sequence, count = chunk.request.sequence, len(chunk.guesses.token_ids)
        self._counts[sequence.request_id, sequence.index] = count, outcome.accepted
        cast(SpeculativeScheduler, self.scheduler).guessing.judged(
            chunk.request, chunk.guesses, outcome.accepted
        )


def _judge_one(judge: Judge, chunk: GuessedChunk, rows: Float[Tensor, "k+1 V"]) -> Verified:
    """By the judge. Where a mask leaves no token behind some guesses, they are fewer: perhaps
    those do not stand."""
    at = [place.request.sequence.row for place in at_places(Plan((chunk,))).chunks]
    for count in range(len(at), 1, -1):
        with suppress(RequestError):
            return Verified(judge(rows[:count], at[:count], chunk.guesses.first(count - 1)))
    return Verified(judge(rows[:1], at[:1], chunk.guesses.first(0)))

"""The speculative step: a plan's chunks are lengthened by guesses, and one step verifies them."""

### BEGIN SOLUTION
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from nanovllm.batching.engine_base import EngineBase
from nanovllm.batching.events import EngineEvent, Stepped
from nanovllm.batching.interface import Outcome, SchedulerInterface, SchedulerMaker
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request, Status
from nanovllm.batching.scheduler import Scheduler
from nanovllm.generation.events import Sampled
from nanovllm.generation.rows import SamplingRow
from nanovllm.speculative.policy import GuessPolicy
from nanovllm.speculative.proposer import Ask, Guesses, Proposer

# (logits [k+1, V], their rows, the k guesses) -> the tokens that stand, and one more
Judge = Callable[[Tensor, Sequence[SamplingRow], Guesses], tuple[Sampled, ...]]


class GuessedChunk(Chunk):
    """A chunk that completes, and guesses: the last of tokens start .. end - 1."""

    guesses: Guesses

    @classmethod
    def of(cls, chunk: Chunk, guesses: Guesses) -> GuessedChunk:
        """The chunk with these guesses behind it."""
        count = len(guesses.token_ids)
        longer = cls(chunk.request, chunk.start, chunk.length + count, chunk.total + count)
        longer.guesses = guesses
        return longer

    @property
    def places(self) -> list[Chunk]:
        """What is known, then a chunk for each guess; each completes, so that logits come of it."""
        known = self.end - len(self.guesses.token_ids)
        guesses = [Chunk(self.request, p, 1, p + 1) for p in range(known, self.end)]
        return [Chunk(self.request, self.start, known - self.start, known), *guesses]


@dataclass(frozen=True)
class Verified:
    """What a guessed chunk came to: its tokens, the last of them no guess; or an error at last."""

    drawn: tuple[Sampled | Exception, ...]

    @property
    def accepted(self) -> int:
        """Guesses that stand."""
        return len(self.drawn) - 1


class _SequenceAt:
    """A sequence as it would be if some guesses stood: what drawing the next token reads of it."""

    def __init__(self, sequence: Any, guesses: Sequence[int]) -> None:
        self.params = sequence.params
        self.prompt_token_ids = sequence.prompt_token_ids
        self.output_token_ids = [*sequence.output_token_ids, *guesses]
        row = sequence.row
        self.row = SamplingRow(
            row.params, row.prompt_token_ids, self.output_token_ids, row.seed, row.eos_token_ids
        )


class RequestAt:
    """A request at one place of its guesses; each is a row of its own for `draw`."""

    def __init__(self, request: Request, guesses: Sequence[int]) -> None:
        self.sequence = _SequenceAt(request.sequence, guesses)


class SpeculativeScheduler:
    """Any scheduler; where its plan leaves budget and room, chunks that complete get guesses.

    Guesses never preempt anybody: not in this step, and not by taking the last blocks, which
    neighbours would miss in the next. All else is the scheduler's own.
    """

    def __init__(
        self,
        inner: SchedulerInterface,
        proposer: Proposer,
        policy: GuessPolicy,
        vocab_size: int,
        max_chunk: int | None = None,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.inner, self.proposer, self.guessing = inner, proposer, policy
        self.vocab_size, self.max_chunk, self.notify = vocab_size, max_chunk, notify
        self._said: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def schedule(self) -> Plan:
        """The plan of the scheduler, with guesses behind each request's newest token."""
        plan = self.inner.schedule()
        for request in plan.preempted:
            self.proposer.forget(request)
        complete = [chunk for chunk in plan.chunks if chunk.completes]
        most = [self._most(chunk, plan.budget_left) for chunk in complete]
        requests = [chunk.request for chunk in complete]
        wanted = self.guessing.lengths(requests, most, plan.num_tokens)
        asks = [
            Ask(request, min(count, limit))
            for request, count, limit in zip(requests, wanted, most, strict=True)
            if min(count, limit) > 0
        ]
        if not asks:
            return plan
        started = self.inner.clock()
        guessed = self._guesses(asks)
        drafted = sum(len(g.token_ids) for g in guessed.values() if g.source == "draft")
        self.guessing.drafted(drafted, self.inner.clock() - started)
        left, chunks = plan.budget_left, []
        for chunk in plan.chunks:
            guesses = guessed.get(chunk.request)
            if guesses is not None:
                guesses = self._with_room(chunk, guesses.first(left))
                left -= len(guesses.token_ids)
            if guesses is not None and guesses.token_ids:
                chunk = GuessedChunk.of(chunk, guesses)
            chunks.append(chunk)
        return replace(plan, chunks=tuple(chunks))

    def _most(self, chunk: Chunk, left: int) -> int:
        """Guesses that may stand behind a decode: the last token of a request is never computed."""
        most = min(left, chunk.request.limit - chunk.end)
        return min(most, self.max_chunk - chunk.length) if self.max_chunk else most

    def _guesses(self, asks: list[Ask]) -> dict[Request, Guesses]:
        """What the proposer says, as far as it can be used; an error costs the guesses alone."""
        try:
            found = self.proposer.propose(asks)
            pairs = list(zip(asks, found, strict=True))
        except NotImplementedError:
            raise
        except Exception as error:
            self._say("error", f"guesses are dropped, for the proposer failed: {error!r}")
            for ask in asks:
                self.proposer.forget(ask.request)
            return {}
        return {ask.request: self._usable(guesses.first(ask.most)) for ask, guesses in pairs}

    def _usable(self, guesses: Guesses) -> Guesses:
        for place, token_id in enumerate(guesses.token_ids):
            if not 0 <= token_id < self.vocab_size:
                self._say(
                    "token",
                    f"a guess is token {token_id!r}, but ids go from 0 to {self.vocab_size - 1}; "
                    "it is dropped, with those behind it",
                )
                return guesses.first(place)
        return guesses

    def _say(self, kind: str, message: str) -> None:
        """Once for each kind of trouble."""
        if kind not in self._said:
            self._said.add(kind)
            self.notify(message)

    def _with_room(self, chunk: Chunk, guesses: Guesses) -> Guesses:
        """As many of the guesses as the store has room for beside everybody's next token."""
        store, request = self.inner.store, chunk.request
        places = len(store.block_ids(request)) * store.block_size - chunk.start
        if places < chunk.length + len(guesses.token_ids):
            enough = 2 * store.block_size * (1 + len(self.inner.running))
            if store.free_tokens < enough:
                guesses = guesses.first(max(places - chunk.length, 0))
        if not guesses.token_ids or store.reserve(request, chunk.length + len(guesses.token_ids)):
            return guesses
        return guesses.first(0)

    def observe(self, seconds: float) -> None:
        """A step took so long."""
        self.guessing.observe(seconds)
        self.inner.observe(seconds)

    def end(self, request: Request, status: Status) -> None:
        """Let go of a request; its guesses and its history go too."""
        self.proposer.forget(request)
        self.guessing.forget(request)
        self.inner.end(request, status)


class SpeculativeEngine(EngineBase):
    """Before any Engine in the order of bases: its steps verify guesses, all rows in one call.

    A guess stands if it is the token that the target draws at that place, by the place's own key
    and with the guesses before it; so the texts are those of the engine alone. Then come the steps
    that these tokens are worth, one after another, by the engine's own `update`.
    """

    def __init__(
        self,
        *args: Any,
        proposer: Proposer,
        guess_policy: GuessPolicy,
        judge: Judge | None = None,
        warn: Callable[[str], None] = lambda message: None,
        make_scheduler: SchedulerMaker = Scheduler,
        **settings: Any,
    ) -> None:
        def wrapped(*parts: Any, **limits: Any) -> SpeculativeScheduler:
            inner = make_scheduler(*parts, **limits)
            vocab = self.model.config.vocab_size
            chunk = limits.get("max_chunk")
            return SpeculativeScheduler(inner, proposer, guess_policy, vocab, chunk, warn)

        self.judge = judge
        self._counts: dict[tuple[int, int], tuple[int, int]] = {}  # of this step, by sample
        super().__init__(*args, make_scheduler=wrapped, **settings)

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
        with _standing(plan):
            return super().execute(_spread(plan))

    def draw(self, plan: Plan, logits: Float[Tensor, "N V"]) -> list[Any]:
        """As the engine's; of a guessed chunk a Verified."""
        if not any(isinstance(chunk, GuessedChunk) for chunk in plan.chunks):
            return super().draw(plan, logits)
        if self.judge is not None:
            return self._judged(plan, logits if isinstance(logits, Tensor) else logits.logits())
        places = _at_places(plan)
        try:
            drawn = iter(super().draw(places, logits))
        except NotImplementedError:
            raise
        except Exception:
            if not isinstance(logits, Tensor):
                raise
            drawn = iter(self._one_by_one(places, logits))
        return [
            _stands(chunk, [next(drawn) for _ in chunk.places])
            if isinstance(chunk, GuessedChunk)
            else next(drawn)
            for chunk in plan.chunks
        ]

    def _one_by_one(self, places: Plan, logits: Float[Tensor, "N V"]) -> list[Outcome]:
        """An error is the outcome of its own place: perhaps of one that is never reached."""
        drawn: list[Outcome] = []
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

    def _judged(self, plan: Plan, logits: Float[Tensor, "N V"]) -> list[Any]:
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
                drawn = super().draw(_at_places(Plan((chunk,))), rows)
                outcomes.append(_stands(chunk, drawn))
            else:
                at = [place.request.sequence.row for place in _at_places(Plan((chunk,))).chunks]
                outcomes.append(Verified(self.judge(rows, at, chunk.guesses)))
        return outcomes

    def update(self, plan: Plan, outcomes: Sequence[Any]) -> list[EngineEvent]:
        """As many of the engine's updates as the longest run of tokens; who has ended, stays so."""
        rounds: list[list[tuple[Chunk, Outcome]]] = [[]]
        for chunk, outcome in zip(plan.chunks, outcomes, strict=True):
            if not isinstance(chunk, GuessedChunk):
                rounds[0].append((chunk, outcome))
                continue
            if isinstance(outcome, Exception):
                outcome = Verified((outcome,))
            self._note(chunk, outcome)
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

    def _note(self, chunk: GuessedChunk, outcome: Verified) -> None:
        sequence, count = chunk.request.sequence, len(chunk.guesses.token_ids)
        self._counts[sequence.request_id, sequence.index] = count, outcome.accepted
        self.scheduler.guessing.judged(chunk.request, chunk.guesses, outcome.accepted)


def _spread(plan: Plan) -> Plan:
    """The plan with a chunk for each place of the guessed ones."""
    chunks: list[Chunk] = []
    for chunk in plan.chunks:
        chunks += chunk.places if isinstance(chunk, GuessedChunk) else [chunk]
    return replace(plan, chunks=tuple(chunks))


def _at_places(plan: Plan) -> Plan:
    """The same for `draw`: each place is a request whose guesses before it stand."""
    chunks: list[Chunk] = []
    for chunk in plan.chunks:
        if not isinstance(chunk, GuessedChunk):
            chunks.append(chunk)
            continue
        first, *later = chunk.places
        chunks.append(first)
        for i, place in enumerate(later, 1):
            at = RequestAt(chunk.request, chunk.guesses.token_ids[:i])
            chunks.append(place._replace(request=at))
    return replace(plan, chunks=tuple(chunks))


def _stands(chunk: GuessedChunk, drawn: Sequence[Sampled | Exception]) -> Verified:
    """The tokens drawn up to the first that is not the guess."""
    for i, guess in enumerate(chunk.guesses.token_ids):
        if isinstance(drawn[i], Exception) or drawn[i].token_id != guess:
            return Verified(tuple(drawn[: i + 1]))
    return Verified(tuple(drawn))


@contextmanager
def _standing(plan: Plan) -> Iterator[None]:
    """The guesses are in the sequences, and are taken out again whatever happens."""
    guessed = [chunk for chunk in plan.chunks if isinstance(chunk, GuessedChunk)]
    lengths = [len(chunk.request.sequence.output_token_ids) for chunk in guessed]
    try:
        for chunk in guessed:
            chunk.request.sequence.output_token_ids.extend(chunk.guesses.token_ids)
        yield
    finally:
        for chunk, length in zip(guessed, lengths, strict=True):
            del chunk.request.sequence.output_token_ids[length:]


### END SOLUTION

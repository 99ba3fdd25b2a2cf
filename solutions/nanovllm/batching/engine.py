"""`Engine`: a loop that never stops for one request, and never mixes two up."""

### BEGIN SOLUTION
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.errors import (
    ConfigError,
    NonFiniteLogitsError,
    require,
)
from nanovllm.batching.events import (
    Aborted,
    Admitted,
    ChunkRun,
    EngineEvent,
    Failed,
    Preempted,
    Queued,
    Stepped,
)
from nanovllm.batching.interface import Outcome, SchedulerInterface, SchedulerMaker
from nanovllm.batching.open_requests import OpenRequests
from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Priority, Request, Status
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.slot_store import SlotStore
from nanovllm.batching.store import KVStore
from nanovllm.generation.events import Prefilled, Sampled
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import make_sequences, room_for, weight_of
from nanovllm.generation.sampling import Sampler, sample
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.tokenizer import Tokenizer


class Engine:
    """Many requests, one model: they join, share steps, and leave, each as if it were alone."""

    def __init__(
        self,
        model: Transformer,
        config: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        store: KVStore | None = None,
        sampler: Sampler = sample,
        clock: Callable[[], float] = time.perf_counter,
        make_scheduler: SchedulerMaker = Scheduler,
    ) -> None:
        self.model = model
        self.config = config or EngineConfig()
        self.tokenizer = tokenizer
        self.max_model_len = self.config.max_model_len or model.config.max_position
        if self.max_model_len > model.config.max_position:
            raise ConfigError(
                f"max_model_len is {self.max_model_len}, but this model was made for "
                f"{model.config.max_position} tokens at most."
            )
        self.sampler = sampler
        self.clock = clock
        weight = weight_of(model)
        self.device = weight.device
        self.store = store or SlotStore(
            model.config, self.config.max_num_seqs, self.max_model_len, weight.dtype, weight.device
        )
        self.scheduler: SchedulerInterface = make_scheduler(
            self.store,
            self.config.make_policy(),
            self.config.make_budget(),
            max_num_seqs=self.config.max_num_seqs,
            max_chunk=self.config.max_chunk,
            clock=clock,
        )
        self.requests = OpenRequests()

    @property
    def has_unfinished(self) -> bool:
        """Whether a further step has anything to do or to report."""
        return len(self.requests) > 0

    def add_request(
        self,
        prompt_token_ids: Seq[int],
        params: SamplingParams | None = None,
        *,
        priority: Priority = Priority.NORMAL,
        seed: int | None = None,
        request_id: int | None = None,
        deadline: float | None = None,
    ) -> int:
        """Take a request on, or refuse it at once; its id, by which events and `abort` name it."""
        request_id = self.requests.next_id() if request_id is None else request_id
        requests = self._make_requests(prompt_token_ids, params, priority, seed, request_id)
        for request in requests:
            if deadline is not None:
                request.deadline = request.arrival + deadline
            self.scheduler.refuse_unfit(request)
        self.requests.add(request_id, requests)
        return request_id

    def _make_requests(
        self,
        prompt_token_ids: Seq[int],
        params: SamplingParams | None,
        priority: Priority,
        seed: int | None,
        request_id: int,
    ) -> list[Request]:
        """A Request for each of the n samples, arrived now. Raises RequestError."""
        sequences = make_sequences(
            self.model,
            prompt_token_ids,
            params or SamplingParams(),
            tokenizer=self.tokenizer,
            max_model_len=self.max_model_len,
            seed=seed,
            request_id=request_id,
        )
        now = self.clock()
        return [
            Request(self.requests.next_number(), sequence, now, room_for(sequence), priority)
            for sequence in sequences
        ]

    def abort(self, request_id: int) -> bool:
        """Give a request up, wherever it is; False if there is none of that id (any more)."""
        return self.requests.give_up(request_id)

    def run(self) -> Iterator[EngineEvent]:
        """Step until nothing is left to do, and yield the events as they happen."""
        while self.has_unfinished:
            yield from self.step()

    @torch.inference_mode()
    def step(self) -> list[EngineEvent]:
        """One round: collect, schedule, prepare, execute, sample, update, and report."""
        started = self.clock()
        events = self._collect()
        plan = self.scheduler.schedule()
        events += self._arrivals_and_departures(plan)
        if not plan.chunks:
            return events
        running = len(self.scheduler.running)
        outcomes = self._outcomes(plan)
        events += self.update(plan, outcomes)
        events.append(self._stepped(plan, running, started))
        return events

    def _collect(self) -> list[EngineEvent]:
        """Read the notes: hand arrivals to the scheduler (Queued), then end what was given up."""
        arrived, given_up = self.requests.notes()
        events: list[EngineEvent] = []
        for request in arrived:
            self.scheduler.add(request)
            sequence = request.sequence
            events.append(Queued(sequence.request_id, sequence.index, request.arrival))
        for request in given_up:
            if not request.ended:
                self._end(request, Status.FINISHED)
                sequence = request.sequence
                said = tuple(sequence.output_token_ids), sequence.text
                events.append(Aborted(sequence.request_id, sequence.index, *said, self.clock()))
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

    def _prepare(self, plan: Plan) -> tuple[Int[Tensor, "T"], Int[Tensor, "T"], Int[Tensor, "N"]]:
        """The plan as the model wants it: token ids, positions, and which rows need logits."""
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
        return ids, places, rows

    @torch.inference_mode()
    def execute(self, plan: Plan) -> Float[Tensor, "N V"]:
        """Logits of the N chunks that complete, in order."""
        token_ids, positions, last = self._prepare(plan)
        hidden = self.model(token_ids, positions, self.store.bind(plan))
        return self.model.logits(hidden[last])

    @torch.inference_mode()
    def draw(self, plan: Plan, logits: Float[Tensor, "N V"]) -> list[Outcome]:
        """What comes of each chunk of the plan, in order: a token where it completes, else None."""
        complete = [chunk for chunk in plan.chunks if chunk.completes]
        finite = logits.amax(dim=-1).isfinite().tolist()
        good = [row for row, well in enumerate(finite) if well]
        rows = [complete[row].request.sequence.row for row in good]
        drawn = dict(zip(good, self.sampler(logits[good], rows) if good else (), strict=True))
        outcome_of = {
            chunk.request: drawn.get(row) or _not_finite(chunk.request)
            for row, chunk in enumerate(complete)
        }
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
        """Give a request its next token; Prefilled goes before the first token of sample 0."""
        sequence, now = request.sequence, self.clock()
        events: list[EngineEvent] = []
        if not sequence.output_token_ids and sequence.index == 0:
            events.append(Prefilled(sequence.request_id, len(sequence.prompt_token_ids), now))
        try:
            events += sequence.append(sampled, now)
        except NotImplementedError:
            raise
        except Exception as error:
            return [*events, self._fail(request, error)]
        if sequence.finished:
            self._end(request, Status.FINISHED)
        return events

    def _fail(self, request: Request, error: Exception) -> Failed:
        """End a request by its own error."""
        self._end(request, Status.FAILED)
        sequence = request.sequence
        return Failed(sequence.request_id, sequence.index, error, self.clock())

    def _end(self, request: Request, status: Status) -> None:
        """Let go of a request; when the last sample of its id has ended, of the id as well."""
        self.scheduler.end(request, status)
        self.requests.remove(request)

    def _arrivals_and_departures(self, plan: Plan) -> list[EngineEvent]:
        now = self.clock()
        moves = [(Preempted, r) for r in plan.preempted] + [(Admitted, r) for r in plan.admitted]
        return [kind(r.sequence.request_id, r.sequence.index, now) for kind, r in moves]

    def _stepped(self, plan: Plan, running: int, started: float) -> Stepped:
        """Tell the budget about the step, and report it."""
        now = self.clock()
        self.scheduler.observe(now - started)
        return Stepped(
            chunks=tuple(
                ChunkRun(c.request.sequence.request_id, c.request.sequence.index, c.start, c.length)
                for c in plan.chunks
            ),
            running=running,
            waiting=len(self.scheduler.waiting),
            budget=plan.budget,
            free_tokens=self.store.free_tokens,
            started=started,
            time=now,
        )

    def check(self) -> None:
        """Raise InvariantError unless scheduler, store, requests and tokens agree."""
        self.scheduler.check()
        self.store.check(self.scheduler.running)
        known, unseen = self.requests.all()
        held = [*unseen, *self.scheduler.waiting, *self.scheduler.running]
        require(
            len(known) == len(held) and set(known) == set(held),
            f"{len(known)} requests have not ended, but {len(held)} wait or run",
        )
        for request in known:
            require(not request.ended, f"{request} has ended and is still here")
            require(request.num_tokens - 1 <= request.limit, f"{request} is longer than its limit")
        for request in self.scheduler.running:
            places = len(self.store.block_ids(request)) * self.store.block_size
            require(request.num_computed_tokens <= places, f"{request} is in {places} places")


def _not_finite(request: Request) -> NonFiniteLogitsError:
    return NonFiniteLogitsError(
        f"The largest logit of request {request.sequence.request_id} is not a finite number; "
        "no token can be drawn."
    )


### END SOLUTION

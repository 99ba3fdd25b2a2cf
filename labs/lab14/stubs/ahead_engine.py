"""The plain engine, its steps launched, and the next decode before this one is read (given)."""

import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq

from jaxtyping import Float
from torch import Tensor

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.interface import Outcome, SchedulerMaker
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.batching.scheduler import Scheduler
from nanovllm.generation.events import Sampled
from nanovllm.greedy_draws import wants_token_alone
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore
from nanovllm.performance.buffers import DecodeRow, slot_at
from nanovllm.performance.draw import NOT_FINITE, Draw
from nanovllm.performance.graphs import Capture
from nanovllm.performance.launched_step import Launched
from nanovllm.performance.replay import recorded_capture
from nanovllm.performance.runner import Decoder, StepRunner
from nanovllm.performance.step_ahead import Flight, FlightCounts, plan_ahead
from nanovllm.performance.torch_decoder import TorchDecoder
from nanovllm.tokenization.tokenizer import Tokenizer


class AheadEngine(Engine):
    """Lab 04's Engine: fused decodes from graphs, planned one step ahead.

    Decodes are replayed from graphs, whatever else the step computes; the rest is launched as it
    is. Before the tokens of a step are read, the decodes that are likely to follow are launched
    as a flight (see step_ahead.py), so that the device works on while the host reads, schedules and
    reports. Tokens are drawn on the device. But a request may want more than a token drawn from
    the raw logits (log-probabilities, penalties, a bias, a minimum of tokens); in a step with
    such a one lab 03's sampler draws for all, waits for the device, and nothing flies.

    Scheduler and block manager may be any: it reads the plan, the blocks of a request by
    `store.block_ids`, and asks `store.reserve` for the slot of a flight. `flights` counts.

    store: on the model's device. capture: what makes the graphs. ahead: False plans no step ahead.
    Raises PerformanceError for a model that cannot be fused.
    """

    def __init__(
        self,
        model: Transformer,
        config: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        store: PagedStore,
        clock: Callable[[], float] = time.perf_counter,
        capture: Capture = recorded_capture,
        make_scheduler: SchedulerMaker = Scheduler,
        ahead: bool = True,
    ) -> None:
        super().__init__(
            model,
            config,
            tokenizer=tokenizer,
            store=store,
            clock=clock,
            make_scheduler=make_scheduler,
        )
        self.store: PagedStore = store
        self.runner = StepRunner(
            self.make_decoder(model),
            store.cache,
            self.config.max_num_seqs,
            self.max_model_len,
            capture,
            chunk_rows=self.config.max_num_batched_tokens,  # as many, where guesses are verified
        )
        self.flights = FlightCounts()
        self._flight: Flight | None = None
        self._ahead = ahead

    def make_decoder(self, model: Transformer) -> Decoder:
        """What computes the steps."""
        return TorchDecoder(model)

    def execute(self, plan: Plan) -> Launched | Float[Tensor, "N V"]:  # pyright: ignore[reportIncompatibleMethodOverride]  # allowed: EngineInterface
        """Launch what no flight has computed; `draw` gets what comes of it, not logits."""
        return self._launch(plan)

    def execute_plainly(self, plan: Plan) -> Float[Tensor, "N V"]:
        """Lab 04's step over the same K and V."""
        return super().execute(plan)

    def _launch(self, plan: Plan) -> Launched:
        """As `execute`."""
        complete = [chunk for chunk in plan.chunks if chunk.completes]
        drawn = all(wants_token_alone(c.request.sequence, c.end) for c in complete)
        self.store.make_copies()
        flight, self._flight = self._flight, None
        found = flight.places(plan, self.store) if flight is not None else {}
        places = {c: found[c.request] for c in plan.chunks if c.request in found}
        self.flights.rows_taken += len(places)
        launches = [flight.launch] if flight is not None and places else []
        if not launches:
            times = Counter(chunk.request for chunk in plan.chunks)  # more than once with guesses
            decodes = [
                c for c in plan.chunks if c.completes and c.length == 1 and times[c.request] == 1
            ]
            if decodes:
                rows = [self._row(chunk) for chunk in decodes]
                launches.append(self.runner.decode(rows, _draws(decodes) if drawn else []))
                places = {chunk: place for place, chunk in enumerate(decodes)}
        others = [chunk for chunk in plan.chunks if chunk not in places]
        if others:
            batch = self.store.batch(Plan(tuple(others)), "cpu")
            ends = [chunk for chunk in others if chunk.completes]
            launches.append(self.runner.compute(others, batch, _draws(ends) if drawn else []))
            first = launches[-1].first
            places.update({chunk: first + i for i, chunk in enumerate(ends)})
        in_order = tuple(places[chunk] for chunk in complete)
        return Launched(tuple(launches), in_order, drawn)

    def _row(self, chunk: Chunk) -> DecodeRow:
        """A decode whose token the host knows."""
        block_ids = self.store.block_ids(chunk.request)
        [token_id] = chunk.request.token_ids(chunk.start, chunk.end)
        slot = slot_at(chunk.start, block_ids, self.store.block_size)
        return DecodeRow(chunk.start, slot, block_ids, token_id)

    def draw(self, plan: Plan, launched: Launched | Float[Tensor, "N V"]) -> list[Outcome]:  # pyright: ignore[reportIncompatibleMethodOverride]  # not logits yet
        """The tokens drawn on the device, read after the next flight is off; else the plain way.

        A row without a finite logit is rare: then the plain way says whose it is. Logits that
        somebody else computed are drawn from the plain way.
        """
        read = self.read(plan, launched) if isinstance(launched, Launched) else launched
        if isinstance(read, Tensor):
            return super().draw(plan, read)
        drawn = iter(read)
        return [Sampled(next(drawn)) if chunk.completes else None for chunk in plan.chunks]

    def read(self, plan: Plan, launched: Launched) -> list[int] | Float[Tensor, "N V"]:
        """The tokens of what was launched, or the logits where the plain way is to draw."""
        if not launched.drawn:
            self._count_wait()
            return launched.logits()
        if self._ahead and all(
            isinstance(chunk.request, Request) for chunk in plan.chunks
        ):  # without guesses
            self._flight = self._take_off(plan, launched)
        self._count_wait()
        tokens = launched.tokens()
        if NOT_FINITE not in tokens:
            return tokens
        # A flight is a decode: the logits of the one before it may be gone.
        return (launched if self._flight is None else self._launch(plan)).logits()

    def _count_wait(self) -> None:
        self.flights.waits += 1
        self.flights.idle_waits += self._flight is None

    def _take_off(self, plan: Plan, launched: Launched) -> Flight | None:
        """Launch the decodes that follow if every request goes on that may; None if none may, or
        the pool has no block left for one: then somebody will have to be preempted."""
        rows = plan_ahead(plan, launched.places, self.store)
        if not rows:
            return None
        self.flights.rows_launched += len(rows)
        draws = [_draw_at(request, row.position + 1) for request, row in rows.items()]
        return Flight(self.runner.decode(list(rows.values()), draws), rows)


def _draws(chunks: Seq[Chunk]) -> list[Draw]:
    return [_draw_at(chunk.request, chunk.end) for chunk in chunks]


def _draw_at(request: Request, position: int) -> Draw:
    return Draw(request.sequence.params, request.sequence.seed, position)

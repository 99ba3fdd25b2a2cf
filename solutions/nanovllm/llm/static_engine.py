"""Lab 03's ways to answer behind the methods of lab 04's engine: who comes later waits."""

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq

from nanovllm.generation.events import Event
from nanovllm.generation.loop import Generation
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import make_sequences
from nanovllm.generation.sequence import Sequence
from nanovllm.generation.static_batch import StaticBatch
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.tokenizer import Tokenizer


class StaticEngine:
    """Takes all that wait, up to max_num_seqs samples, and runs them to the end of the longest.

    A sample that waits alone goes through lab 03's `Generation`, several share a `StaticBatch`.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None,
        max_model_len: int,
        max_num_seqs: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_model_len, self.max_num_seqs = max_model_len, max_num_seqs
        self.clock = clock
        self._waiting: deque[Sequence] = deque()
        self._batch: Generation | StaticBatch | None = None
        self._given_up: set[int] = set()  # request ids with rows in the batch
        self._broken = False  # a step began, and did not end

    @property
    def has_unfinished(self) -> bool:
        """Whether a further step has anything to do."""
        return bool(self._waiting) or self._batch is not None

    def add_request(
        self,
        prompt_token_ids: Seq[int],
        params: SamplingParams,
        *,
        seed: int | None,
        request_id: int,
    ) -> None:
        """Let the n samples of a request wait for the next batch. Raises RequestError."""
        self._waiting += make_sequences(
            self.model,
            prompt_token_ids,
            params,
            tokenizer=self.tokenizer,
            max_model_len=self.max_model_len,
            seed=seed,
            request_id=request_id,
        )

    def abort(self, request_id: int) -> None:
        """Give a request up. Its rows cannot leave the batch, but nobody hears of them again."""
        self._waiting = deque(s for s in self._waiting if s.request_id != request_id)
        self._given_up.add(request_id)
        self._end_batch()

    def step(self) -> list[Event]:
        """One token for every row of the batch; a new batch first, where none is running."""
        if self._batch is None:
            self._batch = self._next_batch()
        self._broken = True
        events = self._batch.step()
        self._broken = False
        heard = [event for event in events if event.request_id not in self._given_up]
        self._end_batch()
        return heard

    def check(self) -> None:
        """Raise RuntimeError after a step that did not end: its batch cannot go on."""
        if self._broken:
            raise RuntimeError("a step of the batch was interrupted")

    def _next_batch(self) -> Generation | StaticBatch:
        most = min(self.max_num_seqs, len(self._waiting))
        rows = [self._waiting.popleft() for _ in range(most)]
        if len(rows) > 1 or rows[0].params.n > 1:
            return StaticBatch(self.model, rows, clock=self.clock)
        return Generation(
            self.model,
            rows[0].prompt_token_ids,
            rows[0].params,
            tokenizer=self.tokenizer,
            max_model_len=self.max_model_len,
            seed=rows[0].seed,
            clock=self.clock,
            request_id=rows[0].request_id,
        )

    def _end_batch(self) -> None:
        """Let the batch go when no row of it is left that anybody waits for."""
        rows = self._batch.sequences if self._batch is not None else ()
        if all(row.finished or row.request_id in self._given_up for row in rows):
            self._batch = None
            self._given_up.clear()

"""`EngineBase`: how an engine is made, and what its callers use (given).

`Engine` is an EngineBase with `step`, `execute`, `draw` and `update`.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.errors import ConfigError, require
from nanovllm.batching.events import EngineEvent
from nanovllm.batching.interface import SchedulerInterface, SchedulerMaker
from nanovllm.batching.open_requests import OpenRequests
from nanovllm.batching.request import Priority, Request
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.slot_store import SlotStore
from nanovllm.batching.store import KVStore
from nanovllm.batching.urgency import check_urgency
from nanovllm.generation.begun import begun
from nanovllm.generation.go_on import go_on
from nanovllm.generation.masks import masking
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import make_sequences, room_for, weight_of
from nanovllm.generation.sampling import Sampler, sample
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.tokenizer import Tokenizer


class EngineBase:
    """Parts and settings of an engine, and requests that wait in `requests` for the next step.

    What callers ask for is noted in `requests` (OpenRequests). `step` reads `requests.notes()`,
    and says `requests.remove(request)` of each sample that has ended.
    """

    scores_prompts = False  # whether it gives log-probabilities of a prompt's tokens

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
        self.sampler = masking(sampler)
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
        priority: int = Priority.NORMAL,
        seed: int | None = None,
        request_id: int | None = None,
        deadline: float | None = None,
        output_token_ids: Seq[int] = (),
    ) -> int:
        """Take a request on, or refuse it at once; its id, by which events and `abort` name it.

        output_token_ids: what another engine has generated of its answer. This one goes on behind
        them, as if they were its own: they count for max_tokens and are in the finished sample,
        and no event tells them again. With chance (temperature above 0), give the same seed. Those
        of BegunParams come first.
        """
        named = isinstance(priority, Priority)  # as traces have them, for any policy
        check_urgency(None if named else self.scheduler.policy, priority, deadline)
        request_id = self.requests.next_id() if request_id is None else request_id
        requests = self._make_requests(prompt_token_ids, params, priority, seed, request_id)
        tokens = (*begun(params), *output_token_ids)
        for request in requests:
            go_on(request.sequence, tokens, self.model.config.vocab_size)
            if deadline is not None:
                request.deadline = request.arrival + deadline
            self.scheduler.refuse_unfit(request)
        self.requests.add(request_id, requests)
        return request_id

    def _make_requests(
        self,
        prompt_token_ids: Seq[int],
        params: SamplingParams | None,
        priority: int,
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
            scores_prompts=self.scores_prompts,
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

    def step(self) -> list[EngineEvent]:
        """One round of the engine, and what happened in it (see EngineInterface)."""
        raise NotImplementedError("lab04 task 6: Engine.step")

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

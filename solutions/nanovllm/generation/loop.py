"""The generate loop as a state machine: read the prompt once, then one token a step."""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from enum import Enum, auto

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.generation.chunked import chunked_prefill
from nanovllm.generation.events import Event, Prefilled
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import make_sequences, room_for, weight_of
from nanovllm.generation.sampling import Sampler, sample
from nanovllm.generation.sequence import Sequence
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.tokenizer import Tokenizer

Clock = Callable[[], float]


class Phase(Enum):
    """Where a generation stands."""

    PREFILL = auto()  # the prompt has not been read
    DECODE = auto()  # one token a step
    FINISHED = auto()  # every sample is complete


class Generation:
    """One request on its way through prefill and decode; `step` moves it by one token.

    With n samples the prompt is read once: each later sample starts from the prompt's K, V and
    logits, which the cache keeps.
    """

    def __init__(
        self,
        model: Transformer,
        prompt_token_ids: Seq[int],
        params: SamplingParams | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        max_model_len: int | None = None,
        seed: int | None = None,
        sampler: Sampler = sample,
        chunk_size: int | None = None,
        clock: Clock = time.perf_counter,
        request_id: int = 0,
    ) -> None:
        self.model = model
        self.sequences = make_sequences(
            model,
            prompt_token_ids,
            params or SamplingParams(),
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            seed=seed,
            request_id=request_id,
        )
        self.sampler = sampler
        self.chunk_size = chunk_size
        self.clock = clock
        weight = weight_of(model)
        capacity = room_for(self.sequences[0])
        self.cache = ContiguousCache(model.config, capacity, weight.dtype, weight.device)
        self.phase = Phase.PREFILL
        self.prompt_logits: Float[Tensor, "1 V"] | None = None

    @property
    def current(self) -> Sequence:
        """The sample that is being generated: the first that has not ended."""
        return next(sequence for sequence in self.sequences if not sequence.finished)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Move by one token and report it; the first step also reports the Prefilled prompt.

        PREFILL -> DECODE when the prompt has been read, DECODE -> FINISHED when the last sample
        has ended (a first token may already end it).

        Raises:
            RuntimeError: the generation is finished.
        """
        ### BEGIN SOLUTION
        if self.phase is Phase.FINISHED:
            raise RuntimeError("This generation is finished; start another one.")
        events: list[Event] = []
        sequence = self.current
        if self.phase is Phase.PREFILL:
            self.prompt_logits = self.read_prompt(sequence)
            tokens = len(sequence.prompt_token_ids)
            events.append(Prefilled(sequence.request_id, tokens, self.clock()))
            self.phase = Phase.DECODE
        logits = self.decode(sequence)
        sampled = self.sampler(logits, [sequence.row])[0]
        events += sequence.append(sampled, self.clock())
        if all(sequence.finished for sequence in self.sequences):
            self.phase = Phase.FINISHED
        return events
        ### END SOLUTION

    def read_prompt(self, sequence: Sequence) -> Float[Tensor, "1 V"]:
        """The prompt's logits: by `prefill`, or in pieces of `chunk_size` tokens (task 4)."""
        token_ids = torch.tensor(sequence.prompt_token_ids, device=self.cache.device)
        if self.chunk_size is not None:
            return chunked_prefill(self.model, self.cache, token_ids, self.chunk_size)
        return self.prefill(token_ids)

    def prefill(self, token_ids: Int[Tensor, "T"]) -> Float[Tensor, "1 V"]:
        """Run the whole prompt through the model into the cache; logits of its last token only."""
        ### BEGIN SOLUTION
        hidden = forward_cached(self.model, self.cache, token_ids)
        return self.model.logits(hidden[-1:])
        ### END SOLUTION

    def decode(self, sequence: Sequence) -> Float[Tensor, "1 V"]:
        """The logits for a sequence's next token: from its newest token, and the cache.

        A sequence without output starts from the prompt's logits, with nothing but the prompt
        in the cache (`cache.truncate`) and no pass through the model.
        """
        ### BEGIN SOLUTION
        if not sequence.output_token_ids:
            self.cache.truncate(len(sequence.prompt_token_ids))
            return self.prompt_logits
        newest = torch.tensor(sequence.output_token_ids[-1:], device=self.cache.device)
        return self.model.logits(forward_cached(self.model, self.cache, newest))
        ### END SOLUTION


def generate(
    model: Transformer,
    prompt_token_ids: Seq[int],
    params: SamplingParams | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    max_model_len: int | None = None,
    seed: int | None = None,
    sampler: Sampler = sample,
    chunk_size: int | None = None,
    clock: Clock = time.perf_counter,
    request_id: int = 0,
) -> Iterator[Event]:
    """Answer one request and yield its events as they happen; refuses it before the first.

    max_model_len: the most tokens of prompt and output together, the model's own limit if None.
    seed: used where params.seed is None; fresh randomness if that is None too.
    Raises RequestError (see errors.py), ParamsError comes from SamplingParams itself.
    """
    generation = Generation(
        model,
        prompt_token_ids,
        params,
        tokenizer=tokenizer,
        max_model_len=max_model_len,
        seed=seed,
        sampler=sampler,
        chunk_size=chunk_size,
        clock=clock,
        request_id=request_id,
    )
    return _events(generation)


def _events(generation: Generation) -> Iterator[Event]:
    while generation.phase is not Phase.FINISHED:
        yield from generation.step()

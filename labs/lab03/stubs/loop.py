"""The generate loop as a state machine: read the prompt once, then one token a step."""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from enum import Enum, auto

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.generation.chunked import chunked_prefill
from nanovllm.generation.events import Event, Prefilled
from nanovllm.generation.masks import masking
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import make_sequences, room_for, weight_of
from nanovllm.generation.sampling import Sampler, sample
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
    """One request on its way through prefill and decode; `step` moves it by one token."""

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
        self.sampler = masking(sampler)
        self.chunk_size = chunk_size
        self.clock = clock
        weight = weight_of(model)
        self.device = weight.device
        capacity = room_for(self.sequences[0])
        self.cache = ContiguousCache(model.config, capacity, weight.dtype, weight.device)
        self.phase = Phase.PREFILL
        self.prompt_logits: Float[Tensor, "1 V"] | None = None  # what every sample starts from

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Generate one token and report it; the first step also reads the prompt.

        `Prefilled` is reported before the first token. PREFILL becomes DECODE when the prompt has
        been read, DECODE becomes FINISHED when the last sample has ended (a first token may
        already end it). Times are those of `clock()`.

        What it costs: the prompt goes through the model once, in one pass (with chunk_size in
        pieces, by `chunked_prefill` of task 4), then each token once, at its own position; the
        last token of a sample never. Logits are asked for one row at a time. With n samples the
        prompt is still read once: they are generated one after another, in the order of their
        index, and each starts from the prompt's K, V and logits.

        Raises:
            RuntimeError: the generation is finished.
        """
        raise NotImplementedError("lab03 task 1: Generation.step")


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

"""Generation without a cache: every token is computed from the whole sequence, in one pass each."""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import Any

import torch

from nanovllm.generation.events import Event, Prefilled
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import make_sequences
from nanovllm.generation.sampling import Sampler, sample
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.transformer import Transformer

Clock = Callable[[], float]


@torch.inference_mode()
def generate(
    model: Transformer,
    prompt_token_ids: Seq[int],
    params: SamplingParams | None = None,
    *,
    sampler: Sampler = sample,
    clock: Clock = time.perf_counter,
    chunk_size: int | None = None,
    **named: Any,
) -> Iterator[Event]:
    """The events of one request."""
    named = {"tokenizer": None, "max_model_len": None, "seed": None, **named}
    sequences = make_sequences(model, prompt_token_ids, params or SamplingParams(), **named)
    attend = RecomputeAttend(model.config)
    yield Prefilled(named.get("request_id", 0), len(prompt_token_ids), clock())
    for sequence in sequences:
        while not sequence.finished:
            ids = torch.tensor([*sequence.prompt_token_ids, *sequence.output_token_ids])
            hidden = model(ids, torch.arange(len(ids)), attend)
            [sampled] = sampler(model.logits(hidden[-1:]), [sequence.row])
            yield from sequence.append(sampled, clock())

"""Beam search: keep the `beam_width` likeliest continuations, and the best ones that ended."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from nanovllm.generation import beam_state
from nanovllm.generation.batch_cache import BatchCache
from nanovllm.generation.beam_params import Beam as Beam
from nanovllm.generation.beam_params import BeamSearchParams as BeamSearchParams
from nanovllm.generation.beam_params import Hypothesis as Hypothesis
from nanovllm.generation.errors import check_request
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import weight_of
from nanovllm.model.attend import Attend
from nanovllm.model.transformer import Transformer


class BeamCache(Protocol):
    """What beam search asks of a cache whose rows follow the beams (see BatchCache)."""

    length: int

    def bind(self, num_columns: int) -> Attend: ...
    def advance(self, num_columns: int) -> None: ...
    def reorder(self, parents: Sequence[int]) -> None: ...


@torch.inference_mode()
def beam_search(
    model: Transformer,
    prompt_token_ids: Sequence[int],
    params: BeamSearchParams,
    *,
    max_model_len: int | None = None,
    make_cache: Callable[[int], BeamCache] | None = None,
) -> list[Hypothesis]:
    """The beam_width best continuations of a prompt, best first; fewer if there are no more.

    The prompt is read once, by one row. Then every step feeds each open beam's newest token, in
    one batch: W tokens, one row of the cache for each beam, at the position where that token
    stands. The last token of a beam is never fed. max_model_len bounds prompt and continuation
    together (given code has cut params.max_tokens to the room there is).

    make_cache: is given the tokens that a row must hold (as many as will be fed, or more) and
    returns a cache with one row. If None, a BatchCache with the model's dtype and device. Of the
    cache nothing but what BeamCache names may be used.
    Raises RequestError.
    """
    limit = max_model_len or model.config.max_position
    check_request(
        prompt_token_ids,
        SamplingParams(),
        vocab_size=model.config.vocab_size,
        max_model_len=limit,
        has_tokenizer=True,
    )
    room = limit - len(prompt_token_ids)
    params = replace(params, max_tokens=min(params.max_tokens, room))
    ### BEGIN SOLUTION
    like = weight_of(model)
    capacity = len(prompt_token_ids) + params.max_tokens - 1
    if make_cache is None:
        cache = BatchCache(model.config, 1, capacity, like.dtype, like.device)
    else:
        cache = make_cache(capacity)
    search = beam_state.BeamSearch(params, model.config.eos_token_ids)
    newest = torch.tensor([list(prompt_token_ids)], device=like.device)  # [W, S], W is 1 at first
    while True:
        rows, columns = newest.shape
        positions = torch.arange(cache.length, cache.length + columns, device=newest.device)
        hidden = model(newest.flatten(), positions.repeat(rows), cache.bind(columns))
        cache.advance(columns)
        last = hidden.unflatten(0, (rows, columns))[:, -1]  # [W, E]
        parents = search.update(model.logits(last).float().log_softmax(dim=-1))
        if search.over:
            return search.finished
        cache.reorder(parents)
        newest = torch.tensor([beam.token_ids[-1:] for beam in search.beams], device=newest.device)
    ### END SOLUTION

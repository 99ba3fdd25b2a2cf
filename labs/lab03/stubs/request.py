"""From what a caller asks to the sequences that answer it (given)."""

import secrets
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from nanovllm.generation.compile_grammar import compile_grammar
from nanovllm.generation.errors import RequestError, check_request
from nanovllm.generation.keys import sample_seed
from nanovllm.generation.masks import check_masks, with_bad_tokens
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.detokenizer import StreamingDetokenizer
from nanovllm.tokenization.tokenizer import Tokenizer


def make_sequences(
    model: Transformer,
    prompt_token_ids: Seq[int],
    params: SamplingParams,
    *,
    tokenizer: Tokenizer | None,
    max_model_len: int | None,
    seed: int | None,
    request_id: int = 0,
    scores_prompts: bool = False,
) -> list[Sequence]:
    """The n sequences of a request, each with a seed of its own; refuses what cannot be served.

    The seed is params.seed, else `seed`, else fresh randomness. scores_prompts: whether whoever
    asks gives log-probabilities of prompts. Raises RequestError.
    """
    if params.prompt_logprobs is not None and not scores_prompts:
        raise RequestError("prompt_logprobs needs an engine that keeps K and V in blocks (lab 05).")
    limit = max_model_len or model.config.max_position
    params = prepare(params, model, tokenizer)
    check_masks(params, model.config.eos_token_ids, model.config.vocab_size)
    check_request(
        prompt_token_ids,
        params,
        vocab_size=model.config.vocab_size,
        max_model_len=limit,
        has_tokenizer=tokenizer is not None,
    )
    first = next((s for s in (params.seed, seed) if s is not None), None)
    first = secrets.randbits(63) if first is None else first
    return [
        Sequence(
            prompt_token_ids,
            params if params.grammar is None else replace(params, grammar=params.grammar.fresh()),
            max_model_len=limit,
            seed=sample_seed(first, index),
            eos_token_ids=model.config.eos_token_ids,
            detokenizer=StreamingDetokenizer(tokenizer, params.skip_special_tokens)
            if tokenizer
            else None,
            request_id=request_id,
            index=index,
        )
        for index in range(params.n)
    ]


def prepare(
    params: SamplingParams, model: Transformer, tokenizer: Tokenizer | None
) -> SamplingParams:
    """What the parameters say in texts, as token ids and a grammar over them; once is enough.

    Where a grammar may take long, a caller can do this in another thread. Raises RequestError.
    """
    params = with_bad_tokens(params, tokenizer)
    if params.structured_outputs is None or params.grammar is not None:
        return params
    size, ends = model.config.vocab_size, model.config.eos_token_ids
    grammar = compile_grammar(params.structured_outputs, tokenizer, size, ends)
    return replace(params, grammar=grammar)


def room_for(sequence: Sequence) -> int:
    """The most tokens this sequence can ever put into a cache.

    The token drawn last is never fed back, so one place fewer than the tokens it may have.
    """
    longest = sequence.max_model_len
    if sequence.params.max_tokens is not None:
        longest = min(longest, len(sequence.prompt_token_ids) + sequence.params.max_tokens)
    return longest - 1


def weight_of(model: Transformer) -> torch.Tensor:
    """Any weight of the model: tells the dtype and the device that its caches must have."""
    return next(model.parameters())

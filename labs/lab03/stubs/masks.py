"""Tokens that a request forbids, as -inf in its row of logits before it is sampled (given).

Source: vllm/v1/sample/ops/bad_words.py of vLLM 0.32.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.generation import chain
from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import Sampled
from nanovllm.generation.grammar import Grammar
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.rows import Logits, Sampler, SamplingRow
from nanovllm.tokenization.tokenizer import Tokenizer


def apply_masks(logits: Logits, rows: Sequence[SamplingRow]) -> Logits:
    """A copy in which the tokens that each row forbids are -inf.

    A bad word of several tokens is never completed: its last one is forbidden behind the others.

    >>> params = SamplingParams(allowed_token_ids=[0, 2], bad_words_token_ids=[[5, 2]])
    >>> apply_masks(torch.ones(1, 3), [SamplingRow(params, [9], [5], seed=0)]).tolist()
    [[1.0, -inf, -inf]]
    """
    masked = logits.clone()
    for n, row in enumerate(rows):
        if row.params.allowed_token_ids is not None:
            allowed = torch.tensor(row.params.allowed_token_ids, device=logits.device)
            masked[n] = torch.full_like(masked[n], -torch.inf)
            masked[n, allowed] = logits[n, allowed]
        for run in row.params.bad_words_token_ids or ():
            begun = len(run) - 1
            if tuple(row.output_token_ids[len(row.output_token_ids) - begun :]) == run[:-1]:
                masked[n, run[-1]] = -torch.inf
        if row.params.grammar is not None:
            _follow(row.params.grammar, masked[n], row)
    return masked


def _follow(grammar: Grammar, logits: Float[Tensor, " V"], row: SamplingRow) -> None:
    """Forbid what the grammar does; behind guesses that break it nothing is ever drawn."""
    allowed = grammar.allowed(row.output_token_ids)
    if allowed is None:
        return
    logits.masked_fill_(~allowed.to(logits.device), -torch.inf)
    others = row.params.allowed_token_ids or row.params.bad_words_token_ids
    if others and not logits.isfinite().any():
        raise RequestError(
            "structured_outputs leaves no token that allowed_token_ids allows and bad_words does "
            "not forbid; allow more, the end token too."
        )


def without_dead_ends(masked: Logits, rows: Sequence[SamplingRow]) -> list[SamplingRow]:
    """The rows, without min_tokens where the grammar allows nothing but an end."""
    return [_may_end(logits, row) for logits, row in zip(masked, rows, strict=True)]


def _may_end(logits: Float[Tensor, " V"], row: SamplingRow) -> SamplingRow:
    if row.params.grammar is None or len(row.output_token_ids) >= row.params.min_tokens:
        return row
    if {*logits.isfinite().nonzero().flatten().tolist()} <= row.stop_token_ids:
        return replace(row, params=replace(row.params, min_tokens=0))
    return row


def masking(sampler: Sampler) -> Sampler:
    """The sampler behind the masks of its rows. Log-probabilities stay those of the raw logits."""
    ahead = Ahead()

    def sample(logits: Logits, rows: Sequence[SamplingRow]) -> list[Sampled]:
        if not any(row.params.has_mask for row in rows):
            return sampler(logits, rows)
        ahead.wait()
        masked = apply_masks(logits, rows)
        drawn = sampler(masked, without_dead_ends(masked, rows))
        ahead.start(rows, drawn)
        return [
            found
            if found.logprobs is None or row.params.logprobs is None or not row.params.has_mask
            else Sampled(
                found.token_id, chain.gather_logprobs(raw, found.token_id, row.params.logprobs)
            )
            for found, raw, row in zip(drawn, logits, rows, strict=True)
        ]

    return sample


class Ahead:
    """The grammars' next masks, computed in a thread while the model computes its next logits."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None

    def wait(self) -> None:
        """Until the masks that were begun are there; what went wrong is raised, here and once."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def start(self, rows: Sequence[SamplingRow], drawn: Sequence[Sampled]) -> None:
        """Begin with the masks behind these draws; of the guesses of a sample, those that stand."""
        behind: dict[Grammar, list[int]] = {}
        for row, found in zip(rows, drawn, strict=True):
            grammar = row.params.grammar
            if grammar is not None:
                so_far = list(row.output_token_ids)
                if behind.get(grammar, so_far) == so_far:
                    behind[grammar] = [*so_far, found.token_id]
        if behind:
            self._thread = self._thread or ThreadPoolExecutor(1, "nanovllm-masks")
            self._job = self._thread.submit(_compute, behind)


def _compute(behind: Mapping[Grammar, Sequence[int]]) -> None:
    for grammar, token_ids in behind.items():
        with suppress(RequestError):  # raised again where the mask is needed
            grammar.allowed(token_ids)


def with_bad_tokens(params: SamplingParams, tokenizer: Tokenizer | None) -> SamplingParams:
    """The parameters with the token ids of their bad words. Raises RequestError without tokenizer.

    A word is forbidden at the beginning of a text and, where that is as many tokens, behind a
    space: as vLLM does.
    """
    if not params.bad_words:
        return params
    if tokenizer is None:
        raise RequestError("bad_words needs a tokenizer; use bad_words_token_ids.")
    runs = [run for word in params.bad_words for run in _spelled(word.lstrip(), tokenizer)]
    return replace(
        params, bad_words=None, bad_words_token_ids=(*(params.bad_words_token_ids or ()), *runs)
    )


def _spelled(word: str, tokenizer: Tokenizer) -> Iterator[tuple[int, ...]]:
    plain, spaced = tuple(tokenizer.encode(word)), tuple(tokenizer.encode(" " + word))
    yield plain
    if len(spaced) == len(plain) and spaced[0] != plain[0]:
        yield spaced


def check_masks(params: SamplingParams, eos_token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse masks that may leave no token at all to be drawn. Raises RequestError."""
    allowed, runs = params.allowed_token_ids, params.bad_words_token_ids or ()
    # A longer word forbids its last token behind the others only. Such words may take all of a few
    # allowed tokens at once; of a whole vocabulary something is left.
    forbidden = {run[-1] for run in runs if allowed is not None or len(run) == 1}
    if params.min_tokens > 0:
        forbidden |= {*eos_token_ids, *(params.stop_token_ids or ())}
    if allowed is None:
        if len(forbidden) >= vocab_size and forbidden.issuperset(range(vocab_size)):
            raise RequestError(
                "bad_words, or min_tokens and what ends an answer, forbid every token there is; "
                "forbid fewer."
            )
    elif forbidden.issuperset(allowed):
        raise RequestError(
            "allowed_token_ids allows nothing that bad_words and min_tokens do not forbid; allow "
            "another token."
        )

"""Beam search: keep the `beam_width` likeliest continuations, and the best ones that ended.

Source: transformers' GenerationMixin._beam_search (version 5), whose results it equals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.generation.batch_cache import BatchCache
from nanovllm.generation.errors import check_request
from nanovllm.generation.events import FinishReason
from nanovllm.generation.params import ParamsError, SamplingParams
from nanovllm.generation.request import weight_of
from nanovllm.model.attend import Attend
from nanovllm.model.transformer import Transformer


class BeamCache(Protocol):
    """What beam search asks of a cache whose rows follow the beams (see BatchCache)."""

    length: int

    def bind(self, num_columns: int) -> Attend: ...
    def advance(self, num_columns: int) -> None: ...
    def reorder(self, parents: Sequence[int]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """How to search: vLLM's names, with transformers' early_stopping besides.

    early_stopping: True stops when beam_width hypotheses have ended; False also goes on while
    the best open beam, at its present length, would beat the worst of them; "never" supposes
    the length that favours it most.

    >>> BeamSearchParams(beam_width=0)
    Traceback (most recent call last):
    nanovllm.generation.params.ParamsError: beam_width must be at least 1, got 0.
    """

    beam_width: int
    max_tokens: int = 16
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            if getattr(self, name) < 1:
                raise ParamsError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.early_stopping not in (True, False, "never"):
            raise ParamsError(
                f'early_stopping must be True, False or "never", got {self.early_stopping!r}.'
            )


@dataclass(frozen=True)
class Candidate:
    """One way to go on: which beam, with which token, and the sum of log-probabilities then."""

    logprob: float
    beam: int
    token_id: int


@dataclass(frozen=True)
class Hypothesis:
    """A continuation that has ended. `token_ids` do not hold the prompt; `score` ranks it."""

    token_ids: tuple[int, ...]
    logprob: float  # the sum over its tokens
    score: float  # logprob / length ** length_penalty
    finish_reason: FinishReason


def best_candidates(
    beam_logprobs: Float[Tensor, "W"], logprobs: Float[Tensor, "W V"], count: int
) -> list[Candidate]:
    """The `count` likeliest of all W * V continuations, best first (all, if there are fewer).

    >>> step = torch.tensor([[0.6, 0.4], [0.9, 0.1]]).log()
    >>> best = best_candidates(torch.tensor([0.5, 0.2]).log(), step, 3)
    >>> [(candidate.beam, candidate.token_id) for candidate in best]
    [(0, 0), (0, 1), (1, 0)]
    """
    ### BEGIN SOLUTION
    totals = (beam_logprobs[:, None] + logprobs).flatten()  # [W * V]
    values, places = totals.topk(min(count, len(totals)))
    vocab_size = logprobs.shape[1]
    return [
        Candidate(value, *divmod(place, vocab_size))
        for value, place in zip(values.tolist(), places.tolist(), strict=True)
    ]
    ### END SOLUTION


def length_normalized(logprob: float, length: int, length_penalty: float) -> float:
    """logprob / length ** length_penalty, with the number of generated tokens as the length.

    Log-probabilities are negative, so a penalty above 0 favours longer hypotheses.

    >>> length_normalized(-6.0, 3, 1.0), length_normalized(-6.0, 3, 0.0)
    (-2.0, -6.0)
    """
    ### BEGIN SOLUTION
    return logprob / length**length_penalty
    ### END SOLUTION


def search_is_over(
    params: BeamSearchParams, finished: Sequence[Hypothesis], best_open: float, length: int
) -> bool:
    """Whether no open beam is worth going on with; never while fewer than beam_width have ended.

    best_open: the log-probability of the likeliest open beam; length: tokens it has generated.
    With early_stopping True, enough is enough. Otherwise the best open beam's score, at `length`
    or (for "never" with a length_penalty above 0) at max_tokens, must beat the worst finished.

    >>> ended = [Hypothesis((3,), -2.0, -2.0, "stop")]
    >>> search_is_over(BeamSearchParams(beam_width=1), ended, best_open=-3.0, length=2)
    False
    """
    ### BEGIN SOLUTION
    if len(finished) < params.beam_width:
        return False
    if params.early_stopping is True:
        return True
    hopeful = params.early_stopping == "never" and params.length_penalty > 0
    length = params.max_tokens if hopeful else length
    possible = length_normalized(best_open, length, params.length_penalty)
    return possible <= min(hypothesis.score for hypothesis in finished)
    ### END SOLUTION


@dataclass(frozen=True)
class Beam:
    """An open continuation and the sum of its log-probabilities."""

    token_ids: tuple[int, ...]
    logprob: float


class BeamSearch:
    """The open beams and the best hypotheses that have ended; `update` takes one step's scores."""

    def __init__(self, params: BeamSearchParams, eos_token_ids: Sequence[int]) -> None:
        self.params = params
        self.eos_token_ids = () if params.ignore_eos else tuple(eos_token_ids)
        self.beams = [Beam((), 0.0)]  # all are equal at first, so one stands for all
        self.finished: list[Hypothesis] = []  # best first, at most beam_width
        self.over = False

    @property
    def num_candidates(self) -> int:
        """Enough that beam_width open ones remain, though each beam may end in every way."""
        return self.params.beam_width * max(2, 1 + len(self.eos_token_ids))

    def update(self, logprobs: Float[Tensor, "W V"]) -> list[int]:
        """Take every open beam's next-token log-probabilities; return the new beams' parents.

        Of the `num_candidates` best continuations, those that end (in an end-of-sequence token,
        or at max_tokens) become hypotheses if they are among the first beam_width; of the others
        the first beam_width are the new beams. `finished` keeps the best beam_width by score.
        """
        ### BEGIN SOLUTION
        width = self.params.beam_width
        scores = torch.tensor([beam.logprob for beam in self.beams], device=logprobs.device)
        opened: list[Beam] = []
        parents: list[int] = []
        length = len(self.beams[0].token_ids) + 1
        for rank, candidate in enumerate(best_candidates(scores, logprobs, self.num_candidates)):
            token_ids = (*self.beams[candidate.beam].token_ids, candidate.token_id)
            is_eos = candidate.token_id in self.eos_token_ids
            if not is_eos and length < self.params.max_tokens:
                if len(opened) < width:
                    opened.append(Beam(token_ids, candidate.logprob))
                    parents.append(candidate.beam)
            elif rank < width:
                score = length_normalized(candidate.logprob, length, self.params.length_penalty)
                reason = "stop" if is_eos else "length"
                self.finished.append(Hypothesis(token_ids, candidate.logprob, score, reason))
        self.finished = sorted(self.finished, key=lambda h: h.score, reverse=True)[:width]
        self.beams = opened
        self.over = not opened or search_is_over(
            self.params, self.finished, opened[0].logprob, length
        )
        return parents
        ### END SOLUTION


@torch.inference_mode()
def beam_search(
    model: Transformer,
    prompt_token_ids: Sequence[int],
    params: BeamSearchParams,
    *,
    max_model_len: int | None = None,
    make_cache: Callable[[int], BeamCache] | None = None,
) -> list[Hypothesis]:
    """The beam_width best continuations of a prompt, best first.

    The prompt is read once; then every step feeds each open beam's newest token, in one batch
    whose cache rows follow the beams. max_model_len bounds prompt and continuation together.
    make_cache: from tokens a row to the cache, which begins with one row; a BatchCache if None.
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
    search = BeamSearch(params, model.config.eos_token_ids)
    weight = weight_of(model)
    capacity = len(prompt_token_ids) + params.max_tokens - 1
    cache: BeamCache
    if make_cache is None:
        cache = BatchCache(model.config, 1, capacity, weight.dtype, weight.device)
    else:
        cache = make_cache(capacity)
    newest = torch.tensor([list(prompt_token_ids)], device=weight.device)  # [W, S], W is 1 at first
    ### BEGIN SOLUTION
    while True:
        rows, width = newest.shape
        positions = torch.arange(cache.length, cache.length + width, device=newest.device)
        hidden = model(newest.flatten(), positions.repeat(rows), cache.bind(width))
        cache.advance(width)
        last = hidden.unflatten(0, (rows, width))[:, -1]  # [W, E]
        parents = search.update(model.logits(last).float().log_softmax(dim=-1))
        if search.over:
            return search.finished
        cache.reorder(parents)
        newest = torch.tensor([beam.token_ids[-1:] for beam in search.beams], device=newest.device)
    ### END SOLUTION

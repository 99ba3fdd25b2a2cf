"""Log-probabilities of a prompt's own tokens, on any engine over lab 05's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.batching.engine_base import EngineBase
from nanovllm.batching.events import EngineEvent
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.generation.events import Logprob, Prefilled

Scores = list[dict[int, Logprob] | None]
PIECE = 256  # rows whose probabilities are in memory at once


def salt_of(request: Request) -> str:
    """Who shares the prefix cache: those with the same `cache_salt`.

    Nobody with a prompt to be scored: what is found in the cache has no logits.
    """
    params = request.sequence.params
    if params.prompt_logprobs is not None:
        return f"scored {request.sequence.request_id}"
    return f"salt {params.cache_salt}" if params.cache_salt else ""


if TYPE_CHECKING:
    from nanovllm.batching.engine import Engine as EngineBehind
else:
    EngineBehind = EngineBase


class ScoringEngine(EngineBehind):
    """Before any Engine in the order of bases: it also scores prompts; SamplingParams asks for it.

    A chunk of such a prompt is planned as chunks of one token each, all of which complete: so
    `execute` gives logits behind every token, and K and V are those of one chunk. The Prefilled
    of the request brings what was found.
    """

    scores_prompts = True

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._scores: dict[int, Scores] = {}  # by request id, of prompts that are being read
        super().__init__(*args, **settings)

    def step(self) -> list[EngineEvent]:
        """As the engine's; a Prefilled has the prompt's log-probabilities, where asked for."""
        events = super().step()
        if not self._scores:
            return events
        for place, event in enumerate(events):
            if isinstance(event, Prefilled) and event.request_id in self._scores:
                found = tuple(self._scores.pop(event.request_id))
                events[place] = Prefilled(event.request_id, event.num_tokens, event.time, found)
        known, _ = self.requests.all()
        reading = {request.sequence.request_id for request in known}
        self._scores = {i: scores for i, scores in self._scores.items() if i in reading}
        return events

    def execute(self, plan: Plan) -> Float[Tensor, "N V"]:
        """As the engine's, and the prompts' tokens scored by the way."""
        wanted = [
            chunk
            for chunk in plan.chunks
            if chunk.request.sequence.params.prompt_logprobs is not None and self._wants(chunk)
        ]
        if not wanted:
            return super().execute(plan)
        chunks: list[Chunk] = []
        for chunk in plan.chunks:
            chunks += one_by_one(chunk) if chunk in wanted else [chunk]
        logits = super().execute(Plan(tuple(chunks), budget=plan.budget))
        logits = logits if isinstance(logits, Tensor) else logits.logits()  # of a GPU's step
        kept: list[int] = []
        row = 0
        for chunk in plan.chunks:
            drawn = num_rows(chunk)
            if chunk in wanted:
                known = chunk.length - num_guesses(chunk)
                self._score(chunk, logits[row : row + known])
                row += known - bool(drawn)  # the last of them is drawn from, too
            kept += range(row, row + drawn)
            row += drawn
        return logits[kept]

    def _wants(self, chunk: Chunk) -> bool:
        """Whether a token behind one of the chunk's still has to be scored, where any is to be."""
        sequence = chunk.request.sequence
        if sequence.output_token_ids:
            return False
        return None in self._scores_of(chunk.request)[chunk.start + 1 : chunk.end + 1]

    def _scores_of(self, request: Request) -> Scores:
        sequence = request.sequence
        empty: Scores = [None] * len(sequence.prompt_token_ids)
        return self._scores.setdefault(sequence.request_id, empty)

    def _score(self, chunk: Chunk, logits: Float[Tensor, "T V"]) -> None:
        """Note the log-probabilities of the tokens behind those of the chunk."""
        prompt = chunk.request.sequence.prompt_token_ids
        count = chunk.request.sequence.params.prompt_logprobs
        behind = prompt[chunk.start + 1 : chunk.start + 1 + len(logits)]
        found = score_tokens(logits[: len(behind)], behind, count)
        self._scores_of(chunk.request)[chunk.start + 1 : chunk.start + 1 + len(behind)] = found


def num_guesses(chunk: Chunk) -> int:
    """Tokens of a chunk that are lab 08's guesses."""
    guesses = getattr(chunk, "guesses", None)
    return len(guesses.token_ids) if guesses else 0


def num_rows(chunk: Chunk) -> int:
    """Of how many of a chunk's tokens `execute` gives logits."""
    return num_guesses(chunk) + 1 if chunk.completes else 0


def one_by_one(chunk: Chunk) -> list[Chunk]:
    """The chunk's known tokens as chunks of one, which complete; guesses stay behind the last.

    >>> [(one.start, one.completes) for one in one_by_one(Chunk(None, 4, 2, total=9))]
    [(4, True), (5, True)]
    """
    guesses = num_guesses(chunk)
    ones = [Chunk(chunk.request, at, 1, at + 1) for at in range(chunk.start, chunk.end - guesses)]
    if guesses:
        last: Any = chunk._replace(start=ones[-1].start, length=1 + guesses)
        last.guesses = getattr(chunk, "guesses")  # noqa: B009 - of a GuessedChunk
        ones[-1] = last
    return ones


def score_tokens(
    logits: Float[Tensor, "T V"], token_ids: Sequence[int], count: int
) -> list[dict[int, Logprob]]:
    """Of each row its token's log-probability, then those of the `count` likeliest (-1: all;
    so is a count above the vocabulary's size).

    >>> scores = score_tokens(torch.tensor([[0.0, 0.0, -torch.inf]]), [1], 1)
    >>> [(i, round(entry.logprob, 3)) for i, entry in scores[0].items()]
    [(1, -0.693), (0, -0.693)]
    """
    found: list[dict[int, Logprob]] = []
    for start in range(0, len(token_ids), PIECE):
        logprobs = logits[start : start + PIECE].float().log_softmax(dim=-1)
        ids = torch.tensor(token_ids[start : start + PIECE], device=logits.device)[:, None]
        own = logprobs.gather(-1, ids)
        ranks = (logprobs >= own).sum(dim=-1)
        size = logprobs.shape[-1]
        top = logprobs.topk(size if count == -1 else min(count, size), dim=-1)
        rows = (own[:, 0], ids[:, 0], ranks, top.values, top.indices)
        for value, token_id, rank, values, others in zip(*(r.tolist() for r in rows), strict=True):
            entries = {token_id: Logprob(value, rank)}
            for place, (other, likely) in enumerate(zip(others, values, strict=True), 1):
                entries.setdefault(other, Logprob(likely, place))
            found.append(entries)
    return found


def scoring(engine: type[EngineBase]) -> type[EngineBase]:
    """The same engine, which also scores prompts."""
    return type(engine.__name__, (ScoringEngine, engine), {})

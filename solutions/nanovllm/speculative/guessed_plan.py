"""A plan whose chunks guess: what the model and the sampler are given in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.generation.events import Sampled
from nanovllm.generation.rows import SamplingRow
from nanovllm.speculative.proposer import Guesses


class GuessedChunk(Chunk):
    """A chunk that completes, and guesses: the last of tokens start .. end - 1."""

    guesses: Guesses

    @classmethod
    def of(cls, chunk: Chunk, guesses: Guesses) -> GuessedChunk:
        """The chunk with these guesses behind it."""
        count = len(guesses.token_ids)
        longer = cls(chunk.request, chunk.start, chunk.length + count, chunk.total + count)
        longer.guesses = guesses
        return longer

    @property
    def places(self) -> list[Chunk]:
        """The known tokens as one chunk, then a chunk of one token for each guess.

        Each completes, so that the model gives logits behind each of them: `total` is its own end.

        >>> chunk = GuessedChunk.of(Chunk(None, start=6, length=2, total=8), Guesses((5, 9)))
        >>> [(place.start, place.length, place.total) for place in chunk.places]
        [(6, 2, 8), (8, 1, 9), (9, 1, 10)]
        """
        ### BEGIN SOLUTION
        known = self.end - len(self.guesses.token_ids)
        guesses = [Chunk(self.request, p, 1, p + 1) for p in range(known, self.end)]
        return [Chunk(self.request, self.start, known - self.start, known), *guesses]
        ### END SOLUTION


@dataclass(frozen=True)
class Verified:
    """What a guessed chunk came to: its tokens, the last of them no guess; or an error at last."""

    drawn: tuple[Sampled | Exception, ...]

    @property
    def accepted(self) -> int:
        """Guesses that stand."""
        return len(self.drawn) - 1


class _SequenceAt:
    """A sequence as it would be if some guesses stood: what drawing the next token reads of it."""

    def __init__(self, sequence: Any, guesses: Sequence[int]) -> None:
        self.params = sequence.params
        self.prompt_token_ids = sequence.prompt_token_ids
        self.output_token_ids = [*sequence.output_token_ids, *guesses]
        row = sequence.row
        self.row = SamplingRow(
            row.params, row.prompt_token_ids, self.output_token_ids, row.seed, row.eos_token_ids
        )


class RequestAt:
    """A request at one place of its guesses; each is a row of its own for `draw`."""

    def __init__(self, request: Request, guesses: Sequence[int]) -> None:
        self.sequence = _SequenceAt(request.sequence, guesses)


def spread(plan: Plan) -> Plan:
    """The plan with a chunk for each place of the guessed ones."""
    chunks: list[Chunk] = []
    for chunk in plan.chunks:
        chunks += chunk.places if isinstance(chunk, GuessedChunk) else [chunk]
    return replace(plan, chunks=tuple(chunks))


def at_places(plan: Plan) -> Plan:
    """The same plan for `draw`: a chunk for each place, whose request has the guesses before it.

    In place of a GuessedChunk stand its places, in order. The first is the request's own; place i
    behind it has a RequestAt with the first i guesses, so that penalties, min_tokens and the key
    of the draw are those of that place. All other chunks stay.

    >>> from nanovllm.generation.params import SamplingParams
    >>> from nanovllm.generation.sequence import Sequence
    >>> sequence = Sequence([3] * 8, SamplingParams(), max_model_len=20, seed=0)
    >>> request = Request(0, sequence, arrival=0.0, limit=19)
    >>> plan = Plan((GuessedChunk.of(Chunk(request, 7, 1, 8), Guesses((5, 9))),))
    >>> [place.request.sequence.output_token_ids for place in at_places(plan).chunks]
    [[], [5], [5, 9]]
    """
    ### BEGIN SOLUTION
    chunks: list[Chunk] = []
    for chunk in plan.chunks:
        if not isinstance(chunk, GuessedChunk):
            chunks.append(chunk)
            continue
        first, *later = chunk.places
        chunks.append(first)
        for i, place in enumerate(later, 1):
            at = RequestAt(chunk.request, chunk.guesses.token_ids[:i])
            chunks.append(place._replace(request=at))
    return replace(plan, chunks=tuple(chunks))
    ### END SOLUTION


@contextmanager
def standing(plan: Plan) -> Iterator[None]:
    """The guesses are in the sequences, and are taken out again whatever happens."""
    guessed = [chunk for chunk in plan.chunks if isinstance(chunk, GuessedChunk)]
    lengths = [len(chunk.request.sequence.output_token_ids) for chunk in guessed]
    try:
        for chunk in guessed:
            chunk.request.sequence.output_token_ids.extend(chunk.guesses.token_ids)
        yield
    finally:
        for chunk, length in zip(guessed, lengths, strict=True):
            del chunk.request.sequence.output_token_ids[length:]

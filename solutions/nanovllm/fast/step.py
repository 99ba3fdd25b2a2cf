"""One call into the native library for the whole of a step."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.fast import structs
from nanovllm.fast.cache import FastCache
from nanovllm.fast.weights import NativeWeights


@dataclass
class StepInput:
    """The new tokens of N sequences, and the blocks of each, as flat arrays of int32.

    Of sequence i, the new tokens are token_ids[query_starts[i] : query_starts[i + 1]], the last
    of its context_lens[i] tokens; its blocks begin at blocks[block_starts[i]]. Chunks of one
    request that follow each other, all of which want logits, are one sequence; so is a chunk with
    guesses behind it (lab 08), which wants logits from its last known token on. Two sequences of
    one request would race: behind a last token the native step clears the place of the next one.
    """

    token_ids: array
    query_starts: array
    context_lens: array
    completes: array  # of how many of the last tokens logits are wanted
    blocks: array
    block_starts: array

    @classmethod
    def of(cls, plan: Plan, block_ids: Callable[[Request], Sequence[int]]) -> StepInput:
        """What a plan says, with the blocks of its requests."""
        token_ids: list[int] = []
        starts, ends, rows, blocks, block_starts = [0], [], [], [], []
        before = None
        for chunk in plan.chunks:
            request, start, length, total = chunk
            known = end = start + length
            completes = end == total
            guesses = getattr(chunk, "guesses", None)
            if guesses:
                known -= len(guesses.token_ids)
            sequence, one = request.sequence, known - start == 1
            place = start - len(sequence.prompt_token_ids)
            if one and place >= 0:  # a decode
                token_ids.append(sequence.output_token_ids[place])
            else:
                token_ids += request.token_ids(start, known)
            if guesses:
                token_ids += guesses.token_ids
            if one and before is request and completes and ends[-1] == start:
                starts[-1], ends[-1] = len(token_ids), end
                rows[-1] += 1 + end - known
                continue
            starts.append(len(token_ids))
            ends.append(end)
            rows.append(completes + end - known)
            block_starts.append(len(blocks))
            blocks += block_ids(request)
            before = request if completes else None
        given = (token_ids, starts, ends, rows, blocks, block_starts)
        return cls(*(array("i", numbers) for numbers in given))


class NativeStep:
    """The whole model over one step's tokens: writes K and V; logits and their argmax come out."""

    def __init__(self, library: ctypes.CDLL, weights: NativeWeights) -> None:
        self._library = library
        self._room = library.nv_open()
        self.weights = weights

    def __del__(self) -> None:
        self._library.nv_close(self._room)

    def __call__(
        self, given: StepInput, cache: FastCache
    ) -> tuple[Float[Tensor, "N V"], Sequence[int]]:
        """Logits (float32) of the tokens that want them, in order, and the likeliest token of
        each; -1 where a logit is NaN, or the largest is infinite."""
        logits, tokens, step = self._prepare(given, cache)
        self._library.nv_step(self.weights.address, ctypes.byref(step), self._room)
        return logits, tokens

    def guess(
        self, given: StepInput, cache: FastCache, wanted: Sequence[int]
    ) -> list[Sequence[int]]:
        """The likeliest tokens behind each sequence, so many of each, one after another.

        Each sequence wants the logits of its last token, and its blocks have room for all guesses
        but the last. They end before a token for which there is no likeliest one (-1).
        """
        most, numbers = max(wanted), array("i", wanted)
        guesses = array("i", [-1]) * (most * len(wanted))
        _logits, _tokens, step = self._prepare(given, cache)  # kept until it is done
        self._library.nv_guess(
            self.weights.address, ctypes.byref(step), self._room, _address(numbers), most,
            _address(guesses),
        )  # fmt: skip
        rows = (guesses[i : i + most] for i in range(0, len(guesses), most))
        return [row[: row.index(-1)] if -1 in row else row for row in rows]

    def _prepare(
        self, given: StepInput, cache: FastCache
    ) -> tuple[Float[Tensor, "N V"], array, structs.Step]:
        """Room for logits and tokens, and the struct that points to them and to what is given."""
        count = sum(given.completes)
        # torch.empty lets other threads run, and waits until they let this one go on
        logits = torch.from_numpy(np.empty((count, self.weights.config.vocab_size), np.float32))
        tokens = array("i", bytes(4 * count))
        return logits, tokens, structs.Step(
            num_seqs=len(given.context_lens),
            num_outputs=count,
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            num_threads=torch.get_num_threads(),
            token_ids=_address(given.token_ids),
            query_starts=_address(given.query_starts),
            context_lens=_address(given.context_lens),
            completes=_address(given.completes),
            blocks=_address(given.blocks),
            block_starts=_address(given.block_starts),
            k=cache.k.data_ptr(),
            v=cache.v.data_ptr(),
            **{name: scales.data_ptr() for name, scales in cache.scales.items()},
            logits=logits.data_ptr(),
            tokens=_address(tokens),
        )  # fmt: skip


def _address(numbers: array) -> int:
    return numbers.buffer_info()[0]

"""Static batching: pad N prompts to one rectangle, run it until the last row is done."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nanovllm.generation.batch_cache import BatchCache
from nanovllm.generation.events import Completion, Event, Finished, Prefilled
from nanovllm.generation.masks import masking
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.request import make_sequences, room_for, weight_of
from nanovllm.generation.sampling import Sampler, sample
from nanovllm.generation.sequence import Sequence
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class BatchWaste:
    """Tokens a batch computed, by what they were good for, and cache places it reserved."""

    prompt: int = 0  # tokens of prompts
    padding: int = 0  # pad tokens beside them
    decode: int = 0  # newest tokens of rows that were still running
    idle: int = 0  # fed for rows that had ended, while others had not
    kv_reserved: int = 0  # places in the cache, in tokens
    kv_used: int = 0  # of them, those that held a token of a running or finished sequence

    @property
    def computed(self) -> int:
        """All tokens that went through the model."""
        return self.prompt + self.padding + self.decode + self.idle

    @property
    def wasted_share(self) -> float:
        """The part of the computed tokens that served nobody, 0 to 1."""
        return (self.padding + self.idle) / self.computed if self.computed else 0.0

    def __add__(self, other: "BatchWaste") -> "BatchWaste":
        return BatchWaste(
            self.prompt + other.prompt,
            self.padding + other.padding,
            self.decode + other.decode,
            self.idle + other.idle,
            self.kv_reserved + other.kv_reserved,
            self.kv_used + other.kv_used,
        )


@dataclass(frozen=True)
class StaticResult:
    """Completions of each prompt, in the order of the prompts, and what the batches cost."""

    completions: list[list[Completion]]
    waste: BatchWaste


def pad_left(
    prompts: Seq[Seq[int]], pad_id: int = 0
) -> tuple[Int[Tensor, "N S"], Int[Tensor, "N"]]:
    """Put prompts into a rectangle, each at the right edge; also how many pads each row got.

    On the right, because the next token continues the last column of every row.

    >>> pad_left([[5, 6, 7], [8]])
    (tensor([[5, 6, 7],
            [0, 0, 8]]), tensor([0, 2]))
    """
    ### BEGIN SOLUTION
    width = max(len(prompt) for prompt in prompts)
    padding = [width - len(prompt) for prompt in prompts]
    rows = [[pad_id] * pads + list(p) for pads, p in zip(padding, prompts, strict=True)]
    return torch.tensor(rows), torch.tensor(padding)
    ### END SOLUTION


def padded_positions(padding: Int[Tensor, "N"], width: int) -> Int[Tensor, "N S"]:
    """Where each column's token stands in its own sequence: 0 for its first real token (and pads).

    >>> padded_positions(torch.tensor([0, 2]), width=3)
    tensor([[0, 1, 2],
            [0, 0, 0]])
    """
    ### BEGIN SOLUTION
    columns = torch.arange(width, device=padding.device)
    return (columns - padding[:, None]).clamp(min=0)
    ### END SOLUTION


def padded_mask(
    padding: Int[Tensor, "N"], start: int, num_columns: int, window: int | None = None
) -> Bool[Tensor, "N S K"]:
    """Which of the columns 0 .. start + num_columns - 1 each new column of each row may see.

    A column sees itself and the real ones before it, with a window the last `window` of them,
    itself included. A pad column sees itself alone, so that its softmax is not 0 / 0.

    >>> padded_mask(torch.tensor([0, 1]), start=0, num_columns=3)[1].int()
    tensor([[1, 0, 0],
            [0, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    ### BEGIN SOLUTION
    keys = torch.arange(start + num_columns, device=padding.device)
    queries = keys[start:, None]
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    real = keys >= padding[:, None, None]  # [N, 1, K]
    return (visible & real) | (keys == queries)
    ### END SOLUTION


class StaticBatch:
    """N sequences that start together; the batch ends when its longest row does."""

    def __init__(
        self,
        model: Transformer,
        sequences: Seq[Sequence],
        *,
        sampler: Sampler = sample,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = model
        self.sequences = list(sequences)
        self.sampler = masking(sampler)
        self.clock = clock
        longest = max(len(s.prompt_token_ids) for s in self.sequences)
        budget = max(room_for(s) - len(s.prompt_token_ids) for s in self.sequences)
        weight = weight_of(model)
        self.cache = BatchCache(
            model.config, len(self.sequences), longest + budget, weight.dtype, weight.device
        )
        self.padding: Int[Tensor, " N"] | None = None  # known once the prompts are read
        self.waste = BatchWaste(kv_reserved=self.cache.num_rows * self.cache.capacity)

    @property
    def running(self) -> list[int]:
        """The rows that have not ended."""
        return [i for i, sequence in enumerate(self.sequences) if not sequence.finished]

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Read all prompts (first call) or feed every row its newest token; sample running rows."""
        events: list[Event] = []
        running = self.running
        if self.padding is None:
            logits = self.prefill()
            now = self.clock()
            events = [
                Prefilled(s.request_id, len(s.prompt_token_ids), now)
                for s in self.sequences
                if s.index == 0
            ]
        else:
            logits = self.decode()
        sampled = self.sampler(logits[running], [self.sequences[i].row for i in running])
        now = self.clock()
        for i, token in zip(running, sampled, strict=True):
            events += self.sequences[i].append(token, now)
        return events

    def prefill(self) -> Float[Tensor, "N V"]:
        """One pass over the rectangle of prompts; logits of the last column only, a row each.

        Sets `padding`; adds to `waste` the tokens of the prompts (also kv_used) and the pads.
        """
        ### BEGIN SOLUTION
        prompts = [sequence.prompt_token_ids for sequence in self.sequences]
        token_ids, self.padding = (t.to(self.cache.k.device) for t in pad_left(prompts))
        rows, width = token_ids.shape
        hidden = self._forward(token_ids, padded_positions(self.padding, width))
        pads = int(self.padding.sum())
        tokens = rows * width - pads
        self.waste += BatchWaste(prompt=tokens, padding=pads, kv_used=tokens)
        return self.model.logits(hidden[:, -1])
        ### END SOLUTION

    def decode(self) -> Float[Tensor, "N V"]:
        """One pass over every row's newest token, at that token's position in its own sequence.

        Rows that have ended are fed too: a static batch has no way to let them go. Adds to
        `waste` the running rows (decode, kv_used) and the ended ones (idle).
        """
        ### BEGIN SOLUTION
        device = self.cache.k.device
        newest = [[sequence.output_token_ids[-1]] for sequence in self.sequences]
        positions = [[sequence.num_tokens - 1] for sequence in self.sequences]
        hidden = self._forward(
            torch.tensor(newest, device=device), torch.tensor(positions, device=device)
        )
        live = len(self.running)
        self.waste += BatchWaste(decode=live, idle=len(newest) - live, kv_used=live)
        return self.model.logits(hidden[:, 0])
        ### END SOLUTION

    def _forward(
        self, token_ids: Int[Tensor, "N S"], positions: Int[Tensor, "N S"]
    ) -> Float[Tensor, "N S E"]:
        """Flatten the rectangle, run it with the padded mask, and store its columns."""
        rows, width = token_ids.shape
        padding = cast(Tensor, self.padding)
        attend = self.cache.bind(
            width, lambda window: padded_mask(padding, self.cache.length, width, window)
        )
        hidden = self.model(token_ids.flatten(), positions.flatten(), attend)
        self.cache.advance(width)
        return hidden.unflatten(0, (rows, width))


def generate_static(
    model: Transformer,
    prompts: Seq[Seq[int]],
    params: SamplingParams | Seq[SamplingParams],
    *,
    tokenizer: Tokenizer | None = None,
    max_model_len: int | None = None,
    seeds: Seq[int | None] | None = None,
    max_num_seqs: int = 16,
    sampler: Sampler = sample,
    clock: Callable[[], float] = time.perf_counter,
    on_event: Callable[[Event], None] | None = None,
) -> StaticResult:
    """Answer many prompts, `max_num_seqs` sequences at a time, each batch run to its end.

    params: one for all, or one a prompt; of a request with n samples each is a row of its own.
    seeds: one a prompt, used where params.seed is None. on_event sees every event as it happens
    (request_id is the prompt's place in `prompts`). Every request is checked before the first
    is computed; raises RequestError.
    """
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    if len(each) != len(prompts):
        raise ValueError(f"There are {len(prompts)} prompts, but params for {len(each)}.")
    if max_num_seqs < 1:
        raise ValueError(f"max_num_seqs must be at least 1, got {max_num_seqs}.")
    sequences = [
        sequence
        for i, prompt in enumerate(prompts)
        for sequence in make_sequences(
            model,
            prompt,
            each[i],
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            seed=seeds[i] if seeds is not None else None,
            request_id=i,
        )
    ]
    completions: list[list[Completion]] = [[] for _ in prompts]
    waste = BatchWaste()
    for start in range(0, len(sequences), max_num_seqs):
        batch = StaticBatch(
            model, sequences[start : start + max_num_seqs], sampler=sampler, clock=clock
        )
        while batch.running:
            for event in batch.step():
                if isinstance(event, Finished):
                    completions[event.request_id].append(event.completion)
                if on_event is not None:
                    on_event(event)
        waste += batch.waste
    for samples in completions:
        samples.sort(key=lambda completion: completion.index)
    return StaticResult(completions, waste)

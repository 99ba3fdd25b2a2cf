"""What codes are worth in speed: the same weights in other formats, step by step in turns.

Only steps in which every request gets a token are timed: prompts come before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time

import torch

from nanovllm.batching.engine import Engine
from nanovllm.bench.limits import bytes_per_second
from nanovllm.bench.stages import settle
from nanovllm.bench.stats import median_ratio
from nanovllm.generation.params import SamplingParams
from nanovllm.llm.engine_options import AT_LOAD, EngineOptions
from nanovllm.llm.paged_engines import make_engine, step_kind
from nanovllm.llm.weight_codes import load_weights
from nanovllm.model.accounting import kv_bytes_per_token

PROMPT = 8  # tokens


@dataclass
class Row:
    """A format at one number of requests: seconds a step, of each round."""

    batch: int
    format: str
    step: str  # "compiled", or "plain" and why
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    faster: float = 1.0  # than the weights as they are: median over the rounds, wall clock
    faster_cpu: float = 1.0
    bytes: int = 0  # that a step has to read: weights, K and V
    of_memory: float = 0.0  # of its time, what reading them takes at least: median over the rounds

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each round."""
        return [self.batch / seconds for seconds in self.wall]


class Formats:
    """One engine a format; `rows` measures them, a few steps of each in turns."""

    def __init__(self, folder: Path, dtype: torch.dtype, most: int, longest: int) -> None:
        self.plain = str(dtype).removeprefix("torch.")
        self.engines: dict[str, Engine] = {}
        self.steps: dict[str, str] = {}
        self.bytes: dict[str, int] = {}
        options = EngineOptions(max_num_seqs=most, max_num_batched_tokens=max(512, PROMPT * most))
        for name in (self.plain, *AT_LOAD):
            model = load_weights(folder, dtype, quantization=None if name == self.plain else name)
            self.config = model.config
            held = (*model.parameters(), *model.buffers())
            self.bytes[name] = sum(one.nbytes for one in held)
            if not self.config.tie_embeddings:  # a step reads a row a token
                self.bytes[name] -= model.embed_tokens.weight.nbytes
            self.steps[name] = step_kind(model, options)
            self.engines[name] = make_engine(model, None, longest, options)
            settle(self.engines[name])
        self.token_bytes = kv_bytes_per_token(self.config, dtype.itemsize)

    def rows(self, batch: int, rounds: int, steps: int) -> list[Row]:
        """steps: of each engine in each round."""
        rows = [Row(batch, name, self.steps[name]) for name in self.engines]
        rates: list[float] = []
        cached = batch * (PROMPT + rounds * steps // 2)
        answers = [self._answer(self.engines[row.format], batch, rounds * steps) for row in rows]
        for number in range(rounds):
            turn = number % len(rows)
            for place in (*range(turn, len(rows)), *range(turn)):
                wall, cpu = perf_counter(), process_time()
                for _ in range(steps):
                    next(answers[place])
                rows[place].wall.append((perf_counter() - wall) / steps)
                rows[place].cpu.append((process_time() - cpu) / steps)
            rates.append(bytes_per_second())
        for row, answer in zip(rows, answers, strict=True):
            for _ in answer:  # to its end, so that the engine is free
                pass
            row.faster = median_ratio(rows[0].wall, row.wall)
            row.faster_cpu = median_ratio(rows[0].cpu, row.cpu)
            row.bytes = self.bytes[row.format] + cached * self.token_bytes
            row.of_memory = median_ratio([row.bytes / rate for rate in rates], row.wall)
        return rows

    def _answer(self, engine: Engine, batch: int, steps: int) -> Iterator[None]:
        """One step of the engine after another, once all prompts have been read."""
        rng = random.Random(0)
        params = SamplingParams(temperature=0, max_tokens=steps + 3, ignore_eos=True)
        for number in range(batch):
            prompt = [rng.randrange(self.config.vocab_size) for _ in range(PROMPT)]
            engine.add_request(prompt, params, request_id=number)
        engine.step()
        engine.step()  # the first with one token each
        while engine.has_unfinished:
            engine.step()
            yield

"""Ranks for tests: as threads of this process, or as processes that end themselves on purpose."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Aborted, EngineEvent, Failed, Preempted
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import load_model
from nanovllm.paging.store import PagedStore
from nanovllm.parallel.engine import ParallelEngine
from nanovllm.parallel.executor import Executor
from nanovllm.parallel.launch import start_threads
from nanovllm.parallel.remote import RemoteModel
from nanovllm.parallel.share import RankShare
from nanovllm.parallel.share_spec import ShareSpec

PHASES = ("load", "before the step", "among collectives", "after the step", "in the answer")
BLOCK = 4


def spec_of(
    folder: Path, slices: int, stages: int, make: type[ShareSpec] = ShareSpec, **more: Any
) -> ShareSpec:
    """What ranks in this folder are told; 64 blocks of 4 tokens."""
    sizes = {"block_size": BLOCK, "least_blocks": 1, "most_blocks": 64, "blocks": 64}
    return make(str(folder), torch.float32, "cpu", slices, stages, **sizes | more)


def engine_on(spec: ShareSpec, executor: Executor, **more: Any) -> ParallelEngine:
    """An engine in token ids on these ranks."""
    model = RemoteModel(ModelConfig.from_pretrained(spec.folder), spec.dtype)
    settings = {"block_size": spec.block_size, "num_host_blocks": spec.num_host_blocks}
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=32)
    return ParallelEngine(model, config, executor=executor, **settings | more)


def thread_engine(spec: ShareSpec, share: Any = RankShare, **more: Any) -> ParallelEngine:
    """The same, its ranks threads; share(spec, comm) makes a rank's share."""
    return engine_on(spec, Executor(start_threads(spec.size, lambda c: share(spec, c))), **more)


def plain_engine(folder: Path, num_blocks: int = 64) -> Engine:
    """Lab 04's engine on lab 05's blocks: one rank, no executor."""
    model = load_model(folder)
    store = PagedStore(model.config, num_blocks, BLOCK)
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=32)
    return Engine(model, config, store=store)


def drain(engine: Engine) -> list[EngineEvent]:
    """All events until nothing is left to do, the books checked after every step."""
    events = []
    while engine.has_unfinished:
        events += engine.step()
        engine.check()
    return events


def answers(events: list[EngineEvent]) -> dict[tuple[int, int], Any]:
    """What became of each sample: its tokens, "aborted", or its error."""
    found: dict[tuple[int, int], Any] = {}
    for event in events:
        if isinstance(event, Finished):
            found[event.request_id, event.index] = tuple(event.completion.token_ids)
        elif isinstance(event, Aborted):
            found[event.request_id, event.index] = "aborted"
        elif isinstance(event, Failed):
            found[event.request_id, event.index] = event.error
    return found


def tokens(events: list[EngineEvent]) -> dict[tuple[int, int], list[int]]:
    """The tokens that were sent out so far."""
    found: dict[tuple[int, int], list[int]] = {}
    for event in events:
        if isinstance(event, TokenGenerated):
            found.setdefault((event.request_id, event.index), []).append(event.token_id)
    return found


def preemptions(events: list[EngineEvent]) -> int:
    return sum(isinstance(event, Preempted) for event in events)


@dataclass(frozen=True)
class DoomedSpec(ShareSpec):
    """One rank kills itself in a phase of its n-th step."""

    victim: int = 1
    phase: str = "before the step"
    at: int = 3

    def share(self, comm: Any) -> RankShare:
        if comm.rank != self.victim:
            return RankShare(self, comm)
        if self.phase == "load":
            die()
        return DoomedShare(self, comm)


class DoomedShare(RankShare):
    """Dies as its spec says."""

    steps = 0

    def compute(self, step: Any) -> Any:
        self.steps += 1
        if self.steps < self.spec.at:
            return super().compute(step)
        if self.spec.phase == "before the step":
            die()
        if self.spec.phase == "among collectives":
            layers = list(self.model.layers.values())
            layers[-1].register_forward_pre_hook(lambda *_: die())
        found = super().compute(step)
        if self.spec.phase == "after the step":
            die()
        return Bomb() if self.facts.answers else found


class Bomb:
    """Whoever turns it into bytes dies."""

    def __reduce__(self) -> Any:
        die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def gone(pid: int) -> bool:
    """Whether there is no such process, not even one that nobody has waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False

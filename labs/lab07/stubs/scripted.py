"""An engine without a model: it says what a script says, a token a step (given).

For checks and experiments with the server around it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from nanovllm.batching.events import (
    Aborted,
    Admitted,
    ChunkRun,
    EngineEvent,
    Failed,
    Queued,
    Stepped,
)
from nanovllm.generation.errors import EmptyPromptError
from nanovllm.generation.events import Completion, Finished, Prefilled, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams

Script = Callable[[Sequence[int], int], Sequence[str]]  # (prompt, index of the sample) to pieces


def words(prompt: Sequence[int], index: int) -> list[str]:
    """Four words that name the prompt and the sample, so that a mix-up shows.

    >>> words([7], 1)
    ['7-1-0 ', '7-1-1 ', '7-1-2 ', '7-1-3 ']
    """
    return [f"{prompt[0]}-{index}-{k} " for k in range(4)]


@dataclass(eq=False)
class _Sample:
    request_id: int
    index: int
    prompt: tuple[int, ...]
    pieces: list[str]
    finish_reason: str
    said: int = 0
    running: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces[: self.said])


@dataclass
class ScriptedEngine:
    """Lab 04's engine as a server sees it; a sample holds a token of the store for each it has.

    faults: by the number of the step (from 1), an exception that the step raises, or a request id
    that fails in it. `threads` are those that stepped, `aborted` the ids that `abort` was told.
    """

    script: Script = words
    max_num_seqs: int = 4
    seconds: float = 0.01  # that a step takes, on `clock`
    pause: float = 0.0  # that it really takes
    faults: dict[int, BaseException | int] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    steps: int = 0
    threads: set[int] = field(default_factory=set)
    aborted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.samples: list[_Sample] = []
        self._new: list[Queued] = []
        self._ids = 0
        self.store = SimpleNamespace(total_tokens=1000, free_tokens=1000)

    @property
    def has_unfinished(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self.samples)

    def add_request(
        self, prompt_token_ids: Sequence[int], params: SamplingParams | None = None
    ) -> int:
        """Take on a prompt; EmptyPromptError for one without tokens."""
        if not prompt_token_ids:
            raise EmptyPromptError("The prompt has no tokens; give at least one.")
        params = params or SamplingParams()
        request_id, self._ids = self._ids, self._ids + 1
        for index in range(params.n):
            pieces = list(self.script(prompt_token_ids, index))
            ends = "length" if len(pieces) > (params.max_tokens or len(pieces)) else "stop"
            sample = _Sample(
                request_id, index, tuple(prompt_token_ids), pieces[: params.max_tokens], ends
            )
            self._new.append(Queued(request_id, index, self.clock()))
            self.samples.append(sample)
        return request_id

    def abort(self, request_id: int) -> bool:
        """Give a request up when the next step begins."""
        self.aborted.append(request_id)
        return any(sample.request_id == request_id for sample in self.samples)

    def step(self) -> list[EngineEvent]:
        """The next token of each running sample."""
        self.steps += 1
        self.threads.add(threading.get_ident())
        time.sleep(self.pause)
        started = self.clock()
        self.clock.advance(self.seconds)
        fault = self.faults.get(self.steps)
        if isinstance(fault, BaseException):
            raise fault
        events: list[EngineEvent] = [*self._new]
        self._new.clear()
        events += self._leave(fault)
        events += self._admit()
        running = [sample for sample in self.samples if sample.running]
        for sample in running:
            events += self._say(sample)
        if running:
            chunks = tuple(ChunkRun(s.request_id, s.index, s.said, 1) for s in running)
            events.append(self._stepped(chunks, started))
        self.store.free_tokens = 1000 - sum(sample.said for sample in self.samples)
        return events

    def _leave(self, failing: int | None) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        now = self.clock()
        for sample in list(self.samples):
            who = sample.request_id, sample.index
            if sample.request_id in self.aborted:
                events.append(Aborted(*who, tuple(range(sample.said)), sample.text, now))
            elif sample.request_id == failing:
                events.append(Failed(*who, ValueError("a bad row"), now))
            else:
                continue
            self.samples.remove(sample)
        return events

    def _admit(self) -> list[EngineEvent]:
        waiting = [sample for sample in self.samples if not sample.running]
        room = self.max_num_seqs - (len(self.samples) - len(waiting))
        for sample in waiting[:room]:
            sample.running = True
        return [Admitted(s.request_id, s.index, self.clock()) for s in waiting[:room]]

    def _say(self, sample: _Sample) -> list[EngineEvent]:
        now, who = self.clock(), (sample.request_id, sample.index)
        events: list[EngineEvent] = []
        if not sample.said and not sample.index:
            events.append(Prefilled(sample.request_id, len(sample.prompt), now))
        events.append(TokenGenerated(*who, sample.said, sample.pieces[sample.said], now))
        sample.said += 1
        if sample.said == len(sample.pieces):
            ids = tuple(range(sample.said))
            done = Completion(sample.index, ids, sample.text, sample.finish_reason)  # type: ignore[arg-type]
            events.append(Finished(*who, done, now))
            self.samples.remove(sample)
        return events

    def _stepped(self, chunks: tuple[ChunkRun, ...], started: float) -> Stepped:
        waiting = len(self.samples) - sum(sample.running for sample in self.samples)
        free = self.store.free_tokens
        return Stepped(chunks, len(chunks), waiting, 512, free, started, self.clock())


@dataclass
class HeldEngine(ScriptedEngine):
    """A scripted engine whose steps end only when they are let go: nothing is left to chance.

    A step computes, and is then held inside `step`, before anybody hears of it. What is asked
    meanwhile (requests, aborts) is there when the next step begins. `log` has the events of every
    step that was computed. A step that is to raise is held as well.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.held = False  # a step has been computed and waits
        self.free = False  # steps are held no more
        self.dead = False  # a step has raised
        self.log: list[list[EngineEvent]] = []
        self._go = threading.Semaphore(0)

    def step(self) -> list[EngineEvent]:
        """Compute, wait to be let go, then return or raise."""
        fault, events = None, []
        try:
            events = super().step()
        except BaseException as error:
            fault = error
        self.log.append(events)
        if not self.free:
            self.held = True
            self._go.acquire(timeout=60)
        if fault is not None:
            self.dead = True
            raise fault
        return events

    def let_go(self) -> None:
        """End the step that is held."""
        self.held = False
        self._go.release()

    def let_all_go(self) -> None:
        """Hold no step any more."""
        self.free = True
        self.let_go()

    async def until_held(self, seconds: float = 20.0) -> bool:
        """Wait until a step is held, there is nothing to compute, or a step has raised.

        False if none of this happens in time.
        """
        for _ in range(int(seconds / 0.001)):
            if self.held or self.dead or not self.has_unfinished:
                return True
            await asyncio.sleep(0.001)
        return False

"""An engine of one page, with the face and the habits of lab 04's (given): for simulations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from nanovllm.batching.errors import NonFiniteLogitsError, RequestTooLargeError
from nanovllm.batching.events import Aborted, Admitted, EngineEvent, Failed, Preempted, Queued
from nanovllm.generation.events import Completion, Finished, Prefilled, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams

LETTERS = "\0abcdefghijklmnopqrstuvwxyz "  # token 0 ends a text


@dataclass(eq=False)
class ToySample:
    """One sample: what was asked, and its tokens so far."""

    request_id: int
    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    output: list[int] = field(default_factory=list)
    shown: int = 0  # characters that its caller has seen
    prefilled: bool = False
    aborted: bool = False

    @property
    def sequence(self) -> ToySample:
        """Itself: lab 04 keeps tokens and ids in a part of a request."""
        return self

    @property
    def num_tokens(self) -> int:
        """Places that it takes in the store."""
        return len(self.prompt) + len(self.output)

    def scores(self) -> np.ndarray:
        """Of each letter, from (seed, position), the last token, and the penalties."""
        params, last = self.params, (*self.prompt, *self.output)[-1]
        draw = random.Random(f"{self.seed} {self.index} {self.num_tokens} {last}")
        found = np.array([draw.random() for _ in LETTERS])
        found[0] += 0.05
        for token, times in Counter(self.output).items():
            found[token] -= 0.3 * params.presence_penalty + 0.2 * params.frequency_penalty * times
        for token in {*self.prompt, *self.output}:
            found[token % len(LETTERS)] /= params.repetition_penalty
        if params.ignore_eos or len(self.output) < params.min_tokens:
            found[0] = -1e9
        return found

    def take(self, token: int, now: float) -> list[EngineEvent]:
        """The next token, the text that may be shown with it, and the end, if it is one."""
        self.output.append(token)
        whole, stops = self.text, self.params.stop or ()
        stop = next((s for s in stops if s in whole), None)
        late = len(self.output) >= (self.params.max_tokens or 16)
        if len(self.output) < self.params.min_tokens:
            stop = None
        ends = token == 0 or stop is not None or late
        text = whole[: whole.find(stop)] if stop is not None else whole
        upto = len(text) if ends else len(text) - self._held_back(text)
        piece, self.shown = text[self.shown : upto], max(self.shown, upto)
        me = self.request_id, self.index
        said: list[EngineEvent] = [TokenGenerated(*me, token, piece, now)]
        if ends:
            reason = "stop" if token == 0 or stop is not None else "length"
            done = Completion(self.index, tuple(self.output), text, reason, stop)
            said.append(Finished(*me, done, now))
        return said

    def go_on(self, output: Sequence[int]) -> None:
        """Begin where another engine stopped: its tokens stand, and their text was shown."""
        self.output = list(output)
        self.shown = max(0, len(self.text) - self._held_back(self.text))

    @property
    def text(self) -> str:
        """Of the output alone."""
        return "".join(LETTERS[t] for t in self.output if t)

    def _held_back(self, text: str) -> int:
        """Characters at the end that may become a stop string."""
        stops = self.params.stop or ()
        sizes = [n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])]
        return max(sizes, default=0)


class ToyStore:
    """Counts places."""

    def __init__(self, total: int) -> None:
        self.total_tokens = total
        self.held: dict[ToySample, int] = {}

    @property
    def free_tokens(self) -> int:
        """Places that nobody has."""
        return self.total_tokens - sum(self.held.values())

    def can_admit(self, sample: ToySample) -> bool:
        """Whether its tokens and one more fit."""
        return sample.num_tokens < self.free_tokens


class ToyEngine:
    """add_request, abort, step, check, has_unfinished, as lab 04's engine; a step is a token each.

    Draws depend on (seed, position, token before): batch mates, preemption and the engine do not
    matter. `asked` keeps the keyword arguments of each add_request.
    """

    def __init__(
        self, max_num_seqs: int = 3, places: int = 90, clock: ManualClock | None = None
    ) -> None:
        self.max_num_seqs, self.clock = max_num_seqs, clock or ManualClock()
        self.store = ToyStore(places)
        self.waiting: list[ToySample] = []
        self.running: list[ToySample] = []
        self.arrived: list[ToySample] = []
        self.asked: list[dict[str, Any]] = []
        self._next_id = count()

    @property
    def has_unfinished(self) -> bool:
        """Whether a further step has anything to do."""
        return bool(self.waiting or self.running or self.arrived)

    @property
    def scheduler(self) -> ToyEngine:
        """Itself: `scheduler.running` is the batch, as lab 04 has it."""
        return self

    def add_request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        seed: int | None = None,
        request_id: int | None = None,
        output_token_ids: Sequence[int] = (),
        **more: Any,
    ) -> int:
        """As lab 04's; tokens generated elsewhere are for a single sample. Raises RequestError."""
        asked = params or SamplingParams()
        if request_id is None:
            request_id = next(self._next_id)
        if len(prompt_token_ids) + (asked.max_tokens or 16) >= self.store.total_tokens:
            raise RequestTooLargeError("The prompt and its answer do not fit into the store.")
        if output_token_ids and (asked.n > 1 or asked.logprobs is not None):
            raise ValueError("Only a single sample without log-probabilities can go on elsewhere.")
        self.asked.append({"request_id": request_id, "seed": seed, **more})
        for index in range(asked.n):
            sample = ToySample(request_id, index, tuple(prompt_token_ids), asked, seed or 0)
            sample.go_on(output_token_ids)
            self.arrived.append(sample)
        return request_id

    def abort(self, request_id: int) -> bool:
        """Give a request up at the next step."""
        mine = [one for one in self._all() if one.request_id == request_id]
        for one in mine:
            one.aborted = True
        return bool(mine)

    def step(self) -> list[EngineEvent]:
        """One round: arrivals, aborts, admissions, a token each."""
        now, events = self.clock(), []
        for one in self.arrived:
            events.append(Queued(one.request_id, one.index, now))
        self.waiting += self.arrived
        self.arrived = []
        for one in [one for one in self._all() if one.aborted]:
            self._remove(one)
            said = tuple(one.output), one.text[: one.shown], now
            events.append(Aborted(one.request_id, one.index, *said))
        while self.waiting and len(self.running) < self.max_num_seqs:
            one = self.waiting[0]
            if not self.store.can_admit(one):
                break
            self.running.append(self.waiting.pop(0))
            self.store.held[one] = one.num_tokens
            events.append(Admitted(one.request_id, one.index, now))
        events += self._make_room(now)
        batch = list(self.running)
        for one, scores in zip(batch, self.execute(batch), strict=True):
            if not np.isfinite(scores).all():
                self._remove(one)
                error = NonFiniteLogitsError("No token can be drawn.")
                events.append(Failed(one.request_id, one.index, error, now))
                continue
            if not one.prefilled and one.index == 0:
                events.append(Prefilled(one.request_id, len(one.prompt), now))
            one.prefilled = True
            events += one.take(int(scores.argmax()), now)
            self.store.held[one] = one.num_tokens
            if isinstance(events[-1], Finished):
                self._remove(one)
        return events

    def execute(self, plan: Sequence[ToySample]) -> np.ndarray:
        """Scores [N, V]."""
        return np.array([one.scores() for one in plan]).reshape(len(plan), len(LETTERS))

    def check(self) -> None:
        """Who is in the batch has places, and nobody else."""
        assert set(self.store.held) == set(self.running)
        assert self.store.free_tokens >= 0

    def _make_room(self, now: float) -> list[EngineEvent]:
        """The last to come go back to the queue until each has room for one more token."""
        gone: list[EngineEvent] = []
        while self.store.free_tokens < len(self.running):
            one = self.running[-1]
            self._remove(one)
            self.waiting.insert(0, one)
            gone.append(Preempted(one.request_id, one.index, now))
        return gone

    def _remove(self, one: ToySample) -> None:
        (self.running if one in self.running else self.waiting).remove(one)
        self.store.held.pop(one, None)

    def _all(self) -> list[ToySample]:
        return [*self.arrived, *self.waiting, *self.running]

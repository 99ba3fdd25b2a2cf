"""A service in virtual time, under faults (given): clients, wire, journal, supervisor, engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from nanovllm.batching.events import EngineEvent
from nanovllm.generation.events import Completion, Finished
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.resilience.checker import complaints, transcripts
from nanovllm.resilience.errors import JournalFullError, ResilienceError
from nanovllm.resilience.faults import FaultyEngine, draw_faults, shrink
from nanovllm.resilience.journal import Journal, Record
from nanovllm.resilience.kinds import MILD, ON_THE_WIRE, Fault, Kind
from nanovllm.resilience.restarts import RestartLimit
from nanovllm.resilience.toy_engine import ToyEngine
from nanovllm.resilience.virtual_time import VirtualTime, Wire

ROUND, RETRY, MOST_ROUNDS, MOST_TRIES = 0.05, 5.0, 3000, 30
MakeEngine = Callable[[Any], Any]  # of a clock
KINDS: tuple[dict[str, Any], ...] = (  # what a cut harms where answers are glued to prompts
    {},
    {"presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"repetition_penalty": 1.4},
    {"min_tokens": 5},
    {"stop": ["e", "an", " t"]},
    {"n": 3},
    {"ignore_eos": True},
)


@dataclass(frozen=True)
class Ask:
    """What a client sends, and when."""

    number: int
    time: float
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Faults:
    """Those of the engine's steps, of messages, and of what is written to the journal."""

    steps: tuple[Fault, ...] = ()
    wire: tuple[Fault, ...] = ()
    disk: tuple[Fault, ...] = ()


@dataclass
class Trial:
    """What came of it: complaints of the checker, and what was counted."""

    seed: int
    faults: Faults
    complaints: list[str]
    restarts: int = 0
    rounds: int = 0
    retries: int = 0
    seconds: float = 0.0
    events: list[EngineEvent] = field(default_factory=list, repr=False)
    make_engine: MakeEngine | None = field(default=None, repr=False, compare=False)


def asks_of(seed: int, most: int = 6) -> list[Ask]:
    """Requests of every kind, by a random generator of their own."""
    draw = random.Random(f"requests {seed}")
    found = []
    for number in range(draw.randint(1, most)):
        params: dict[str, Any] = {"max_tokens": draw.randint(1, 12), "seed": number}
        params |= draw.choice(KINDS)
        params["max_tokens"] = max(params["max_tokens"], params.get("min_tokens", 1))
        prompt = tuple(draw.randrange(3, 27) for _ in range(draw.randint(1, 20)))
        found.append(Ask(number, draw.uniform(0, 0.5), prompt, SamplingParams(**params)))
    return found


def faults_of(seed: int) -> Faults:
    """At most two deaths (three are blamed on who was there), and whatever else may go wrong."""
    deaths = draw_faults(3 * seed, 40, 2)
    taken = {fault.step for fault in deaths}
    mild = [fault for fault in draw_faults(3 * seed + 1, 40, 3, MILD) if fault.step not in taken]
    return Faults(
        tuple(sorted([*deaths, *mild], key=lambda fault: fault.step)),
        draw_faults(3 * seed + 2, 20, 4, ON_THE_WIRE),
        draw_faults(-1 - seed, 6, 2, (Kind.DISK_FULL,)),
    )


def toy(clock: Any) -> ToyEngine:
    """An engine that reads this clock."""
    return ToyEngine(clock=clock)


def truth_of(
    asks: Sequence[Ask], make_engine: MakeEngine = toy
) -> dict[tuple[int, int], Completion]:
    """What one engine that never fails tells, by sample."""
    engine, found = make_engine(ManualClock()), {}
    for ask in asks:
        seed = ask.params.seed
        engine.add_request(ask.prompt, ask.params, seed=seed, request_id=ask.number)
    while engine.has_unfinished:
        for event in engine.step():
            if isinstance(event, Finished):
                found[event.request_id, event.index] = event.completion
    return found


class Service:
    """Server and clients of one trial."""

    def __init__(self, asks: Sequence[Ask], faults: Faults, make_engine: MakeEngine) -> None:
        from nanovllm.resilience.supervisor import SupervisedEngine  # the rest runs without it

        self.time, self.asks = VirtualTime(), asks
        self.wire = Wire(self.time, faults.wire)
        steps = count()
        self.engine = SupervisedEngine(
            lambda: FaultyEngine(make_engine(self.time), faults.steps, steps, self.time),  # pyright: ignore[reportArgumentType]
            RestartLimit(most=10**6),
            clock=self.time,
        )
        self.journal, self.writes = Journal(":memory:"), count()
        self.full = {fault.step for fault in faults.disk}
        self.told: list[EngineEvent] = []
        self.answers: dict[int, list[bytes]] = {ask.number: [] for ask in asks}
        self.left: dict[int, int] = {}  # samples that have not ended
        self.tries = 0
        self.rounds = 0

    def run(self) -> None:
        """To the last answer. Raises ResilienceError."""
        for ask in self.asks:
            self.time.call_later(ask.time, lambda ask=ask: self._ask(ask))
        self.time.call_later(0.0, self._round)
        self.time.run()

    def _ask(self, ask: Ask, tries: int = 0) -> None:
        """A client sends, and sends again while it has no answer."""
        if self.answers[ask.number] or tries == MOST_TRIES:
            return
        self.tries += 1
        self.wire.send(self._receive, (ask, tries))
        self.time.call_later(RETRY, lambda: self._ask(ask, tries + 1))

    def _receive(self, message: tuple[Ask, int]) -> None:
        """The server takes a request on, once for each key."""
        ask, tries = message
        name = f"{ask.number}.{tries}"
        try:
            if next(self.writes) in self.full:
                raise JournalFullError("a full disk on purpose")
            if self.journal.find(name) is not None:  # the message came twice
                return
            record = self.journal.accept(
                Record(name, "client", str(ask.number), "/", str(ask.number), b"")
            )
        except JournalFullError:
            return  # the client asks again
        if not record.open:
            self._answer(ask.number, record.answer or b"")
        elif record.id == name:
            self.left[ask.number] = ask.params.n
            self.engine.add_request(ask.prompt, ask.params, request_id=ask.number)

    def _round(self) -> None:
        self.rounds += 1
        if self.engine.has_unfinished:
            for event in self.engine.step():
                self._heard(event)
            self.engine.check()
        waiting = not all(self.answers.values()) or self.engine.has_unfinished
        if waiting and self.rounds < MOST_ROUNDS:
            self.time.call_later(ROUND, self._round)

    def _heard(self, event: EngineEvent) -> None:
        self.told.append(event)
        number = getattr(event, "request_id", -1)
        if isinstance(event, Finished):
            self.left[number] -= 1
            if self.left[number] == 0:
                [record] = [one for one in self.journal.open_requests() if one.key == str(number)]
                answer = repr(self._texts(number)).encode()
                self.journal.end(record.id, 200, "text/plain", answer)
                self._answer(number, answer)

    def _texts(self, number: int) -> list[str]:
        heard = transcripts(self.told)
        return [one.text for (request, _), one in sorted(heard.items()) if request == number]

    def _answer(self, number: int, answer: bytes) -> None:
        self.wire.send(self.answers[number].append, answer)


def run_trial(
    seed: int,
    faults: Faults | None = None,
    make_engine: MakeEngine = toy,
) -> Trial:
    """One seed: its requests under its faults, or under others; the same again, the same trial."""
    asks = asks_of(seed)
    faults = faults_of(seed) if faults is None else faults
    truth = truth_of(asks, make_engine)
    service, wrong = Service(asks, faults, make_engine), []
    try:
        service.run()
    except ResilienceError as error:
        wrong.append(f"{type(error).__name__}: {error}")
    wrong += complaints(transcripts(service.told), truth)
    for ask in asks:
        texts = [truth[ask.number, index].text for index in range(ask.params.n)]
        answers = set(service.answers[ask.number])
        if answers != {repr(texts).encode()}:
            wrong.append(f"The client of request {ask.number} got {answers or 'no answer'}.")
    if service.engine.store.free_tokens != service.engine.store.total_tokens:
        wrong.append("Places of the store are held by nobody.")
    service.journal.close()
    return Trial(
        seed, faults, wrong, service.engine.restarts, service.rounds,
        service.tries - len(asks), service.time.now, service.told, make_engine,
    )  # fmt: skip


def least(trial: Trial) -> Faults:
    """The few faults of a failing trial that still make it fail."""
    parts = {"steps": trial.faults.steps, "wire": trial.faults.wire, "disk": trial.faults.disk}
    for name in parts:

        def fails(some: Sequence[Fault], name: str = name) -> bool:
            faults = Faults(**(parts | {name: tuple(some)}))
            return bool(run_trial(trial.seed, faults, trial.make_engine or toy).complaints)

        parts[name] = shrink(parts[name], fails)
    return Faults(**parts)

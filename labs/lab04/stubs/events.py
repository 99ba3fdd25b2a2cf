"""What the engine reports besides lab 03's events: who came and went, and what each step did."""

from dataclasses import dataclass

from nanovllm.generation.events import Event


@dataclass(frozen=True)
class Queued:
    """A new request is in the queue; `time` is when it arrived."""

    request_id: int
    index: int
    time: float


@dataclass(frozen=True)
class Admitted:
    """A request came into the batch, for the first time or again."""

    request_id: int
    index: int
    time: float


@dataclass(frozen=True)
class Preempted:
    """A running request was sent back to the queue; its tokens so far stand."""

    request_id: int
    index: int
    time: float


@dataclass(frozen=True)
class Aborted:
    """A request was given up by its caller; what it had said by then."""

    request_id: int
    index: int
    token_ids: tuple[int, ...]
    text: str
    time: float


@dataclass(frozen=True)
class Failed:
    """A request ended by an error of its own; no other request was harmed."""

    request_id: int
    index: int
    error: Exception
    time: float


@dataclass(frozen=True)
class ChunkRun:
    """One chunk of the plan of a step; with lab 08, its last tokens may be guesses."""

    request_id: int
    index: int
    start: int
    length: int
    drafts: int = 0  # guesses among its tokens
    accepted: int = 0  # guesses that stand


@dataclass(frozen=True)
class Stepped:
    """A step is over: what it computed, and how full the engine was."""

    chunks: tuple[ChunkRun, ...]
    running: int  # requests in the batch while it ran
    waiting: int  # requests in the queue
    budget: int  # tokens it was allowed
    free_tokens: int  # places free after it
    started: float
    time: float


EngineEvent = Event | Queued | Admitted | Preempted | Aborted | Failed | Stepped

"""What the engines are asked: requests of token ids, made up from a seed or from real text."""

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

TEXTS = (
    "Once upon a time there was a small fox who",
    "Tell me a story about a cat.",
    "What is the capital of France?",
    "What is 12 plus 7?",
    "Mia's code is 7342. Ben's code is 1805. What is Mia's code?",
    "One cold morning, a kind dog named Max",
)
SYSTEMS = (  # what three applications put before everything that their users say
    "Mia went to the park. She saw a dog and a cat. Tom has a red ball. "
    "Ben's code is 1805. Mia's code is 7342. ",
    "You are a kind teacher. You tell short stories to children, with a fox, a bear and a bird, "
    "and every story ends well. ",
    "You add numbers. Say only the result. 2 plus 2 is 4. 10 plus 5 is 15. 7 plus 6 is 13. ",
)


@dataclass(frozen=True)
class Job:
    """A prompt and how many tokens to generate; greedy, and no end of sequence counts."""

    prompt: tuple[int, ...]
    max_tokens: int
    arrival: float = 0.0  # seconds after the start


@dataclass(frozen=True)
class Workload:
    """Requests in the order in which they arrive."""

    name: str
    jobs: tuple[Job, ...]

    @property
    def output_tokens(self) -> int:
        """Tokens that answering all of it generates."""
        return sum(job.max_tokens for job in self.jobs)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return max(len(job.prompt) + job.max_tokens for job in self.jobs)

    def first(self, count: int) -> "Workload":
        """The first few of its requests."""
        return Workload(f"{self.name}, first {count}", self.jobs[:count])

    def variant(self, number: int, vocab_size: int) -> "Workload":
        """The same lengths with other token ids, so that no cache knows them from before."""
        jobs = (
            replace(job, prompt=tuple((i + number) % vocab_size for i in job.prompt))
            for job in self.jobs
        )
        return Workload(self.name, tuple(jobs))

    def describe(self) -> dict[str, Any]:
        """Its sizes, for a record."""
        prompts = [len(job.prompt) for job in self.jobs]
        outputs = [job.max_tokens for job in self.jobs]
        return {
            "name": self.name,
            "requests": len(self.jobs),
            "prompt_tokens": [min(prompts), sum(prompts), max(prompts)],
            "output_tokens": [min(outputs), sum(outputs), max(outputs)],
        }

    def as_json(self) -> list[dict[str, Any]]:
        """Its requests, for another process."""
        return [asdict(job) for job in self.jobs]


def random_workload(
    vocab_size: int,
    count: int = 64,
    prompt: tuple[int, int] = (16, 256),
    output: tuple[int, int] = (16, 128),
    seed: int = 0,
) -> Workload:
    """Random token ids; lengths uniform between the two ends, both included."""
    draw = random.Random(seed)
    jobs = tuple(
        Job(
            tuple(draw.randrange(vocab_size) for _ in range(draw.randint(*prompt))),
            draw.randint(*output),
        )
        for _ in range(count)
    )
    return Workload(f"random, seed {seed}", jobs)


def service_workload(
    encode: Callable[[str], list[int]], count: int, seed: int = 0, burst_seconds: float = 0.1
) -> Workload:
    """What a service gets: three system prompts, long tails of lengths, arrivals in bursts.

    Every request begins with the system prompt of its application, the first application being
    the most used. The user's text behind it and the answer have log-normal lengths, as in public
    logs of conversations (ShareGPT): half of the texts are under 24 tokens and half of the
    answers under 32, but the longest are 160. Bursts of one to eight requests arrive as a Poisson
    process, one each `burst_seconds` on average.
    """
    draw = random.Random(seed)
    systems = [encode(text) for text in SYSTEMS]
    talk = [i for text in TEXTS for i in encode(text + " ")]
    jobs: list[Job] = []
    now = 0.0
    while len(jobs) < count:
        now += draw.expovariate(1 / burst_seconds)
        for _ in range(min(draw.randint(1, 8), count - len(jobs))):
            [system] = draw.choices(systems, weights=(4, 2, 1))
            start, length = draw.randrange(len(talk)), _log_normal(draw, 24)
            user = [talk[(start + i) % len(talk)] for i in range(length)]
            jobs.append(Job((*system, *user), _log_normal(draw, 32), now))
    return Workload(f"a service, seed {seed}", tuple(jobs))


def _log_normal(draw: random.Random, middle: int, longest: int = 160) -> int:
    return max(4, min(longest, round(middle * draw.lognormvariate(0.0, 1.0))))


class Arrivals:
    """The requests of a workload as time goes by; begins when it is made."""

    def __init__(self, workload: Workload) -> None:
        self._left = deque(enumerate(workload.jobs))
        self._begun = time.perf_counter()

    def __bool__(self) -> bool:
        """Whether any are still to be taken."""
        return bool(self._left)

    def due(self, most: int | None = None) -> list[tuple[int, Job]]:
        """Those that have arrived since the last call, at most so many, each with its place."""
        now = time.perf_counter() - self._begun
        taken: list[tuple[int, Job]] = []
        while self._left and self._left[0][1].arrival <= now and len(taken) != most:
            taken.append(self._left.popleft())
        return taken

    def wait(self, most: int | None = None) -> list[tuple[int, Job]]:
        """The same, and if there are none yet, wait for the next."""
        if self._left:
            early = self._begun + self._left[0][1].arrival - time.perf_counter()
            time.sleep(max(0.0, early))
        return self.due(most)

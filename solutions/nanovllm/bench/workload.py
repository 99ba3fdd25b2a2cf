"""What the engines are asked: requests of token ids, made up from a seed or from real text."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

TEXTS = (
    "Once upon a time there was a small fox who",
    "Tell me a story about a cat.",
    "What is the capital of France?",
    "What is 12 plus 7?",
    "Mia's code is 7342. Ben's code is 1805. What is Mia's code?",
    "One cold morning, a kind dog named Max",
)


@dataclass(frozen=True)
class Job:
    """A prompt and how many tokens to generate; greedy, and no end of sequence counts."""

    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    """Requests that are all there at the start."""

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
            Job(tuple((i + number) % vocab_size for i in job.prompt), job.max_tokens)
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


def text_workload(prompts: Sequence[Sequence[int]], output: tuple[int, int], seed: int) -> Workload:
    """Real prompts, given as ids, with uniform answer lengths."""
    draw = random.Random(seed)
    jobs = tuple(Job(tuple(ids), draw.randint(*output)) for ids in prompts)
    return Workload(f"short texts, seed {seed}", jobs)

"""Throughput and latency of several contestants, in rounds in which each has its turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from nanovllm.bench.contestants import OURS, Ready
from nanovllm.bench.stats import median_ratio, spread
from nanovllm.bench.workload import Workload, random_workload

Report = Callable[[str], None]  # told what has been done, for a progress bar
TIMES = 3  # runs of one request whose median counts: a short one is soon disturbed


@dataclass
class Rounds:
    """One figure of each contestant in each round."""

    unit: str
    higher_is_better: bool
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        """Note a contestant's value of this round."""
        self.values.setdefault(name, []).append(value)

    def each(self, tokens: int) -> "Rounds":
        """Of tokens a second: the seconds that so many take."""
        values = {name: [tokens / rate for rate in its] for name, its in self.values.items()}
        return Rounds("seconds", False, values)

    def summary(self, reference: str = OURS) -> dict[str, dict[str, float | list[float]]]:
        """Median and spread of each, and how often better `reference` is, by rounds."""
        found = {}
        for name, values in self.values.items():
            found[name] = {"median": median(values), "rounds": values, "spread": spread(values)}
            if reference in self.values:
                pair = [self.values[reference], values]
                pair = pair if self.higher_is_better else pair[::-1]
                found[name]["reference_is_better_by"] = median_ratio(*pair)
        return found


def throughput(
    ready: Mapping[str, Ready],
    workload: Workload,
    vocab_size: int,
    rounds: int,
    report: Report,
    look: Callable[[], None] = lambda: None,
) -> tuple[Rounds, dict[str, list[list[int]]]]:
    """Output tokens a second for the whole workload, and each contestant's texts.

    A first, uncounted run of a few requests warms each up. The token ids change from round to
    round, or prefix caches would answer from the second on. `look` is called once a round.
    """
    found, texts = Rounds("output tokens/s", higher_is_better=True), {}
    for name, one in ready.items():
        one.run(workload.first(4))
        report(f"{name} warmed up")
    for number in range(rounds):
        asked = workload.variant(number + 1, vocab_size)
        for name in _turns(list(ready), number):
            answer = ready[name].run(asked)
            tokens = sum(map(len, answer["token_ids"]))
            if tokens != workload.output_tokens:
                raise ValueError(
                    f"{name} gave {tokens} tokens where {workload.output_tokens} were asked for"
                )
            found.add(name, tokens / answer["seconds"])
            texts[name] = answer["token_ids"]
            report(f"round {number + 1}, {name}: {tokens / answer['seconds']:.0f} tokens/s")
        look()
    return found, texts


def latency(
    ready: Mapping[str, Ready],
    vocab_size: int,
    rounds: int,
    report: Report,
    prompt_tokens: int = 256,
    output_tokens: int = 64,
    look: Callable[[], None] = lambda: None,
) -> tuple[Rounds, Rounds]:
    """Seconds to the first token, and seconds for each further one, of one request alone.

    TTFT is the time of a run that generates 1 token. TPOT is what a run of `output_tokens` takes
    longer, for each of its further tokens; both are medians of `TIMES` runs. Every run has a prompt
    of its own: no cache helps. `look` is called once a round.
    """
    ttft, tpot = (Rounds("seconds", higher_is_better=False) for _ in range(2))
    size = (prompt_tokens, prompt_tokens)
    seeds = iter(range(1, 1_000_000))

    def seconds(one: Ready, outputs: int) -> float:
        job = random_workload(vocab_size, 1, size, (outputs, outputs), next(seeds))
        return one.run(job)["seconds"]

    for name, one in ready.items():
        seconds(one, output_tokens)
        report(f"{name} warmed up")
    for number in range(rounds):
        for name in _turns(list(ready), number):
            first, whole = (
                median(seconds(ready[name], outputs) for _ in range(TIMES))
                for outputs in (1, output_tokens)
            )
            ttft.add(name, first)
            tpot.add(name, (whole - first) / (output_tokens - 1))
            report(f"round {number + 1}, {name}: TTFT {1000 * first:.0f} ms")
        look()
    return ttft, tpot


def agreement(texts: Mapping[str, Sequence[Sequence[int]]], reference: str = OURS) -> dict:
    """The share of whole texts, token for token, that each has in common with `reference`."""
    ours = texts.get(reference, [])
    return {
        name: sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(theirs)
        for name, theirs in texts.items()
        if ours
    }


def _turns(names: list[str], number: int) -> list[str]:
    """Another one begins in every round."""
    first = number % len(names)
    return names[first:] + names[:first]

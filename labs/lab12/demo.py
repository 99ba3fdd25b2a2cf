"""24 streams, an engine that is killed three times, and what becomes of their texts; in counts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Admitted, EngineEvent, Preempted
from nanovllm.generation.events import Completion, Finished, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.model.loader import load_model
from nanovllm.resilience.checker import Transcript, complaints, transcripts
from nanovllm.resilience.failures import Failure, Level, Rules
from nanovllm.resilience.faults import FaultyEngine
from nanovllm.resilience.kinds import Fault, Kind
from nanovllm.resilience.ladder import Ladder
from nanovllm.resilience.restarts import RestartLimit
from nanovllm.resilience.supervisor import SupervisedEngine
from nanovllm.resilience.trial import run_trial
from nanovllm.tokenization.tokenizer import Tokenizer

MODELS = Path(__file__).resolve().parents[2] / "models"
DEATHS, SEEDS = (9, 20, 31), 300
PROMPTS = ("Once upon a time", "Mia has a code.", "12 + 30 =", "The cat")
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"presence_penalty": 2.0, "frequency_penalty": 1.0},
    {"min_tokens": 30, "frequency_penalty": 1.5},
    {"stop": ["zebra", "Tom"]},
    {"temperature": 0.7, "ignore_eos": True},
)
MARKS = {Admitted: "▶", TokenGenerated: "━", Preempted: "✖", Finished: "■"}


class Service:
    """The bundled draft model, 24 requests, and one engine after another."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_pretrained(MODELS / "draft")
        self.model = load_model(MODELS / "draft")
        self.asks = [
            (
                self.tokenizer.encode(PROMPTS[n % 4]),
                SamplingParams(**{"max_tokens": 36, "seed": n} | KINDS[n % 6]),
            )
            for n in range(24)
        ]

    def engine(self) -> Engine:
        """A new one."""
        return Engine(self.model, EngineConfig(max_num_seqs=24), tokenizer=self.tokenizer)

    def run(self, engine: Any) -> list[list[EngineEvent]]:
        """The events of each step, until all have ended."""
        for number, (prompt, params) in enumerate(self.asks):
            engine.add_request(prompt, params, request_id=number)
        steps = []
        while engine.has_unfinished:
            steps.append(engine.step())
        return steps

    def supervised(self) -> SupervisedEngine:
        """Yours, around engines that die at three steps."""
        numbers = count()
        faults = [Fault(step, Kind.LOST) for step in DEATHS]
        return SupervisedEngine(
            lambda: FaultyEngine(self.engine(), faults, numbers), RestartLimit(most=5)
        )

    def glued(self, truth: dict[Any, Completion], events: list[list[EngineEvent]]) -> int:
        """Texts that are right when each stream that a death cut is begun anew in another engine,
        its output so far glued to its prompt."""
        right = 0
        told = transcripts(event for step in events[: DEATHS[0]] for event in step)
        engine = self.engine()
        for number, (prompt, params) in enumerate(self.asks):
            mine = told.get((number, 0), Transcript())
            if mine.ends:
                right += 1
                continue
            left = 36 - len(mine.token_ids)
            changed = {"max_tokens": left, "min_tokens": min(params.min_tokens, left)}
            kept = {"seed": number, **KINDS[number % 6]} | changed
            engine.add_request(
                [*prompt, *mine.token_ids], SamplingParams(**kept), request_id=number
            )
        while engine.has_unfinished:
            for event in engine.step():
                if isinstance(event, Finished):
                    before = told.get((event.request_id, 0), Transcript()).text
                    text = before + event.completion.text
                    right += text == truth[event.request_id, 0].text
        return right


def truth_of(steps: Iterable[list[EngineEvent]]) -> dict[Any, Completion]:
    """The completions of a run."""
    ends = [event for step in steps for event in step if isinstance(event, Finished)]
    return {(event.request_id, event.index): event.completion for event in ends}


def cut_short(steps: list[list[EngineEvent]]) -> int:
    """Requests that are open at one of the deaths: who is told an error where a fault fails all."""
    cut = set()
    for death in DEATHS:
        ended = {e.request_id for step in steps[:death] for e in step if isinstance(e, Finished)}
        begun = {e.request_id for step in steps[:death] for e in step if isinstance(e, Admitted)}
        cut |= begun - ended
    return len(cut)


def timeline(steps: list[list[EngineEvent]], rows: int = 24) -> list[str]:
    """A row for each request, a column for each step."""
    lines = [[" "] * len(steps) for _ in range(rows)]
    for column, step in enumerate(steps):
        for event in step:
            if type(event) in MARKS:
                lines[event.request_id][column] = MARKS[type(event)]
    return ["".join(line).rstrip() for line in lines]


def streams(console: Console) -> None:
    """The same 24 requests four times."""
    service = Service()
    plain = service.run(service.engine())
    truth = truth_of(plain)
    engine = service.supervised()
    mine = service.run(engine)
    heard = transcripts(event for step in mine for event in step)
    table = Table(title=f"24 streams, the engine dies at steps {', '.join(map(str, DEATHS))}")
    for column in ("what is done at a death", "texts whole", "engines"):
        table.add_column(column, justify="left" if column.startswith("what") else "right")
    table.add_row("nothing dies", "24 of 24", "1")
    table.add_row("all in the batch get an error", f"{24 - cut_short(plain)} of 24", "4")
    table.add_row("glued to the prompt (one death)", f"{service.glued(truth, plain)} of 24", "2")
    whole = 24 - len(complaints(heard, truth))
    table.add_row("your supervisor", f"{whole} of 24", str(1 + engine.restarts))
    console.print(table)
    console.print(
        "▶ comes into the batch  ━ a token  ✖ the engine died  ■ ended\n", highlight=False
    )
    for number, line in enumerate(timeline(mine)):
        console.print(f"{number:2} {line}", highlight=False, no_wrap=True, crop=False)


def seeds(console: Console) -> None:
    """A whole service in virtual time, with faults of ten kinds."""
    kinds: Counter[str] = Counter()
    wrong, restarts, retries, seconds = 0, 0, 0, 0.0
    for seed in range(SEEDS):
        trial = run_trial(seed)
        faults = trial.faults
        kinds.update(fault.kind.value for fault in (*faults.steps, *faults.wire, *faults.disk))
        wrong += bool(trial.complaints)
        restarts, retries = restarts + trial.restarts, retries + trial.retries
        seconds += trial.seconds
    said = ", ".join(f"{kind} {times}" for kind, times in sorted(kinds.items()))
    console.print(
        f"\n[bold]{SEEDS} seeds in virtual time[/], {seconds / 3600:.1f} hours of it. Faults: "
        f"{said}. {restarts} engines made anew, {retries} requests sent again; seeds with a "
        f"complaint of the checker: {wrong}.\n",
        highlight=False,
    )


def levels(console: Console) -> None:
    """Which level answers a failure that comes every half minute, twelve times."""
    table = Table(title="A failure that comes every 30 s, 12 times: how often each level answers")
    table.add_column("failure")
    for level in Level:
        table.add_column(f"{int(level)} {level.name.lower()}", justify="right")
    for failure in Failure:
        ladder = Ladder(Rules())
        found = Counter(ladder.failed(30.0 * number, failure) for number in range(12))
        table.add_row(failure.value, *(str(found[level] or "–") for level in Level))
    console.print(table)


def main() -> None:
    """Streams, seeds, levels."""
    torch.set_num_threads(1)  # a small model: threads would only wait for one another
    logging.getLogger("nanovllm.resilience").setLevel(logging.ERROR)
    console = Console()
    streams(console)
    seeds(console)
    levels(console)


if __name__ == "__main__":
    main()

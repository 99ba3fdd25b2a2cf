"""What guessing is worth: engines with and without guesses on the same prompts, in turns.

The bound of a row is what its own costs allow: tokens a step / (v + forwards a step * c). v: a
step that verifies over one without guesses, where the very same guesses cost nothing; c: one
forward of the draft model over the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, cast

from nanovllm.batching.events import Stepped
from nanovllm.bench.guessing_rows import NONE, Ids, Row, Run
from nanovllm.bench.scripted import Kept, Scripted, partly_right
from nanovllm.bench.stages import settle
from nanovllm.bench.stats import median_ratio
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.paged_engines import make_engine
from nanovllm.model.transformer import Transformer

if TYPE_CHECKING:
    from nanovllm.batching.engine import Engine
    from nanovllm.speculative.guessing_scheduler import SpeculativeScheduler


# Of engines, in turns: where weights lie moves short steps by some per cent. So those of a set have
# the same, and of a model of more bytes there is one set.
SETS, SMALL = 3, 64 << 20
LEARNING = 8  # rounds in which the policy spends what its trials may lose at first
AGAIN = "again"  # the engine for which guesses come for nothing


@dataclass(frozen=True)
class Way:
    """A way to guess: a speculative_config; with a rate, guesses come for nothing, and that share
    of them is right."""

    name: str
    config: Mapping[str, Any]
    rate: float | None = None

    @property
    def bounded(self) -> bool:
        """Whether there is a bound to be measured."""
        return self.rate is None and not self.config.get("adaptive")


def ways(draft: str | None, guesses: int) -> list[Way]:
    """With a draft model: it alone, prompt lookup alone, and both under the policy; without one,
    guesses of which a given share is right."""
    ngram = {"method": "ngram", "num_speculative_tokens": guesses}
    if draft is None:
        return [
            Way(f"{rate:.0%}{', policy' * policy}", ngram | {"adaptive": policy}, rate)
            for rate in (0.8, 0.6)
            for policy in (False, True)
        ]
    both = {"model": draft, "num_speculative_tokens": guesses}
    return [
        Way("draft", both | {"method": "draft_model"}),
        Way("ngram", ngram),
        Way("policy", both | {"method": "ngram_then_draft", "adaptive": True}),
    ]


class Bench:
    """The engines of one batch size, and what they are asked."""

    def __init__(
        self, model: Transformer, longest: int, batch: int, ways: Sequence[Way], max_tokens: int
    ) -> None:
        most = max(way.config["num_speculative_tokens"] for way in ways)
        self.ways, self.batch, self.most = {way.name: way for way in ways}, batch, most
        self._drafting = 0.0  # processor time in the draft's forwards so far
        self.params = SamplingParams(temperature=0, max_tokens=max_tokens)
        self.texts: list[Ids] = []  # of the newest rows

        configs = {NONE: None} | {way.name: way.config for way in ways}
        if any(way.bounded for way in ways):
            configs[AGAIN] = {"method": "ngram", "num_speculative_tokens": most}
        size = sum(weight.nbytes for weight in model.parameters())
        self.sets = [
            self._engines(model, longest, configs) for _ in range(SETS if size <= SMALL else 1)
        ]

    def _engines(
        self, model: Transformer, longest: int, configs: Mapping[str, Mapping[str, Any] | None]
    ) -> dict[str, Engine]:
        """An engine for each speculative_config."""
        first: dict[str, Any] = {}

        def settled(name: str, engine: Any) -> None:
            if settle(engine):
                engine.share_weights(first.setdefault(name, engine))

        engines = {}
        for name, config in configs.items():
            engines[name] = made = make_engine(model, None, longest, EngineOptions(
                max_num_seqs=self.batch,
                max_num_batched_tokens=max(512, self.batch * (self.most + 1)),
                speculative_config=config,
            ))  # fmt: skip
            settled("target", made)
            draft = _draft_of(made)
            if draft is not None:
                settled("draft", draft.engine)
                self._clock(draft.engine)
        return engines

    def rows(self, kind: str, asked: Sequence[Ids], rounds: int) -> list[Row]:
        """Answer in turns, after rounds in which the policy learns, and guesses are kept."""
        runs: dict[str, list[Run]] = {}
        scripts: dict[str, Scripted] = {}
        texts = self.texts = self._run(self.sets[0][NONE], asked).texts
        for engines in self.sets:
            for name, way in self.ways.items():
                if way.rate is not None:
                    _scheduler(engines[name]).proposer = partly_right(texts, way.rate, self.most)
                for _ in range(LEARNING if way.config.get("adaptive") else 1):
                    self._run(engines[name], asked)
                if way.bounded:
                    scripts[name] = self._script(engines[name], asked)
        for number in range(rounds):
            engines = self.sets[number % len(self.sets)]
            order = [NONE, *self.ways, *(f"{name} {AGAIN}" for name in scripts)]
            Random(number).shuffle(order)  # who comes after whom must not matter
            for name in order:
                engine = engines.get(name)
                if engine is None:
                    engine = engines[AGAIN]
                    _scheduler(engine).proposer = scripts[name.removesuffix(f" {AGAIN}")]
                run = self._run(engine, asked)
                if run.texts != texts:
                    raise ValueError(f"{name} gives other texts")
                runs.setdefault(name, []).append(run)
        return [self._row(kind, name, runs) for name in self.ways]

    def _script(self, engine: Engine, asked: Sequence[Ids]) -> Scripted:
        scheduler = _scheduler(engine)
        proposer = scheduler.proposer
        scheduler.proposer = kept = Kept(proposer)
        self._run(engine, asked)
        scheduler.proposer = proposer
        return Scripted(kept.made)

    def _row(self, kind: str, name: str, runs: Mapping[str, list[Run]]) -> Row:
        alone, own, free = runs[NONE], runs[name], runs.get(f"{name} {AGAIN}")
        step = [run.cpu / run.steps for run in alone]
        steps = median(run.steps for run in own)
        row = Row(
            kind, self.batch, name,
            tokens=alone[0].steps / steps,
            forwards=median(run.forwards for run in own) / steps,
            draft=median_ratio([run.drafting / max(run.forwards, 1) for run in own], step),
            faster=median_ratio([run.cpu for run in alone], [run.cpu for run in own]),
            faster_wall=median_ratio([run.wall for run in alone], [run.wall for run in own]),
            seconds={NONE: [run.cpu for run in alone], name: [run.cpu for run in own]},
        )  # fmt: skip
        if free is not None:
            row.verify = median_ratio([run.cpu / run.steps for run in free], step)
        return row

    def _clock(self, draft: Engine) -> None:
        """Add up what the forwards of a draft take."""
        name = "guess" if hasattr(draft, "guess") else "execute"
        forward = getattr(draft, name)

        def clocked(*args: Any) -> Any:
            start = process_time()
            try:
                return forward(*args)
            finally:
                self._drafting += process_time() - start

        setattr(draft, name, clocked)

    def _run(self, engine: Engine, asked: Sequence[Ids]) -> Run:
        draft, texts, steps = _draft_of(engine), {}, 0
        forwards, drafting = draft.num_forwards if draft else 0, self._drafting
        cpu, wall = process_time(), perf_counter()
        for number, token_ids in enumerate(asked):
            engine.add_request(token_ids, self.params, request_id=number)
        while engine.has_unfinished:
            for event in engine.step():
                if isinstance(event, Finished):
                    texts[event.request_id] = list(event.completion.token_ids)
                steps += isinstance(event, Stepped)
        cpu, wall = process_time() - cpu, perf_counter() - wall
        forwards = draft.num_forwards - forwards if draft else 0
        in_order = [texts[number] for number in range(len(asked))]
        return Run(in_order, steps, cpu, wall, self._drafting - drafting, forwards)


def _draft_of(engine: Engine) -> Any:
    """The DraftModel that guesses for an engine; None where none does."""
    proposer = getattr(engine.scheduler, "proposer", None)
    proposer = getattr(proposer, "draft", proposer)
    return proposer if hasattr(proposer, "num_forwards") else None


def _scheduler(engine: Engine) -> SpeculativeScheduler:
    return cast("SpeculativeScheduler", engine.scheduler)

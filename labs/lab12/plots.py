"""The runs and the pictures of lab 12's notebook; each picture takes data, returns nothing."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np

from grader.student.notebook import movable, style
from nanovllm.batching.events import EngineEvent, Failed
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.resilience.failures import Failure, Level, Rules
from nanovllm.resilience.kinds import Fault, Kind
from nanovllm.resilience.toy_engine import ToyEngine

if TYPE_CHECKING:
    from nanovllm.resilience.breaker import Breaker
    from nanovllm.resilience.relief import Brake

style()
logging.getLogger("nanovllm.resilience").setLevel(logging.ERROR)  # deaths are on purpose here
COLOURS = ("C0", "C2", "C1", "C3", "C4", "C5")


class Forgetful(ToyEngine):
    """An engine with a mistake: it does not know what was told before it came."""

    def add_request(self, *args: Any, **more: Any) -> int:
        """Begins anew, and tells everything again."""
        more.pop("output_token_ids", None)
        return super().add_request(*args, **more)


def killed(
    deaths: Iterable[int], streams: int = 8, poisoned: bool = False
) -> list[tuple[int, list[EngineEvent]]]:
    """Engines made anew so far, and events, of each step of a run under your supervisor.

    The engine dies at the steps `deaths`; and stream 2 kills it at each of its tokens from the
    third on, where it is poisoned.
    """
    from nanovllm.resilience.faults import FaultyEngine
    from nanovllm.resilience.restarts import RestartLimit
    from nanovllm.resilience.supervisor import SupervisedEngine

    class Poisoned(ToyEngine):
        def step(self) -> list[EngineEvent]:
            events = super().step()
            if poisoned and any(
                one.request_id == 2 and len(one.output) > 2 for one in self.running
            ):
                raise RuntimeError("poison")
            return events

    steps, faults = count(), [Fault(step, Kind.CRASH) for step in deaths]
    engine = SupervisedEngine(
        lambda: FaultyEngine(Poisoned(max_num_seqs=5, places=400), faults, steps),
        RestartLimit(most=99),
    )
    draw = random.Random(4)
    for number in range(streams):
        params = SamplingParams(max_tokens=draw.randint(12, 30), ignore_eos=True)
        engine.add_request([5 + number, 9], params, seed=number)
    found = []
    while engine.has_unfinished and len(found) < 400:
        events = engine.step()
        found.append((engine.restarts, events))
    return found


def timeline(steps: Sequence[tuple[int, Sequence[EngineEvent]]], axis: Any = None) -> None:
    """A row for each stream: its tokens, the deaths of engines, its end."""
    alone = axis is None
    if alone:
        _, axis = plt.subplots(figsize=(10, 3), layout="constrained")
    engine, rows = 0, set()
    for column, (restarts, events) in enumerate(steps):
        for event in events:
            row = getattr(event, "request_id", None)
            if row is None:
                continue
            rows.add(row)
            if isinstance(event, TokenGenerated):
                axis.barh(row, 1, left=column, color=COLOURS[engine % 6], height=0.6)
            elif isinstance(event, Failed):
                axis.plot(column, row, "x", color="black", ms=9, mew=2)
            elif isinstance(event, Finished):
                axis.plot(column + 1.3, row, "s", color="black", ms=4)
        if restarts > engine:
            axis.axvline(column + 0.5, color="black", lw=1, ls="--")
            engine = restarts
    axis.set(yticks=sorted(rows), ylim=(max(rows) + 0.6, -0.6), xlabel="step", ylabel="stream")
    axis.set_title(
        f"deaths: {engine} (dashed); one colour an engine; ■ ended, × failed", fontsize=9
    )
    axis.grid(axis="y", visible=False)
    if alone:
        plt.show()


def kill_at() -> None:
    """Move the second death."""

    def draw(axis: Any, second: int) -> None:
        timeline(killed([6, second]), axis)

    movable(draw, second=[9, 12, 20, 26])


def kinds(found: Mapping[str, int], guess: str | None = None) -> None:
    """How many faults of each kind are left in failing seeds, when they have been shrunk."""
    _, axis = plt.subplots(figsize=(8, 2.6), layout="constrained")
    names = [kind.value for kind in Kind if kind is not Kind.NO_START]
    axis.bar(names, [found.get(name, 0) for name in names],
             color=["C3" if name == guess else "C0" for name in names])  # fmt: skip
    axis.set_ylabel("faults left")
    axis.tick_params(axis="x", rotation=30)
    plt.show()


def cuts(found: Mapping[str, Mapping[int, int]], total: int) -> None:
    """Right texts by the token after which a stream was cut, for each kind of parameters."""
    _, axis = plt.subplots(figsize=(8, 3), layout="constrained")
    for number, (name, line) in enumerate(found.items()):
        axis.plot(list(line), [100 * right / total for right in line.values()], "o-", ms=4,
                  color=f"C{number}", label=name)  # fmt: skip
    axis.set(xlabel="cut after so many tokens", ylabel="% of texts that are right", ylim=(-4, 108))
    axis.set_xticks(sorted({cut for line in found.values() for cut in line}))
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    plt.show()


def brake(make: Callable[[float], Brake]) -> None:
    """Move `longest`: the budget while the store is full from second 5 to 50, and looks come."""

    def draw(axis: Any, longest: int) -> None:
        mine, seconds, factors, tired = make(float(longest)), np.arange(0, 80, 0.5), [], []
        for now in seconds:
            if 5 <= now <= 50:
                mine.alarm(float(now))
            factors.append(512 * mine.factor(float(now)))
            tired.append(mine.exhausted(float(now)))
        axis.step(seconds, factors, where="post", label="budget")
        axis.fill_between(seconds, 0, 512, where=tired, color="C1", alpha=0.3, step="post",
                          label="exhausted")  # fmt: skip
        axis.plot([5, 50], [40, 40], color="C3", lw=4, label="full")
        axis.set(xlabel="seconds", ylabel="tokens a step", ylim=(0, 560))
        axis.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.1), fontsize=8)

    movable(draw, longest=[10, 20, 60])


def storm(found: Mapping[str, Sequence[int]]) -> None:
    """Calls a second that reach a server which fails from second 20 to 40."""
    _, axis = plt.subplots(figsize=(8, 3), layout="constrained")
    for number, (name, line) in enumerate(found.items()):
        axis.step(range(len(line)), line, where="post", color=f"C{number}", label=name)
    axis.axvspan(20, 40, color="C3", alpha=0.15, label="the server fails")
    axis.set(xlabel="second", ylabel="calls that reach the server", ylim=(0, None))
    axis.legend(frameon=False, loc="upper right")
    plt.show()


def breaker_states(make: Callable[[], Breaker]) -> None:
    """Your breaker before a server that fails from second 5 to 22: calls every half second."""
    mine, seconds = make(), np.arange(0, 35, 0.5)
    levels, gone = {"closed": 0, "half-open": 1, "open": 2}, []
    states = []
    for now in seconds:
        states.append(levels[mine.state(float(now)).value])
        if mine.allow(float(now)):
            mine.record(float(now), 503 if 5 <= now < 22 else 200)
            gone.append(now)
    _, axis = plt.subplots(figsize=(8, 2.4), layout="constrained")
    axis.step(seconds, states, where="post", color="C0")
    axis.plot(gone, [-0.5] * len(gone), "|", color="black", ms=9, label="a call goes through")
    axis.axvspan(5, 22, color="C3", alpha=0.15, label="the server fails")
    axis.set(yticks=[0, 1, 2], yticklabels=list(levels), xlabel="second", ylim=(-0.9, 2.9))
    axis.legend(frameon=False, loc="upper right", ncols=2)
    plt.show()


def ladder(failed: Callable[[Any, Rules], Callable[[float, Failure], Level]] | Any) -> None:
    """Move the gap between failures: the level that answers each one, then two that come late."""

    def draw(axis: Any, gap: int) -> None:
        for number, failure in enumerate((Failure.OUT_OF_MEMORY, Failure.TIMEOUT, Failure.CRASH)):
            mine = failed(Rules(tries=2, calm=60.0))
            times = [float(gap * n) for n in range(10)]
            times += [times[-1] + 130.0, times[-1] + 330.0]
            levels = [int(mine.failed(time, failure)) + 0.06 * number for time in times]
            axis.step(times, levels, where="post", color=f"C{number}", alpha=0.5)
            axis.plot(times, levels, "o", color=f"C{number}", label=failure.value, ms=5)
        axis.set(yticks=[int(level) for level in Level], xlabel="seconds", ylim=(0.6, 9.2))
        axis.set_yticklabels([f"{int(level)} {level.name.lower()}" for level in Level])
        axis.legend(frameon=False, loc="upper right", fontsize=8)

    movable(draw, gap=[30, 59, 70])

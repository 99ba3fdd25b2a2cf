"""Pictures of a trace and of a plan, as SVG."""

import math
from collections.abc import Callable, Iterable
from io import StringIO
from typing import Any

from nanovllm.observability.analysis import ccdf, counts, gaps
from nanovllm.observability.trace import Trace
from nanovllm.planning.planner import Answer
from nanovllm.planning.summary import times_of

BLUE, ORANGE, GREY = "#2563eb", "#d97706", "#94a3b8"
BINS = 180


def svg(draw: Callable[[Any], None]) -> str:
    """What `draw(axis)` draws, to stand in a page."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "nanovllm", "font.size": 10}):
        figure, axis = pyplot.subplots(figsize=(5.4, 3.3), layout="constrained")
        draw(axis)
        axis.spines[["top", "right"]].set_visible(False)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    found = text.getvalue()
    return found[found.index("<svg") :]


def arrivals(trace: Trace) -> Callable[[Any], None]:
    """Requests a second over the time."""
    times = times_of(trace)
    width = max(1.0, times[-1] / BINS)

    def draw(axis: Any) -> None:
        rates = [number / width for number in counts(times, width)]
        axis.fill_between([i * width / 60 for i in range(len(rates))], rates, step="post",
                          color=BLUE, alpha=0.8, linewidth=0)  # fmt: skip
        axis.axhline(len(times) / max(times[-1], 1.0), color=ORANGE, linewidth=1.2, label="mean")
        axis.set(xlabel="minutes", ylabel="requests a second", ylim=(0, None))
        axis.legend(frameon=False, loc="upper right")

    return draw


def tails(curves: Iterable[tuple[str, list[float]]], unit: str) -> Callable[[Any], None]:
    """Of each, the share of values that are as large or larger; axes in powers of ten."""

    def points(values: list[float]) -> list[tuple[float, float]]:
        steps = ccdf(values)
        shares = [1.0, *(larger for _, larger in steps)]
        return [(x, share) for (x, _), share in zip(steps, shares, strict=False) if x > 0]

    def draw(axis: Any) -> None:
        for (name, values), colour in zip(curves, (BLUE, ORANGE), strict=True):
            found = points(values)
            if found:
                mark = "o" if len(found) < 20 else ""
                axis.step(*zip(*found, strict=True), marker=mark, where="pre",
                          color=colour, label=name)  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel=unit, ylabel="share at least as large")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)

    return draw


def lengths(trace: Trace) -> Callable[[Any], None]:
    """Tails of prompts and answers."""
    both = [("prompts", [float(r.prompt) for r in trace]),
            ("answers", [float(r.output) for r in trace])]  # fmt: skip
    return tails(both, "tokens")


def waits(trace: Trace) -> Callable[[Any], None]:
    """Tails of the gaps between arrivals, beside those of a Poisson process."""
    times = times_of(trace)
    between = gaps(times)
    mean = max(times[-1], 1e-9) / len(between)
    count = len(between)
    poisson = [-mean * math.log(1 - (i + 0.5) / count) for i in range(0, count, count // 500 + 1)]
    return tails([("this trace", between), ("Poisson", poisson)], "seconds to the next request")


def replicas(answer: Answer) -> Callable[[Any], None]:
    """The p99 of the first token by replicas, and the objective."""
    tried = sorted(answer.plan.tried.items())

    def draw(axis: Any) -> None:
        numbers = [number for number, _ in tried]
        axis.plot(numbers, [found.ttft_p99 for _, found in tried], "o-", color=BLUE, label="p99")
        axis.axhline(answer.asked.slo.ttft_p99, color=ORANGE, linewidth=1.2, label="objective")
        axis.axvline(answer.plan.replicas, color=GREY, linestyle=":", label="the plan")
        axis.set(yscale="log", xlabel="replicas", ylabel="seconds to the first token",
                 xticks=numbers)  # fmt: skip
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)

    return draw


def load(answer: Answer) -> Callable[[Any], None]:
    """How busy so many replicas are."""
    tried = sorted(answer.plan.tried.items())

    def draw(axis: Any) -> None:
        names = [str(number) for number, _ in tried]
        colours = [BLUE if n == answer.plan.replicas else GREY for n, _ in tried]
        axis.bar(names, [100 * found.busy for _, found in tried], color=colours)
        axis.set(xlabel="replicas", ylabel="% of the time busy", ylim=(0, 100))

    return draw

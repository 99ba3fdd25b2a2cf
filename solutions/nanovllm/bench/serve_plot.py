"""The picture of a load: who waited when, how latencies spread, how much came out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nanovllm.bench.record import save_figure
from nanovllm.serving.load import Record, Slo

_WAIT, _GOOD, _LATE, _FAILED = "#cbd5e1", "#2563eb", "#d97706", "#b91c1c"
_BINS = 60


def plot(records: Sequence[Record], slo: Slo, title: str, path: Path) -> Path:
    """Requests over time, TTFT and TPOT as shares of requests, tokens/s and open requests."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    start = min(record.due for record in records)
    figure, axes = plt.subplots(2, 2, figsize=(12, 7.2), layout="constrained")
    _requests(axes[0, 0], records, slo, start)
    _flow(axes[0, 1], records, start)
    lines = [r.timeline for r in records if r.error is None and r.token_times]
    _shares(axes[1, 0], "time to first token, ms", [line.ttft for line in lines], slo.ttft)
    tpots = [line.tpot for line in lines if line.tpot is not None]
    _shares(axes[1, 1], "time per output token, ms", tpots, slo.tpot)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=12)
    return save_figure(figure, path)


def _requests(axis: Any, records: Sequence[Record], slo: Slo, start: float) -> None:
    """A bar each: waiting for the first token, then the answer; its colour says how it went."""
    kinds: dict[str, tuple[str, Callable[[Record], bool]]] = {
        "answered" if slo == Slo() else "within the SLO": (_GOOD, slo.met),
        "too slow": (_LATE, lambda r: r.error is None and not slo.met(r)),
        "failed": (_FAILED, lambda r: r.error is not None),
    }
    order = sorted(records, key=lambda record: record.due)
    firsts = [r.token_times[0] if r.token_times else r.ended for r in order]
    waits = [first - record.due for first, record in zip(firsts, order, strict=True)]
    axis.barh(range(len(order)), waits, left=[r.due - start for r in order], height=1.0,
              color=_WAIT, label="waits for its first token")  # fmt: skip
    for label, (colour, belongs) in kinds.items():
        places = [i for i, record in enumerate(order) if belongs(record)]
        if places:
            widths = [order[i].ended - firsts[i] for i in places]
            lefts = [firsts[i] - start for i in places]
            axis.barh(places, widths, left=lefts, height=1.0, color=colour, label=label)
            axis.plot([order[i].ended - start for i in places], places, ",", color=colour)
    axis.set(xlabel="seconds", ylabel="request", ylim=(len(order) - 0.5, -0.5))
    axis.legend(fontsize=8, frameon=False, loc="upper right")


def _flow(axis: Any, records: Sequence[Record], start: float) -> None:
    """Output tokens a second, and how many requests are open."""
    end = max(record.ended for record in records) - start
    times = [when - start for record in records for when in record.token_times]
    width = end / _BINS
    counts = [0] * _BINS
    for when in times:
        counts[min(int(when / width), _BINS - 1)] += 1
    lefts = [i * width for i in range(_BINS)]
    rates = [count / width for count in counts]
    axis.bar(lefts, rates, width=width, align="edge", color=_GOOD, alpha=0.35)
    axis.set(xlabel="seconds", ylabel="output tokens/s", xlim=(0, end))
    moves = sorted([(r.due - start, 1) for r in records] + [(r.ended - start, -1) for r in records])
    numbers, number = [], 0
    for _, change in moves:
        number += change
        numbers.append(number)
    right = axis.twinx()
    right.step([when for when, _ in moves], numbers, where="post", color=_LATE, lw=1.4)
    right.set_ylabel("open requests", color=_LATE)
    right.set_ylim(bottom=0)
    right.spines[["top"]].set_visible(False)


def _shares(axis: Any, label: str, seconds: Sequence[float], limit: float | None) -> None:
    """Share of the requests that took so long at most."""
    values = sorted(1e3 * each for each in seconds)
    shares = [(i + 1) / len(values) for i in range(len(values))]
    axis.step([0, *values], [0, *shares], where="post", color=_GOOD, lw=1.8)
    for share in (0.5, 0.99):
        axis.axhline(share, color=_WAIT, lw=0.8)
        axis.annotate(
            f"p{100 * share:.0f}", (0, share), (4, -9), textcoords="offset points", fontsize=8,
            color="#64748b",
        )  # fmt: skip
    if limit is not None:
        axis.axvline(1e3 * limit, color=_LATE, ls="--", lw=1.4)
        axis.annotate(
            f"SLO {1e3 * limit:g} ms", (1e3 * limit, 0), (-4, 5), textcoords="offset points",
            fontsize=8, ha="right", color=_LATE,
        )  # fmt: skip
    axis.set(xlabel=label, ylabel="share of requests", ylim=(0, 1.04))
    axis.set_xlim(left=0)
